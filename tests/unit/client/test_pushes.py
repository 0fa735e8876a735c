"""Webhooks as an administrator sets them and as whoever pushes is told of them."""

from __future__ import annotations

import pytest
from tests.unit.push.pushed import queue

from headrace.client.cluster import Cluster
from headrace.client.pushes import PushList, PushSettings, SetPush, delete_push, get_push, set_push, subscribed_topics
from headrace.model.errors import InvalidConfig
from headrace.testkit.world import World

URL = "https://receiver.test/hook"


def test_a_webhook_without_a_secret_gets_one_that_is_told_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        assert await get_push(cluster, "jobs", "workers") is None
        made = await set_push(cluster, "jobs", "workers", PushSettings(URL))
        assert made is not None
        assert len(made) > 40
        assert await get_push(cluster, "jobs", "workers") == SetPush(URL, True, 8, 0, 10_000)
        more = PushSettings(URL, concurrency=2, rate=5, timeout_ms=500)
        assert await set_push(cluster, "jobs", "workers", more) is None
        assert await get_push(cluster, "jobs", "workers") == SetPush(URL, True, 2, 5, 500)
        (push,) = await PushList(cluster).ask()
        assert push.secret == made, "it stays"
        assert await set_push(cluster, "jobs", "workers", PushSettings(URL, secret="another")) is None
        (push,) = await PushList(cluster).ask()
        assert (push.secret, push.concurrency, push.topics) == ("another", 8, ["jobs"]), "all else is as by default"

    queue(scenario)


def test_one_that_is_deleted_leaves_nothing_behind() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        first = await set_push(cluster, "jobs", "workers", PushSettings(URL, rate=7))
        await delete_push(cluster, "jobs", "workers")
        assert await get_push(cluster, "jobs", "workers") is None
        assert await PushList(cluster).ask() == []
        second = await set_push(cluster, "jobs", "workers", PushSettings(URL))
        assert second not in (None, first)
        assert await get_push(cluster, "jobs", "workers") == SetPush(URL, True, 8, 0, 10_000)

    queue(scenario)


def test_what_makes_no_sense_is_refused_and_secrets_are_not_repeated() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        for settings in (PushSettings("ftp://x/"), PushSettings(URL, concurrency=0), PushSettings(URL, timeout_ms=1)):
            with pytest.raises(InvalidConfig) as refused:
                await set_push(cluster, "jobs", "workers", PushSettings(settings.url, "hush", settings.concurrency, -1))
            assert "hush" not in str(refused.value)
        assert await get_push(cluster, "jobs", "workers") is None

    queue(scenario)


def test_nothing_is_told_again_while_nothing_has_changed() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        pushes = PushList(cluster)
        await set_push(cluster, "jobs", "workers", PushSettings(URL))
        first = await pushes.ask()
        assert await pushes.ask() is first
        await set_push(cluster, "jobs", "workers", PushSettings(URL, rate=1))
        assert [push.rate for push in await pushes.ask()] == [1]

    queue(scenario)


def test_the_topics_of_subscriptions_are_told() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        assert await subscribed_topics(cluster, ["workers", "nobody"]) == {"workers": ["jobs"]}

    queue(scenario, partitions=3)
