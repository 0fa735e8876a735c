"""A registry that was replaced by an older copy, while the data folder of the broker was not."""

from __future__ import annotations

import logging

import pytest
from tests.unit.broker.asking import produce, read_all
from tests.unit.broker.house import House

from headrace.machines.registry_rebuild import EPOCH_MARGIN
from headrace.model.partition_record import PartitionRecord
from headrace.registry.brokers import decode_number
from headrace.registry.interface import Entry, RegistryUnavailable
from headrace.registry.partitions import decode_partition, partition_key
from headrace.registry.producer_ids import PRODUCER_IDS_KEY
from headrace.wire.messages.init_producer_id import InitProducerIdRequest


def back_up(house: House) -> dict[str, Entry]:
    return dict(house._truth.entries)


def restore(house: House, backup: dict[str, Entry]) -> None:
    house._truth.entries.clear()
    house._truth.entries.update(
        {key: one for key, one in backup.items() if not key.startswith(("/live", "/controller"))}
    )


async def new_producer(house: House) -> int:
    response = await house.ask(InitProducerIdRequest(None, 60_000, -1, -1), 4)
    assert response.error_code == 0
    return int(response.producer_id)


def record(house: House, topic: str) -> PartitionRecord:
    return decode_partition(house._truth.entries[partition_key(house.broker.catalogue.topic(topic).id, 0)])


async def test_a_new_producer_after_an_older_registry_is_not_taken_for_one_that_wrote_before(house: House) -> None:
    await house.make_topic("t")
    backup = back_up(house)
    await produce(house, "t", b"a", producer_id=await new_producer(house), producer_epoch=0, base_sequence=0)
    await house.close()
    restore(house, backup)
    await house.open()
    await produce(house, "t", b"b", producer_id=await new_producer(house), producer_epoch=0, base_sequence=0)
    assert await read_all(house, "t") == [b"a", b"b"]


async def test_a_producer_id_that_was_handed_out_and_never_used_is_not_handed_out_again(house: House) -> None:
    backup = back_up(house)
    given = await new_producer(house)
    house.kill(keep_page_cache=False)
    restore(house, backup)
    await house.open()
    assert await new_producer(house) > given


async def test_producer_ids_in_the_logs_count_where_the_folder_has_no_file_of_them(house: House) -> None:
    """The folder was last used by a version that did not write it, or another broker handed them out."""
    await house.make_topic("t")
    backup = back_up(house)
    given = await new_producer(house)
    await produce(house, "t", b"a", producer_id=given, producer_epoch=0, base_sequence=0)
    await house.close()
    house.host.disk.remove("/data/producer-ids")
    restore(house, backup)
    await house.open()
    assert await new_producer(house) > given


async def test_an_older_registry_gets_leader_epochs_beyond_all_that_were_used(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.make_topic("written")
    await house.make_topic("idle")
    backup = back_up(house)
    for _ in range(3):
        await house.restart()
    await produce(house, "written", b"a")
    used = {topic: record(house, topic).leader_epoch for topic in ("written", "idle")}
    assert EPOCH_MARGIN > min(used.values()) > 0
    await house.close()
    restore(house, backup)
    with caplog.at_level(logging.WARNING):
        await house.open()
    assert "the registry is older than this data folder" in caplog.text
    for topic, epoch in used.items():
        assert record(house, topic).leader_epoch > epoch + EPOCH_MARGIN // 2
    await produce(house, "written", b"b")
    assert await read_all(house, "written") == [b"a", b"b"]


async def test_a_log_with_a_higher_epoch_than_its_record_is_evidence_enough(house: House) -> None:
    await house.make_topic("t")
    backup = back_up(house)
    await house.restart()
    await produce(house, "t", b"a")
    used = record(house, "t").leader_epoch
    await house.close()
    starts = {key: one for key, one in house._truth.entries.items() if key.startswith("/brokers")}
    restore(house, {**backup, **starts})
    await house.open()
    assert record(house, "t").leader_epoch > used


async def test_a_crash_before_the_registry_is_raised_leaves_the_evidence_to_the_next_start(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.make_topic("idle")
    backup = back_up(house)
    for _ in range(3):
        await house.restart()
    used = record(house, "idle").leader_epoch
    await house.close()
    restore(house, backup)

    async def crash(*_: object) -> None:
        raise RegistryUnavailable("crash")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.broker.broker.raise_older_registry", crash)
        with pytest.raises(RegistryUnavailable):
            await house.open()
        house.kill()
    await house.open()
    assert record(house, "idle").leader_epoch > used + EPOCH_MARGIN // 2


async def test_a_restart_on_the_present_registry_raises_nothing(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", producer_id=await new_producer(house), producer_epoch=0, base_sequence=0)
    counter = house._truth.entries[PRODUCER_IDS_KEY]
    with caplog.at_level(logging.WARNING):
        await house.restart()
        house.kill(keep_page_cache=False)
        await house.open()
    assert "older" not in caplog.text
    assert decode_number(house._truth.entries[PRODUCER_IDS_KEY]) == decode_number(counter)
    assert record(house, "t").leader_epoch < EPOCH_MARGIN
