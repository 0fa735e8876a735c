"""Retry defaults: a subscription with its own configuration backs off, a group behaves as in Kafka."""

from __future__ import annotations

import pytest
from tests.unit.broker.admin.test_config_admin import DELETE, SET, change, replace, shown
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.queues.queue_support import NACK, RELEASE, SubscriptionMember, configure, subscribe
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.configs import ConfigSource
from headrace.model.errors import InvalidConfig
from headrace.model.subscription_configs import SubscriptionConfig

GROUP_TYPE, SUBSCRIPTION_TYPE = 32, 100
RESOURCE = "jobs/workers"
BACKOFF, BACKOFF_MAX = "headrace.retry.backoff.ms", "headrace.retry.backoff.max.ms"
LIMIT, BROKER_LIMIT = "share.delivery.count.limit", "group.share.delivery.count.limit"


async def attempts_within_a_second(simulated_broker: SimulatedBroker) -> int:
    """Nack one message until it is not available any more."""
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    attempts = 0
    while messages := await member.lease():
        attempts += 1
        assert await member.settle(messages, NACK) == [0]
    return attempts


async def test_a_subscription_with_its_own_configuration_backs_off(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {})
    assert await attempts_within_a_second(simulated_broker) == 1
    await simulated_broker.pass_time(1.1)
    (again,) = await SubscriptionMember(simulated_broker).lease()
    assert again.attempt == 2


async def test_a_subscription_without_its_own_configuration_retries_as_kafka_does(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    assert await attempts_within_a_second(simulated_broker) == 5


async def test_a_change_of_another_setting_keeps_the_retries_of_the_group(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    assert await change(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, ("headrace.rate", SET, "1000")) == 0
    assert await shown(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, LIMIT) == ("5", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert await attempts_within_a_second(simulated_broker) == 5


async def test_resetting_both_settings_gives_the_defaults_of_subscriptions(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    changes = (LIMIT, DELETE, None), (BACKOFF, DELETE, None)
    assert await change(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, *changes) == 0
    for name, value in ((LIMIT, "15"), (BACKOFF, "1000")):
        assert await shown(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, name) == (value, ConfigSource.DEFAULT_CONFIG)
    assert await attempts_within_a_second(simulated_broker) == 1


async def test_a_release_is_no_failure_and_does_not_back_off(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {})
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle(await member.lease(), RELEASE) == [0]
    (again,) = await member.lease()
    assert again.attempt == 1


async def test_an_expired_lease_counts_and_backs_off(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {"share.record.lock.duration.ms": "2000"})
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    await member.lease()
    await simulated_broker.pass_time(2.1)
    assert await member.lease() == []
    await simulated_broker.pass_time(1)
    (again,) = await member.lease()
    assert again.attempt == 2


async def test_both_kinds_of_defaults_are_described(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {})
    for name, kafka_default, own_default in ((LIMIT, "5", "15"), (BACKOFF, "0", "1000")):
        for kind, resource, value in (
            (GROUP_TYPE, "workers", kafka_default),
            (SUBSCRIPTION_TYPE, RESOURCE, own_default),
        ):
            assert await shown(simulated_broker, kind, resource, name) == (value, ConfigSource.DEFAULT_CONFIG)


async def test_a_limit_in_the_broker_configuration_applies_to_subscriptions(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(group_share_delivery_count_limit="7")
    await simulated_broker.create_topic("jobs")
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {})
    expected = ("7", ConfigSource.STATIC_BROKER_CONFIG)
    assert await shown(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, LIMIT) == expected
    topic_id = simulated_broker.broker.catalogue.topic("jobs").id
    config = simulated_broker.broker.subscription_configs.of(topic_id, "workers")
    assert (config.share_delivery_count_limit, config.headrace_retry_backoff_ms) == (7, 1000)


async def test_a_limit_of_the_group_applies_to_its_subscriptions(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {})
    await configure(simulated_broker, share_delivery_count_limit="3")
    assert (await shown(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, LIMIT))[0] == "3"


async def test_a_maximum_below_the_default_back_off_is_accepted_and_applies(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await replace(simulated_broker, SUBSCRIPTION_TYPE, RESOURCE, {BACKOFF_MAX: "200"})
    assert await attempts_within_a_second(simulated_broker) == 1
    await simulated_broker.pass_time(0.2)
    assert len(await SubscriptionMember(simulated_broker).lease()) == 1


def test_a_configured_back_off_must_not_exceed_the_maximum() -> None:
    with pytest.raises(InvalidConfig, match="must not exceed"):
        SubscriptionConfig.build({BACKOFF: "300", BACKOFF_MAX: "200"})
