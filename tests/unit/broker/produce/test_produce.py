"""Produce: partitions are independent, order is kept, and responses follow the commit."""

from __future__ import annotations

import asyncio
import errno
import hashlib

import pytest
from tests.unit.broker.broker_requests import (
    batch,
    fetch_request,
    fetched_partitions,
    only_response,
    partition_responses,
    produce,
    produce_request,
    read_all,
    send,
)
from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.produce.sequence_gap_guard import GAP_TIMEOUT_SECONDS
from headrace.model.errors import (
    CorruptMessage,
    DiskNearlyFull,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopic,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
    StorageFailure,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.wire.batches.batch import parse_header, set_crc
from headrace.wire.batches.compression import GZIP, NONE, ZSTD
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


async def test_produced_records_survive_every_kind_of_restart(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert await produce(simulated_broker, "t", b"a", b"b") == 0
    assert await produce(simulated_broker, "t", b"c") == 2
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]
    await simulated_broker.restart()
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]
    simulated_broker.kill()
    await simulated_broker.open()
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("version", range(3, 13))
async def test_every_version_gets_a_response(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    response = await send(simulated_broker, "t", batch(b"a"), version=version)
    assert (response.error_code, response.base_offset) == (0, 0)
    assert response.log_start_offset == (0 if version >= 5 else -1)


async def test_version_13_names_topics_by_id(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    topic = simulated_broker.broker.catalogue.topic("t")
    data = [PartitionProduceData(index=0, records=memoryview(batch(b"a")))]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic.id)])
    request.topic_data[0].partition_data = data
    response = await simulated_broker.send(request, 13)
    assert (response.responses[0].topic_id, only_response(response).error_code) == (topic.id, 0)
    request.topic_data[0].topic_id = simulated_broker.host.entropy.uuid()
    assert only_response(await simulated_broker.send(request, 13)).error_code == UnknownTopicId.code


