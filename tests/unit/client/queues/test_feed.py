"""A feed gives its receiver as many messages as its credit allows, and leases no more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.push.push_support import backlog, leased, put, with_queue

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.errors import SubscriptionNotFound
from headrace.client.produce.producer import Producer
from headrace.client.queues.feed import Feed
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.settling import ACK, EXTEND, NACK, settle
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import GroupIdNotFound, UnknownTopicOrPartition
from headrace.testkit.cluster import SimCluster
from headrace.testkit.world import World
from headrace.wire.batches.wanted_records import UnpackedBatch
from headrace.wire.messages.queues import SettleItem


def values(messages: list[LeasedMessage]) -> list[bytes | None]:
    return [message.value for message in messages]


async def ack(feed: Feed, *messages: LeasedMessage) -> None:
    assert await feed.settle([message.receipt for message in messages], SettleItem(how=ACK)) == []


def test_a_receiver_that_settles_nothing_gets_exactly_its_credit() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, *(b"%d" % number for number in range(20)))
        feed = Feed(cluster, "workers", ["jobs"], 7, 3600.0)
        taken = await feed.take(5.0)
        while more := await feed.take(30.0):
            taken += more
        assert values(taken) == [b"%d" % number for number in range(7)]
        assert await leased(cluster) == feed.in_flight == 7
        await ack(feed, taken[0], taken[3])
        assert values(await feed.take(5.0)) == [b"7", b"8"]
        assert (feed.in_flight, feed.free) == (7, 0)
        await feed.close()

    with_queue(scenario)


def test_a_feed_leases_nothing_unless_messages_are_taken() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        feed = Feed(cluster, "workers", ["jobs"], 2)
        await put(cluster, b"a", b"b", b"c", b"d")
        assert values(await feed.take(5.0)) == [b"a", b"b"]
        await ack(feed, *feed.held)
        await asyncio.sleep(20.0)
        assert await leased(cluster) == 0
        assert values(await feed.take(5.0)) == [b"c", b"d"]
        await feed.close()

    with_queue(scenario)


def test_take_waits_for_a_message_at_most_for_its_wait_time() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        feed = Feed(cluster, "workers", ["jobs"], 10)
        taking = asyncio.create_task(feed.take(60.0))
        await asyncio.sleep(12.0)
        before = world.clock.monotonic()
        await put(cluster, b"a")
        assert values(await taking) == [b"a"]
        assert world.clock.monotonic() - before < 1.0
        before = world.clock.monotonic()
        assert await feed.take(3.0) == []
        assert 3.0 <= world.clock.monotonic() - before < 4.0
        await feed.close()

    with_queue(scenario)


def test_withdrawing_the_credit_ends_take_and_revokes_no_message() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        feed = Feed(cluster, "workers", ["jobs"], 10, 3600.0)
        await put(cluster, b"a")
        (first,) = await feed.take(1.0)
        taking = asyncio.create_task(feed.take(60.0))
        await asyncio.sleep(1.0)
        before = world.clock.monotonic()
        feed.credit = 0
        assert await taking == []
        assert world.clock.monotonic() - before < 1.0
        assert feed.holds(first)
        await asyncio.sleep(10.0)
        await put(cluster, b"b", b"c")
        assert await feed.take(60.0) == []
        feed.credit = 2
        assert values(await feed.take(60.0)) == [b"b"]
        await feed.close()

    with_queue(scenario)


def test_close_releases_messages_that_were_not_taken_and_no_others() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        feed = Feed(cluster, "workers", ["jobs"], 10, 3600.0)
        await put(cluster, b"a")
        assert values(await feed.take(1.0)) == [b"a"]
        assert await feed.take(1.0) == [], "a Lease waits now"
        await put(cluster, b"b")
        await asyncio.sleep(1.0)
        await feed.close()
        assert await leased(cluster) == 1
        async with Subscription(cluster, "jobs", "workers") as other:
            (again,) = await other.lease(10)
            assert (again.value, again.attempt) == (b"b", 1), "it was delivered to nobody"

    with_queue(scenario)


def test_leases_are_kept_for_as_long_as_the_work_takes_and_lost_ones_are_forgotten() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b")
        feed = Feed(cluster, "workers", ["jobs"], 10, 3.0)
        first, second = await feed.take(1.0)
        extending = asyncio.create_task(feed.keep_extending(3.0))
        await asyncio.sleep(60.0)
        assert await leased(cluster) == 2
        await settle(cluster, "workers", [first.receipt], SettleItem(how=NACK, delay_ms=3_600_000))
        await asyncio.sleep(5.0)
        assert (feed.holds(first), feed.holds(second)) == (False, True)
        await ack(feed, second)
        extending.cancel()
        await feed.close()

    with_queue(scenario)


def test_an_extension_keeps_a_message_in_flight_and_a_rejected_one_does_not() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a")
        feed = Feed(cluster, "workers", ["jobs"], 10, 3.0)
        (message,) = await feed.take(1.0)
        how = SettleItem(how=EXTEND, lease_ms=10_000)
        assert await feed.settle([message.receipt], how) == []
        assert feed.holds(message)
        await asyncio.sleep(11.0)
        assert len(await feed.settle([message.receipt], how)) == 1
        assert not feed.holds(message)
        await feed.close()

    with_queue(scenario)


def test_several_topics_share_one_credit() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await TopicAdmin(cluster).create(NewTopic("mails", 1))
        await SubscriptionAdmin(cluster).create("mails", "workers", Position(START))
        await put(cluster, b"a", b"b", b"c")
        await put(cluster, b"d", b"e", b"f", topic="mails")
        feed = Feed(cluster, "workers", ["jobs", "mails"], 4)
        taken = await feed.take(5.0)
        while more := await feed.take(1.0):
            taken += more
        assert len(taken) == 4
        await ack(feed, *taken)
        taken += await feed.take(5.0)
        assert sorted(values(taken)) == [b"a", b"b", b"c", b"d", b"e", b"f"]  # type: ignore[type-var]
        await feed.close()

    with_queue(scenario)


def test_errors_that_retrying_does_not_help_are_raised() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        feed = Feed(cluster, "workers", ["jobs"], 4)
        await SubscriptionAdmin(cluster).delete("jobs", "workers")
        with pytest.raises((GroupIdNotFound, SubscriptionNotFound)):
            await feed.take(60.0)
        with pytest.raises(UnknownTopicOrPartition):
            await Feed(cluster, "workers", ["nothing"], 4).take(60.0)

    with_queue(scenario)


def of_three_brokers(scenario: Callable[[Cluster, World], Awaitable[None]]) -> None:
    """A topic with two partitions on each of them."""

    async def play(world: World) -> None:
        brokers = SimCluster(world, 3, {})
        await brokers.start_all()
        dialer = TcpDialer(world.local.network, "test")
        async with Cluster(parse_addresses(brokers.bootstrap), dialer, world.clock, world.entropy) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", 6))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            await scenario(cluster, world)

    in_world(play)


@pytest.mark.parametrize("credit", [1, 2, 30])
def test_the_credit_is_shared_among_brokers_also_if_it_is_less_than_they_are(credit: int) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        async with Producer(cluster) as producer:
            for number in range(60):
                await producer.publish("jobs", b"%d" % number, partition=number % 6)
        feed = Feed(cluster, "workers", ["jobs"], credit)
        seen: list[LeasedMessage] = []
        while len(seen) < 60:
            taken = await feed.take(60.0)
            assert taken, "something is left behind"
            assert feed.in_flight <= credit
            assert await leased(cluster) <= credit
            seen += taken
            await ack(feed, *taken)
        assert len({message.id for message in seen}) == 60
        assert await backlog(cluster) == 0
        await feed.close()

    of_three_brokers(scenario)


def test_brokers_without_messages_delay_the_others_only_briefly() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        await put(cluster, *(b"%d" % number for number in range(10)))
        feed = Feed(cluster, "workers", ["jobs"], 1)
        before = world.clock.monotonic()
        for number in range(10):
            (message,) = await feed.take(60.0)
            assert message.value == b"%d" % number
            await ack(feed, message)
        assert world.clock.monotonic() - before < 10.0
        await feed.close()

    of_three_brokers(scenario)


def test_an_idle_feed_keeps_no_batch_in_memory() -> None:
    """A process has thousands of feeds, and a batch may be shared by many members."""

    async def scenario(cluster: Cluster, _world: World) -> None:
        async with Producer(cluster) as producer:
            for number in range(20):
                await producer.submit("jobs", b"%d" % number, partition=0)
            await producer.flush()
        feed = Feed(cluster, "workers", ["jobs"], 2, 3600.0)
        await feed.take(5.0)
        gc.collect()
        assert not [found for found in gc.get_objects() if isinstance(found, UnpackedBatch)]
        await ack(feed, *feed.held)
        assert values(await feed.take(5.0)) == [b"2", b"3"]
        await feed.close()

    with_queue(scenario)
