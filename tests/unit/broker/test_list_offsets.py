"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import TIMESTAMP_MS, batch, produce, produce_request, read_all
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.storage.copying import check_copied
from headrace.wire.batch import stamp
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
NOT_AVAILABLE = 78


async def look_up(
    house: House, timestamp: int, *, topic: str = "t", partition: int = 0, epoch: int = -1, version: int = 11
) -> tuple[int, int, int, int]:
    """Error, offset, timestamp and leader epoch."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    ((answer,),) = [found.partitions for found in (await house.ask(request, version)).topics]
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


async def test_the_special_timestamps(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", timestamp_ms=TIMESTAMP_MS)
    await produce(house, "t", b"b", timestamp_ms=TIMESTAMP_MS + 50)
    await produce(house, "t", b"c", timestamp_ms=TIMESTAMP_MS + 10)
    assert await look_up(house, LATEST) == (0, 3, -1, 0)
    assert await look_up(house, EARLIEST) == (0, 0, -1, 0)
    assert await look_up(house, MAX_TIMESTAMP) == (0, 1, TIMESTAMP_MS + 50, 0)
    assert await look_up(house, EARLIEST_LOCAL) == (0, 0, -1, 0)
    assert await look_up(house, LATEST_TIERED) == (0, -1, -1, -1)
    assert await look_up(house, EARLIEST_PENDING) == (0, 0, -1, 0)
    assert (await look_up(house, -7))[0] == 35


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_is_answered(house: House, version: int) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    assert (await look_up(house, LATEST, version=version))[:2] == (0, 1)


async def test_the_first_record_at_or_after_a_time(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b", timestamp_ms=TIMESTAMP_MS)
    await produce(house, "t", b"c", timestamp_ms=TIMESTAMP_MS + 100)
    assert (await look_up(house, 0))[:3] == (0, 0, TIMESTAMP_MS)
    assert (await look_up(house, TIMESTAMP_MS + 1))[:3] == (0, 1, TIMESTAMP_MS + 1)
    assert (await look_up(house, TIMESTAMP_MS + 2))[:3] == (0, 2, TIMESTAMP_MS + 100)
    assert await look_up(house, TIMESTAMP_MS + 101) == (0, -1, -1, -1)


async def test_an_empty_log(house: House) -> None:
    await house.make_topic("t")
    assert await look_up(house, LATEST) == (0, 0, -1, 0)
    assert await look_up(house, EARLIEST) == (0, 0, -1, 0)
    assert await look_up(house, MAX_TIMESTAMP) == (0, -1, -1, -1)
    assert await look_up(house, TIMESTAMP_MS) == (0, -1, -1, -1)


async def test_what_is_not_committed_is_not_seen(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", timestamp_ms=TIMESTAMP_MS)
    house.host.disk.delay_seconds = (1.0, 1.0)
    asking = house.begin(produce_request({("t", 0): batch(b"b", timestamp_ms=TIMESTAMP_MS + 9)}), 9)
    await house.turn()
    assert house.partition("t").log.end_offset == 2
    assert (await look_up(house, LATEST))[1] == 1
    assert (await look_up(house, TIMESTAMP_MS + 5))[1] == -1
    await asking


async def test_the_epoch_is_that_of_the_record_and_not_the_present_one(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", timestamp_ms=TIMESTAMP_MS)
    await house.restart()
    await produce(house, "t", b"b", timestamp_ms=TIMESTAMP_MS + 10)
    await house.restart()
    assert await look_up(house, EARLIEST) == (0, 0, -1, 0)
    assert await look_up(house, TIMESTAMP_MS + 5) == (0, 1, TIMESTAMP_MS + 10, 1)
    assert await look_up(house, LATEST) == (0, 2, -1, 2)


async def test_errors_are_told(house: House) -> None:
    await house.make_topic("t")
    await house.restart()
    assert (await look_up(house, LATEST, topic="missing"))[0] == 3
    assert (await look_up(house, LATEST, partition=4))[0] == 3
    assert await look_up(house, LATEST, epoch=0) == (74, -1, -1, -1)
    assert (await look_up(house, LATEST, epoch=1))[0] == 0
    assert (await look_up(house, LATEST, epoch=2))[0] == 75


async def end_of(house: House, epoch: int, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
    """Error, epoch and end offset."""
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])
    ((answer,),) = [found.partitions for found in (await house.ask(request, 4)).topics]
    return answer.error_code, answer.leader_epoch, answer.end_offset


async def test_the_end_of_an_epoch(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b")
    await house.restart()
    await house.restart()
    await produce(house, "t", b"c")
    await house.restart()
    assert await end_of(house, 0) == (0, 0, 2)
    assert await end_of(house, 1) == (0, 0, 2), "nothing was written in it"
    assert await end_of(house, 2) == (0, 2, 3)
    assert await end_of(house, 3) == (0, 3, 3)
    assert await end_of(house, 9) == (0, -1, -1)
    assert (await end_of(house, 0, current=1))[0] == 74
    assert (await end_of(house, 0, current=9))[0] == 75
    assert (await end_of(house, 0, partition=9))[0] == 3


@in_town()
async def test_a_new_leader_does_not_tell_of_an_end_before_it_knows_it(town: Town) -> None:
    """Its high watermark lags by a fetch: consumers would see the end go back (I8)."""
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    for house in town.up:
        town.isolate(house.node_id)
    follower = town.replica(2, "t")
    follower.log.append_copied(check_copied(memoryview(stamped(b"b"))))
    await town.move_lead("t", 2)
    assert (follower.epoch_start, follower.high_watermark) == (2, 1)
    assert (await look_up(town[2], LATEST))[0] == NOT_AVAILABLE
    assert (await look_up(town[2], MAX_TIMESTAMP))[0] == NOT_AVAILABLE
    assert (await look_up(town[2], TIMESTAMP_MS + 1))[0] == NOT_AVAILABLE, "a newer message may be committed"
    assert (await look_up(town[2], EARLIEST))[:2] == (0, 0)
    assert await read_all(town[2], "t") == [b"a"], "what is known to be committed can be read"
    town.heal()
    await town.until_alike("t")
    assert (await look_up(town[2], LATEST))[:2] == (0, 2)


def stamped(value: bytes) -> bytearray:
    """A batch as the leader of epoch 0 has it at offset 1."""
    data = batch(value)
    stamp(memoryview(data), 1, 0)
    return data
