"""Encoded batches are written in order and once, also after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster, in_world
from tests.unit.client.simulated_server import ADDRESS, client, start_broker
from tests.unit.client.transactions.test_transactional_producer import committed_values

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import DeliveryTimedOut, ProducerClosed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.batch_writer import (
    BatchWriter,
    BatchWriterSettings,
    ReadyBatch,
    idempotent_producer,
)
from headrace.client.produce.sender import BatchProducer
from headrace.client.transactions.joint_commits import MemberTransaction, commit_jointly
from headrace.model.errors import (
    DuplicateSequence,
    HeadraceError,
    MessageTooLarge,
    NotLeader,
    OutOfOrderSequence,
    UnknownTopicOrPartition,
)
from headrace.testkit.world import LOCAL, World
from headrace.wire import apis
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class BatchMaker:
    """Makes batches of numbered records, with the sequence numbers that their partitions expect."""

    def __init__(self, of: BatchProducer) -> None:
        self.of = of
        self.next: dict[TopicPartition, int] = {FIRST: 0, SECOND: 0}

    def batch(self, target: TopicPartition, count: int = 3, size: int = 1) -> ReadyBatch:
        first = self.next[target]
        self.next[target] += count
        records = [BatchRecord(None, b"%d" % number * size) for number in range(first, first + count)]
        identity = self.of.identity
        encoded = build_batch(
            records,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=first,
            attributes=TRANSACTIONAL if self.of.transactional_id else 0,
        )
        return ReadyBatch(encoded, count)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def play(scenario: Callable[[ScriptedCluster, ScriptedBroker, Cluster, BatchMaker], Awaitable[None]]) -> None:
    async def run(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=2)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            await scenario(scripted_cluster, broker, cluster, BatchMaker(await idempotent_producer(cluster)))

    in_world(run)


def reject(error: type[HeadraceError]) -> Callable[[ProduceRequest], ProduceResponse]:
    def response(request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, error_code=error.code)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return response


def test_batches_are_written_in_order_and_requests_carry_several_partitions() -> None:
    async def scenario(
        scripted_cluster: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker
    ) -> None:
        async with BatchWriter(cluster, maker.of) as writer:
            for _ in range(10):
                await writer.append(FIRST, [maker.batch(FIRST), maker.batch(FIRST)])
                await writer.append(SECOND, [maker.batch(SECOND)])
            await writer.flush()
        assert scripted_cluster.values(*FIRST) == numbers(60)
        assert scripted_cluster.values(*SECOND) == numbers(30)
        assert broker.count(apis.PRODUCE) == 20

    play(scenario)


@pytest.mark.parametrize(
    "trouble",
    [Fault.DONE_THEN_CLOSE, Fault.CLOSE, reject(NotLeader), reject(UnknownTopicOrPartition)],
    ids=["answer lost", "request lost", "leader moved", "topic not known yet"],
)
def test_a_temporary_failure_is_retried_and_the_batch_is_written_once(trouble: object) -> None:
    async def scenario(
        scripted_cluster: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker
    ) -> None:
        broker.script(apis.PRODUCE, trouble, trouble)
        async with BatchWriter(cluster, maker.of) as writer:
            for _ in range(4):
                await writer.append(FIRST, [maker.batch(FIRST)])
                await writer.append(SECOND, [maker.batch(SECOND)])
            await writer.flush()
        assert scripted_cluster.values(*FIRST) == scripted_cluster.values(*SECOND) == numbers(12)

    play(scenario)


def test_a_batch_follows_its_partition_to_another_leader() -> None:
    async def scenario(
        scripted_cluster: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker
    ) -> None:
        other = await scripted_cluster.broker(2)
        async with BatchWriter(cluster, maker.of) as writer:
            await writer.append(FIRST, [maker.batch(FIRST)])
            await writer.flush()
            scripted_cluster.leaders[FIRST] = 2
            await writer.append(FIRST, [maker.batch(FIRST)])
            await writer.flush()
        assert scripted_cluster.values(*FIRST) == numbers(6)
        assert other.count(apis.PRODUCE) == 1

    play(scenario)


def test_a_batch_that_was_written_long_ago_counts_as_written() -> None:
    async def scenario(_cast: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker) -> None:
        broker.script(apis.PRODUCE, reject(DuplicateSequence))
        async with BatchWriter(cluster, maker.of) as writer:
            await writer.append(FIRST, [maker.batch(FIRST)])
            await writer.flush()

    play(scenario)


def test_a_batch_that_is_too_large_fails_the_writer_with_a_helpful_message() -> None:
    async def scenario(
        scripted_cluster: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker
    ) -> None:
        broker.script(apis.PRODUCE, reject(MessageTooLarge))
        async with BatchWriter(cluster, maker.of) as writer:
            await writer.append(FIRST, [maker.batch(FIRST)])
            with pytest.raises(MessageTooLarge, match=r"orders\[0\] refused a batch of 3 records .* smaller batches"):
                await writer.flush()
            with pytest.raises(MessageTooLarge):
                await writer.append(SECOND, [maker.batch(SECOND)])
        assert scripted_cluster.values(*FIRST) == scripted_cluster.values(*SECOND) == []

    play(scenario)


def test_a_gap_in_the_sequence_is_not_mended_by_another_identity() -> None:
    async def scenario(
        scripted_cluster: ScriptedCluster, _broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker
    ) -> None:
        async with BatchWriter(cluster, maker.of) as writer:
            maker.batch(FIRST)
            await writer.append(FIRST, [maker.batch(FIRST)])
            with pytest.raises(OutOfOrderSequence):
                await writer.flush()
        assert scripted_cluster.values(*FIRST) == []

    play(scenario)


def test_put_waits_while_too_many_bytes_do() -> None:
    async def scenario(
        scripted_cluster: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker
    ) -> None:
        gate = asyncio.Event()

        async def response(request: ProduceRequest) -> object:
            await gate.wait()
            return await broker._behave(request)

        broker.script(apis.PRODUCE, response)
        async with BatchWriter(cluster, maker.of, BatchWriterSettings(bytes_in_flight_max=3000)) as writer:
            batches = [maker.batch(FIRST, size=500) for _ in range(5)]
            putting = asyncio.create_task(writer.append(FIRST, batches))
            await asyncio.sleep(5)
            assert not putting.done()
            gate.set()
            await putting
            await writer.flush()
        assert len(scripted_cluster.values(*FIRST)) == 15

    play(scenario)


def test_a_batch_that_is_not_acknowledged_in_time_fails_with_a_typed_error() -> None:
    async def scenario(_cast: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker) -> None:
        broker.script(apis.PRODUCE, *[Fault.CLOSE] * 1000)
        async with BatchWriter(cluster, maker.of, BatchWriterSettings(delivery_timeout_seconds=5)) as writer:
            await writer.append(FIRST, [maker.batch(FIRST)])
            with pytest.raises(DeliveryTimedOut):
                await writer.flush()

    play(scenario)


def test_leaving_with_batches_in_flight_leaves_no_caller_waiting() -> None:
    async def scenario(_cast: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster, maker: BatchMaker) -> None:
        broker.script(apis.PRODUCE, Fault.SILENCE)
        async with BatchWriter(cluster, maker.of) as writer:
            await writer.append(FIRST, [maker.batch(FIRST)])
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(1)
        with pytest.raises(ProducerClosed):
            await flushing

    play(scenario)


def test_a_real_broker_accepts_batches_and_rejects_one_over_its_limit() -> None:
    async def run(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 2, configs={"max.message.bytes": "2000"}))
            maker = BatchMaker(await idempotent_producer(cluster))
            async with BatchWriter(cluster, maker.of) as writer:
                await writer.append(FIRST, [maker.batch(FIRST)])
                await writer.flush()
                await writer.append(FIRST, [maker.batch(FIRST, size=1000)])
                with pytest.raises(MessageTooLarge, match=r"orders\[0\]"):
                    await writer.flush()

    in_world(run)


def test_a_transaction_on_a_network_that_resets_is_written_once_and_read_when_its_bundle_commits() -> None:
    async def run(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            transaction = MemberTransaction(cluster, "nightly", "0", timeout_seconds=600)
            member = await transaction.begin()
            maker = BatchMaker(transaction)
            async with asyncio.TaskGroup() as tasks:
                trouble = tasks.create_task(resets(world))
                async with BatchWriter(cluster, transaction) as writer:
                    for _ in range(100):
                        await writer.append(FIRST, [maker.batch(FIRST)])
                        await writer.append(SECOND, [maker.batch(SECOND)])
                        await asyncio.sleep(0.1)
                    await writer.flush()
                trouble.cancel()
            assert await committed_values(cluster, "orders") == []
            assert await commit_jointly(cluster, "nightly", 0, [member])
            assert await committed_values(cluster, "orders") == sorted(numbers(300) * 2)

    in_world(run)


async def resets(world: World) -> None:
    while True:
        await asyncio.sleep(0.7)
        world.network.reset(LOCAL, ADDRESS.host)
