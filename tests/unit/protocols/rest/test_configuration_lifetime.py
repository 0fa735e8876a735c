"""The configuration of a subscription belongs to its topic and its name, and is deleted with either."""

from __future__ import annotations

from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.admin.webhooks import WebhookPoller
from headrace.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from headrace.wire.messages.queues import LeaseRequest, LeaseTopic

NOTHING = {"headrace.filter": "key = 'matches nothing'"}
URL = "https://first.example/hook"


async def make_topics(harness: RestHarness, *names: str) -> None:
    for name in names:
        assert (await harness.ask("POST", "/topics", {"name": name})).status == 201


async def subscribe(harness: RestHarness, topic: str, name: str = "invoices", **more: object) -> None:
    body = {"name": name, "start": "earliest", **more}
    response = await harness.ask("POST", f"/topics/{topic}/subscriptions", body)
    assert response.status == 201, response.raw


async def pulled(harness: RestHarness, topic: str, name: str = "invoices") -> list[object]:
    response = await harness.ask("GET", f"/subscriptions/{name}/messages?topic={topic}")
    assert response.status == 200, response.raw
    return [one["value"] for one in response.json["messages"]]


async def configure_group(harness: RestHarness, name: str, **settings: str) -> None:
    """Configure a group by its name alone, like Kafka's tools and earlier versions."""
    changes = [IncrementalAlterableConfig(name.replace("_", "."), 0, value) for name, value in settings.items()]
    request = IncrementalAlterConfigsRequest([IncrementalAlterConfigsResource(32, name, changes)])
    response = await harness.cluster.call(request)
    assert response.responses[0].error_code == 0


async def subscribe_as_kafka_does(harness: RestHarness, topic: str, name: str = "invoices") -> None:
    """Create a subscription by a lease, so that it has no configuration."""
    request = LeaseRequest(subscription=name, member="m", max_wait_ms=0, topics=[LeaseTopic(topic, [0])])
    response = await harness.cluster.call(request)
    assert response.error_code == 0


async def group_configs(harness: RestHarness, name: str) -> object:
    from headrace.client.admin.config_requests import describe_configs

    described = await describe_configs(harness.cluster, (32, name))
    return {one.name: one.value for one in described if one.config_source == 8}


def test_a_subscription_does_not_inherit_the_filter_of_a_deleted_namesake() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "mine", "theirs")
        await subscribe(harness, "mine", configs=NOTHING)
        assert (await harness.ask("DELETE", "/topics/mine/subscriptions/invoices")).status == 204
        await subscribe(harness, "theirs")
        await harness.publish("theirs", {"n": 1})
        assert await pulled(harness, "theirs") == [{"n": 1}]

    with_rest_harness(scenario)


def test_subscriptions_of_one_name_in_two_topics_are_configured_separately() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "mine", "theirs")
        await subscribe(harness, "mine", configs=NOTHING)
        await subscribe(harness, "theirs", configs={"headrace.rate": 5})
        changed = {"configs": {"headrace.dead.letters.enable": False}}
        assert (await harness.ask("PATCH", "/topics/mine/subscriptions/invoices", changed)).status == 200
        await harness.publish("theirs", {"n": 1})
        assert await pulled(harness, "theirs") == [{"n": 1}]
        theirs = await harness.ask("GET", "/topics/theirs/subscriptions/invoices")
        assert theirs.json["configs"] == {"headrace.rate": "5"}
        mine = await harness.ask("GET", "/topics/mine/subscriptions/invoices")
        assert mine.json["configs"] == {**NOTHING, "headrace.dead.letters.enable": "false"}

    with_rest_harness(scenario)


def test_a_topic_that_is_created_again_does_not_inherit_webhooks_or_filters() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "orders")
        await subscribe(harness, "orders", configs=NOTHING, push={"url": URL})
        (push,) = await WebhookPoller(harness.cluster).ask()
        assert (push.subscription, push.topics, push.url) == ("invoices", ["orders"], URL)
        assert (await harness.ask("DELETE", "/topics/orders")).status == 204
        assert await WebhookPoller(harness.cluster).ask() == []
        await make_topics(harness, "orders")
        await subscribe_as_kafka_does(harness, "orders")
        assert (await harness.ask("GET", "/subscriptions/invoices/push?topic=orders")).code == "push_not_found"
        shown = await harness.ask("GET", "/topics/orders/subscriptions/invoices")
        assert shown.json["configs"] == {}
        assert await WebhookPoller(harness.cluster).ask() == []

    with_rest_harness(scenario)


