"""A subscription client against a real broker: leasing, settling, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import ADDRESS, client, start_broker

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.tcp import TcpDialer
from headrace.client.metadata import PartitionView
from headrace.client.produce.producer import Producer
from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt, receipt_from_text
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import GroupIdNotFound, InvalidRecordState, InvalidRequest, UnknownTopicOrPartition
from headrace.model.ids import MessageId
from headrace.testkit.world import World
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, SettleRequest


def queue(scenario: Callable[[Cluster, World], Awaitable[None]], *, partitions: int = 2) -> None:
    """Play against a broker with a topic and a subscription that begins at its start."""

    async def play(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", partitions))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            await scenario(cluster, world)

    in_world(play)


async def put(cluster: Cluster, *values: bytes, partition: int = 0) -> None:
    async with Producer(cluster) as producer:
        for value in values:
            await producer.publish("jobs", value, partition=partition, key=b"k")


def values(messages: list[LeasedMessage]) -> list[bytes | None]:
    return [message.value for message in messages]


def test_messages_of_all_partitions_are_leased_and_acked() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b", partition=0)
        await put(cluster, b"c", partition=1)
        async with Subscription(cluster, "jobs", "workers") as subscription:
            messages = await subscription.lease(10)
            assert sorted(values(messages)) == [b"a", b"b", b"c"]  # type: ignore[type-var]
            assert {message.key for message in messages} == {b"k"}
            assert await subscription.ack(messages) == []
            assert await subscription.lease(10) == []
        backlogs = await SubscriptionAdmin(cluster).describe("workers")
        assert [one.backlog for one in backlogs] == [0, 0]

    queue(scenario)


def test_a_lease_waits_for_the_first_message_and_no_longer() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        async with Subscription(cluster, "jobs", "workers") as subscription:
            before = world.clock.monotonic()
            leasing = asyncio.create_task(subscription.lease(10, wait_seconds=30))
            await asyncio.sleep(2)
            await put(cluster, b"a")
            assert values(await leasing) == [b"a"]
            assert 2 <= world.clock.monotonic() - before < 3
            assert await subscription.lease(10, wait_seconds=1) == []

    queue(scenario)


def test_no_request_is_sent_for_the_last_fraction_of_a_millisecond() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with Subscription(cluster, "jobs", "workers") as subscription:
            await subscription.lease()
            waits_ms: list[int] = []

            async def empty(request: LeaseRequest, **_: object) -> LeaseResponse:
                waits_ms.append(request.max_wait_ms)
                await asyncio.sleep(request.max_wait_ms / 1000)
                return LeaseResponse()

            call, cluster.call = cluster.call, empty  # type: ignore[method-assign]
            assert await subscription.lease(1, wait_seconds=0.0105) == []
            assert len(waits_ms) <= 2
            cluster.call = call  # type: ignore[method-assign]

    queue(scenario)


def test_nack_reject_and_extend_take_effect() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b", b"c")
        async with Subscription(cluster, "jobs", "workers", lease_seconds=2.0) as subscription:
            nacked, rejected, extended = await subscription.lease(10)
            assert await subscription.nack([nacked], delay_seconds=1, reason="busy") == []
            assert await subscription.reject([rejected], "broken") == []
            assert await subscription.extend([extended], 60) == []
            assert await subscription.lease(10) == []
            await asyncio.sleep(3)
            (again,) = await subscription.lease(10)
            assert (again.id, again.attempt) == (nacked.id, 2)
            assert await subscription.ack([again, extended]) == []
        assert (await cluster.topic("jobs.dlq")).ready

    queue(scenario)


def test_failed_settlements_are_returned_and_the_others_take_effect() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b", b"c", b"d")
        subscription = Subscription(cluster, "jobs", "workers", lease_seconds=1.0)
        messages = await subscription.lease(10)
        assert await subscription.ack([messages[1]]) == []
        rejected = await subscription.ack(messages)
        assert [one.receipt for one in rejected] == [messages[1].receipt]
        assert isinstance(rejected[0].error, InvalidRecordState)
        await asyncio.sleep(2)
        assert [one.receipt for one in await subscription.nack(messages)] == [one.receipt for one in messages]
        await subscription.close()

    queue(scenario)


def test_acks_that_are_requested_while_others_are_in_flight_are_sent_together() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, *(b"%d" % number for number in range(100)))
        subscription = Subscription(cluster, "jobs", "workers")
        messages = await subscription.lease(100)
        settles = counted_settles(cluster)
        first = asyncio.create_task(subscription.ack(messages[:1]))
        while not settles:
            await asyncio.sleep(0)
        others = [asyncio.create_task(subscription.ack([message])) for message in messages[1:]]
        others[0].cancel()
        late = asyncio.create_task(subscription.ack(messages[:2]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert settles == [1], "the others wait while this one is on its way"
        assert not first.done()
        assert await first == []
        assert [one.receipt for one in await late] == [messages[0].receipt], (
            "of its group only this one was acked before"
        )
        assert [await other for other in others[1:]] == [[]] * 98
        assert settles[0] == 1
        assert len(settles) <= 3, "the second was refused as a whole, and asked for message by message"
        assert await subscription.lease(100) == []
        assert (await SubscriptionAdmin(cluster).describe("workers"))[0].backlog == 0
        await subscription.close()

    queue(scenario)


def test_acks_of_an_unreachable_partition_delay_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", partition=0)
        await put(cluster, b"b", partition=1)
        subscription = Subscription(cluster, "jobs", "workers")
        messages = {message.id.partition: message for message in await subscription.lease(2)}
        is_back = asyncio.Event()
        find = cluster.partition

        async def find_late(topic: str, partition: int) -> PartitionView:
            if partition == 0:
                await is_back.wait()
            return await find(topic, partition)

        monkeypatch.setattr(cluster, "partition", find_late)
        stuck = asyncio.create_task(subscription.ack([messages[0]]))
        await asyncio.sleep(1)
        assert await subscription.ack([messages[1]]) == []
        assert not stuck.done()
        is_back.set()
        assert await stuck == []
        await subscription.close()

    queue(scenario)


def counted_settles(cluster: Cluster) -> list[int]:
    """How many items each Settle of the client has from now on."""
    counts: list[int] = []
    call = cluster.call

    async def counted(request: Any, **options: Any) -> Any:
        if isinstance(request, SettleRequest):
            counts.append(sum(len(requested.items) for topic in request.topics for requested in topic.partitions))
        return await call(request, **options)

    cluster.call = counted  # type: ignore[method-assign]
    return counts


def test_messages_that_were_not_taken_are_released_on_close() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b", b"c", partition=0)
        await put(cluster, b"d", partition=1)
        async with Subscription(cluster, "jobs", "workers") as subscription:
            assert len(await subscription.lease(2)) == 2
            subscription._ready.extend(await Subscription(cluster, "jobs", "workers").lease(1))
        async with Subscription(cluster, "jobs", "workers") as other:
            assert [message.attempt for message in await other.lease(10)] == [1, 1]

    queue(scenario)


def test_a_member_that_is_closed_while_it_waits_leases_nothing() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        subscription = Subscription(cluster, "jobs", "workers")
        leasing = asyncio.create_task(subscription.lease(10, wait_seconds=60))
        await asyncio.sleep(1)
        leasing.cancel()
        await subscription.close()
        await asyncio.sleep(1)
        await put(cluster, b"a")
        async with Subscription(cluster, "jobs", "workers") as other:
            assert [message.attempt for message in await other.lease(1)] == [1]

    queue(scenario)


def test_offsets_without_a_message_are_settled_as_gaps() -> None:
    async def play(world: World) -> None:
        broker = await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", 1))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            partition = broker.catalogue.partition("jobs", 0)
            partition.append_marker(7, 0, True, 0, 0)
            await put(cluster, b"a")
            partition.append_marker(7, 0, True, 0, 0)
            await put(cluster, b"b")
            async with Subscription(cluster, "jobs", "workers") as subscription:
                messages = await subscription.lease(10)
                assert values(messages) == [b"a", b"b"]
                assert await subscription.ack(messages) == []
                await asyncio.sleep(0.1)
            (backlog,) = await SubscriptionAdmin(cluster).describe("workers")
            assert (backlog.floor, backlog.backlog) == (4, 0)

    in_world(play)


def test_a_missing_topic_is_reported_at_once() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        before = world.clock.monotonic()
        async with Subscription(cluster, "nowhere", "workers") as subscription:
            with pytest.raises(UnknownTopicOrPartition):
                await subscription.lease(1, wait_seconds=30)
        assert world.clock.monotonic() - before < 1

    queue(scenario)


def test_an_invalid_request_is_raised_and_not_retried() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with Subscription(cluster, "jobs", "") as subscription:
            with pytest.raises(Exception, match="group id is empty"):
                await subscription.lease(1, wait_seconds=30)

    queue(scenario)


def test_a_broken_connection_is_reopened() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        host = world.host("worker")
        settings = ClientSettings(request_timeout_seconds=4.0, dial_timeout_seconds=2.0)
        async with (
            Cluster([ADDRESS], TcpDialer(host.network, "worker"), host.clock, host.entropy, settings) as others,
            Subscription(others, "jobs", "workers") as subscription,
        ):
            leasing = asyncio.create_task(subscription.lease(1, wait_seconds=60))
            for _ in range(3):
                await asyncio.sleep(1)
                world.network.reset("worker", ADDRESS.host)
            await asyncio.sleep(5)
            await put(cluster, b"a")
            messages = await leasing
            world.network.cut("worker", ADDRESS.host)
            acking = asyncio.create_task(subscription.ack(messages))
            await asyncio.sleep(6)
            world.network.heal()
            assert await acking == []

    queue(scenario)


def test_receipts_are_text_and_read_back() -> None:
    receipt = LeaseReceipt(MessageId("jobs", 3, 12), 2, 5, "worker/7 of us")
    assert str(receipt) == "jobs:3:12/2/5/worker/7 of us"
    assert receipt_from_text(str(receipt)) == receipt
    for nonsense in ("", "jobs:3:12", "jobs:3:12/2/5/", "jobs:x:12/2/5/m", "jobs:3:12/a/5/m"):
        with pytest.raises(InvalidRequest):
            receipt_from_text(nonsense)


# Administration


def test_subscriptions_are_listed_described_moved_and_deleted() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        admin = SubscriptionAdmin(cluster)
        await put(cluster, b"a", b"b")
        assert await admin.create("jobs", "auditors", Position()) == {("jobs", 0): 2, ("jobs", 1): 0}
        assert [(one.subscription, one.target.partition, one.backlog) for one in await admin.list()] == [
            ("auditors", 0, 0),
            ("auditors", 1, 0),
            ("workers", 0, 2),
            ("workers", 1, 0),
        ]
        assert await admin.seek("jobs", "auditors", Position(1), [0]) == {("jobs", 0): 1}
        assert await admin.seek("jobs", "auditors", Position(timestamp_ms=0), [0]) == {("jobs", 0): 0}
        await admin.delete("jobs", "auditors")
        with pytest.raises(GroupIdNotFound):
            await admin.describe("auditors")
        with pytest.raises(GroupIdNotFound):
            await admin.delete("jobs", "auditors")

    queue(scenario)


def test_an_administrator_reaches_partitions_that_another_client_has_added() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        admin = SubscriptionAdmin(cluster)
        async with client(world) as other:
            await TopicAdmin(other).add_partitions("jobs", 3)
            await put(other, b"a", b"b", partition=2)
        assert [(one.target.partition, one.backlog) for one in await admin.describe("workers", ["jobs"])] == [
            (0, 0),
            (1, 0),
            (2, 2),
        ]
        async with client(world) as other:
            await TopicAdmin(other).add_partitions("jobs", 4)
        assert len(await admin.seek("jobs", "workers", Position())) == 4
        async with client(world) as other:
            await TopicAdmin(other).add_partitions("jobs", 5)
            await admin.delete("jobs", "workers")
            assert not await SubscriptionAdmin(other).exists("jobs", "workers")

    queue(scenario)


def test_a_subscription_that_is_created_while_its_topic_grows_begins_with_the_first_message_of_the_new_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        alter = SubscriptionAdmin._alter

        async def grow_first(admin: SubscriptionAdmin, *given: Any) -> Any:
            """The new partition has looked for subscriptions to inherit before this one exists anywhere."""
            monkeypatch.setattr(SubscriptionAdmin, "_alter", alter)
            async with client(world) as other:
                await TopicAdmin(other).add_partitions("jobs", 3)
                await put(other, b"a", partition=2)
                inherited = await SubscriptionAdmin(other).describe(topics=["jobs"])
                assert {one.subscription for one in inherited if one.target.partition == 2} == {"workers"}
            return await alter(admin, *given)

        monkeypatch.setattr(SubscriptionAdmin, "_alter", grow_first)
        floors = await SubscriptionAdmin(cluster).create("jobs", "late", Position())
        assert [(target.partition, floor) for target, floor in floors.items()] == [(0, 0), (1, 0), (2, 0)]
        async with Subscription(cluster, "jobs", "late") as subscription:
            assert values(await subscription.lease(10)) == [b"a"]

    queue(scenario)


def test_peeking_shows_unsettled_messages_and_leases_nothing() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, *(b"%d" % number for number in range(6)))
        admin = SubscriptionAdmin(cluster)
        async with Subscription(cluster, "jobs", "workers") as subscription:
            messages = await subscription.lease(4)
            await subscription.ack([messages[0], messages[2]])
            peeked = [(one.record.value, one.status.state) async for one in admin.peek("jobs", "workers")]
            assert peeked == [(b"1", "leased"), (b"3", "leased"), (b"4", "ready"), (b"5", "ready")]
            assert values(await subscription.lease(10)) == [b"4", b"5"]

    queue(scenario)


def test_the_status_of_a_message_is_queried_by_its_id() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a")
        admin = SubscriptionAdmin(cluster)
        async with Subscription(cluster, "jobs", "workers") as subscription:
            (message,) = await subscription.lease(1)
            (status,) = await admin.status(message.id)
            assert (status.state, status.member) == ("leased", subscription.member)
            await subscription.ack([message])
        (status,) = await admin.status(message.id, ["workers"])
        assert (status.state, status.how) == ("settled", "ack")

    queue(scenario)
