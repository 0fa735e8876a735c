"""An in-process client gets the same responses as over TCP, in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import ADDRESS, client, start_broker

from headrace.broker.broker import Broker
from headrace.broker.handlers import RequestContext, RequestHandler, RequestHandlers
from headrace.client.admin.group_admin import GroupAdmin
from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.connections.tcp import TcpDialer
from headrace.client.errors import ConnectionLost
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import END, Commit, commit, committed, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer, ProducerSettings
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import HeadraceError, RequestTimedOut
from headrace.model.ids import MessageId
from headrace.runtime.inline_start import switch_to_task
from headrace.server.in_process import InProcessDialer, InProcessTransport
from headrace.testkit.world import World
from headrace.wire.apis import FETCH, METADATA, PRODUCE
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from headrace.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ORDERS = TopicPartition("orders", 0)


def within(world: World, handlers: RequestHandlers) -> InProcessDialer:
    host = world.host(ADDRESS.host)
    elsewhere = TcpDialer(host.network, "test")
    return InProcessDialer(handlers, lambda: (ADDRESS.host, ADDRESS.port), elsewhere, host.disk, host.clock, "test")


def inside(world: World, broker: Broker) -> Cluster:
    host = world.host(ADDRESS.host)
    return Cluster([ADDRESS], within(world, broker.handlers), host.clock, host.entropy)


async def transport_to(world: World, handlers: RequestHandlers) -> InProcessTransport:
    transport = await within(world, handlers).dial(ADDRESS.host, ADDRESS.port, 1.0)
    assert isinstance(transport, InProcessTransport)
    return transport


def produce_request(*values: bytes) -> ProduceRequest:
    batch = bytes(build_batch([BatchRecord(value=value) for value in values]))
    data = PartitionProduceData(index=0, records=memoryview(batch))
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData("orders", partition_data=[data])])


# The same answers


async def a_day_in_the_life(cluster: Cluster) -> list[Any]:
    """Send requests of all kinds; return the responses without random values."""
    seen: list[Any] = []
    admin, subscriptions = TopicAdmin(cluster), SubscriptionAdmin(cluster)
    await admin.create(NewTopic("orders", 2, configs={"retention.ms": "86400000"}))
    seen.append(sorted(topic.name for topic in await admin.list()))
    seen.append([(one.name, one.value, one.source) for one in await admin.configs("orders")])
    async with Producer(cluster, ProducerSettings(batch_bytes_max=2000)) as producer:
        for number in range(50):
            await producer.submit("orders", b"%d" % number * 20, key=b"k%d" % number, headers=[("n", None)])
    for topic, name in (("nowhere", "x"), ("orders", "bad")):
        try:
            await (admin.describe(topic) if name == "x" else subscriptions.describe(name, [topic]))
        except HeadraceError as error:
            seen.append((type(error), error.message))
    partitions = {TopicPartition("orders", index): 0 for index in range(2)}
    async with Consumer(cluster, partitions=partitions) as consumer:
        records: list[Any] = []
        while len(records) < 50:
            records += [(one.partition, one.offset, one.key, one.value) for one in await consumer.poll()]
        seen.append(sorted(records))
    group = GroupRules("readers")
    settings = ConsumerSettings(start="earliest", commit_seconds=None)
    async with Consumer(cluster, ["orders"], group=group, settings=settings) as consumer:
        seen.append(len(await consumer.poll(7, 30)))
        await consumer.commit()
    seen.append([(view.group, view.state) for view in await GroupAdmin(cluster).list()])
    await commit(cluster, "other", {ORDERS: Commit(5, "said")})
    seen.append(await committed(cluster, "other"))
    seen.append(sorted((await find_offsets(cluster, dict.fromkeys(partitions, END))).items()))
    await subscriptions.create("orders", "billing", Position(START))
    async with Subscription(cluster, "orders", "billing", lease_seconds=10) as subscription:
        leased: list[LeasedMessage] = []
        while len(leased) < 50:
            leased += await subscription.lease(20, 5)
        seen.append(sorted((one.id, one.attempt, one.value) for one in leased))
        seen.append(await subscription.ack(leased[:30]))
        seen.append([(one.receipt.id, type(one.error)) for one in await subscription.ack(leased[:1])])
    statuses = await subscriptions.status(MessageId("orders", 0, 0))
    seen.append([(one.subscription, one.state, one.attempts, one.how) for one in statuses])
    seen.append([(one.target, one.floor, one.end, one.backlog) for one in await subscriptions.list()])
    return seen


def test_the_same_requests_have_the_same_responses_over_tcp_and_in_process() -> None:
    async def over_tcp(world: World) -> list[Any]:
        await start_broker(world)
        async with client(world, ADDRESS.host) as cluster:
            return await a_day_in_the_life(cluster)

    async def in_process(world: World) -> list[Any]:
        broker = await start_broker(world)
        async with inside(world, broker) as cluster:
            seen = await a_day_in_the_life(cluster)
        for log in broker.store.logs.values():
            for segment in log.segments:
                assert segment.file is None or not segment.file._pins  # type: ignore[attr-defined]
        return seen

    assert in_world(in_process) == in_world(over_tcp)


def test_other_brokers_are_called_by_tcp() -> None:
    async def scenario(world: World) -> None:
        broker = await start_broker(world)
        elsewhere = within(world, broker.handlers)
        elsewhere._local_address = lambda: ("other", 9092)
        transport = await elsewhere.dial(*ADDRESS, 1.0)
        assert not isinstance(transport, InProcessTransport)
        answer = await transport.call(METADATA, 12, MetadataRequest(topics=None), 1.0)
        assert isinstance(answer, MetadataResponse)
        transport.close()

    in_world(scenario)


def test_responses_are_not_objects_of_the_broker() -> None:
    async def scenario(world: World) -> None:
        broker = await start_broker(world)
        async with inside(world, broker) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            transport = await cluster.any_transport()
            answer: MetadataResponse = await transport.call(METADATA, 12, MetadataRequest(topics=None), 1.0)
            answer.topics[0].partitions.clear()
            assert len((await TopicAdmin(cluster).describe("orders")).partitions) == 1

    in_world(scenario)


def test_read_only_records_are_copied() -> None:
    async def scenario(world: World) -> None:
        broker = await start_broker(world)
        async with inside(world, broker) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            transport = await cluster.any_transport()
            request = produce_request(b"a")
            kept = bytes(request.topic_data[0].partition_data[0].records or b"")
            for offset in (0, 1):
                again = produce_request(b"a")
                answer: ProduceResponse = await transport.call(PRODUCE, 9, again, 1.0)
                assert answer.responses[0].partition_responses[0].base_offset == offset
            assert bytes(produce_request(b"a").topic_data[0].partition_data[0].records or b"") == kept

    in_world(scenario)


@pytest.mark.parametrize("value_bytes", [100, 600_000])
def test_small_and_large_slices_of_records_are_read(value_bytes: int) -> None:
    async def scenario(world: World) -> None:
        world.host(ADDRESS.host).disk.cold_chance = 0.5
        broker = await start_broker(world)
        async with inside(world, broker) as cluster, Producer(cluster) as producer:
            values = [bytes([number]) * value_bytes for number in range(4)]
            for value in values:
                await producer.publish("orders", value, partition=0)
            async with Consumer(cluster, partitions={ORDERS: 0}) as consumer:
                found: list[bytes | None] = []
                while len(found) < 4:
                    found += [record.value for record in await consumer.poll()]
            assert found == values

    in_world(scenario)


# The life of a call


def handlers_of(handle: Callable[[Any, RequestContext], Awaitable[Any]], key: int = METADATA) -> RequestHandlers:
    return RequestHandlers([RequestHandler(key, handle)])  # type: ignore[arg-type]


def test_requests_start_in_the_order_of_the_calls_and_outside_of_their_task() -> None:
    async def scenario(world: World) -> None:
        order: list[str] = []

        async def handle(request: MetadataRequest, _: RequestContext) -> MetadataResponse:
            name = str(request.topics[0].name)  # type: ignore[index]
            order.append(name)
            assert asyncio.current_task() is None
            await switch_to_task()
            async with asyncio.timeout(1):
                await asyncio.sleep(0)
            return MetadataResponse(cluster_id=name)

        transport = await transport_to(world, handlers_of(handle))

        async def call(name: str) -> None:
            from headrace.wire.messages.metadata import MetadataRequestTopic

            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            me = asyncio.current_task()
            answer: MetadataResponse = await transport.call(METADATA, 12, request, 1.0)
            assert answer.cluster_id == name
            assert asyncio.current_task() is me

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(call(name))
        assert order == ["a", "b", "c"]

    in_world(scenario)


def test_later_requests_wait_for_a_handler_that_delays_them() -> None:
    async def scenario(world: World) -> None:
        order: list[str] = []

        async def handle(request: ProduceRequest, context: RequestContext) -> ProduceResponse:
            name = str(request.transactional_id)
            order.append(f"{name} begins")
            if name == "first":
                context.hold()
                await asyncio.sleep(5)
                order.append("first lets go")
                context.release()
            return ProduceResponse()

        transport = await transport_to(world, handlers_of(handle, PRODUCE))
        async with asyncio.TaskGroup() as group:
            for name in ("first", "second", "third"):
                group.create_task(transport.call(PRODUCE, 9, ProduceRequest(transactional_id=name, acks=-1), 10.0))
        assert order == ["first begins", "first lets go", "second begins", "third begins"]

    in_world(scenario)


@pytest.mark.parametrize(("key", "is_read_only"), [(FETCH, True), (PRODUCE, False)])
def test_a_cancelled_call_cancels_only_read_only_requests(key: int, is_read_only: bool) -> None:
    async def scenario(world: World) -> None:
        ends: list[str] = []

        async def handle(_request: Any, _context: RequestContext) -> Any:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise
            ends.append("done")
            return ProduceResponse()

        transport = await transport_to(world, handlers_of(handle, key))
        request = FetchRequest() if key == FETCH else ProduceRequest(acks=-1)
        caller = asyncio.create_task(transport.call(key, 9, request, 60.0))
        await asyncio.sleep(1)
        caller.cancel()
        await asyncio.sleep(1)
        assert ends == (["cancelled"] if is_read_only else [])
        with pytest.raises(RequestTimedOut):
            await transport.call(key, 9, request, 1.0)
        await asyncio.sleep(10)
        assert ends == (["cancelled"] * 2 if is_read_only else ["done"] * 2)
        assert not transport.closed

    in_world(scenario)


def test_close_fails_pending_calls_and_runs_close_callbacks() -> None:
    async def scenario(world: World) -> None:
        said: list[str] = []

        async def handle(_request: Any, context: RequestContext) -> Any:
            context.when_closed("key", lambda: said.append("farewell"))
            await asyncio.sleep(5)
            said.append("done")
            return ProduceResponse()

        transport = await transport_to(world, handlers_of(handle, PRODUCE))
        caller = asyncio.create_task(transport.call(PRODUCE, 9, ProduceRequest(acks=-1), 60.0))
        await asyncio.sleep(1)
        transport.close()
        transport.close()
        with pytest.raises(ConnectionLost):
            await caller
        assert (transport.closed, said) == (True, ["farewell"])
        with pytest.raises(ConnectionLost):
            await transport.call(PRODUCE, 9, ProduceRequest(acks=-1), 60.0)
        await asyncio.sleep(10)
        assert said == ["farewell", "done"]

    in_world(scenario)


def test_a_bug_in_a_handler_fails_only_its_call() -> None:
    async def scenario(world: World) -> None:
        async def handle(_request: Any, _context: RequestContext) -> Any:
            raise ValueError("a bug")

        transport = await transport_to(world, handlers_of(handle, PRODUCE))
        transport.post(PRODUCE, 9, ProduceRequest(acks=0))
        with pytest.raises(ConnectionLost):
            await transport.call(PRODUCE, 9, ProduceRequest(acks=-1), 60.0)

    in_world(scenario)
