"""Push starts in a broker when a subscription has a webhook, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker
from tests.unit.push.push_support import WebhookReceiver, put, until

from headrace.broker.broker import Broker
from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.admin.webhooks import WebhookSettings, set_webhook
from headrace.client.cluster import Cluster
from headrace.runtime.tasks import Supervisor
from headrace.server.push_service import PushService
from headrace.testkit.world import World

HOOK = WebhookSettings("http://receiver.test/hook")


def with_broker(scenario: Callable[[Broker, Cluster], Awaitable[None]]) -> None:
    async def play(world: World) -> None:
        broker = await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("jobs", 1))
            await SubscriptionAdmin(cluster).create("jobs", "workers", Position(START))
            await scenario(broker, cluster)

    in_world(play)


class Opened:
    def __init__(self, cluster: Cluster) -> None:
        self.times = 0
        self._cluster = cluster

    def __call__(self) -> Cluster:
        self.times += 1
        return self._cluster


def receive(pushing: PushService, receiver: WebhookReceiver) -> None:
    async def open_receiver() -> WebhookReceiver:
        return receiver

    assert pushing.pushers is not None
    pushing.pushers._open_sender = open_receiver


def test_push_starts_with_the_first_webhook_and_releases_messages_in_flight_at_the_end() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        opened, supervisor, receiver = Opened(cluster), Supervisor(), WebhookReceiver()
        pushing = PushService(opened, supervisor, allows_private=False)
        pushing.watch(broker.subscription_configs)
        await SubscriptionAdmin(cluster).configure("jobs", "workers", {"headrace.rate": "1000"})
        await asyncio.sleep(5.0)
        assert (opened.times, pushing.pushers, pushing.status("jobs", "workers")) == (0, None, None)
        await set_webhook(cluster, "jobs", "workers", HOOK)
        receive(pushing, receiver)
        await put(cluster, b"a")
        await until(lambda: receiver.values == [b"a"])
        status = pushing.status("jobs", "workers")
        assert status is not None
        assert status.url == HOOK.url
        await set_webhook(cluster, "jobs", "others", HOOK)
        assert opened.times == 1
        receiver.seconds = 60.0
        await put(cluster, b"b")
        await until(lambda: receiver.in_flight == 1)
        await pushing.stop()
        assert [one.leased for one in await SubscriptionAdmin(cluster).describe("workers")] == [0]
        await supervisor.stop()

    with_broker(scenario)


def test_push_starts_immediately_if_a_webhook_exists() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        await set_webhook(cluster, "jobs", "workers", HOOK)
        supervisor = Supervisor()
        pushing = PushService(lambda: cluster, supervisor, allows_private=False)
        pushing.watch(broker.subscription_configs)
        assert pushing.pushers is not None
        receive(pushing, WebhookReceiver())
        await pushing.stop()
        await supervisor.stop()

    with_broker(scenario)


def test_push_does_not_start_after_it_was_stopped() -> None:
    async def scenario(broker: Broker, cluster: Cluster) -> None:
        supervisor = Supervisor()
        pushing = PushService(lambda: cluster, supervisor, allows_private=False)
        pushing.watch(broker.subscription_configs)
        await pushing.stop()
        await set_webhook(cluster, "jobs", "workers", HOOK)
        assert pushing.pushers is None
        await supervisor.stop()

    with_broker(scenario)
