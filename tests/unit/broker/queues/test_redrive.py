"""RedriveMessages: a message that became a dead letter is delivered again to its subscription, and to no other."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.queues.queue_support import (
    ACK,
    CREATE,
    NACK,
    REJECT,
    LeasedRecord,
    SubscriptionMember,
    alter,
    configure,
    describe,
    status,
    subscribe,
)
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import GroupIdNotFound, InvalidRequest, UnknownTopicId
from headrace.wire.messages.queues import RedriveItem, RedriveMessagesRequest

OTHERS = "auditors"


async def redrive(simulated_broker: SimulatedBroker, *offsets: int, times: int = 1, **fields: Any) -> Any:
    request = RedriveMessagesRequest(
        subscription="workers",
        topic="jobs",
        topic_id=simulated_broker.broker.catalogue.topic("jobs").id,
        partition_index=0,
        items=[RedriveItem(offset, times) for offset in offsets],
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return await simulated_broker.send(request, 0)


async def reject(simulated_broker: SimulatedBroker, *values: bytes) -> SubscriptionMember:
    """Reject messages in the subscription workers; auditors have acked them."""
    await subscribe(simulated_broker)
    await alter(simulated_broker, CREATE, subscription=OTHERS)
    await produce(simulated_broker, "jobs", *values)
    auditor = SubscriptionMember(simulated_broker, subscription=OTHERS)
    await auditor.ack(await auditor.lease())
    member = SubscriptionMember(simulated_broker)
    await member.settle(await member.lease(), REJECT, reason="smells")
    await simulated_broker.pass_time(1)
    return member


def values(messages: list[LeasedRecord]) -> list[tuple[int, int, bytes]]:
    return [(one.offset, one.attempt, one.value) for one in messages]


async def test_a_redriven_message_is_delivered_again_to_its_subscription_only(
    simulated_broker: SimulatedBroker,
) -> None:
    member = await reject(simulated_broker, b"a", b"b", b"c")
    response = await redrive(simulated_broker, 1)
    assert (response.error_code, response.refused) == (0, [])
    assert await SubscriptionMember(simulated_broker, subscription=OTHERS).lease() == []
    messages = await member.lease()
    assert values(messages) == [(1, 1, b"b")]
    assert await read_all(simulated_broker, "jobs") == [b"a", b"b", b"c"], "nothing is published"
    await member.ack(messages)
    (described,) = await describe(simulated_broker, "workers")
    assert (described.floor, described.backlog) == (3, 0)


async def test_a_redriven_message_survives_a_restart(simulated_broker: SimulatedBroker) -> None:
    await reject(simulated_broker, b"a", b"b", b"c")
    await redrive(simulated_broker, 0, 2)
    await simulated_broker.restart()
    member = SubscriptionMember(simulated_broker)
    assert values(await member.lease()) == [(0, 1, b"a"), (2, 1, b"c")]


async def test_a_repeated_request_does_not_deliver_a_message_twice(simulated_broker: SimulatedBroker) -> None:
    member = await reject(simulated_broker, b"a")
    await redrive(simulated_broker, 0)
    messages = await member.lease()
    assert (await redrive(simulated_broker, 0)).refused == []
    assert await member.lease() == []
    await member.ack(messages)
    await simulated_broker.restart()
    assert (await redrive(simulated_broker, 0)).refused == []
    assert await member.lease() == [], "it was acked meanwhile"
    await redrive(simulated_broker, 0, times=2)
    assert values(await member.lease()) == [(0, 1, b"a")]


async def test_attempts_start_anew_and_the_next_dead_letter_counts_the_redrive(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, share_delivery_count_limit="2")
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    for times in (0, 1, 2):
        if times:
            await redrive(simulated_broker, 0, times=times)
            await simulated_broker.restart()
        for attempt in (1, 2):
            messages = await member.lease()
            assert values(messages) == [(0, attempt, b"a")]
            assert await member.settle(messages, NACK) == [0]
        await simulated_broker.pass_time(1)
        (message,) = await status(simulated_broker, 0)
        assert (message.state, message.how, message.attempts) == ("settled", "dead", 2)
    assert await read_all(simulated_broker, "jobs.dlq") == [b"a"] * 3, "none is dropped as a duplicate"


async def test_the_status_of_a_redriven_message_forgets_its_past(simulated_broker: SimulatedBroker) -> None:
    member = await reject(simulated_broker, b"a")
    await redrive(simulated_broker, 0)
    one = next(one for one in await status(simulated_broker, 0) if one.subscription == "workers")
    assert (one.state, one.attempts, one.how) == ("ready", 0, None)
    assert await member.settle(await member.lease(), ACK) == [0]
    one = next(one for one in await status(simulated_broker, 0) if one.subscription == "workers")
    assert (one.state, one.attempts, one.how) == ("settled", 1, "ack")


@pytest.mark.parametrize(
    "config",
    [
        {"headrace_key_concurrency": "1"},
        {"headrace_priority_slack_ms": "9,8,7,6,5,4,3,2,1,0"},
        {"headrace_filter": "not key = 'x'"},
    ],
    ids=str,
)
async def test_subscriptions_that_decode_messages_get_them_again(
    simulated_broker: SimulatedBroker, config: dict[str, str]
) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, **config)
    for value in (b"a", b"b", b"c", b"d"):
        await produce(simulated_broker, "jobs", value)
    member = SubscriptionMember(simulated_broker)
    while messages := await member.lease(2):
        await member.settle(messages, REJECT)
    await simulated_broker.pass_time(1)
    await produce(simulated_broker, "jobs", b"new")
    assert (await redrive(simulated_broker, 1)).refused == []
    got: list[bytes] = []
    while messages := await member.lease():
        got += [one.value for one in messages]
        await member.ack(messages)
    assert sorted(got) == [b"b", b"new"]


async def test_a_message_that_retention_removed_is_refused(simulated_broker: SimulatedBroker) -> None:
    await reject(simulated_broker, b"a", b"b")
    partition = simulated_broker.partition("jobs", 0)
    await simulated_broker.host.start(partition.log.advance_start(1), "trim")
    response = await redrive(simulated_broker, 0, 1, 7)
    assert [(one.index, one.error_message) for one in response.refused] == [
        (0, "topic jobs no longer keeps message 0"),
        (2, "topic jobs no longer keeps message 7"),
    ]
    assert values(await SubscriptionMember(simulated_broker).lease()) == [(1, 1, b"b")]


async def test_acked_retention_refuses_what_every_subscription_has_settled(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs", retention_mode="acked")
    for name in ("workers", OTHERS):
        await alter(simulated_broker, CREATE, subscription=name)
    await produce(simulated_broker, "jobs", b"a", b"b")
    member = SubscriptionMember(simulated_broker)
    await member.settle(await member.lease(), REJECT)
    await simulated_broker.pass_time(1)
    auditor = SubscriptionMember(simulated_broker, subscription=OTHERS)
    await auditor.ack(await auditor.lease(1))
    response = await redrive(simulated_broker, 0, 1)
    assert [one.index for one in response.refused] == [0], "the auditors still need message 1"
    assert values(await member.lease()) == [(1, 1, b"b")]


async def test_a_message_that_the_filter_now_excludes_is_refused(simulated_broker: SimulatedBroker) -> None:
    await reject(simulated_broker, b"a")
    await configure(simulated_broker, headrace_filter="key = 'x'")
    (refused,) = (await redrive(simulated_broker, 0)).refused
    assert refused.error_message == "message 0 does not match the filter of subscription workers"


async def test_wrong_requests_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await reject(simulated_broker, b"a")
    assert (await redrive(simulated_broker, 0, topic_id=UUID(int=7))).error_code == UnknownTopicId.code
    assert (await redrive(simulated_broker, 0, subscription="nobody")).error_code == GroupIdNotFound.code
    assert (await redrive(simulated_broker)).error_code == InvalidRequest.code
    assert (await redrive(simulated_broker, 0, times=0)).error_code == InvalidRequest.code
    assert await SubscriptionMember(simulated_broker).lease() == []
