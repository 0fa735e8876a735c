"""A feed is notified of settlements by other requests: at once in its own process, soon in others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.push.push_support import put, with_queue

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.client.queues import feed as foreign_settles
from headrace.client.queues.feed import Feed, FeedRegistry, forget_foreign_settlements
from headrace.client.queues.settling import ACK, message_statuses, settle
from headrace.testkit.world import World
from headrace.wire.messages.queues import SettleItem


def test_settlements_in_other_processes_return_credit_within_a_second() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b", b"c", b"d")
        feed = Feed(cluster, "workers", ["jobs"], 3, 3600.0)
        watching = asyncio.create_task(forget_foreign_settlements(cluster, feed))
        first, second, _ = await feed.take(1.0)
        await asyncio.sleep(10.0)
        assert feed.in_flight == 3
        assert await settle(cluster, "workers", [first.receipt, second.receipt], SettleItem(how=ACK)) == []
        (fourth,) = await feed.take(1.1)
        assert fourth.value == b"d"
        await asyncio.sleep(1.1)
        assert not feed.holds(second)
        watching.cancel()
        await feed.close()

    with_queue(scenario, partitions=2)


def test_a_stream_that_settles_none_of_many_messages_checks_few_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requested: list[int] = []
    ask = message_statuses

    async def counted(cluster: Cluster, target: TopicPartition, offsets: Sequence[int], names: Sequence[str]) -> Any:
        requested.append(len(offsets))
        return await ask(cluster, target, offsets, names)

    monkeypatch.setattr(foreign_settles, "message_statuses", counted)

    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, *(b"%d" % number for number in range(1000)))
        feed = Feed(cluster, "workers", ["jobs"], 1000, 3600.0)
        watching = asyncio.create_task(forget_foreign_settlements(cluster, feed))
        messages = await feed.take(1.0)
        while len(messages) < 1000:
            messages += await feed.take(1.0)
        requested.clear()
        await asyncio.sleep(60.0)
        assert 0 < sum(requested) <= 70 * 100
        latest, oldest = messages[-1].receipt, [message.receipt for message in messages[:500]]
        assert await settle(cluster, "workers", [latest], SettleItem(how=ACK)) == []
        await asyncio.sleep(21.0)  # 950 messages, 50 in a turn
        assert feed.in_flight == 999
        assert await settle(cluster, "workers", oldest, SettleItem(how=ACK)) == []
        await asyncio.sleep(1.1)
        assert feed.in_flight == 499, "one of the oldest is gone, so all are asked about"
        watching.cancel()
        await feed.close()

    with_queue(scenario)


def test_an_expired_lease_frees_credit_even_if_the_same_receiver_gets_the_message_again() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a")
        feed = Feed(cluster, "workers", ["jobs"], 1, 5.0)
        watching = asyncio.create_task(forget_foreign_settlements(cluster, feed))
        (first,) = await feed.take(1.0)
        (again,) = await feed.take(10.0)
        assert (first.attempt, again.attempt, again.id) == (1, 2, first.id)
        assert (feed.holds(first), feed.holds(again)) == (False, True)
        watching.cancel()
        await feed.close()

    with_queue(scenario)


def test_a_message_that_is_redelivered_again_and_again_is_counted_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a")
        feed = Feed(cluster, "workers", ["jobs"], 2, 5.0)
        watching = asyncio.create_task(forget_foreign_settlements(cluster, feed))
        attempts = []
        while messages := await feed.take(10.0):
            attempts += [message.attempt for message in messages]
            assert feed.in_flight == 1
        assert attempts == [1, 2, 3, 4, 5]
        await asyncio.sleep(2.0)
        assert (feed.in_flight, feed.credit) == (0, 2)
        watching.cancel()
        await feed.close()

    with_queue(scenario, headrace_retry_backoff_ms="0", share_delivery_count_limit="5")


def test_settlements_in_this_process_return_credit_at_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        await put(cluster, b"a", b"b")
        feeds = FeedRegistry()
        feed, other = (Feed(cluster, "workers", ["jobs"], 1, 3600.0) for _ in range(2))
        feeds.add(feed)
        (message,) = await feed.take(1.0)
        (others,) = await other.take(1.0)
        feeds.settled([others.receipt, message.receipt])
        assert (feed.in_flight, other.in_flight) == (0, 1), "the other one is not of this process"
        feeds.remove(feed)
        assert len(feeds) == 0
        await feed.close()
        await other.close()

    with_queue(scenario)
