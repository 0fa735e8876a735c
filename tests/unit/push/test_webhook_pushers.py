"""The webhooks of a process follow the configuration at the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.push.push_support import WebhookReceiver, leased, put, until, with_queue

from headrace.client.admin.config_requests import alter_configs
from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.admin.webhooks import WebhookPoller, WebhookSettings, delete_webhook, set_webhook
from headrace.client.cluster import Cluster
from headrace.client.queues.feed import Feed
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.model.subscription_configs import GROUP_RESOURCE
from headrace.push.webhook import DeliveryOutcome
from headrace.push.webhook_pusher import WebhookPushers
from headrace.testkit.world import World
from headrace.wire.messages.queues import DescribedPush, LeaseRequest, LeaseTopic

HOOK = WebhookSettings("http://receiver.test/hook")


@asynccontextmanager
async def pushing(cluster: Cluster, receiver: WebhookReceiver) -> AsyncIterator[WebhookPushers]:
    async def open_receiver() -> WebhookReceiver:
        return receiver

    pushers = WebhookPushers(cluster, open_receiver)
    running = asyncio.create_task(pushers.run())
    try:
        yield pushers
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_push_begins_when_it_is_set_and_ends_when_it_is_deleted() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        async with pushing(cluster, receiver) as pushers:
            await put(cluster, b"a")
            await asyncio.sleep(5.0)
            assert (list(pushers), pushers.status("jobs", "workers")) == ([], None)
            await set_webhook(cluster, "jobs", "workers", HOOK)
            await until(lambda: receiver.values == [b"a"], 3.0)
            assert [status.subscription for status in pushers] == ["workers"]
            await delete_webhook(cluster, "jobs", "workers")
            await until(lambda: pushers.status("jobs", "workers") is None, 3.0)
            await put(cluster, b"b")
            await asyncio.sleep(10.0)
            assert receiver.values == [b"a"]
        assert receiver.is_closed

    with_queue(scenario)


def test_a_webhook_that_is_set_again_continues_with_its_new_settings() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.seconds = 20.0
        await set_webhook(cluster, "jobs", "workers", HOOK)
        async with pushing(cluster, receiver) as pushers:
            await put(cluster, *(b"%d" % number for number in range(12)))
            await until(lambda: receiver.in_flight == 8)
            await set_webhook(cluster, "jobs", "workers", WebhookSettings(HOOK.url, concurrency=2))
            await until(lambda: receiver.in_flight == 10, 5.0)
            await until(lambda: len(receiver.got) == 12)
            status = pushers.status("jobs", "workers")
            assert status is not None
            assert status.delivered == 4, "counted since it was set"
            await asyncio.sleep(1.0)
            assert await leased(cluster) == 0

    with_queue(scenario)


async def lease_once(cluster: Cluster, topic: str, name: str) -> None:
    """Make a subscription as a Kafka client does, without a configuration of its own."""
    request = LeaseRequest(subscription=name, member="m", max_wait_ms=0, topics=[LeaseTopic(topic, [0])])
    assert (await cluster.call(request)).error_code == 0


def test_the_webhook_of_a_group_is_for_all_topics_whose_subscription_has_no_configuration_of_its_own() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        group = {"headrace.push.url": HOOK.url, "share.auto.offset.reset": "earliest"}
        await alter_configs(cluster, (GROUP_RESOURCE, "group"), dict(group))
        await lease_once(cluster, "jobs", "group")
        async with pushing(cluster, receiver):
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])
            for topic in ("mails", "own"):
                await TopicAdmin(cluster).create(NewTopic(topic, 1))
            await lease_once(cluster, "mails", "group")
            await SubscriptionAdmin(cluster).create("own", "group", Position(START))
            await put(cluster, b"hush", topic="own")
            await put(cluster, b"b", topic="mails")
            await until(lambda: receiver.values == [b"a", b"b"], 10.0)
            await SubscriptionAdmin(cluster).delete("jobs", "group")
            await asyncio.sleep(10.0)
            await put(cluster, b"c", topic="mails")
            await until(lambda: receiver.values == [b"a", b"b", b"c"], 10.0)

    with_queue(scenario)


def test_subscriptions_of_one_name_are_pushed_each_to_its_own_webhook() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        await TopicAdmin(cluster).create(NewTopic("mails", 1))
        await SubscriptionAdmin(cluster).create("mails", "workers", Position(START))
        await set_webhook(cluster, "jobs", "workers", HOOK)
        await set_webhook(cluster, "mails", "workers", WebhookSettings("http://other.test/hook"))
        async with pushing(cluster, receiver) as pushers:
            await put(cluster, b"a")
            await put(cluster, b"b", topic="mails")
            await until(lambda: sorted(filter(None, receiver.values)) == [b"a", b"b"])
            urls = {status.topic: status.url for status in pushers}
            assert urls == {"jobs": HOOK.url, "mails": "http://other.test/hook"}

    with_queue(scenario)


def test_only_the_topics_that_a_push_is_for_are_pushed() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        await TopicAdmin(cluster).create(NewTopic("secrets", 1))
        await SubscriptionAdmin(cluster).create("secrets", "workers", Position(START))
        await set_webhook(cluster, "jobs", "workers", HOOK)
        async with pushing(cluster, receiver):
            await put(cluster, b"hush", topic="secrets")
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])
            await asyncio.sleep(30.0)
            assert receiver.values == [b"a"]

    with_queue(scenario)


def test_a_push_of_a_missing_subscription_waits_for_its_creation() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        await alter_configs(cluster, (GROUP_RESOURCE, "later"), {"headrace.push.url": HOOK.url})
        async with pushing(cluster, receiver) as pushers:
            await asyncio.sleep(5.0)
            assert pushers.status("jobs", "later") is None
            await lease_once(cluster, "jobs", "later")
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"], 10.0)

    with_queue(scenario)


def test_while_no_broker_responds_pushing_continues_and_the_error_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        from headrace.client.errors import Unreachable

        receiver = WebhookReceiver()
        await set_webhook(cluster, "jobs", "workers", HOOK)
        async with pushing(cluster, receiver):
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])

            async def ask(_self: WebhookPoller) -> None:
                raise Unreachable("nobody is there")

            monkeypatch.setattr(WebhookPoller, "ask", ask)
            await put(cluster, b"b")
            await asyncio.sleep(10.0)
            assert receiver.values == [b"a", b"b"]
        assert caplog.text.count("nobody is there") == 1

    with_queue(scenario)


def test_an_unexpected_error_while_sending_is_retried_and_does_not_stop_other_pushes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver, is_broken = WebhookReceiver(), True

        class BrokenForOne(WebhookReceiver):
            async def send(self, push: DescribedPush, message: LeasedMessage) -> DeliveryOutcome:
                if push.subscription == "workers" and is_broken:
                    raise UnicodeError("label empty or too long")
                return await receiver.send(push, message)

        await SubscriptionAdmin(cluster).create("jobs", "others", Position(START))
        await set_webhook(cluster, "jobs", "workers", HOOK)
        await set_webhook(cluster, "jobs", "others", HOOK)
        async with pushing(cluster, BrokenForOne()) as pushers:
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a"])
            await until(lambda: (status := pushers.status("jobs", "workers")) is not None and status.failed > 0)
            status = pushers.status("jobs", "workers")
            assert status is not None
            assert status.last_error == "unexpected error: UnicodeError: label empty or too long"
            is_broken = False
            await until(lambda: receiver.values == [b"a", b"a"])
        assert "subscription='workers'" in caplog.text

    with_queue(scenario, share_delivery_count_limit="100")


def test_a_push_that_crashes_restarts_after_a_pause_and_others_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        receiver = WebhookReceiver()
        take, failed_at = Feed.take, list[float]()

        async def fail_at_first(self: Feed, wait_seconds: float) -> list[LeasedMessage]:
            if self.subscription == "workers" and len(failed_at) < 5:
                failed_at.append(world.clock.monotonic())
                raise RuntimeError("a fault of ours")
            return await take(self, wait_seconds)

        monkeypatch.setattr(Feed, "take", fail_at_first)
        await SubscriptionAdmin(cluster).create("jobs", "others", Position(START))
        await set_webhook(cluster, "jobs", "workers", HOOK)
        await set_webhook(cluster, "jobs", "others", HOOK)
        async with pushing(cluster, receiver) as pushers:
            await put(cluster, b"a")
            await until(lambda: receiver.values == [b"a", b"a"])
            status = pushers.status("jobs", "workers")
            assert status is not None
            assert (status.delivered, status.last_error) == (1, "unexpected error: RuntimeError: a fault of ours")
        assert len(failed_at) == 5
        assert failed_at == sorted(set(failed_at)), "a pause before each new attempt"
        assert "a fault of ours" in caplog.text

    with_queue(scenario)
