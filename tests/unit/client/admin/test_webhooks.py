"""Webhooks are set by an administrator and listed for the process that pushes."""

from __future__ import annotations

import pytest
from tests.unit.push.push_support import with_queue

from headrace.client.admin.webhooks import (
    WebhookPoller,
    WebhookSettings,
    WebhookView,
    delete_webhook,
    get_webhook,
    set_webhook,
    subscribed_topics,
)
from headrace.client.cluster import Cluster
from headrace.model.errors import InvalidConfig
from headrace.testkit.world import World

URL = "https://receiver.test/hook"


def test_a_webhook_without_a_secret_gets_one_that_is_returned_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        assert await get_webhook(cluster, "jobs", "workers") is None
        made = await set_webhook(cluster, "jobs", "workers", WebhookSettings(URL))
        assert made is not None
        assert len(made) > 40
        assert await get_webhook(cluster, "jobs", "workers") == WebhookView(URL, True, 8, 0, 10_000)
        more = WebhookSettings(URL, concurrency=2, rate=5, timeout_ms=500)
        assert await set_webhook(cluster, "jobs", "workers", more) is None
        assert await get_webhook(cluster, "jobs", "workers") == WebhookView(URL, True, 2, 5, 500)
        (push,) = await WebhookPoller(cluster).ask()
        assert push.secret == made, "it stays"
        assert await set_webhook(cluster, "jobs", "workers", WebhookSettings(URL, secret="another")) is None
        (push,) = await WebhookPoller(cluster).ask()
        assert (push.secret, push.concurrency, push.topics) == ("another", 8, ["jobs"]), "all else is as by default"

    with_queue(scenario)


def test_a_deleted_webhook_leaves_nothing_behind() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        first = await set_webhook(cluster, "jobs", "workers", WebhookSettings(URL, rate=7))
        await delete_webhook(cluster, "jobs", "workers")
        assert await get_webhook(cluster, "jobs", "workers") is None
        assert await WebhookPoller(cluster).ask() == []
        second = await set_webhook(cluster, "jobs", "workers", WebhookSettings(URL))
        assert second not in (None, first)
        assert await get_webhook(cluster, "jobs", "workers") == WebhookView(URL, True, 8, 0, 10_000)

    with_queue(scenario)


def test_invalid_settings_are_rejected_and_secrets_are_not_repeated() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        for settings in (
            WebhookSettings("ftp://x/"),
            WebhookSettings(URL, concurrency=0),
            WebhookSettings(URL, timeout_ms=1),
        ):
            with pytest.raises(InvalidConfig) as rejected:
                await set_webhook(
                    cluster, "jobs", "workers", WebhookSettings(settings.url, "hush", settings.concurrency, -1)
                )
            assert "hush" not in str(rejected.value)
        assert await get_webhook(cluster, "jobs", "workers") is None

    with_queue(scenario)


def test_nothing_is_returned_while_nothing_has_changed() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        pushes = WebhookPoller(cluster)
        await set_webhook(cluster, "jobs", "workers", WebhookSettings(URL))
        first = await pushes.ask()
        assert await pushes.ask() is first
        await set_webhook(cluster, "jobs", "workers", WebhookSettings(URL, rate=1))
        assert [push.rate for push in await pushes.ask()] == [1]

    with_queue(scenario)


def test_the_topics_of_subscriptions_are_listed() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        assert await subscribed_topics(cluster, ["workers", "nobody"]) == {"workers": ["jobs"]}

    with_queue(scenario, partitions=3)
