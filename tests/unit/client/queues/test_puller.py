"""Concurrent pulls of a subscription are served in order and leave no leases behind."""

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
from headrace.client.errors import SubscriptionNotFound
from headrace.client.metadata import PartitionView, TopicView
from headrace.client.produce.producer import Producer
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.puller import Puller, PullerPool
from headrace.client.queues.settling import ACK, settle
from headrace.model.errors import NotLeader, UnknownTopicOrPartition
from headrace.testkit.world import World
from headrace.wire.messages.queues import LeaseRequest, LeaseResponse, SettleItem


def pulling(scenario: Callable[[Cluster, Puller], Awaitable[None]], *, partitions: int = 2) -> None:
    """Play against a broker with a topic and a subscription that begins at its start."""

    async def play(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", partitions))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            puller = Puller(cluster, "jobs", "workers")
            await scenario(cluster, puller)
            await puller.close()

    in_world(play)


async def put(cluster: Cluster, *values: bytes, partition: int = 0) -> None:
    async with Producer(cluster) as producer:
        for value in values:
            await producer.publish("jobs", value, partition=partition)


async def ack(cluster: Cluster, messages: list[LeasedMessage]) -> None:
    assert await settle(cluster, "workers", [one.receipt for one in messages], SettleItem(how=ACK)) == []


def values(messages: list[LeasedMessage]) -> list[bytes | None]:
    return [message.value for message in messages]


def leases(cluster: Cluster) -> list[LeaseRequest]:
    """The Leases that the client sends from now on."""
    sent: list[LeaseRequest] = []
    call = cluster.call

    async def watched(request: Any, **options: Any) -> Any:
        if isinstance(request, LeaseRequest):
            sent.append(request)
        return await call(request, **options)

    cluster.call = watched  # type: ignore[method-assign]
    return sent


def test_a_pull_returns_available_messages_without_waiting() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        assert await puller.pull(10) == []
        await put(cluster, b"a", b"b", b"c")
        messages = await puller.pull(2)
        assert values(messages) == [b"a", b"b"]
        assert values(await puller.pull(10)) == [b"c"]
        assert await puller.pull(10) == []
        await ack(cluster, messages)

    pulling(scenario)


def test_a_pull_waits_for_the_first_message_at_most_for_its_wait_time() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        began = cluster.clock.monotonic()
        waiting = asyncio.create_task(puller.pull(10, 20.0))
        await asyncio.sleep(5)
        await put(cluster, b"a", partition=1)
        assert values(await waiting) == [b"a"]
        assert cluster.clock.monotonic() - began < 6
        began = cluster.clock.monotonic()
        assert await puller.pull(10, 20.0) == []
        assert 20 <= cluster.clock.monotonic() - began < 21

    pulling(scenario)


@pytest.mark.parametrize("seconds", [1.0, 0.0105, 0.0005])
def test_no_request_is_sent_for_the_last_fraction_of_a_millisecond(seconds: float) -> None:
    """The protocol counts in milliseconds, so a Lease for less than one does not wait. In the broker's own process it
    does not even let the loop turn."""

    async def scenario(cluster: Cluster, puller: Puller) -> None:
        await puller.pull(1)
        waits_ms: list[int] = []

        async def empty(request: LeaseRequest, **_: object) -> LeaseResponse:
            waits_ms.append(request.max_wait_ms)
            assert len(waits_ms) <= 20, "a loop without progress"
            if request.max_wait_ms:
                await asyncio.sleep(request.max_wait_ms / 1000)
            return LeaseResponse()

        cluster.call = empty  # type: ignore[method-assign]
        assert await puller.pull(1, seconds) == []
        assert len(waits_ms) <= 2, "one asks, and one waits"

    pulling(scenario)


def test_concurrent_pulls_share_one_lease_and_are_served_in_order() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        await put(cluster, b"a", b"b", b"c", b"d")
        sent = leases(cluster)
        pulls = [asyncio.create_task(puller.pull(count)) for count in (1, 2, 5, 1)]
        assert [values(await pull) for pull in pulls] == [[b"a"], [b"b", b"c"], [b"d"], []]
        assert [request.max_messages for request in sent] == [9, 1]

    pulling(scenario, partitions=1)


def test_many_waiting_pulls_share_one_waiting_lease() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        sent = leases(cluster)
        pulls = [asyncio.create_task(puller.pull(1, 30.0)) for _ in range(100)]
        await asyncio.sleep(1)
        assert len(sent) == 2, "one asks, and one waits"
        await put(cluster, *(b"%d" % number for number in range(100)))
        found = [await pull for pull in pulls]
        assert sorted(int(one.value or b"") for messages in found for one in messages) == list(range(100))
        assert {len(messages) for messages in found} == {1}

    pulling(scenario, partitions=1)


def test_a_pull_that_does_not_wait_is_not_delayed_by_waiting_pulls() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        waiting = asyncio.create_task(puller.pull(1, 60.0))
        await asyncio.sleep(1)
        began = cluster.clock.monotonic()
        assert await puller.pull(1) == []
        assert await puller.pull(1, 2.0) == []
        assert cluster.clock.monotonic() - began < 3
        await put(cluster, b"a")
        assert values(await waiting) == [b"a"]

    pulling(scenario)


def test_the_pull_that_has_waited_longest_is_served_first_and_others_get_the_rest() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        call = cluster.call

        async def slow(request: Any, **options: Any) -> Any:
            if isinstance(request, LeaseRequest) and request.max_wait_ms:
                await asyncio.sleep(30)
            return await call(request, **options)

        cluster.call = slow  # type: ignore[method-assign]
        waiting = asyncio.create_task(puller.pull(1, 60.0))
        await asyncio.sleep(1)
        await put(cluster, b"a", b"b")
        assert values(await puller.pull(1)) == [b"b"]
        assert values(await waiting) == [b"a"]

    pulling(scenario, partitions=1)


def test_a_pull_that_is_cancelled_while_it_waits_leases_nothing() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        gone = asyncio.create_task(puller.pull(10, 60.0))
        await asyncio.sleep(1)
        gone.cancel()
        await put(cluster, b"a", b"b")
        other = Puller(cluster, "jobs", "workers")
        messages = await other.pull(10, 5.0)
        while len(messages) < 2:
            messages += await other.pull(10, 5.0)
        assert [(one.value, one.attempt) for one in messages] == [(b"a", 1), (b"b", 1)]
        await other.close()

    pulling(scenario)


def test_messages_for_a_pull_that_was_just_cancelled_are_released_at_once() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        await put(cluster, b"a")
        gone = asyncio.create_task(puller.pull(10, 60.0))
        deliver = puller._leases.deliver

        def deliver_too_late(messages: list[LeasedMessage]) -> None:
            deliver(messages)
            gone.cancel()

        puller._leases.deliver = deliver_too_late
        with pytest.raises(asyncio.CancelledError):
            await gone
        (message,) = await Puller(cluster, "jobs", "workers").pull(10, 5.0)
        assert (message.value, message.attempt) == (b"a", 1)

    pulling(scenario)


def test_messages_that_no_pull_wants_are_not_kept() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        waiting = [asyncio.create_task(puller.pull(10, 60.0)) for _ in range(2)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.sleep(1)
        await put(cluster, *(b"%d" % number for number in range(5)))
        await asyncio.sleep(1)
        backlogs = await SubscriptionAdmin(cluster).describe("workers")
        assert sum(one.backlog for one in backlogs) == 5
        assert sum(one.leased for one in backlogs) == 0

    pulling(scenario)


def test_a_pull_does_not_create_a_missing_subscription() -> None:
    async def scenario(cluster: Cluster, _: Puller) -> None:
        nobody = Puller(cluster, "jobs", "nobody")
        with pytest.raises(SubscriptionNotFound):
            await nobody.pull(1)
        with pytest.raises(UnknownTopicOrPartition):
            await Puller(cluster, "nowhere", "workers").pull(1)
        assert {one.subscription for one in await SubscriptionAdmin(cluster).list()} == {"workers"}

    pulling(scenario)


def test_waiting_pulls_fail_when_the_subscription_is_deleted_and_do_not_recreate_it() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        waiting = asyncio.create_task(puller.pull(1, 60.0))
        await asyncio.sleep(1)
        await SubscriptionAdmin(cluster).delete("jobs", "workers")
        with pytest.raises(SubscriptionNotFound):
            await waiting
        assert await SubscriptionAdmin(cluster).list() == []

    pulling(scenario)


def test_new_partitions_of_the_topic_are_read_from_their_beginning() -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        await TopicAdmin(cluster).add_partitions("jobs", 3)
        await TopicAdmin(cluster).describe("jobs")
        await put(cluster, b"new", partition=2)
        assert values(await puller.pull(1, 10.0)) == [b"new"]
        assert len(await SubscriptionAdmin(cluster).describe("workers")) == 3

    pulling(scenario)


def test_a_leader_that_does_not_respond_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        await put(cluster, b"a", partition=1)
        two_leaders(cluster, monkeypatch)
        call = cluster.call

        async def hung(request: Any, *, node_id: int | None = None, **options: Any) -> Any:
            if isinstance(request, LeaseRequest) and node_id == 2:
                await asyncio.Event().wait()
            return await call(request, node_id=1, **options)

        monkeypatch.setattr(cluster, "call", hung)
        began = cluster.clock.monotonic()
        assert values(await puller.pull(1)) == [b"a"]
        assert cluster.clock.monotonic() - began < 1
        await put(cluster, b"b", partition=1)
        assert values(await puller.pull(1, 30.0)) == [b"b"]
        assert cluster.clock.monotonic() - began < 2

    pulling(scenario)


def test_a_pull_finds_a_leader_that_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        await put(cluster, b"a")
        errors = [NotLeader("it has moved"), NotLeader("it still has")]
        call = cluster.call

        async def moved(request: Any, **options: Any) -> Any:
            if isinstance(request, LeaseRequest) and errors:
                rejected = errors.pop()
                return LeaseResponse(error_code=rejected.code, error_message=rejected.message)
            return await call(request, **options)

        monkeypatch.setattr(cluster, "call", moved)
        assert values(await puller.pull(1)) == [b"a"]
        assert not errors

    pulling(scenario)


def test_a_pull_fails_when_no_leader_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster, puller: Puller) -> None:
        call = cluster.call

        async def gone(request: Any, **options: Any) -> Any:
            if isinstance(request, LeaseRequest):
                raise NotLeader("nobody leads it")
            return await call(request, **options)

        monkeypatch.setattr(cluster, "call", gone)
        with pytest.raises(NotLeader):
            await puller.pull(1, 20.0)

    pulling(scenario)


def test_idle_pullers_are_closed() -> None:
    async def scenario(cluster: Cluster, _: Puller) -> None:
        pullers = PullerPool(cluster)
        first = pullers.get_or_create("jobs", "workers")
        assert pullers.get_or_create("jobs", "workers") is first
        assert pullers.get_or_create("jobs", "workers", 5.0) is not first
        waiting = asyncio.create_task(first.pull(1, 60.0))
        await asyncio.sleep(100)
        assert await waiting == []
        pullers.get_or_create("jobs", "workers", 5.0)
        assert pullers.get_or_create("jobs", "workers") is not first
        await pullers.close()

    pulling(scenario)


def two_leaders(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the client sees it, broker 2 leads the first partition."""
    find = cluster.topic

    async def seen(name: str, **options: Any) -> TopicView:
        view = await find(name, **options)
        first, *others = view.partitions
        moved = PartitionView("jobs", 0, 2, first.leader_epoch, (2,), (2,))
        return TopicView(view.name, view.topic_id, view.internal, (moved, *others)) if name == "jobs" else view

    monkeypatch.setattr(cluster, "topic", seen)