async def test_nothing_is_acknowledged_before_it_is_on_disk(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    pending = simulated_broker.begin_send(produce_request({("t", 0): batch(b"a")}), 9)
    await simulated_broker.run_ready_tasks()
    partition = simulated_broker.partition("t")
    assert (partition.log.end_offset, partition.high_watermark) == (1, 0)
    assert not pending.done()
    await pending
    assert partition.log.flushed_offset == partition.high_watermark == 1


@pytest.mark.parametrize("acks", [1, -1])
async def test_acks_1_waits_for_the_disk_like_acks_all(simulated_broker: SimulatedBroker, acks: int) -> None:
    await simulated_broker.create_topic("t")
    await send(simulated_broker, "t", batch(b"a"), acks=acks)
    assert simulated_broker.partition("t").log.flushed_offset == 1


async def test_some_partitions_may_fail_where_others_succeed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    await simulated_broker.create_topic("compacted", cleanup_policy="compact")
    damaged = batch(b"x")
    damaged[-1] ^= 1
    request = produce_request(
        {
            ("t", 0): batch(b"a"),
            ("t", 1): damaged,
            ("t", 2): batch(b"c"),
            ("t", -1): batch(b"c"),
            ("missing", 0): batch(b"d"),
            ("compacted", 0): batch(b"no key"),
        }
    )
    codes = {
        key: response.error_code
        for key, response in partition_responses(await simulated_broker.send(request, 9)).items()
    }
    assert codes == {
        ("t", 0): 0,
        ("t", 1): CorruptMessage.code,
        ("t", 2): UnknownTopicOrPartition.code,
        ("t", -1): UnknownTopicOrPartition.code,
        ("missing", 0): UnknownTopicOrPartition.code,
        ("compacted", 0): InvalidRecord.code,
    }
    assert await read_all(simulated_broker, "t") == [b"a"]


async def test_an_error_has_a_message_and_no_offset(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", max_message_bytes="100")
    response = await send(simulated_broker, "t", batch(b"x" * 100))
    assert (response.error_code, response.base_offset, response.log_start_offset) == (MessageTooLarge.code, -1, -1)
    assert response.error_message is not None
    assert "max.message.bytes of the topic is 100" in response.error_message


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_other_acks_values_are_rejected(simulated_broker: SimulatedBroker, acks: int) -> None:
    await simulated_broker.create_topic("t")
    assert (await send(simulated_broker, "t", batch(b"a"), acks=acks)).error_code == InvalidRequiredAcks.code
    assert simulated_broker.partition("t").log.end_offset == 0


async def test_internal_topics_are_not_for_clients(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.broker.offsets_log.ensure()
    assert (await send(simulated_broker, "__consumer_offsets", batch(b"a", key=b"k"))).error_code == InvalidTopic.code


async def test_acks_0_is_appended_without_a_response(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    connection = FakeConnection()
    request = produce_request({("t", 0): batch(b"a")}, acks=0)
    assert await simulated_broker.send(request, 9, connection) is None
    assert not connection.closed
    assert not simulated_broker.partition("t")._commit_waits
    await simulated_broker.pass_time(0.1)
    assert await read_all(simulated_broker, "t") == [b"a"]


async def test_an_error_with_acks_0_closes_the_connection(simulated_broker: SimulatedBroker) -> None:
    connection = FakeConnection()
    assert await simulated_broker.send(produce_request({("missing", 0): batch(b"a")}, acks=0), 9, connection) is None
    assert connection.closed


# Idempotent producers


def numbered(*values: bytes, sequence: int, epoch: int = 0) -> bytearray:
    return batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


async def test_a_duplicate_gets_its_first_offset(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"other")
    for _ in range(2):
        first = await send(simulated_broker, "t", numbered(b"a", b"b", sequence=0))
        second = await send(simulated_broker, "t", numbered(b"c", sequence=2))
        assert (first.base_offset, second.base_offset) == (1, 3)
    assert await read_all(simulated_broker, "t") == [b"other", b"a", b"b", b"c"]
    await simulated_broker.restart()
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).base_offset == 3
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).base_offset == 3


async def test_a_duplicate_waits_until_the_original_is_committed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    original = simulated_broker.begin_send(produce_request({("t", 0): numbered(b"a", sequence=0)}), 9)
    duplicate = simulated_broker.begin_send(produce_request({("t", 0): numbered(b"a", sequence=0)}), 9)
    await simulated_broker.run_ready_tasks()
    assert simulated_broker.partition("t").log.end_offset == 1
    assert not duplicate.done()
    assert only_response(await duplicate).base_offset == 0
    assert simulated_broker.partition("t").high_watermark == 1
    assert only_response(await original).base_offset == 0


async def test_a_sequence_gap_or_an_old_epoch_is_rejected(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await send(simulated_broker, "t", numbered(b"a", sequence=0, epoch=1))
    assert (
        await send(simulated_broker, "t", numbered(b"c", sequence=2, epoch=1))
    ).error_code == OutOfOrderSequence.code
    assert (
        await send(simulated_broker, "t", numbered(b"b", sequence=1, epoch=0))
    ).error_code == InvalidProducerEpoch.code
    assert (await send(simulated_broker, "t", numbered(b"b", sequence=1, epoch=1))).error_code == 0


async def test_a_rejected_batch_does_not_change_the_producer_state(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    simulated_broker.host.disk.fail_next("append", "*.log", errno.ENOSPC)
    assert (await send(simulated_broker, "t", numbered(b"a", sequence=0))).error_code == StorageFailure.code
    assert (await send(simulated_broker, "t", numbered(b"a", sequence=0))).base_offset == 0


# Batches that are unpacked in the disk threads


def large(size_bytes: int = 40_000) -> bytearray:
    """Records of 1000 bytes that cannot be packed much."""
    values = [hashlib.shake_256(b"%d" % at).digest(1000) for at in range(size_bytes // 1000)]
    return batch(*values, compression=GZIP)


async def test_a_large_compressed_batch_blocks_the_connection_until_it_is_appended(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    connection = FakeConnection()
    pending = simulated_broker.begin_send(produce_request({("t", 0): large()}), 9, connection)
    await simulated_broker.run_ready_tasks()
    assert connection.holds == [True]
    assert simulated_broker.partition("t").log.end_offset == 0
    response = only_response(await pending)
    assert response.error_code == 0
    assert connection.holds == [True, False]


async def test_waiting_compressed_batches_take_bounded_memory(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.produce.produce._WAITING_BYTES_MAX", 100_000)
    await simulated_broker.create_topic("t")
    pending = [simulated_broker.begin_send(produce_request({("t", 0): large()}), 9) for _ in range(4)]
    codes = [only_response(await one).error_code for one in pending]
    assert codes == [0, 0, RequestTimedOut.code, RequestTimedOut.code]
    assert only_response(await simulated_broker.send(produce_request({("t", 0): large()}), 9)).error_code == 0


async def test_the_connection_is_released_before_the_commit_and_not_after(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    connection = FakeConnection()
    pending = simulated_broker.begin_send(produce_request({("t", 0): large()}), 9, connection)
    while connection.holds != [True, False]:
        await simulated_broker.run_ready_tasks(1)
    assert simulated_broker.partition("t").log.end_offset == 40
    assert not pending.done()
    await pending


async def test_only_the_invalid_large_batch_is_rejected(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 3)
    lying = large()
    header = parse_header(lying)
    lying[57:61] = (header.record_count + 1).to_bytes(4, "big")
    lying[23:27] = (header.last_offset_delta + 1).to_bytes(4, "big")
    set_crc(memoryview(lying))
    connection = FakeConnection()
    request = produce_request({("t", 0): large(), ("t", 1): lying, ("t", 2): batch(b"small")})
    response = await simulated_broker.send(request, 9, connection)
    assert [answer.error_code for answer in partition_responses(response).values()] == [0, InvalidRecord.code, 0]
    assert connection.holds == [True, False]
    assert await read_all(simulated_broker, "t", 2) == [b"small"]


async def test_a_large_batch_for_a_topic_deleted_during_validation_is_rejected(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    connection = FakeConnection()
    pending = simulated_broker.begin_send(produce_request({("t", 0): large()}), 9, connection)
    await simulated_broker.run_ready_tasks()
    partition = simulated_broker.partition("t")
    await simulated_broker.delete_topic("t")
    assert only_response(await pending).error_code == UnknownTopicOrPartition.code
    assert connection.holds == [True, False]
    assert not partition._commit_waits


@pytest.mark.parametrize(("given", "name", "kept"), [(NONE, "zstd", ZSTD), (ZSTD, "uncompressed", NONE)])
async def test_batches_are_stored_with_the_topics_compression(
    simulated_broker: SimulatedBroker, given: int, name: str, kept: int
) -> None:
    await simulated_broker.create_topic("t", compression_type=name)
    await send(simulated_broker, "t", batch(b"a" * 100, b"b" * 100, compression=given))
    response = await simulated_broker.send(fetch_request({("t", 0): 0}), 11)
    records = fetched_partitions(response)["t", 0].records
    assert parse_header(records).compression == kept
    assert await read_all(simulated_broker, "t") == [b"a" * 100, b"b" * 100]


# Disks


async def test_log_append_time_is_set_by_the_broker_and_returned(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", message_timestamp_type="LogAppendTime")
    answer = await send(simulated_broker, "t", batch(b"a", timestamp_ms=1))
    assert answer.log_append_time_ms == pytest.approx(simulated_broker.host.clock.now_ms(), abs=100)
    response = await simulated_broker.send(fetch_request({("t", 0): 0}), 11)
    header = parse_header(fetched_partitions(response)["t", 0].records)
    assert header.is_log_append_time
    assert header.max_timestamp == answer.log_append_time_ms


async def test_a_failed_fsync_fails_all_waiting_requests(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await simulated_broker.create_topic("other")
    await produce(simulated_broker, "t", b"a")
    simulated_broker.host.disk.fail_next("sync", f"*{simulated_broker.partition('t').topic_id.hex}*.log")
    pending = [simulated_broker.begin_send(produce_request({("t", 0): batch(b"b")}), 9) for _ in range(3)]
    assert [only_response(await one).error_code for one in pending] == [
        StorageFailure.code,
        StorageFailure.code,
        StorageFailure.code,
    ]
    assert (await send(simulated_broker, "t", batch(b"c"))).error_code == StorageFailure.code
    assert (await send(simulated_broker, "other", batch(b"c"))).error_code == 0
    assert await read_all(simulated_broker, "t") == [b"a"], "what was not committed is not shown"


async def test_produce_is_rejected_while_the_disk_is_nearly_full_and_resumes(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    capacity = simulated_broker.host.disk.capacity_bytes
    simulated_broker.host.disk.capacity_bytes = 1 << 20
    await simulated_broker.pass_time(3)
    assert (await send(simulated_broker, "t", batch(b"b"))).error_code == StorageFailure.code
    assert await read_all(simulated_broker, "t") == [b"a"]
    simulated_broker.host.disk.capacity_bytes = capacity
    await simulated_broker.pass_time(3)
    assert (await send(simulated_broker, "t", batch(b"b"))).error_code == 0


async def test_a_batch_that_is_not_committed_in_time_gets_a_timeout(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    simulated_broker.host.disk.delay_seconds = (5.0, 5.0)
    request = produce_request({("t", 0): batch(b"a")}, timeout_ms=2000)
    assert only_response(await simulated_broker.send(request, 9)).error_code == RequestTimedOut.code
    await simulated_broker.pass_time(20)
    simulated_broker.host.disk.delay_seconds = (0.001, 0.001)
    assert await read_all(simulated_broker, "t") == [b"a"], "it was appended nevertheless"


async def test_records_and_bytes_are_counted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    data = batch(b"a", b"b")
    await send(simulated_broker, "t", data)
    await send(simulated_broker, "t", numbered(b"a", sequence=0))
    await send(simulated_broker, "t", numbered(b"c", sequence=9))
    counts = simulated_broker.broker.catalogue.topic("t").counts
    assert (counts.produces, counts.records_in, counts.failed_produces) == (2, 3, 1)
    assert counts.bytes_in > len(data)
    await simulated_broker.send(FetchRequest(), 4)
    assert counts.fetches == 0


@in_simulated_cluster(2)
async def test_acks_1_is_acknowledged_after_the_leaders_flush(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    simulated_cluster.isolate(1)
    began = simulated_cluster.world.clock.monotonic()
    assert (await send(simulated_cluster[1], "t", batch(b"a"), acks=1)).error_code == 0
    assert simulated_cluster.world.clock.monotonic() - began < 1
    partition = simulated_cluster.replica(1, "t")
    assert (partition.log.flushed_offset, partition.high_watermark) == (1, 0)
    request = produce_request({("t", 0): batch(b"b")}, timeout_ms=2000)
    assert only_response(await simulated_cluster[1].send(request, 9)).error_code == RequestTimedOut.code, (
        "the others are waited for"
    )


@in_simulated_cluster(2)
async def test_acks_of_one_waits_for_the_disk(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    simulated_cluster[1].host.disk.delay_seconds = (1.0, 1.0)
    pending = simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"a")}, acks=1), 9)
    await asyncio.sleep(1)
    assert not pending.done()
    assert only_response(await pending).error_code == 0
    assert simulated_cluster.replica(1, "t").log.flushed_offset == 1


@pytest.mark.parametrize("acks", [1, -1])
@in_simulated_cluster(2)
async def test_waiting_producers_get_an_error_when_the_leadership_moves(
    simulated_cluster: SimulatedCluster, acks: int
) -> None:
    await simulated_cluster.create_topic("t")
    await simulated_cluster.wait_until_in_sync("t")
    simulated_cluster.isolate(1)
    simulated_cluster[1].host.disk.delay_seconds = (0.3, 0.3)
    pending = simulated_cluster[1].begin_send(produce_request({("t", 0): batch(b"a")}, acks=acks), 9)
    await simulated_cluster[1].run_ready_tasks()
    await simulated_cluster.move_leadership("t", 2)
    assert only_response(await pending).error_code == NotLeader.code


@in_simulated_cluster(2)
async def test_too_few_in_sync_replicas_are_reported_before_the_append(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", min_insync_replicas="2")
    assert await produce(simulated_cluster[1], "t", b"a") == 0
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[1].broker.catalogue.partition_record("t", 0).isr == (1,)
    )
    assert (await send(simulated_cluster[1], "t", batch(b"b"))).error_code == NotEnoughReplicas.code
    partition = simulated_cluster.replica(1, "t")
    assert partition.log.end_offset == 1
    assert (await send(simulated_cluster[1], "t", batch(b"c"), acks=1)).error_code == 0, (
        "acks=1 needs no in-sync replicas"
    )
    assert (partition.log.end_offset, partition.high_watermark) == (2, 1)
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    assert await produce(simulated_cluster[1], "t", b"d") == 2


@in_simulated_cluster(2)
async def test_min_insync_replicas_above_the_replication_factor_counts_as_all_replicas(
    simulated_cluster: SimulatedCluster,
) -> None:
    """As Kafka has it: the smaller of the two counts."""
    await simulated_cluster.create_topic("t", (1,), min_insync_replicas="2")
    assert await produce(simulated_cluster[1], "t", b"a") == 0


@in_simulated_cluster(2)
async def test_a_follower_rejects_produce(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await simulated_cluster.wait_until(lambda: simulated_cluster[2].broker.catalogue.find("t") is not None)
    assert (await send(simulated_cluster[2], "t", batch(b"a"))).error_code == NotLeader.code
    assert (await send(simulated_cluster[2], "t", batch(b"a"), acks=1)).error_code == NotLeader.code


@in_simulated_cluster(2, sessions_time_out=True)
async def test_a_leader_with_a_doubtful_session_accepts_only_acks_all(simulated_cluster: SimulatedCluster) -> None:
    """Another may lead by now; what all have in sync cannot be lost by that, what it has alone can (I13)."""
    await simulated_cluster.create_topic("t", (2, 1))
    simulated_cluster[2].registry.disconnect()
    await asyncio.sleep(0.01)
    response = await send(simulated_cluster[2], "t", batch(b"a"), acks=1)
    assert (response.error_code, simulated_cluster.replica(2, "t").log.end_offset) == (NotLeader.code, 0)
    assert await produce(simulated_cluster[2], "t", b"b") == 0
    simulated_cluster[2].registry.reconnect()
    await asyncio.sleep(0.1)
    assert (await send(simulated_cluster[2], "t", batch(b"c"), acks=1)).error_code == 0


async def test_a_batch_after_a_retriably_rejected_one_gets_the_same_error(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    assert (await send(simulated_broker, "t", numbered(b"a", sequence=0))).error_code == 0
    simulated_broker.host.disk.capacity_bytes = 1000
    await simulated_broker.pass_time(3)
    assert (await send(simulated_broker, "t", numbered(b"b", sequence=1))).error_code == DiskNearlyFull.code
    simulated_broker.host.disk.capacity_bytes = 1 << 40
    await simulated_broker.pass_time(3)
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).error_code == DiskNearlyFull.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(simulated_broker, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]
    assert (await send(simulated_broker, "t", numbered(b"x", sequence=9))).error_code == OutOfOrderSequence.code


@in_simulated_cluster(2)
async def test_a_batch_after_one_sent_before_the_leadership_gets_no_gap_error(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Told of a gap, librdkafka begins a new epoch everywhere, and what it waits for in other partitions is doubled."""
    await simulated_cluster.create_topic("t", (1, 2))
    await send(simulated_cluster[1], "t", numbered(b"a", sequence=0))
    assert (await send(simulated_cluster[2], "t", numbered(b"b", sequence=1))).error_code == NotLeader.code
    simulated_broker = await simulated_cluster.move_leadership("t", 2)
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).error_code == NotLeader.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(simulated_broker, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]


@in_simulated_cluster(2)
async def test_the_second_batch_of_a_new_producer_waits_for_the_first_sent_before_the_leadership(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    assert (await send(simulated_cluster[2], "t", numbered(b"a", sequence=0))).error_code == NotLeader.code
    simulated_broker = await simulated_cluster.move_leadership("t", 2)
    assert (await send(simulated_broker, "t", numbered(b"b", sequence=1))).error_code == NotLeader.code
    for value, sequence in ((b"a", 0), (b"b", 1)):
        assert (await send(simulated_broker, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(simulated_broker, "t") == [b"a", b"b"]


@in_simulated_cluster(2)
async def test_a_batch_gets_no_gap_error_while_the_previous_leader_may_have_accepted_an_earlier_one(
    simulated_cluster: SimulatedCluster,
) -> None:
    """Chaos, seed 101: 256 records twice after an election. The client sent the second batch to the new leader while
    the previous one had not rejected the first yet."""
    await simulated_cluster.create_topic("t", (1, 2))
    await send(simulated_cluster[1], "t", numbered(b"a", sequence=0))
    await simulated_cluster.move_leadership("t", 2)
    simulated_broker = await simulated_cluster.move_leadership("t", 1)  # the preferred leader, so that it stays
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).error_code == NotLeader.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(simulated_broker, "t", numbered(value, sequence=sequence))).error_code == 0
    assert await read_all(simulated_broker, "t") == [b"a", b"b", b"c"]
    await asyncio.sleep(GAP_TIMEOUT_SECONDS + 3)
    assert (await send(simulated_broker, "t", numbered(b"e", sequence=4))).error_code == OutOfOrderSequence.code


@in_simulated_cluster(2)
async def test_a_rejected_batch_that_another_leader_accepted_blocks_nothing(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await send(simulated_cluster[1], "t", numbered(b"a", sequence=0))
    assert (await send(simulated_cluster[2], "t", numbered(b"b", sequence=1))).error_code == NotLeader.code
    for value, sequence in ((b"b", 1), (b"c", 2)):
        assert (await send(simulated_cluster[1], "t", numbered(value, sequence=sequence))).error_code == 0
    simulated_broker = await simulated_cluster.move_leadership("t", 2)
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).base_offset == 2
    assert (await send(simulated_broker, "t", numbered(b"d", sequence=3))).error_code == 0


async def test_a_gap_is_reported_when_the_rejected_batch_is_not_retried(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    assert (await send(simulated_broker, "t", numbered(b"a", sequence=0))).error_code == 0
    simulated_broker.host.disk.capacity_bytes = 1000
    await simulated_broker.pass_time(3)
    assert (await send(simulated_broker, "t", numbered(b"b", sequence=1))).error_code == DiskNearlyFull.code
    simulated_broker.host.disk.capacity_bytes = 1 << 40
    await simulated_broker.pass_time(GAP_TIMEOUT_SECONDS + 3)
    assert (await send(simulated_broker, "t", numbered(b"c", sequence=2))).error_code == OutOfOrderSequence.code
