"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import TIMESTAMP_MS, batch, produce, produce_request, read_all
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import (
    FencedLeaderEpoch,
    OffsetNotAvailable,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from headrace.storage.log.follower_batches import check_follower_batches
from headrace.wire.batches.batch import assign_offset_and_epoch
from headrace.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


async def look_up(
    simulated_broker: SimulatedBroker,
    timestamp: int,
    *,
    topic: str = "t",
    partition: int = 0,
    epoch: int = -1,
    version: int = 11,
) -> tuple[int, int, int, int]:
    """Error, offset, timestamp and leader epoch."""
    requested = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[requested])])
    ((response,),) = [found.partitions for found in (await simulated_broker.send(request, version)).topics]
    return response.error_code, response.offset, response.timestamp, response.leader_epoch


async def test_the_special_timestamps(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", timestamp_ms=TIMESTAMP_MS)
    await produce(simulated_broker, "t", b"b", timestamp_ms=TIMESTAMP_MS + 50)
    await produce(simulated_broker, "t", b"c", timestamp_ms=TIMESTAMP_MS + 10)
    assert await look_up(simulated_broker, LATEST) == (0, 3, -1, 0)
    assert await look_up(simulated_broker, EARLIEST) == (0, 0, -1, 0)
    assert await look_up(simulated_broker, MAX_TIMESTAMP) == (0, 1, TIMESTAMP_MS + 50, 0)
    assert await look_up(simulated_broker, EARLIEST_LOCAL) == (0, 0, -1, 0)
    assert await look_up(simulated_broker, LATEST_TIERED) == (0, -1, -1, -1)
    assert await look_up(simulated_broker, EARLIEST_PENDING) == (0, 0, -1, 0)
    assert (await look_up(simulated_broker, -7))[0] == UnsupportedVersion.code


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_gets_a_response(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    assert (await look_up(simulated_broker, LATEST, version=version))[:2] == (0, 1)


async def test_the_first_record_at_or_after_a_time(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b", timestamp_ms=TIMESTAMP_MS)
    await produce(simulated_broker, "t", b"c", timestamp_ms=TIMESTAMP_MS + 100)
    assert (await look_up(simulated_broker, 0))[:3] == (0, 0, TIMESTAMP_MS)
    assert (await look_up(simulated_broker, TIMESTAMP_MS + 1))[:3] == (0, 1, TIMESTAMP_MS + 1)
    assert (await look_up(simulated_broker, TIMESTAMP_MS + 2))[:3] == (0, 2, TIMESTAMP_MS + 100)
    assert await look_up(simulated_broker, TIMESTAMP_MS + 101) == (0, -1, -1, -1)


async def test_an_empty_log(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert await look_up(simulated_broker, LATEST) == (0, 0, -1, 0)
    assert await look_up(simulated_broker, EARLIEST) == (0, 0, -1, 0)
    assert await look_up(simulated_broker, MAX_TIMESTAMP) == (0, -1, -1, -1)
    assert await look_up(simulated_broker, TIMESTAMP_MS) == (0, -1, -1, -1)


async def test_uncommitted_records_are_not_found(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", timestamp_ms=TIMESTAMP_MS)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    pending = simulated_broker.begin_send(produce_request({("t", 0): batch(b"b", timestamp_ms=TIMESTAMP_MS + 9)}), 9)
    await simulated_broker.run_ready_tasks()
    assert simulated_broker.partition("t").log.end_offset == 2
    assert (await look_up(simulated_broker, LATEST))[1] == 1
    assert (await look_up(simulated_broker, TIMESTAMP_MS + 5))[1] == -1
    await pending


async def test_the_epoch_is_that_of_the_record_and_not_the_present_one(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", timestamp_ms=TIMESTAMP_MS)
    await simulated_broker.restart()
    await produce(simulated_broker, "t", b"b", timestamp_ms=TIMESTAMP_MS + 10)
    await simulated_broker.restart()
    assert await look_up(simulated_broker, EARLIEST) == (0, 0, -1, 0)
    assert await look_up(simulated_broker, TIMESTAMP_MS + 5) == (0, 1, TIMESTAMP_MS + 10, 1)
    assert await look_up(simulated_broker, LATEST) == (0, 2, -1, 2)


async def test_errors_are_returned(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await simulated_broker.restart()
    assert (await look_up(simulated_broker, LATEST, topic="missing"))[0] == UnknownTopicOrPartition.code
    assert (await look_up(simulated_broker, LATEST, partition=4))[0] == UnknownTopicOrPartition.code
    assert await look_up(simulated_broker, LATEST, epoch=0) == (FencedLeaderEpoch.code, -1, -1, -1)
    assert (await look_up(simulated_broker, LATEST, epoch=1))[0] == 0
    assert (await look_up(simulated_broker, LATEST, epoch=2))[0] == UnknownLeaderEpoch.code


async def end_of(
    simulated_broker: SimulatedBroker, epoch: int, current: int = -1, partition: int = 0
) -> tuple[int, int, int]:
    """Error, epoch and end offset."""
    requested = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[requested])])
    ((response,),) = [found.partitions for found in (await simulated_broker.send(request, 4)).topics]
    return response.error_code, response.leader_epoch, response.end_offset


async def test_the_end_of_an_epoch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b")
    await simulated_broker.restart()
    await simulated_broker.restart()
    await produce(simulated_broker, "t", b"c")
    await simulated_broker.restart()
    assert await end_of(simulated_broker, 0) == (0, 0, 2)
    assert await end_of(simulated_broker, 1) == (0, 0, 2), "nothing was written in it"
    assert await end_of(simulated_broker, 2) == (0, 2, 3)
    assert await end_of(simulated_broker, 3) == (0, 3, 3)
    assert await end_of(simulated_broker, 9) == (0, -1, -1)
    assert (await end_of(simulated_broker, 0, current=1))[0] == FencedLeaderEpoch.code
    assert (await end_of(simulated_broker, 0, current=9))[0] == UnknownLeaderEpoch.code
    assert (await end_of(simulated_broker, 0, partition=9))[0] == UnknownTopicOrPartition.code


@in_simulated_cluster()
async def test_a_new_leader_returns_no_end_offset_before_it_knows_the_high_watermark(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Its high watermark lags by a fetch: consumers would see the end go back (I8)."""
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    for simulated_broker in simulated_cluster.up:
        simulated_cluster.isolate(simulated_broker.node_id)
    follower = simulated_cluster.replica(2, "t")
    follower.log.append_as_follower(check_follower_batches(memoryview(stamped(b"b"))))
    await simulated_cluster.move_leadership("t", 2)
    assert (follower.epoch_start, follower.high_watermark) == (2, 1)
    assert (await look_up(simulated_cluster[2], LATEST))[0] == OffsetNotAvailable.code
    assert (await look_up(simulated_cluster[2], MAX_TIMESTAMP))[0] == OffsetNotAvailable.code
    assert (await look_up(simulated_cluster[2], TIMESTAMP_MS + 1))[0] == OffsetNotAvailable.code, (
        "a newer message may be committed"
    )
    assert (await look_up(simulated_cluster[2], EARLIEST))[:2] == (0, 0)
    assert await read_all(simulated_cluster[2], "t") == [b"a"], "what is known to be committed can be read"
    simulated_cluster.heal()
    await simulated_cluster.wait_until_identical("t")
    assert (await look_up(simulated_cluster[2], LATEST))[:2] == (0, 2)


def stamped(value: bytes) -> bytearray:
    """A batch as the leader of epoch 0 has it at offset 1."""
    data = batch(value)
    assign_offset_and_epoch(memoryview(data), 1, 0)
    return data
