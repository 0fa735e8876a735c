"""Describe, create, move and delete subscriptions; the status of single messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.broker.broker_requests import TIMESTAMP_MS, produce
from tests.unit.broker.queues.queue_support import (
    CREATE,
    DELETE,
    EARLIEST,
    LATEST,
    NACK,
    SEEK,
    SubscriptionMember,
    alter,
    describe,
    status,
    subscribe,
    values_of,
)
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRecordState,
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.queues import (
    AlterSubscriptionsPartition,
    AlterSubscriptionsRequest,
    AlterSubscriptionsTopic,
    DescribeSubscriptionsRequest,
    DescribeSubscriptionsTopic,
    MessageStatusRequest,
)


async def test_a_description_counts_backlog_and_leases(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    for number in range(5):
        await produce(simulated_broker, "jobs", b"%d" % number, timestamp_ms=TIMESTAMP_MS + number * 1000)
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease(4)
    await member.ack([messages[0], messages[2]])
    assert await member.settle([messages[3]], NACK, delay_ms=60_000) == [0]
    (described,) = await describe(simulated_broker)
    assert (described.subscription, described.floor, described.end, described.backlog) == ("workers", 1, 5, 3)
    assert (described.leased, described.waiting, described.dying) == (1, 1, 0)
    assert described.oldest_ms == TIMESTAMP_MS + 1000


async def test_an_empty_backlog_has_no_oldest_message(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    assert [(one.backlog, one.oldest_ms) for one in await describe(simulated_broker)] == [(0, -1)]


async def test_the_oldest_message_is_found_within_a_batch_and_on_the_disk(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c")
    member = SubscriptionMember(simulated_broker)
    await member.ack((await member.lease())[:2])
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    assert [one.oldest_ms for one in await describe(simulated_broker)] == [TIMESTAMP_MS + 2]


async def test_a_new_leader_describes_no_backlog_before_it_knows_the_high_watermark(
    simulated_broker: SimulatedBroker,
) -> None:
    """A backlog of 0 means that no message is left: a lagging high watermark would hide committed messages."""
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b")
    partition = simulated_broker.partition("jobs")
    partition.epoch_start, partition.high_watermark = 2, 0
    topics = [DescribeSubscriptionsTopic(name="jobs", partitions=[0])]
    response = await simulated_broker.send(DescribeSubscriptionsRequest(subscriptions=["workers"], topics=topics), 0)
    (answer,) = response.topics[0].partitions
    assert (answer.error_code, answer.subscriptions) == (OffsetNotAvailable.code, [])
    partition.high_watermark = 2
    assert [(one.end, one.backlog) for one in await describe(simulated_broker)] == [(2, 2)]


async def test_all_or_only_named_subscriptions_are_described(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await alter(simulated_broker, CREATE, subscription="auditors")
    assert {one.subscription for one in await describe(simulated_broker)} == {"workers", "auditors"}
    assert {one.subscription for one in await describe(simulated_broker, "auditors", "nobody")} == {"auditors"}


async def test_a_topic_without_subscriptions_has_none(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    assert await describe(simulated_broker) == []
    assert simulated_broker.broker.catalogue.find("__acks.jobs") is None, "a description creates no acks topic"
    topics = [DescribeSubscriptionsTopic("jobs", [0, 1]), DescribeSubscriptionsTopic("nowhere", [0])]
    response = await simulated_broker.send(DescribeSubscriptionsRequest(topics=topics), 0)
    assert [answer.error_code for topic in response.topics for answer in topic.partitions] == [
        0,
        UnknownTopicOrPartition.code,
        UnknownTopicOrPartition.code,
    ]


@pytest.mark.parametrize(
    ("position", "floor"),
    [
        ({"offset": EARLIEST}, 0),
        ({"offset": LATEST}, 4),
        ({"offset": 3}, 3),
        ({"timestamp_ms": TIMESTAMP_MS + 1500}, 2),
        ({"timestamp_ms": TIMESTAMP_MS + 9999}, 4),
    ],
)
@pytest.mark.parametrize("action", [CREATE, SEEK])
async def test_a_subscription_begins_at_the_given_offset(
    simulated_broker: SimulatedBroker, action: int, position: dict[str, Any], floor: int
) -> None:
    await simulated_broker.create_topic("jobs")
    for number in range(4):
        await produce(simulated_broker, "jobs", b"%d" % number, timestamp_ms=TIMESTAMP_MS + number * 1000)
    if action == SEEK:
        assert (await alter(simulated_broker, CREATE, offset=1)).floor == 1
    response = await alter(simulated_broker, action, **position)
    assert (response.error_code, response.floor) == (0, floor)
    await simulated_broker.restart()
    assert values_of(await SubscriptionMember(simulated_broker).lease()) == [
        b"%d" % number for number in range(floor, 4)
    ]


async def test_creating_an_existing_subscription_does_not_move_it(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    response = await alter(simulated_broker, CREATE, offset=LATEST)
    assert (response.error_code, response.floor) == (0, 0)


async def test_a_seek_back_redelivers_messages_and_ends_leases(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    await member.ack(messages[:1])
    assert (await alter(simulated_broker, SEEK, offset=EARLIEST)).floor == 0
    assert await member.settle(messages[1:]) == [InvalidRecordState.code]
    assert values_of(await member.lease()) == [b"a", b"b"]


@pytest.mark.parametrize("offset", [5, -3])
async def test_an_offset_must_be_in_the_log(simulated_broker: SimulatedBroker, offset: int) -> None:
    await simulated_broker.create_topic("jobs")
    await produce(simulated_broker, "jobs", b"a")
    assert (await alter(simulated_broker, CREATE, offset=offset)).error_code == OffsetOutOfRange.code


@pytest.mark.parametrize("action", [SEEK, DELETE])
async def test_an_unknown_subscription_cannot_be_moved_or_deleted(
    simulated_broker: SimulatedBroker, action: int
) -> None:
    await simulated_broker.create_topic("jobs")
    assert (await alter(simulated_broker, action)).error_code == GroupIdNotFound.code
    await alter(simulated_broker, CREATE, subscription="auditors")
    assert (await alter(simulated_broker, action)).error_code == GroupIdNotFound.code


@pytest.mark.parametrize(("subscription", "action"), [("", CREATE), ("s" * 256, CREATE), ("s", 3)])
async def test_an_invalid_request_is_rejected_as_a_whole(
    simulated_broker: SimulatedBroker, subscription: str, action: int
) -> None:
    await simulated_broker.create_topic("jobs")
    topics = [AlterSubscriptionsTopic("jobs", [AlterSubscriptionsPartition(0)])]
    response = await simulated_broker.send(AlterSubscriptionsRequest(subscription, action, topics), 0)
    assert response.error_code in (InvalidGroupId.code, InvalidRequest.code)
    assert response.topics == []


async def test_the_status_of_a_message_shows_each_state(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker, "worker-7")

    async def message_status() -> tuple[object, ...]:
        (one,) = await status(simulated_broker, 0)
        return one.state, one.attempts, one.member, one.reason, one.how

    assert await message_status() == ("ready", 0, None, None, None)
    messages = await member.lease()
    assert await message_status() == ("leased", 1, "worker-7", None, None)
    assert (await status(simulated_broker, 0))[0].until_ms - simulated_broker.host.clock.now_ms() <= 30_000
    assert await member.settle(messages, NACK, delay_ms=5000, reason="busy") == [0]
    failed_ms = simulated_broker.host.clock.now_ms()
    assert await message_status() == ("waiting", 1, None, "busy", None)
    (one,) = await status(simulated_broker, 0)
    assert abs(one.at_ms - failed_ms) <= 20
    assert abs(one.until_ms - failed_ms - 5000) <= 20
    await simulated_broker.pass_time(6)
    await member.ack(await member.lease())
    assert await message_status() == ("settled", 2, None, None, "ack")
    (one,) = await status(simulated_broker, 0)
    assert abs(one.at_ms - simulated_broker.host.clock.now_ms()) <= 20


async def test_the_status_is_returned_for_each_subscription(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await alter(simulated_broker, CREATE, subscription="auditors")
    await produce(simulated_broker, "jobs", b"a")
    await SubscriptionMember(simulated_broker).ack(await SubscriptionMember(simulated_broker).lease())
    assert {one.subscription: one.state for one in await status(simulated_broker, 0)} == {
        "workers": "settled",
        "auditors": "ready",
    }
    response = await simulated_broker.send(MessageStatusRequest("jobs", 0, [0], ["auditors", "nobody"]), 0)
    assert [one.subscription for one in response.statuses] == ["auditors"]


async def test_after_a_seek_back_a_message_is_not_settled(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    await SubscriptionMember(simulated_broker).ack(await SubscriptionMember(simulated_broker).lease())
    await alter(simulated_broker, SEEK, offset=EARLIEST)
    (one,) = await status(simulated_broker, 0)
    assert (one.state, one.how, one.at_ms) == ("ready", None, -1)


async def test_the_settled_status_is_returned_only_when_it_is_durable(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    simulated_broker.host.disk.delay_seconds = (0.2, 0.2)
    settling = asyncio.create_task(member.settle(await member.lease()))
    await simulated_broker.pass_time(0.1)
    pending = asyncio.create_task(status(simulated_broker, 0))
    await simulated_broker.pass_time(0.05)
    assert not settling.done()
    assert not pending.done()
    assert [one.state for one in await pending] == ["settled"]
    assert await settling == [0]


async def test_messages_that_do_not_exist_have_no_status(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    assert (await simulated_broker.send(MessageStatusRequest("jobs", 0, [0]), 0)).error_code == OffsetOutOfRange.code
    assert (
        await simulated_broker.send(MessageStatusRequest("jobs", 9, [0]), 0)
    ).error_code == UnknownTopicOrPartition.code
    await simulated_broker.create_topic("others")
    response = await simulated_broker.send(MessageStatusRequest("others", 0, [0]), 0)
    assert (response.error_code, response.statuses) == (0, [])


async def test_the_status_above_a_new_leaders_high_watermark_is_a_retriable_error(
    simulated_broker: SimulatedBroker,
) -> None:
    """The new leader does not know the high watermark of its predecessor yet."""
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b")
    partition = simulated_broker.partition("jobs")
    partition.epoch_start, partition.high_watermark = 2, 0
    assert (await simulated_broker.send(MessageStatusRequest("jobs", 0, [1]), 0)).error_code == OffsetNotAvailable.code
    assert (await simulated_broker.send(MessageStatusRequest("jobs", 0, [2]), 0)).error_code == OffsetOutOfRange.code
    assert (await alter(simulated_broker, SEEK, offset=2)).error_code == OffsetNotAvailable.code
    partition.high_watermark = 2
    assert [one.state for one in await status(simulated_broker, 1)] == ["ready"]
    assert (await alter(simulated_broker, SEEK, offset=2)).error_code == 0
