"""The lease loop against a real broker, whose leaders are moved in the client's view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.metadata import PartitionView, TopicView
from headrace.client.produce.producer import Producer
from headrace.client.queues.feed import Feed
from headrace.client.queues.lease_loop import NO_LEADER, LeaseLoop
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.puller import Puller
from headrace.client.queues.settling import ACK, settle
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import CorruptMessage, LeaderNotAvailable, NotLeader
from headrace.testkit.world import World
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, SettleItem


def with_first_leader(
    leader: int, scenario: Callable[[Cluster, pytest.MonkeyPatch], Awaitable[None]], patch: pytest.MonkeyPatch
) -> None:
    """Run against broker 1, which has a message in partition 1 of `jobs`; the client sees another leader of partition
    0."""

    async def play(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", 2))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            async with Producer(cluster) as producer:
                await producer.publish("jobs", b"a", partition=1)
            find = cluster.topic

            async def topic(name: str, **options: Any) -> TopicView:
                view = await find(name, **options)
                first, *others = view.partitions
                moved = PartitionView(name, 0, leader, first.leader_epoch, (), ())
                return TopicView(view.name, view.topic_id, view.internal, (moved, *others))

            patch.setattr(cluster, "topic", topic)
            await scenario(cluster, patch)

    in_world(play)


def test_a_subscription_leases_from_other_partitions_while_one_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
        async with Subscription(cluster, "jobs", "workers") as subscription:
            (message,) = await subscription.lease(10)
            assert message.value == b"a"
            assert await subscription.ack([message]) == []
            before = cluster.clock.monotonic()
            with pytest.raises(LeaderNotAvailable):
                await subscription.lease(10)
            assert cluster.clock.monotonic() - before >= cluster.settings.deadline_seconds

    with_first_leader(-1, scenario, monkeypatch)


def test_a_feed_leases_from_other_partitions_while_one_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
        feed = Feed(cluster, "workers", ["jobs"], 10)
        (message,) = await feed.take(5.0)
        assert message.value == b"a"
        assert await feed.take(5.0) == []
        await feed.close()

    with_first_leader(-1, scenario, monkeypatch)


def test_a_failing_leader_is_backed_off_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        delivered: list[LeasedMessage] = []
        leases = LeaseLoop(cluster, "workers", ["jobs"], delivered.extend, purpose="test")
        call = cluster.call

        async def failing(request: Any, *, node_id: int | None = None, **options: Any) -> Any:
            if isinstance(request, LeaseRequest) and node_id == 2:
                raise NotLeader("it has moved")
            return await call(request, node_id=node_id, **options)

        patch.setattr(cluster, "call", failing)
        for node_id, topics in (await leases.idle_leaders()).items():
            leases.request(node_id, topics, 10, 5.0)
        assert leases.pending == {2: 10, 1: 10}
        await leases.wait()
        assert [message.value for message in delivered] == [b"a"]
        assert leases.pending == {2: 0}, "it requests nothing during the pause"
        assert leases.take_failure() is None, "the failure is reported after the pause"
        assert set(await leases.idle_leaders()) == {1}
        leases.changed.clear()
        await leases.wait()
        assert isinstance(leases.take_failure(), NotLeader)
        assert leases.take_failure() is None
        assert [*await leases.idle_leaders()] == [2, 1], "the least recently requested leader comes first"
        await leases.close()

    with_first_leader(2, scenario, monkeypatch)


def test_an_error_that_retrying_does_not_help_is_reported_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
        leases = LeaseLoop(cluster, "workers", ["nowhere"], lambda _messages: None, purpose="test")
        before = cluster.clock.monotonic()
        assert await leases.idle_leaders() == {}
        assert leases.pending == {NO_LEADER: 0}
        await leases.wait()
        assert leases.take_failure() is not None
        assert cluster.clock.monotonic() - before < 0.1
        await leases.close()

    with_first_leader(1, scenario, monkeypatch)


def test_leaving_ends_waiting_requests_and_delivers_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
        delivered: list[LeasedMessage] = []
        leases = LeaseLoop(cluster, "workers", ["jobs"], delivered.extend, purpose="test")
        for count in (1, 10):
            ((node_id, topics),) = (await leases.idle_leaders()).items()
            leases.request(node_id, topics, count, 60.0)
            await asyncio.sleep(1)
        assert len(delivered) == 1
        assert leases.pending == {1: 10}
        await leases.leave()
        assert leases.pending == {}
        await leases.close()
        async with Producer(cluster) as producer:
            await producer.publish("jobs", b"b", partition=1)
        await asyncio.sleep(1)
        (backlog,) = [one for one in await SubscriptionAdmin(cluster).describe("workers") if one.backlog]
        assert (backlog.backlog, backlog.leased) == (2, 1)

    with_first_leader(1, scenario, monkeypatch)


def test_a_corrupt_batch_is_a_failure_and_other_partitions_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        delivered: list[LeasedMessage] = []
        leases = LeaseLoop(cluster, "workers", ["jobs"], delivered.extend, purpose="test")
        call = cluster.call

        async def corrupting(request: Any, **options: Any) -> Any:
            response = await call(request, **options)
            if isinstance(response, LeaseResponse):
                for partition in response.topics[0].partitions:
                    if partition.partition_index == 0:
                        records = partition.records
                        assert isinstance(records, memoryview)
                        partition.records = bytes(records[:-1]) + bytes([records[-1] ^ 1])
            return response

        async with Producer(cluster) as producer:
            await producer.publish("jobs", b"b", partition=0)
        patch.setattr(cluster, "call", corrupting)
        ((node_id, topics),) = (await leases.idle_leaders()).items()
        leases.request(node_id, topics, 10, 5.0)
        await leases.wait()
        assert [message.value for message in delivered] == [b"a"]
        assert leases.pending == {1: 0}, "the leader is left alone for a pause, as after any failure"
        leases.changed.clear()
        await leases.wait()
        assert isinstance(leases.take_failure(), CorruptMessage)
        await leases.close()

    with_first_leader(1, scenario, monkeypatch)


def test_a_broker_that_does_not_respond_keeps_no_other_from_being_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        delivered: list[LeasedMessage] = []
        leases = LeaseLoop(cluster, "workers", ["jobs"], delivered.extend, purpose="test")
        call = cluster.call

        async def hanging(request: Any, *, node_id: int | None = None, **options: Any) -> Any:
            if node_id == 2:
                await asyncio.sleep(3600)
            return await call(request, node_id=node_id, **options)

        patch.setattr(cluster, "call", hanging)
        for count in (1, 10):
            for node_id, topics in (await leases.idle_leaders()).items():
                leases.request(node_id, topics, count, 60.0)
            await asyncio.sleep(1)
        assert leases.pending == {2: 1, 1: 10}
        before = cluster.clock.monotonic()
        await leases.leave()
        assert leases.pending == {2: 1}, "broker 1 has answered"
        assert cluster.clock.monotonic() - before < 1.1
        await leases.close()

    with_first_leader(2, scenario, monkeypatch)


def test_pulls_that_wait_for_a_leader_ask_for_no_more_messages_than_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        puller = Puller(cluster, "jobs", "workers")
        (message,) = await puller.pull(1)
        assert await settle(cluster, "workers", [message.receipt], SettleItem(how=ACK)) == []
        pulls: list[asyncio.Task[list[LeasedMessage]]] = []
        surplus: list[int] = []
        call = cluster.call

        async def counting(request: Any, **options: Any) -> Any:
            if isinstance(request, LeaseRequest):
                surplus.append(request.max_messages - len(pulls))
            return await call(request, **options)

        patch.setattr(cluster, "call", counting)
        for _ in range(240):
            pulls.append(asyncio.create_task(puller.pull(1, 100.0)))
            await asyncio.sleep(0.25)
        assert max(surplus) == 0
        await puller.close()
        assert await asyncio.gather(*pulls) == [[]] * len(pulls)

    with_first_leader(-1, scenario, monkeypatch)
