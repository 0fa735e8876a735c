"""Metrics of subscriptions: backlog, settlements and latencies."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import batch, produce, send
from tests.unit.broker.queues.queue_support import (
    ACK,
    CREATE,
    DELETE,
    EXTEND,
    NACK,
    REJECT,
    TOPIC,
    WORKERS,
    SubscriptionMember,
    alter,
    configure,
    subscribe,
)
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.server.metrics.metrics_page import MetricsPage, metrics_of, scrape, with_simulated_broker

from headrace.server.metrics import queues
from headrace.wire.messages.queues import SettleItem

PREFIX = "headrace_subscription_"


def metric(page: MetricsPage, name: str, subscription: str = WORKERS, topic: str = TOPIC) -> float:
    return page.value(PREFIX + name, subscription=subscription, topic=topic)


def by_state(page: MetricsPage, subscription: str = WORKERS) -> dict[str, float]:
    return {
        state: page.value(f"{PREFIX}messages", subscription=subscription, topic=TOPIC, state=state)
        for state in ("ready", "leased", "waiting", "dying")
    }


def now_ms(simulated_broker: SimulatedBroker) -> int:
    return simulated_broker.host.clock.now_ms()


async def publish(simulated_broker: SimulatedBroker, count: int, partition: int = 0) -> None:
    """In one batch, of now."""
    data = batch(*(b"%d" % number for number in range(count)), timestamp_ms=now_ms(simulated_broker) - count + 1)
    assert (await send(simulated_broker, TOPIC, data, partition=partition)).error_code == 0


@with_simulated_broker
async def test_messages_are_counted_by_delivery_state(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await publish(simulated_broker, 10)
    member = SubscriptionMember(simulated_broker)
    taken = await member.lease(4)
    await member.settle(taken[:1], NACK, delay_ms=60_000)
    await member.ack(taken[1:2])
    page = await scrape(simulated_broker)
    assert by_state(page) == {"ready": 6, "leased": 2, "waiting": 1, "dying": 0}
    assert metric(page, "backlog") == 9


@with_simulated_broker
async def test_the_partitions_of_a_topic_are_summed(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, partitions=3)
    for partition in range(3):
        await publish(simulated_broker, 5, partition)
    await SubscriptionMember(simulated_broker).lease(2, partitions=[1])
    page = await scrape(simulated_broker)
    assert by_state(page) == {"ready": 13, "leased": 2, "waiting": 0, "dying": 0}
    assert metric(page, "deliveries_total") == 2


@with_simulated_broker
async def test_each_counter_increases_by_the_messages_of_a_range(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_retry_backoff_ms="0")
    await publish(simulated_broker, 500)
    member = SubscriptionMember(simulated_broker)
    taken = await member.lease(500)
    epoch = taken[0].epoch
    items = [
        SettleItem(0, 99, 1, ACK),
        SettleItem(100, 129, 1, NACK),
        SettleItem(130, 136, 1, REJECT),
        SettleItem(137, 149, 1, EXTEND, lease_ms=120_000),
        SettleItem(0, 99, 1, ACK),
    ]
    answer = await member.settle_items(items, epoch=epoch)
    assert [refused.index for refused in answer.refused] == [4]
    page = await scrape(simulated_broker)
    assert metric(page, "deliveries_total") == 500
    assert metric(page, "redeliveries_total") == 0
    assert metric(page, "acks_total") == 100
    assert metric(page, "nacks_total") == 30
    assert metric(page, "rejects_total") == 7
    assert metric(page, "extends_total") == 13
    assert metric(page, "settles_refused_total") == 1
    await simulated_broker.pass_time(31)  # what was not extended comes back
    assert len(await member.lease(500)) == 30 + 350
    page = await scrape(simulated_broker)
    assert metric(page, "leases_expired_total") == 350
    assert metric(page, "deliveries_total") == 880
    assert metric(page, "redeliveries_total") == 380
    assert metric(page, "dead_letters_total") == 7
    assert page.value("headrace_dead_letters", topic=TOPIC) == 7


@with_simulated_broker
async def test_messages_discarded_without_a_dead_letter_are_counted(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_dead_letters_enable="false", share_delivery_count_limit="2")
    await publish(simulated_broker, 3)
    member = SubscriptionMember(simulated_broker)
    for _ in range(2):
        assert await member.settle(await member.lease(), NACK, delay_ms=0) == [0, 0, 0]
    page = await scrape(simulated_broker)
    assert metric(page, "discarded_total") == 3
    assert metric(page, "dead_letters_total") == 0
    assert metric(page, "backlog") == 0


@with_simulated_broker
async def test_filtered_messages_are_counted(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_filter="key = 'mine'")
    await produce(simulated_broker, TOPIC, b"a", b"b")
    assert await SubscriptionMember(simulated_broker).lease() == []
    assert metric(await scrape(simulated_broker), "messages_filtered_total") == 2


@with_simulated_broker
async def test_messages_deleted_by_retention_count_as_expired(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await publish(simulated_broker, 5)
    await simulated_broker.host.start(simulated_broker.partition(TOPIC).log.advance_start(3), "trim")
    page = await scrape(simulated_broker)
    assert metric(page, "messages_expired_total") == 3
    assert metric(page, "backlog") == 2


@with_simulated_broker
async def test_the_oldest_message_is_as_old_as_its_batch(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    metrics, member = metrics_of(simulated_broker), SubscriptionMember(simulated_broker)

    async def age() -> float:
        """A second later, and by the same metrics: what they remember must be right."""
        await simulated_broker.pass_time(1)
        page: bytes = await simulated_broker.host.start(metrics.page(), "scrape")
        return metric(MetricsPage(page.decode()), "oldest_age_seconds")

    assert await age() == 0
    await publish(simulated_broker, 2)
    await simulated_broker.pass_time(40)
    await publish(simulated_broker, 2)
    await simulated_broker.pass_time(5)
    assert await age() == pytest.approx(46, abs=0.1)
    assert await age() == pytest.approx(47, abs=0.1)
    await member.ack(await member.lease(2))
    assert await age() == pytest.approx(8, abs=0.1)
    await member.ack(await member.lease(2))
    assert await age() == 0


@with_simulated_broker
async def test_the_oldest_message_is_read_from_disk(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await publish(simulated_broker, 2)
    await simulated_broker.pass_time(40)
    simulated_broker.host.disk.cold_chance = 1.0
    assert metric(await scrape(simulated_broker), "oldest_age_seconds") == pytest.approx(40, abs=0.1)


@with_simulated_broker
async def test_latencies_are_measured_between_publish_lease_and_ack(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await publish(simulated_broker, 100)
    await simulated_broker.pass_time(2)
    member = SubscriptionMember(simulated_broker)
    taken = await member.lease(100)
    await simulated_broker.pass_time(5)
    assert not (await member.settle_items([SettleItem(0, 99, 1, ACK)], epoch=taken[0].epoch)).refused
    page = await scrape(simulated_broker)
    for name, seconds in (("delivery", 2), ("settle", 5), ("end_to_end", 7)):
        assert metric(page, f"{name}_seconds_count") == 100, name
        assert metric(page, f"{name}_seconds_sum") == pytest.approx(100 * seconds, rel=0.02), name


@with_simulated_broker
async def test_many_subscriptions_are_summed(simulated_broker: SimulatedBroker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "SUBSCRIPTIONS_MAX", 2)
        await subscribe(simulated_broker, subscription="a")
        for name in ("b", "c"):
            await alter(simulated_broker, CREATE, subscription=name)
        await publish(simulated_broker, 4)
        for name in ("a", "b", "c"):
            member = SubscriptionMember(simulated_broker, subscription=name)
            await member.ack(await member.lease(2))
        page = await scrape(simulated_broker)
        assert metric(page, "acks_total", "all") == 6
        assert by_state(page, "all")["ready"] == 6
        assert page.labels(f"{PREFIX}backlog") == [{"subscription": "all", "topic": TOPIC}]
        assert f"{PREFIX}settle_seconds" not in page.kinds


@with_simulated_broker
async def test_a_deleted_subscription_is_not_reported(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await publish(simulated_broker, 1)
    await alter(simulated_broker, DELETE)
    assert f"{PREFIX}backlog" not in (await scrape(simulated_broker)).kinds


@with_simulated_broker
async def test_counters_survive_a_new_leader_term(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await publish(simulated_broker, 3)
    member = SubscriptionMember(simulated_broker)
    await member.ack(await member.lease(3))
    subscriptions = simulated_broker.broker.subscriptions
    acks = simulated_broker.partition(f"__acks.{TOPIC}")
    before = subscriptions.of(TOPIC, 0).find(WORKERS).stats
    subscriptions.end(acks)
    subscriptions.begin(acks)
    await simulated_broker.pass_time(1)
    assert subscriptions.of(TOPIC, 0).find(WORKERS).stats is before
    assert metric(await scrape(simulated_broker), "acks_total") == 3
