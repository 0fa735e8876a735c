"""Who is up and who decides, as keys; and the list of those that are to hold nothing."""

from __future__ import annotations

import msgspec
import pytest

from headrace.model.registry_records import BrokerRecord, ControllerRecord
from headrace.registry.brokers import (
    DRAINED_KEY,
    advance_operation,
    decode_number,
    drain,
    drained_key,
    epoch_key,
    live_key,
)
from headrace.registry.interface import BadVersion, Create, RegistryDamaged, RegistryEntry, Set, decode_json
from headrace.testkit.registry import SimRegistry


def test_records_come_back_as_they_were_written() -> None:
    broker = BrokerRecord(node_id=3, epoch=7, host="h", port=1, rack="r", is_draining=True)
    assert decode_json(RegistryEntry(live_key(3), msgspec.json.encode(broker), 0), BrokerRecord) == broker
    controller = ControllerRecord(node_id=3, epoch=9)
    assert decode_json(RegistryEntry("/controller", msgspec.json.encode(controller), 0), ControllerRecord) == controller


def test_what_is_no_record_is_named_as_damage() -> None:
    for kind in (BrokerRecord, ControllerRecord):
        with pytest.raises(RegistryDamaged, match="/some/key"):
            decode_json(RegistryEntry("/some/key", b"{", 0), kind)
    with pytest.raises(RegistryDamaged, match="/some/key"):
        decode_number(RegistryEntry("/some/key", b"-1", 0))


def test_a_counter_that_is_not_there_stands_at_nothing_and_is_made() -> None:
    assert decode_number(None) == 0
    assert advance_operation("/n", None, 1) == Create("/n", b"1")
    entry = RegistryEntry("/n", b"41", 6)
    assert decode_number(entry) == 41
    assert advance_operation("/n", entry, 42) == Set("/n", b"42", 6)


async def test_two_who_advance_a_counter_do_not_get_the_same_number() -> None:
    registry = SimRegistry()
    await registry.commit([advance_operation(epoch_key(1), None, 1)])
    entry = await registry.get(epoch_key(1))
    await registry.commit([advance_operation(epoch_key(1), entry, 2)])
    with pytest.raises(BadVersion):
        await registry.commit([advance_operation(epoch_key(1), entry, 2)])


async def test_to_drain_a_broker_twice_and_to_use_it_again_twice_is_no_error() -> None:
    registry = SimRegistry()
    for _ in range(2):
        await drain(registry, 2, is_drained=True)
        assert [entry.key for entry in await registry.entries(DRAINED_KEY)] == [drained_key(2)]
    for _ in range(2):
        await drain(registry, 2, is_drained=False)
        assert await registry.entries(DRAINED_KEY) == []