def test_a_recreated_subscription_has_no_configuration() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "orders")
        await subscribe(harness, "orders", configs=NOTHING, push={"url": URL})
        assert (await harness.ask("DELETE", "/topics/orders/subscriptions/invoices")).status == 204
        assert await WebhookPoller(harness.cluster).ask() == []
        await subscribe_as_kafka_does(harness, "orders")
        shown = await harness.ask("GET", "/topics/orders/subscriptions/invoices")
        assert shown.json["configs"] == {}

    with_rest_harness(scenario)


def test_configuration_of_an_incomplete_creation_is_replaced_by_the_next_one() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "orders")
        await SubscriptionAdmin(harness.cluster).configure("orders", "invoices", NOTHING)
        await subscribe(harness, "orders", configs={"headrace.rate": 5})
        shown = await harness.ask("GET", "/topics/orders/subscriptions/invoices")
        assert shown.json["configs"] == {"headrace.rate": "5"}

    with_rest_harness(scenario)


def test_a_subscription_inherits_only_kafkas_configs_from_its_group() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "orders")
        lock = {"share_record_lock_duration_ms": "5000"}
        await configure_group(harness, "invoices", headrace_filter=NOTHING["headrace.filter"], **lock)
        await configure_group(harness, "invoices", headrace_push_url=URL)
        await subscribe(harness, "orders", configs={"share.delivery.count.limit": 2})
        shown = await harness.ask("GET", "/topics/orders/subscriptions/invoices")
        assert shown.json["configs"] == {"share.delivery.count.limit": "2", "share.record.lock.duration.ms": "5000"}
        assert [(push.topics, push.url) for push in await WebhookPoller(harness.cluster).ask()] == [
            ([], URL),
            (["orders"], ""),
        ]

    with_rest_harness(scenario)


def test_a_changed_subscription_keeps_the_configuration_of_its_group() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "old")
        await configure_group(harness, "invoices", headrace_filter="key = 'yes'", headrace_push_url=URL)
        await subscribe_as_kafka_does(harness, "old")
        await harness.publish("old", {"n": 1})
        await harness.publish("old", {"n": 2}, headrace_key="yes")
        assert await pulled(harness, "old") == [{"n": 2}]
        await SubscriptionAdmin(harness.cluster).create("old", "invoices", Position(START))
        changed = {"configs": {"headrace.rate": 100}}
        assert (await harness.ask("PATCH", "/topics/old/subscriptions/invoices", changed)).status == 200
        shown = await harness.ask("GET", "/topics/old/subscriptions/invoices")
        assert shown.json["configs"] == {
            "headrace.filter": "key = 'yes'",
            "headrace.push.url": URL,
            "headrace.rate": "100",
            "headrace.retry.backoff.ms": "0",
            "share.delivery.count.limit": "5",
        }

    with_rest_harness(scenario)


def test_the_configuration_of_a_group_is_deleted_with_its_last_subscription() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "one", "two")
        await configure_group(harness, "invoices", headrace_filter="key = 'yes'")
        await subscribe_as_kafka_does(harness, "one")
        await subscribe_as_kafka_does(harness, "two")
        assert (await harness.ask("DELETE", "/topics/one/subscriptions/invoices")).status == 204
        assert await group_configs(harness, "invoices") == {"headrace.filter": "key = 'yes'"}
        assert (await harness.ask("DELETE", "/topics/two")).status == 204
        assert await group_configs(harness, "invoices") == {}

    with_rest_harness(scenario)


def test_a_tenant_cannot_clear_the_configuration_of_another_tenants_group() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "mine")
        await configure_group(harness, "invoices", share_auto_offset_reset="earliest")
        await subscribe(harness, "mine")
        assert (await harness.ask("DELETE", "/topics/mine/subscriptions/invoices")).status == 204
        assert await group_configs(harness, "invoices") == {"share.auto.offset.reset": "earliest"}

    with_rest_harness(scenario)


def test_configs_of_the_membership_protocol_are_not_those_of_a_subscription() -> None:
    async def scenario(harness: RestHarness) -> None:
        await make_topics(harness, "orders")
        for name in ("share.session.timeout.ms", "consumer.session.timeout.ms"):
            body = {"name": "invoices", "configs": {name: 60_000}}
            refused = await harness.ask("POST", "/topics/orders/subscriptions", body)
            assert refused.code == "invalid_config"
        assert (await harness.ask("GET", "/topics/orders/subscriptions")).json["subscriptions"] == []

    with_rest_harness(scenario)
