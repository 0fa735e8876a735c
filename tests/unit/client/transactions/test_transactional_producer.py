"""The transactional producer: guarantees against a real broker, failures against a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster, in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.admin.transaction_admin import TransactionAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.errors import CommitInDoubt
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import ConsumerGroupMetadata, committed
from headrace.client.metadata import TopicPartition
from headrace.client.transactions.transactional_producer import TransactionalProducer, TransactionSettings
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    HeadraceError,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidTransactionState,
    MessageTooLarge,
    NotCoordinator,
    ProducerFenced,
    UnknownMemberId,
)
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.batches.batch import parse_header
from headrace.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

SOURCE = TopicPartition("source", 0)


def with_broker(scenario: Callable[[Cluster, World], Awaitable[None]]) -> None:
    async def play(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            for topic in ("source", "target"):
                await TopicAdmin(cluster).create(NewTopic(topic, 2))
            await scenario(cluster, world)

    in_world(play)


async def committed_values(cluster: Cluster, topic: str = "target") -> list[bytes | None]:
    """What a reader of committed records sees now."""
    settings = ConsumerSettings(read_committed=True)
    found: list[bytes | None] = []
    async with Consumer(cluster, [topic], settings=settings) as consumer:
        while records := await consumer.poll(timeout_seconds=2):
            found += [record.value for record in records]
    return sorted(found, key=str)


async def write(producer: TransactionalProducer, *values: bytes) -> None:
    for value in values:
        await producer.submit("target", value, key=value)


# Against a real broker


def test_committed_records_are_read_and_aborted_ones_are_not() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with TransactionalProducer(cluster, "t-1") as producer:
            async with producer.transaction():
                await write(producer, b"a", b"b", b"c")
            assert await committed_values(cluster) == [b"a", b"b", b"c"]
            await producer.begin()
            await write(producer, b"never")
            await producer.abort()
            async with producer.transaction():
                await write(producer, b"d")
            async with producer.transaction():
                await write(producer, b"e")
        assert await committed_values(cluster) == [b"a", b"b", b"c", b"d", b"e"]

    with_broker(scenario)


def test_an_open_transaction_is_not_read_and_leaving_the_producer_aborts_it() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with TransactionalProducer(cluster, "t-1") as producer:
            await producer.begin()
            await (await producer.submit("target", b"never"))
            assert await committed_values(cluster) == []
        assert (await TransactionAdmin(cluster).describe("t-1")).state == "CompleteAbort"

    with_broker(scenario)


def test_a_read_committed_consumer_at_the_end_gets_records_committed_later() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        settings = ConsumerSettings(start="latest", read_committed=True)
        async with TransactionalProducer(cluster, "t-1") as producer:
            async with producer.transaction():
                await producer.submit("target", b"before", partition=0)
            await producer.begin()
            await (await producer.submit("target", b"open", partition=0))
            async with Consumer(cluster, ["target"], settings=settings) as consumer:
                await producer.commit()
                assert [record.value for record in await consumer.poll(timeout_seconds=10)] == [b"open"]

    with_broker(scenario)


def test_starting_aborts_the_open_transaction_of_the_previous_producer_and_fences_it() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with TransactionalProducer(cluster, "t-1") as old:
            await old.begin()
            await (await old.submit("target", b"never"))
            async with TransactionalProducer(cluster, "t-1") as new:
                async with new.transaction():
                    await write(new, b"new")
                await old.submit("target", b"late")
                with pytest.raises(ProducerFenced, match="another producer with the transactional id 't-1'"):
                    await old.commit()
                with pytest.raises(ProducerFenced):
                    await old.submit("target", b"later")
                with pytest.raises(ProducerFenced):
                    await old.abort()
                with pytest.raises(ProducerFenced):
                    await old.begin()
                async with new.transaction():
                    await write(new, b"newer")
        assert await committed_values(cluster) == [b"new", b"newer"]

    with_broker(scenario)


def test_offsets_take_effect_with_the_commit_and_not_with_an_abort() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with TransactionalProducer(cluster, "t-1") as producer:
            await producer.begin()
            await producer.send_offsets("readers", {SOURCE: 7})
            await producer.abort()
            assert await committed(cluster, "readers") == {}
            async with producer.transaction():
                await producer.send_offsets("readers", {SOURCE: 5})
                await producer.send_offsets("readers", {})
            assert [one.offset for one in (await committed(cluster, "readers")).values()] == [5]

    with_broker(scenario)


def test_offsets_of_a_former_member_are_rejected_and_nothing_is_committed() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with (
            TransactionalProducer(cluster, "t-1") as producer,
            Consumer(cluster, ["source"], group=GroupRules("readers")) as consumer,
        ):
            assert await consumer.poll(timeout_seconds=10) == []
            async with producer.transaction():
                await producer.send_offsets("readers", {SOURCE: 1}, consumer.membership)
            for stranger, error in (
                (
                    ConsumerGroupMetadata(consumer.membership.generation - 1, consumer.membership.member_id),
                    IllegalGeneration,
                ),
                (ConsumerGroupMetadata(consumer.membership.generation, "stranger"), UnknownMemberId),
            ):

                async def commit(membership: ConsumerGroupMetadata = stranger) -> None:
                    async with producer.transaction():
                        await write(producer, b"never")
                        await producer.send_offsets("readers", {SOURCE: 9}, membership)

                with pytest.raises(error):
                    await commit()
            assert (await committed(cluster, "readers"))[SOURCE].offset == 1
            assert await committed_values(cluster) == []

    with_broker(scenario)


def test_a_rejected_batch_dooms_the_transaction_also_if_its_delivery_is_not_awaited() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await TopicAdmin(cluster).alter_configs("target", set_to={"max.message.bytes": "1000"})
        async with TransactionalProducer(cluster, "t-1") as producer:
            await producer.begin()
            with pytest.raises(MessageTooLarge):
                await (await producer.submit("target", bytes(5000)))
            await write(producer, b"never")
            with pytest.raises(MessageTooLarge):
                await producer.commit()
            await producer.abort()
            async with producer.transaction():
                await write(producer, b"a")
        assert await committed_values(cluster) == [b"a"]

    with_broker(scenario)


def test_a_transaction_that_takes_too_long_is_aborted_by_the_broker() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with TransactionalProducer(cluster, "t-1", TransactionSettings(timeout_seconds=5)) as producer:
            await producer.begin()
            await (await producer.submit("target", b"never"))
            await asyncio.sleep(30)
            with pytest.raises(ProducerFenced, match="or the transaction was open for longer than 5 s"):
                await producer.commit()
        assert await committed_values(cluster) == []

    with_broker(scenario)


def test_one_transaction_is_open_at_a_time() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        producer = TransactionalProducer(cluster, "t-1")
        for act in (producer.commit, producer.abort, lambda: producer.submit("target", b"")):
            with pytest.raises(InvalidTransactionState, match="no transaction of 't-1' is open"):
                await act()
        await producer.begin()
        with pytest.raises(InvalidTransactionState, match="is open; commit or abort it"):
            await producer.begin()
        await producer.commit()
        await producer.close()

    with_broker(scenario)


# Against a script


class ScriptedCoordinator:
    """A broker that coordinates every id and records the requests."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.epoch = -1
        self.requests: list[str] = []
        broker._behave = self.behave  # type: ignore[method-assign]
        self._behave = ScriptedBroker._behave

    async def behave(self, request: Any) -> Any:
        if isinstance(request, FindCoordinatorRequest):
            return FindCoordinatorResponse(coordinators=[Coordinator(key=request.coordinator_keys[0], node_id=1)])
        if isinstance(request, InitProducerIdRequest):
            assert request.producer_epoch == self.epoch if request.producer_id >= 0 else True
            self.epoch += 1
            self.requests.append(f"epoch {self.epoch}")
            return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)
        if isinstance(request, AddPartitionsToTxnRequest):
            return self.added(request)
        if isinstance(request, EndTxnRequest):
            self.requests.append("commit" if request.committed else "abort")
            return EndTxnResponse()
        if isinstance(request, ProduceRequest):
            assert request.transactional_id == "t-1"
            for topic in request.topic_data:
                for data in topic.partition_data:
                    assert data.records is not None
                    header = parse_header(data.records)
                    assert header.is_transactional
                    self.requests.append(f"{topic.name}-{data.index} {header.producer_epoch}/{header.base_sequence}")
        return await self._behave(self.broker, request)

    def added(self, request: AddPartitionsToTxnRequest, code: int = 0) -> AddPartitionsToTxnResponse:
        results = []
        for topic in request.v3_and_below_topics:
            self.requests += [f"add {topic.name}-{index}" for index in topic.partitions]
            parts = [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
            results.append(AddPartitionsToTxnTopicResult(topic.name, parts))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def with_script(scenario: Callable[[TransactionalProducer, ScriptedCoordinator], Awaitable[None]]) -> None:
    async def play(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, target=1)
        coordinating = ScriptedCoordinator(await scripted_cluster.broker())
        async with scripted_cluster.cluster(ClientSettings(deadline_seconds=5)) as cluster:
            await scenario(TransactionalProducer(cluster, "t-1"), coordinating)

    in_world(play)


def test_a_partition_is_added_once_before_its_first_batch() -> None:
    async def scenario(producer: TransactionalProducer, coordinating: ScriptedCoordinator) -> None:
        async with producer.transaction():
            await (await producer.submit("target", b"a"))
            await producer.submit("target", b"b")
        async with producer.transaction():
            await producer.submit("target", b"c")
        async with producer.transaction():
            pass
        batches = ["target-0 0/0", "target-0 0/1"]
        assert coordinating.requests == [
            *("epoch 0", "add target-0", *batches, "commit"),
            *("add target-0", "target-0 0/2", "commit"),
        ]

    with_script(scenario)


def test_after_an_abort_the_epoch_is_bumped_and_sequences_restart() -> None:
    async def scenario(producer: TransactionalProducer, coordinating: ScriptedCoordinator) -> None:
        await producer.begin()
        await (await producer.submit("target", b"a"))
        await producer.abort()
        async with producer.transaction():
            await producer.submit("target", b"b")
        assert coordinating.requests == [
            *("epoch 0", "add target-0", "target-0 0/0", "abort"),
            *("epoch 1", "add target-0", "target-0 1/0", "commit"),
        ]

    with_script(scenario)


@pytest.mark.parametrize("fault", [Fault.CLOSE, Fault.DONE_THEN_CLOSE])
@pytest.mark.parametrize("api", [apis.INIT_PRODUCER_ID, apis.ADD_PARTITIONS_TO_TXN, apis.PRODUCE, apis.END_TXN])
def test_lost_requests_and_responses_are_retried(api: int, fault: Fault) -> None:
    async def scenario(producer: TransactionalProducer, coordinating: ScriptedCoordinator) -> None:
        coordinating.broker.script(api, fault)
        async with producer.transaction():
            await producer.submit("target", b"a")
        assert coordinating.requests[-1] == "commit"
        assert coordinating.broker.cast.values("target") == [b"a"]

    with_script(scenario)


@pytest.mark.parametrize("error", [ConcurrentTransactions, NotCoordinator, CoordinatorNotAvailable])
def test_retriable_errors_are_retried(error: type[HeadraceError]) -> None:
    async def scenario(producer: TransactionalProducer, coordinating: ScriptedCoordinator) -> None:
        broker = coordinating.broker
        broker.script(apis.INIT_PRODUCER_ID, InitProducerIdResponse(error_code=error.code))
        broker.script(apis.ADD_PARTITIONS_TO_TXN, lambda request: coordinating.added(request, error.code))
        broker.script(apis.END_TXN, EndTxnResponse(error_code=error.code))
        async with producer.transaction():
            await producer.submit("target", b"a")
        assert coordinating.requests[-1] == "commit"

    with_script(scenario)


def test_a_commit_without_a_response_is_in_doubt_and_the_next_transaction_reinitializes() -> None:
    async def scenario(producer: TransactionalProducer, coordinating: ScriptedCoordinator) -> None:
        async def commit() -> None:
            async with producer.transaction():
                await producer.submit("target", b"a")
                coordinating.broker.script(apis.END_TXN, *[Fault.CLOSE] * 100)

        with pytest.raises(CommitInDoubt, match="may have been committed"):
            await commit()
        ends = [request for key, _, request in coordinating.broker.requests if key == apis.END_TXN]
        assert all(end.committed for end in ends)
        coordinating.broker._scripts[apis.END_TXN].clear()
        async with producer.transaction():
            await producer.submit("target", b"b")
        assert coordinating.requests[-4:] == ["epoch 1", "add target-0", "target-0 1/0", "commit"]

    with_script(scenario)


def test_a_producer_fenced_by_a_partition_raises_the_error() -> None:
    async def scenario(producer: TransactionalProducer, coordinating: ScriptedCoordinator) -> None:
        rejected = PartitionProduceResponse(index=0, error_code=InvalidProducerEpoch.code)
        response = ProduceResponse(responses=[TopicProduceResponse(name="target", partition_responses=[rejected])])
        coordinating.broker.script(apis.PRODUCE, response)
        await producer.begin()
        await producer.submit("target", b"a")
        with pytest.raises(ProducerFenced, match="'t-1'"):
            await producer.commit()
        await producer.abort()
        assert coordinating.requests == ["epoch 0", "add target-0", "abort"]

    with_script(scenario)
