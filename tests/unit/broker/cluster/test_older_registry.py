"""The registry was restored from an older copy, while the data folder of the broker was not."""

from __future__ import annotations

import logging

import pytest
from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.machines.controller.registry_rebuild import EPOCH_MARGIN
from headrace.model.registry_records import PartitionRecord
from headrace.registry.brokers import decode_number
from headrace.registry.counters import PRODUCER_IDS_KEY
from headrace.registry.interface import RegistryEntry, RegistryUnavailable
from headrace.registry.topics import decode_partition, partition_key
from headrace.wire.messages.transactions import InitProducerIdRequest


def back_up(simulated_broker: SimulatedBroker) -> dict[str, RegistryEntry]:
    return dict(simulated_broker.registry_ensemble.entries)


def restore(simulated_broker: SimulatedBroker, backup: dict[str, RegistryEntry]) -> None:
    simulated_broker.registry_ensemble.entries.clear()
    simulated_broker.registry_ensemble.entries.update(
        {key: one for key, one in backup.items() if not key.startswith(("/live", "/controller"))}
    )


async def new_producer(simulated_broker: SimulatedBroker) -> int:
    response = await simulated_broker.send(InitProducerIdRequest(None, 60_000, -1, -1), 4)
    assert response.error_code == 0
    return int(response.producer_id)


def record(simulated_broker: SimulatedBroker, topic: str) -> PartitionRecord:
    return decode_partition(
        simulated_broker.registry_ensemble.entries[partition_key(simulated_broker.broker.catalogue.topic(topic).id, 0)]
    )


async def test_a_new_producer_after_a_registry_rollback_gets_an_unused_id(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    backup = back_up(simulated_broker)
    await produce(
        simulated_broker, "t", b"a", producer_id=await new_producer(simulated_broker), producer_epoch=0, base_sequence=0
    )
    await simulated_broker.close()
    restore(simulated_broker, backup)
    await simulated_broker.open()
    await produce(
        simulated_broker, "t", b"b", producer_id=await new_producer(simulated_broker), producer_epoch=0, base_sequence=0
    )
    assert await read_all(simulated_broker, "t") == [b"a", b"b"]


async def test_a_producer_id_that_was_handed_out_and_never_used_is_not_handed_out_again(
    simulated_broker: SimulatedBroker,
) -> None:
    backup = back_up(simulated_broker)
    given = await new_producer(simulated_broker)
    simulated_broker.kill(keep_page_cache=False)
    restore(simulated_broker, backup)
    await simulated_broker.open()
    assert await new_producer(simulated_broker) > given


async def test_producer_ids_in_the_logs_count_where_the_folder_has_no_file_of_them(
    simulated_broker: SimulatedBroker,
) -> None:
    """The folder was last used by a version that did not write it, or another broker handed them out."""
    await simulated_broker.create_topic("t")
    backup = back_up(simulated_broker)
    given = await new_producer(simulated_broker)
    await produce(simulated_broker, "t", b"a", producer_id=given, producer_epoch=0, base_sequence=0)
    await simulated_broker.close()
    simulated_broker.host.disk.remove("/data/producer-ids")
    restore(simulated_broker, backup)
    await simulated_broker.open()
    assert await new_producer(simulated_broker) > given


async def test_an_older_registry_gets_leader_epochs_beyond_all_that_were_used(
    simulated_broker: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await simulated_broker.create_topic("written")
    await simulated_broker.create_topic("idle")
    backup = back_up(simulated_broker)
    for _ in range(3):
        await simulated_broker.restart()
    await produce(simulated_broker, "written", b"a")
    used = {topic: record(simulated_broker, topic).leader_epoch for topic in ("written", "idle")}
    assert EPOCH_MARGIN > min(used.values()) > 0
    await simulated_broker.close()
    restore(simulated_broker, backup)
    with caplog.at_level(logging.WARNING):
        await simulated_broker.open()
    assert "the registry is older than this data folder" in caplog.text
    for topic, epoch in used.items():
        assert record(simulated_broker, topic).leader_epoch > epoch + EPOCH_MARGIN // 2
    await produce(simulated_broker, "written", b"b")
    assert await read_all(simulated_broker, "written") == [b"a", b"b"]


async def test_a_log_with_a_higher_epoch_than_its_record_is_evidence_enough(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    backup = back_up(simulated_broker)
    await simulated_broker.restart()
    await produce(simulated_broker, "t", b"a")
    used = record(simulated_broker, "t").leader_epoch
    await simulated_broker.close()
    starts = {key: one for key, one in simulated_broker.registry_ensemble.entries.items() if key.startswith("/brokers")}
    restore(simulated_broker, {**backup, **starts})
    await simulated_broker.open()
    assert record(simulated_broker, "t").leader_epoch > used


async def test_a_crash_before_the_registry_is_raised_leaves_the_evidence_to_the_next_start(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulated_broker.create_topic("idle")
    backup = back_up(simulated_broker)
    for _ in range(3):
        await simulated_broker.restart()
    used = record(simulated_broker, "idle").leader_epoch
    await simulated_broker.close()
    restore(simulated_broker, backup)

    async def crash(*_: object) -> None:
        raise RegistryUnavailable("crash")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.broker.broker.raise_older_registry", crash)
        with pytest.raises(RegistryUnavailable):
            await simulated_broker.open()
        simulated_broker.kill()
    await simulated_broker.open()
    assert record(simulated_broker, "idle").leader_epoch > used + EPOCH_MARGIN // 2


async def test_a_restart_with_the_current_registry_raises_no_counters(
    simulated_broker: SimulatedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await simulated_broker.create_topic("t")
    await produce(
        simulated_broker, "t", b"a", producer_id=await new_producer(simulated_broker), producer_epoch=0, base_sequence=0
    )
    counter = simulated_broker.registry_ensemble.entries[PRODUCER_IDS_KEY]
    with caplog.at_level(logging.WARNING):
        await simulated_broker.restart()
        simulated_broker.kill(keep_page_cache=False)
        await simulated_broker.open()
    assert "older" not in caplog.text
    assert decode_number(simulated_broker.registry_ensemble.entries[PRODUCER_IDS_KEY]) == decode_number(counter)
    assert record(simulated_broker, "t").leader_epoch < EPOCH_MARGIN
