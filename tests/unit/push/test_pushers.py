"""All webhooks of a process follow what the brokers tell of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.push.pushed import Receiver, leased, put, queue, until

from headrace.client.admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.pushes import PushList, PushSettings, delete_push, set_push
from headrace.client.subscription_admin import START, Position, SubscriptionAdmin
from headrace.push.pushers import Pushers
from headrace.testkit.world import World

HOOK = PushSettings("http://receiver.test/hook")


@asynccontextmanager
async def pushing(cluster: Cluster, receiver: Receiver) -> AsyncIterator[Pushers]:
    async def open_receiver() -> Receiver:
        return receiver

    pushers = Pushers(cluster, open_receiver)
    running = asyncio.create_task(pushers.run())
    try:
        yield pushers
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_push_begins_when_it_is_set_and_ends_when_it_is_deleted() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = Receiver()
        async with pushing(cluster, receiver) as pushers:
            await put(cluster, b"a")
            await asyncio.sleep(5.0)
            assert (list(pushers), pushers.status("workers")) == ([], None)
            await set_push(cluster, "workers", HOOK)
            await until(lambda: receiver.values == [b"a"], 3.0)
            assert [status.subscription for status in pushers] == ["workers"]
            await delete_push(cluster, "workers")
            await until(lambda: pushers.status("workers") is None, 3.0)
            await put(cluster, b"b")
            await asyncio.sleep(10.0)
            assert receiver.values == [b"a"]
        assert receiver.is_closed

    queue(scenario)


def test_one_that_is_set_anew_goes_on_with_what_is_new() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = Receiver()
        receiver.seconds = 20.0
        await set_push(cluster, "workers", HOOK)
        async with pushing(cluster, receiver) as pushers:
            await put(cluster, *(b"%d" % number for number in range(12)))
            await until(lambda: receiver.in_flight == 8)
            await set_push(cluster, "workers", PushSettings(HOOK.url, concurrency=2))
            await until(lambda: receiver.in_flight == 10, 5.0)
            await until(lambda: len(receiver.got) == 12)
            status = pushers.status("workers")
            assert status is not None
            assert status.delivered == 4, "counted since it was set"
            await asyncio.sleep(1.0)
            assert await leased(cluster) == 0

    queue(scenario)


def test_a_subscription_is_pushed_in_all_its_topics_also_in_those_that_come_later() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = Receiver()
        await set_push(cluster, "workers", HOOK)
        async with pushing(cluster, receiver):
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])
            await TopicAdmin(cluster).create(NewTopic("mails", 2))
            await SubscriptionAdmin(cluster).create("mails", "workers", Position(START))
            await put(cluster, b"b", topic="mails")
            await until(lambda: receiver.values == [b"a", b"b"], 10.0)
            await SubscriptionAdmin(cluster).delete("jobs", "workers")
            await asyncio.sleep(10.0)
            await put(cluster, b"c", topic="mails")
            await until(lambda: receiver.values == [b"a", b"b", b"c"], 10.0)

    queue(scenario)


def test_only_the_topics_that_a_push_is_for_are_pushed() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = Receiver()
        await TopicAdmin(cluster).create(NewTopic("secrets", 1))
        await SubscriptionAdmin(cluster).create("secrets", "workers", Position(START))
        await set_push(cluster, "workers", PushSettings(HOOK.url, ["jobs"]))
        async with pushing(cluster, receiver):
            await put(cluster, b"hush", topic="secrets")
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])
            await asyncio.sleep(30.0)
            assert receiver.values == [b"a"]

    queue(scenario)


def test_a_push_of_a_subscription_that_is_nowhere_waits_until_it_is_made() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = Receiver()
        await set_push(cluster, "later", HOOK)
        async with pushing(cluster, receiver) as pushers:
            await asyncio.sleep(5.0)
            assert pushers.status("later") is None
            await put(cluster, b"a")
            await SubscriptionAdmin(cluster).create("jobs", "later", Position(START))
            await until(lambda: receiver.values == [b"a"], 10.0)

    queue(scenario)


def test_while_no_broker_tells_anything_all_goes_on_and_it_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        from headrace.client.errors import Unreachable

        receiver = Receiver()
        await set_push(cluster, "workers", HOOK)
        async with pushing(cluster, receiver):
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])

            async def ask(_self: PushList) -> None:
                raise Unreachable("nobody is there")

            monkeypatch.setattr(PushList, "ask", ask)
            await put(cluster, b"b")
            await asyncio.sleep(10.0)
            assert receiver.values == [b"a", b"b"]
        assert caplog.text.count("nobody is there") == 1

    queue(scenario)
