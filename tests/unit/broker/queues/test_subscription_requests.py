"""Lease and Settle: delivery, waiting, and rejected requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.queues.queue_support import (
    ACK,
    CREATE,
    DELETE,
    EXTEND,
    GAP,
    NACK,
    RELEASE,
    SubscriptionMember,
    alter,
    configure,
    describe,
    leased_records,
    subscribe,
    values_of,
)
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRecordState,
    InvalidRequest,
    InvalidTopic,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.queues import LeaseTopic, SettleItem, SettlePartition, SettleRequest, SettleTopic


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def test_acked_messages_are_not_redelivered_and_others_are(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    assert values_of(messages) == [b"a", b"b", b"c"]
    await member.ack([messages[0], messages[2]])
    assert await member.lease() == []
    await simulated_broker.pass_time(31)
    again = await member.lease()
    assert [(one.value, one.attempt) for one in again] == [(b"b", 2)]


async def test_two_members_never_have_the_same_message(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", *numbered(*range(10)))
    first, second = SubscriptionMember(simulated_broker, "a"), SubscriptionMember(simulated_broker, "b")
    assert values_of(await first.lease(4)) == numbered(0, 1, 2, 3)
    assert values_of(await second.lease(4)) == numbered(4, 5, 6, 7)
    assert values_of(await first.lease(4)) == numbered(8, 9)
    assert await second.lease() == []


async def test_two_subscriptions_are_independent(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await alter(simulated_broker, 0, subscription="auditors")
    await produce(simulated_broker, "jobs", b"a")
    worker, auditor = (
        SubscriptionMember(simulated_broker),
        SubscriptionMember(simulated_broker, subscription="auditors"),
    )
    await worker.ack(await worker.lease())
    assert values_of(await auditor.lease()) == [b"a"]


async def test_only_batches_with_leased_messages_are_sent(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    for number in range(20):
        await produce(simulated_broker, "jobs", *numbered(number * 2, number * 2 + 1))
    member = SubscriptionMember(simulated_broker)
    for count, batches in ((1, 1), (4, 3), (10, 6), (25, 13)):
        (response,) = await member.request_leases(count)
        records = bytes(response.records or b"")  # type: ignore[call-overload]
        assert len(records) // 76 == batches, f"{count} messages in {len(records)} bytes"
    assert len(await member.lease()) == 0


async def test_one_batch_is_returned_even_above_the_size_limit(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a" * 1000)
    await produce(simulated_broker, "jobs", b"b" * 1000)
    member = SubscriptionMember(simulated_broker)
    assert values_of(await member.lease(max_bytes=1)) == [b"a" * 1000]
    assert values_of(await member.lease(max_bytes=1)) == [b"b" * 1000]


async def test_a_lease_continues_in_the_next_segment(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs", segment_bytes="200")
    await alter(simulated_broker, 0)
    for number in range(6):
        await produce(simulated_broker, "jobs", b"%d" % number * 50)
    member = SubscriptionMember(simulated_broker)
    found = []
    while messages := await member.lease():
        found += values_of(messages)
    assert found == [b"%d" % number * 50 for number in range(6)]


async def test_returned_messages_are_leased_together_with_much_later_ones(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    for number in range(10):
        await produce(simulated_broker, "jobs", b"%d" % number)
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease(9)
    await member.ack([messages[at] for at in (1, 2, 3, 5, 6, 7, 8)])
    assert await member.settle([messages[0], messages[4]], NACK) == [0, 0]
    assert values_of(await member.lease()) == numbered(0, 4, 9)


@pytest.mark.parametrize("delay_ms", [-1, 0, 5000])
async def test_a_nacked_message_returns_at_once_or_after_its_delay(
    simulated_broker: SimulatedBroker, delay_ms: int
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle(await member.lease(), NACK, delay_ms=delay_ms, reason="busy") == [0]
    if delay_ms > 0:
        assert await member.lease() == []
        (described,) = await describe(simulated_broker)
        assert (described.waiting, described.leased, described.backlog) == (1, 0, 1)
        await simulated_broker.pass_time(5.1)
    assert [one.attempt for one in await member.lease()] == [2]


async def test_an_extended_lease_lasts_longer(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    await simulated_broker.pass_time(20)
    assert await member.settle(messages[:1], EXTEND, lease_ms=60_000) == [0]
    await simulated_broker.pass_time(20)
    assert await member.settle(messages) == [0, InvalidRecordState.code]
    assert values_of(await member.lease()) == [b"b"]


async def test_a_lease_request_may_set_the_lease_duration(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    (response,) = await SubscriptionMember(simulated_broker).request_leases(lease_ms=200)
    assert response.leased_until_ms - simulated_broker.host.clock.now_ms() <= 200
    await simulated_broker.pass_time(0.3)
    assert [one.attempt for one in await SubscriptionMember(simulated_broker).lease()] == [2]


async def test_only_the_lease_holder_can_settle_and_only_this_attempt(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    assert await SubscriptionMember(simulated_broker, "thief").settle(messages) == [InvalidRecordState.code] * 2
    assert await member.settle([one._replace(attempt=2) for one in messages]) == [InvalidRecordState.code] * 2
    assert await member.settle([one._replace(epoch=one.epoch - 1) for one in messages]) == [InvalidRecordState.code] * 2
    assert await member.settle([messages[0], messages[1]._replace(offset=7)]) == [0, InvalidRecordState.code]
    assert await member.settle([messages[0]]) == [InvalidRecordState.code], "the message is settled"


async def test_valid_items_of_a_settle_apply_and_others_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", *numbered(*range(6)))
    member = SubscriptionMember(simulated_broker)
    epoch = (await member.lease(5))[0].epoch
    items = [
        SettleItem(0, 1),
        SettleItem(2, 2, how=9),
        SettleItem(3, 2),
        SettleItem(4, 5),
        SettleItem(2, 2, how=NACK, delay_ms=-2),
        SettleItem(3, 3, how=EXTEND, lease_ms=1),
        SettleItem(3, 3, how=GAP),
    ]
    response = await member.settle_items(items, epoch=epoch)
    rejected = [(one.index, one.error_code) for one in sorted(response.refused, key=lambda one: one.index)]
    assert rejected == [
        (1, InvalidRequest.code),
        (2, InvalidRequest.code),
        (3, InvalidRecordState.code),
        (4, InvalidRequest.code),
        (5, InvalidRequest.code),
    ]
    assert [(one.floor, one.leased) for one in await describe(simulated_broker)] == [(2, 2)]


async def test_settling_many_partitions_is_one_request(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, partitions=2)
    await produce(simulated_broker, "jobs", b"a", partition=0)
    await produce(simulated_broker, "jobs", b"b", partition=1)
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease(partitions=(0, 1))
    assert {one.partition for one in messages} == {0, 1}
    partitions = [SettlePartition(one.partition, one.epoch, [SettleItem(0, 0)]) for one in messages]
    partitions.append(SettlePartition(7, 0, [SettleItem(0, 0)]))
    topics = [SettleTopic("jobs", partitions), SettleTopic("nowhere", [SettlePartition(0, 0, [])])]
    response = await simulated_broker.send(SettleRequest("workers", "m", topics), 0)
    assert [answer.error_code for topic in response.topics for answer in topic.partitions] == [
        0,
        0,
        UnknownTopicOrPartition.code,
        UnknownTopicOrPartition.code,
    ]


# Waiting


async def test_a_lease_waits_for_a_message(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    polling = asyncio.create_task(SubscriptionMember(simulated_broker).lease(wait_ms=10_000))
    await simulated_broker.pass_time(3)
    assert not polling.done()
    await produce(simulated_broker, "jobs", b"a")
    assert values_of(await polling) == [b"a"]


async def test_a_lease_without_messages_ends_after_max_wait(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    before = simulated_broker.host.clock.monotonic()
    assert await SubscriptionMember(simulated_broker).lease(wait_ms=2000) == []
    assert 2 <= simulated_broker.host.clock.monotonic() - before < 2.1


async def test_a_member_that_leaves_ends_its_waiting_lease_and_gets_nothing_later(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    member = SubscriptionMember(simulated_broker)
    waiting = asyncio.create_task(member.lease(wait_ms=60_000))
    await simulated_broker.pass_time(1)
    assert await member.lease(0) == []
    assert await waiting == []
    await produce(simulated_broker, "jobs", b"a")
    assert await member.lease() == [], "a Lease that was still on its way when the member left"
    assert values_of(await SubscriptionMember(simulated_broker, "another").lease()) == [b"a"]


async def test_the_longest_waiting_lease_is_served_first(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    served: list[str] = []

    async def work(name: str) -> None:
        assert len(await SubscriptionMember(simulated_broker, name).lease(1, wait_ms=60_000)) == 1
        served.append(name)

    working = []
    for name in ("a", "b", "c"):
        working.append(asyncio.create_task(work(name)))
        await simulated_broker.pass_time(0.1)
    await produce(simulated_broker, "jobs", b"1")
    await simulated_broker.pass_time(0.1)
    assert served == ["a"]
    await produce(simulated_broker, "jobs", b"2", b"3")
    for task in working:
        await task
    assert served == ["a", "b", "c"]


async def test_returned_messages_go_to_waiting_leases(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c")
    first, second = SubscriptionMember(simulated_broker, "a"), SubscriptionMember(simulated_broker, "b")
    nacked, *_ = await first.lease(lease_ms=3000)
    polling = asyncio.create_task(second.lease(wait_ms=60_000))
    await simulated_broker.pass_time(0.1)
    assert await first.settle([nacked], NACK) == [0]
    assert values_of(await polling) == [b"a"]
    polling = asyncio.create_task(second.lease(wait_ms=60_000))
    assert [(one.value, one.attempt) for one in await polling] == [(b"b", 2), (b"c", 2)]


async def test_the_first_partition_with_messages_ends_the_wait(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, partitions=3)
    polling = asyncio.create_task(SubscriptionMember(simulated_broker).lease(wait_ms=60_000, partitions=(0, 1, 2)))
    await simulated_broker.pass_time(0.1)
    await produce(simulated_broker, "jobs", b"a", partition=1)
    assert [(one.partition, one.value) for one in await polling] == [(1, b"a")]


async def test_messages_that_a_lease_leaves_go_to_the_next_waiting_one(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, partitions=2)
    both = asyncio.create_task(SubscriptionMember(simulated_broker, "both").lease(1, wait_ms=60_000, partitions=(0, 1)))
    await simulated_broker.pass_time(0.1)
    other = asyncio.create_task(
        SubscriptionMember(simulated_broker, "other").lease(1, wait_ms=60_000, partitions=(0, 1))
    )
    await simulated_broker.pass_time(0.1)
    sending = [asyncio.create_task(produce(simulated_broker, "jobs", b"a", partition=index)) for index in (0, 1)]
    messages = [*await both, *await other]
    assert {one.partition for one in messages} == {0, 1}
    for task in sending:
        await task


async def test_a_full_partition_does_not_starve_the_others(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, partitions=3)
    for partition in range(3):
        await produce(simulated_broker, "jobs", *numbered(*range(20)), partition=partition)
    member = SubscriptionMember(simulated_broker)
    partitions = [(await member.lease(1, partitions=(0, 1, 2)))[0].partition for _ in range(6)]
    assert sorted(partitions) == [0, 0, 1, 1, 2, 2]


async def test_a_cancelled_waiting_lease_leases_nothing(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    polling = simulated_broker.begin_send(SubscriptionMember(simulated_broker).request(wait_ms=60_000), 0)
    await simulated_broker.pass_time(0.1)
    polling.cancel()
    await simulated_broker.pass_time(0.1)
    await produce(simulated_broker, "jobs", b"a")
    assert [one.attempt for one in await SubscriptionMember(simulated_broker, "other").lease()] == [1]


async def test_a_lease_cancelled_before_its_response_releases_its_messages(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, partitions=2)
    for partition in (0, 1):
        await produce(simulated_broker, "jobs", b"a", partition=partition)
        await produce(simulated_broker, "jobs", b"b", partition=partition)
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    polling = simulated_broker.begin_send(SubscriptionMember(simulated_broker).request(partitions=(0, 1)), 0)
    await simulated_broker.pass_time(1.5)
    polling.cancel()
    simulated_broker.host.disk.delay_seconds = (0.0, 0.0)
    await simulated_broker.pass_time(0.1)
    others = await SubscriptionMember(simulated_broker, "other").lease(partitions=(0, 1))
    others += await SubscriptionMember(simulated_broker, "other").lease(partitions=(0, 1))
    assert len(others) == 4


async def test_waiting_leases_end_when_the_topic_is_deleted(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    polling = asyncio.create_task(SubscriptionMember(simulated_broker).request_leases(wait_ms=60_000))
    await simulated_broker.pass_time(0.1)
    await simulated_broker.delete_topic("jobs")
    (response,) = await polling
    assert response.error_code in (UnknownTopicOrPartition.code, NotLeader.code)


async def test_waiting_leases_end_when_the_broker_shuts_down(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    polling = simulated_broker.begin_send(SubscriptionMember(simulated_broker).request(wait_ms=60_000), 0)
    await simulated_broker.pass_time(0.1)
    simulated_broker.broker.complete_waiting_requests()
    response = await polling
    assert [answer.error_code for topic in response.topics for answer in topic.partitions] == [NotLeader.code]


# Beginning


async def test_an_implicitly_created_subscription_begins_at_the_end(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    await produce(simulated_broker, "jobs", b"old")
    polling = asyncio.create_task(SubscriptionMember(simulated_broker).lease(wait_ms=10_000))
    await simulated_broker.pass_time(1)
    await produce(simulated_broker, "jobs", b"new")
    assert values_of(await polling) == [b"new"]


async def test_a_subscription_may_be_configured_to_begin_at_the_start_or_at_a_time(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("jobs")
    now_ms = simulated_broker.host.clock.now_ms()
    await produce(simulated_broker, "jobs", b"old", timestamp_ms=now_ms - 7_200_000)
    await produce(simulated_broker, "jobs", b"new", timestamp_ms=now_ms - 1_000_000)
    await configure(simulated_broker, "all", share_auto_offset_reset="earliest")
    await configure(simulated_broker, "some", share_auto_offset_reset="by_duration:PT1H")
    assert values_of(await SubscriptionMember(simulated_broker, subscription="all").lease()) == [b"old", b"new"]
    assert values_of(await SubscriptionMember(simulated_broker, subscription="some").lease()) == [b"new"]


async def test_the_start_of_a_subscription_survives_crashes(simulated_broker: SimulatedBroker) -> None:
    """A crash would lose messages that are leased before the start offset is durable."""
    await simulated_broker.create_topic("jobs")
    assert await SubscriptionMember(simulated_broker).lease() == []
    await produce(simulated_broker, "jobs", b"a")
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await produce(simulated_broker, "jobs", b"b")
    assert values_of(await SubscriptionMember(simulated_broker).lease(wait_ms=1000)) == [b"a", b"b"]


async def test_a_subscription_deleted_during_a_wait_is_created_again(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    polling = asyncio.create_task(SubscriptionMember(simulated_broker).lease(wait_ms=60_000))
    await simulated_broker.pass_time(0.1)
    assert (await alter(simulated_broker, DELETE)).error_code == 0
    await simulated_broker.pass_time(0.1)
    await produce(simulated_broker, "jobs", b"a")
    assert values_of(await polling) == [b"a"]


async def test_a_lease_does_not_create_a_subscription_that_must_exist(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs", 1)
    (response,) = await SubscriptionMember(simulated_broker).request_leases(must_exist=True)
    assert response.error_code == GroupIdNotFound.code
    await alter(simulated_broker, CREATE)
    assert await SubscriptionMember(simulated_broker).request_leases(must_exist=True) == []
    (response,) = await SubscriptionMember(simulated_broker, subscription="others").request_leases(must_exist=True)
    assert response.error_code == GroupIdNotFound.code
    polling = asyncio.create_task(SubscriptionMember(simulated_broker).request_leases(wait_ms=60_000, must_exist=True))
    await simulated_broker.pass_time(0.1)
    await alter(simulated_broker, DELETE)
    (response,) = await polling
    assert response.error_code == GroupIdNotFound.code
    assert await describe(simulated_broker) == []


async def test_a_message_can_be_settled_by_id_for_any_member(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b")
    await SubscriptionMember(simulated_broker, "a").lease()
    anybody = SubscriptionMember(simulated_broker, "")
    assert (await anybody.settle_items([SettleItem(0, 0)], epoch=-1)).refused == []
    (rejected,) = (await anybody.settle_items([SettleItem(0, 0)], epoch=-1)).refused
    assert rejected.error_code == InvalidRecordState.code
    await simulated_broker.pass_time(31)
    (rejected,) = (await anybody.settle_items([SettleItem(1, 1)], epoch=-1)).refused
    assert rejected.error_code == InvalidRecordState.code
    assert [(one.value, one.attempt) for one in await SubscriptionMember(simulated_broker, "b").lease()] == [(b"b", 2)]
    assert (await anybody.settle_items([SettleItem(1, 1)], epoch=-1)).refused == []


async def test_released_messages_go_to_waiting_leases_without_counting_an_attempt(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker, "a")
    messages = await member.lease()
    polling = asyncio.create_task(SubscriptionMember(simulated_broker, "b").lease(wait_ms=60_000))
    await simulated_broker.pass_time(0.1)
    assert await member.settle(messages, RELEASE) == [0]
    assert [(one.value, one.attempt) for one in await polling] == [(b"a", 1)]


# Refusals


@pytest.mark.parametrize(
    "options",
    [
        {"count": -1},
        {"count": 10_001},
        {"max_bytes": 0},
        {"lease_ms": 99},
        {"lease_ms": 43_200_001},
        {"partitions": ()},
        {"partitions": (0, 0)},
    ],
)
async def test_an_invalid_request_is_rejected_as_a_whole(
    simulated_broker: SimulatedBroker, options: dict[str, Any]
) -> None:
    await subscribe(simulated_broker)
    response = await simulated_broker.send(SubscriptionMember(simulated_broker).request(**options), 0)
    assert response.error_code == InvalidRequest.code
    assert response.topics == []


@pytest.mark.parametrize(("subscription", "member"), [("", "m"), ("s", ""), ("s" * 256, "m"), ("s", "m" * 256)])
async def test_invalid_names_are_rejected(simulated_broker: SimulatedBroker, subscription: str, member: str) -> None:
    await simulated_broker.create_topic("jobs")
    requested = SubscriptionMember(simulated_broker, member, subscription)
    assert (await simulated_broker.send(requested.request(), 0)).error_code in (
        InvalidGroupId.code,
        InvalidRequest.code,
    )
    if not member:
        return  # its member settles it
    settle = SettleRequest(subscription, member, [SettleTopic("jobs", [SettlePartition(0, 0, [SettleItem(0, 0)])])])
    assert (await simulated_broker.send(settle, 0)).error_code in (InvalidGroupId.code, InvalidRequest.code)


async def test_too_many_items_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    items = [SettleItem(0, 0)] * 10_001
    response = await simulated_broker.send(
        SettleRequest("s", "m", [SettleTopic("jobs", [SettlePartition(0, 0, items)])]), 0
    )
    assert response.error_code == InvalidRequest.code


async def test_unknown_partitions_fail_separately(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    request = SubscriptionMember(simulated_broker).request(partitions=(0, 9))
    request.topics.append(LeaseTopic("nowhere", [0]))
    response = await simulated_broker.send(request, 0)
    responses = {(topic.name, one.partition_index): one for topic in response.topics for one in topic.partitions}
    assert {place: answer.error_code for place, answer in responses.items()} == {
        ("jobs", 0): 0,
        ("jobs", 9): UnknownTopicOrPartition.code,
        ("nowhere", 0): UnknownTopicOrPartition.code,
    }
    assert values_of(leased_records([responses["jobs", 0]])) == [b"a"]


async def test_colocated_topics_have_no_subscriptions(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    (response,) = await SubscriptionMember(simulated_broker, topic="__acks.jobs").request_leases()
    assert response.error_code == InvalidTopic.code


async def test_settling_for_an_unknown_subscription_is_rejected(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    member = SubscriptionMember(simulated_broker)
    assert (await member.settle_items([SettleItem(0, 0, how=ACK)], epoch=0)).error_code == GroupIdNotFound.code
    await subscribe(simulated_broker, topic="others")
    other = SubscriptionMember(simulated_broker, topic="others", subscription="nobody")
    epoch = simulated_broker.broker.subscriptions.of("others", 0).epoch
    assert (await other.settle_items([SettleItem(0, 0)], epoch=epoch)).error_code == GroupIdNotFound.code
