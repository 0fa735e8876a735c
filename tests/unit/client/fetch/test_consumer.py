"""A consumer returns every record of its partitions once and in order, also after leader changes."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.client.errors import NoCommittedOffset, TopicAuthorizationFailed
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.fetch.fetcher import Fetcher
from headrace.client.groups.group_membership import GroupRules
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.model.errors import CorruptMessage, InvalidGroupId, NotLeader, OffsetOutOfRange
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

ORDERS = TopicPartition("orders", 0)


def write(scripted_cluster: ScriptedCluster, *values: bytes, partition: int = 0) -> None:
    """Put one batch into a log."""
    target = TopicPartition("orders", partition)
    batch = build_batch([BatchRecord(value=value, timestamp_ms=1) for value in values])
    code, _ = scripted_cluster.brokers[scripted_cluster.leaders[target]]._append(target, batch)
    assert code == 0


async def take(consumer: Consumer, count: int) -> list[ConsumedRecord]:
    records: list[ConsumedRecord] = []
    while len(records) < count:
        records += await consumer.poll(count - len(records))
    return records


def test_all_partitions_are_read_from_the_start() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=2)
        await scripted_cluster.broker()
        write(scripted_cluster, b"a", b"b")
        write(scripted_cluster, b"c", partition=1)
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            records = await take(consumer, 3)
            assert sorted((r.partition, r.offset, r.value) for r in records) == [
                (0, 0, b"a"),
                (0, 1, b"b"),
                (1, 0, b"c"),
            ]
            assert {consumer.position(target) for target in consumer.assignment} == {1, 2}

    in_world(scenario)


def test_iteration_returns_records_in_order_and_waits_for_new_ones() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        write(scripted_cluster, b"0")
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            async for record in consumer:
                assert record.value == b"%d" % record.offset
                if record.offset == 5:
                    break
                write(scripted_cluster, b"%d" % (record.offset + 1))

    in_world(scenario)


def test_reading_may_begin_at_the_end() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        write(scripted_cluster, b"old")
        rules = ConsumerSettings(start="latest")
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"], settings=rules) as consumer:
            assert await consumer.poll(timeout_seconds=2.0) == []
            write(scripted_cluster, b"new")
            assert [record.value for record in await take(consumer, 1)] == [b"new"]

    in_world(scenario)


def test_an_offset_inside_a_batch_is_begun_with_exactly() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        write(scripted_cluster, b"a", b"b", b"c", b"d")
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, partitions={ORDERS: 2}) as consumer:
            assert [record.value for record in await take(consumer, 2)] == [b"c", b"d"]

    in_world(scenario)


def test_a_poll_returns_at_most_the_requested_number_and_keeps_the_rest() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        write(scripted_cluster, *[b"%d" % number for number in range(10)])
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            assert [record.offset for record in await consumer.poll(3)] == [0, 1, 2]
            assert [record.offset for record in await consumer.poll(100)] == [3, 4, 5, 6, 7, 8, 9]

    in_world(scenario)


def test_a_seek_drops_prefetched_records() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        write(scripted_cluster, *[b"%d" % number for number in range(10)])
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            await consumer.poll(3)
            consumer.seek(ORDERS, 8)
            assert [record.offset for record in await consumer.poll()] == [8, 9]
            consumer.seek(ORDERS, 1)
            assert [record.offset for record in await consumer.poll(1)] == [1]
            with pytest.raises(ValueError, match="not assigned"):
                consumer.seek(TopicPartition("orders", 5), 0)

    in_world(scenario)


def test_reading_continues_at_the_new_leader() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker(1)
        second = await scripted_cluster.broker(2)
        write(scripted_cluster, b"a")
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            await take(consumer, 1)
            scripted_cluster.leaders[ORDERS], scripted_cluster.epochs[ORDERS] = 2, 1
            write(scripted_cluster, b"b")
            assert [record.value for record in await take(consumer, 1)] == [b"b"]
        assert second.count(apis.FETCH) > 0

    in_world(scenario)


@pytest.mark.parametrize("fault", [Fault.CLOSE, Fault.SILENCE])
def test_reading_continues_after_a_broken_or_stuck_connection(fault: Fault) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        write(scripted_cluster, b"a")
        broker.script(apis.FETCH, fault)
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            assert [record.value for record in await take(consumer, 1)] == [b"a"]

    in_world(scenario)


def test_an_offset_out_of_range_is_reset_as_configured() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        write(scripted_cluster, b"a", b"b")
        async with scripted_cluster.cluster() as cluster:
            async with Consumer(cluster, partitions={ORDERS: 99}) as consumer:
                assert (await take(consumer, 1))[0].offset == 0
            strict = ConsumerSettings(start="none")
            async with Consumer(cluster, partitions={ORDERS: 99}, settings=strict) as consumer:
                with pytest.raises(OffsetOutOfRange, match="99"):
                    await consumer.poll()
                consumer.seek(ORDERS, 1)
                assert (await take(consumer, 1))[0].offset == 1

    in_world(scenario)


def test_an_error_that_stays_is_raised() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        result = PartitionData(partition_index=0, error_code=TopicAuthorizationFailed.code)
        rejected = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[result])])
        broker.script(apis.FETCH, rejected)
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            with pytest.raises(TopicAuthorizationFailed):
                await consumer.poll()

    in_world(scenario)


def test_a_corrupt_batch_is_raised_and_fetched_again() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        write(scripted_cluster, b"good")
        bad = bytearray(scripted_cluster.logs[ORDERS])
        bad[-2] ^= 1
        result = PartitionData(partition_index=0, high_watermark=1, records=bytes(bad))
        broker.script(
            apis.FETCH, FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[result])])
        )
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            with pytest.raises(CorruptMessage):
                await consumer.poll()
            assert [record.value for record in await take(consumer, 1)] == [b"good"]

    in_world(scenario)


def test_records_before_an_error_are_returned_and_the_error_is_raised_by_the_next_poll() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        write(scripted_cluster, b"a", b"b")
        write(scripted_cluster, b"c")
        bad = bytearray(scripted_cluster.logs[ORDERS])
        bad[-2] ^= 1
        result = PartitionData(partition_index=0, high_watermark=3, records=bytes(bad))
        broker.script(
            apis.FETCH, FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[result])])
        )
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            assert [record.value for record in await consumer.poll()] == [b"a", b"b"]
            with pytest.raises(CorruptMessage):
                await consumer.poll()
            assert [record.value for record in await take(consumer, 1)] == [b"c"]

    in_world(scenario)


def test_a_partition_is_not_fetched_further_ahead_than_the_limit() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        write(scripted_cluster, b"x" * (2 << 20))
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            await asyncio.sleep(30)
            assert broker.count(apis.FETCH) == 1
            await consumer.poll()
            await asyncio.sleep(1)
            assert broker.count(apis.FETCH) > 1

    in_world(scenario)


def test_rejected_fetches_are_paced() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        result = PartitionData(partition_index=0, error_code=NotLeader.code)
        rejected = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[result])])
        broker.script(apis.FETCH, *[rejected] * 10_000)
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]):
            await asyncio.sleep(60)
        assert broker.count(apis.FETCH) < 300

    in_world(scenario)


def test_a_bug_in_the_background_ends_the_wait_for_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        monkeypatch.setattr(Fetcher, "_request", broken)
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            with pytest.raises(ZeroDivisionError):
                await consumer.poll()

    in_world(scenario)


def test_without_a_group_there_is_nothing_to_commit_to() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Consumer(cluster, ["orders"]) as consumer:
            with pytest.raises(InvalidGroupId, match="GroupRules"):
                await consumer.commit()

    in_world(scenario)


def test_a_reader_and_a_writer_share_a_cluster_without_delaying_each_other() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with (
            scripted_cluster.cluster() as cluster,
            Consumer(cluster, ["orders"]) as consumer,
            Producer(cluster) as producer,
        ):
            await consumer.poll(timeout_seconds=1.0)
            began = world.clock.monotonic()
            await producer.publish("orders", b"x")
            await take(consumer, 1)
            assert world.clock.monotonic() - began < 0.2  # not the half second that a fetch may wait

    in_world(scenario)


def test_start_none_without_a_commit_raises() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        rules = ConsumerSettings(start="none")
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(NoCommittedOffset):
                await Consumer(cluster, ["orders"], settings=rules).__aenter__()

    in_world(scenario)


def test_an_unknown_assignor_is_rejected_at_once() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(ValueError, match="roundrobin"):
                Consumer(cluster, ["orders"], group=GroupRules("g", assignors=("fair",)))

    in_world(scenario)
