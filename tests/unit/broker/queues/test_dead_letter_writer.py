"""`SubscriptionShard` writes dead letters of undeliverable messages, then settles them."""

from __future__ import annotations

from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.queues.queue_support import (
    EARLIEST,
    NACK,
    REJECT,
    SEEK,
    SubscriptionMember,
    alter,
    configure,
    describe,
    status,
    subscribe,
)
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import NotEnoughReplicas


class FakeDeadLetterProducer:
    """Replaces the dead letter producer of a broker; fails a given number of times."""

    def __init__(self, simulated_broker: SimulatedBroker, failures: int = 0) -> None:
        self.failures = failures
        self.failing_offsets: set[int] = set()
        self.calls: list[tuple[int, str, int, str]] = []
        self.during: list[object] = []
        simulated_broker.broker.subscriptions._dead_letter = self.dead_letter

    async def dead_letter(
        self, topic: str, index: int, offset: int, subscription: str, attempts: int, reason: str, redriven: int
    ) -> None:
        assert redriven == 0
        assert (topic, index) == ("jobs", 0)
        self.calls.append((offset, subscription, attempts, reason))
        for coroutine in self.during:
            await coroutine  # type: ignore[misc]
        self.during = []
        if self.failures > 0 or offset in self.failing_offsets:
            self.failures -= 1
            raise NotEnoughReplicas("too few replicas of the dead letters")


async def test_a_rejected_message_becomes_a_dead_letter(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"poison", b"good")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    assert await member.settle(messages[:1], REJECT, reason="cannot be read") == [0]
    await member.ack(messages[1:])
    await simulated_broker.pass_time(1)
    assert await read_all(simulated_broker, "jobs.dlq") == [b"poison"]
    (described,) = await describe(simulated_broker)
    assert (described.floor, described.backlog, described.dying) == (2, 0, 0)
    (message,) = await status(simulated_broker, 0)
    assert (message.state, message.how) == ("settled", "dead")


async def test_a_message_at_the_delivery_limit_becomes_a_dead_letter(simulated_broker: SimulatedBroker) -> None:
    producer = FakeDeadLetterProducer(simulated_broker)
    await subscribe(simulated_broker)
    await configure(simulated_broker, share_delivery_count_limit="3")
    await produce(simulated_broker, "jobs", b"poison")
    member = SubscriptionMember(simulated_broker)
    for attempt in (1, 2, 3):
        messages = await member.lease()
        assert [one.attempt for one in messages] == [attempt]
        assert await member.settle(messages, NACK, reason=f"failure {attempt}") == [0]
    await simulated_broker.pass_time(1)
    assert await member.lease() == []
    assert producer.calls == [(0, "workers", 3, "failure 3")]


async def test_a_lease_expiry_at_the_delivery_limit_makes_a_dead_letter(simulated_broker: SimulatedBroker) -> None:
    producer = FakeDeadLetterProducer(simulated_broker)
    await subscribe(simulated_broker)
    await configure(simulated_broker, share_delivery_count_limit="1")
    await produce(simulated_broker, "jobs", b"poison")
    await SubscriptionMember(simulated_broker).lease()
    await simulated_broker.pass_time(31)
    assert [(offset, attempts) for offset, _, attempts, _ in producer.calls] == [(0, 1)]


async def test_a_failed_dead_letter_is_retried_and_its_message_is_not_delivered(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = FakeDeadLetterProducer(simulated_broker, failures=3)
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"poison")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle(await member.lease(), REJECT) == [0]
    await simulated_broker.pass_time(0.05)
    (message,) = await status(simulated_broker, 0)
    assert message.state == "dying"
    assert await member.lease() == []
    await simulated_broker.pass_time(10)
    assert len(producer.calls) == 4
    assert [one.dying for one in await describe(simulated_broker)] == [0]


async def test_a_dead_letter_that_always_fails_does_not_block_others(simulated_broker: SimulatedBroker) -> None:
    producer = FakeDeadLetterProducer(simulated_broker)
    producer.failing_offsets.add(0)
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", *(b"%d" % number for number in range(100)))
    member = SubscriptionMember(simulated_broker)
    assert set(await member.settle(await member.lease(), REJECT)) == {0}
    await simulated_broker.pass_time(1)
    assert [(one.floor, one.dying) for one in await describe(simulated_broker)] == [(0, 1)]


async def test_after_a_restart_dying_messages_become_dead_letters(simulated_broker: SimulatedBroker) -> None:
    FakeDeadLetterProducer(simulated_broker, failures=1000)
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"poison")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle(await member.lease(), REJECT, reason="no") == [0]
    simulated_broker.kill()
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert await read_all(simulated_broker, "jobs.dlq") == [b"poison"]
    assert await member.lease() == []


async def test_without_dead_letters_rejected_messages_are_only_settled(simulated_broker: SimulatedBroker) -> None:
    producer = FakeDeadLetterProducer(simulated_broker)
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_dead_letters_enable="false")
    await produce(simulated_broker, "jobs", b"poison")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle(await member.lease(), REJECT) == [0]
    await simulated_broker.pass_time(1)
    (message,) = await status(simulated_broker, 0)
    assert (message.state, message.how, producer.calls) == ("settled", "reject", [])


async def test_disabling_dead_letters_discards_dying_messages(simulated_broker: SimulatedBroker) -> None:
    FakeDeadLetterProducer(simulated_broker, failures=10_000)
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"poison")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle(await member.lease(), REJECT) == [0]
    await simulated_broker.pass_time(1)
    await configure(simulated_broker, headrace_dead_letters_enable="false")
    await simulated_broker.pass_time(10)
    (message,) = await status(simulated_broker, 0)
    assert (message.state, message.how) == ("settled", "discarded")


async def test_a_seek_during_the_write_of_a_dead_letter_delivers_the_message_again(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = FakeDeadLetterProducer(simulated_broker)
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"poison")
    member = SubscriptionMember(simulated_broker)
    producer.during.append(alter(simulated_broker, SEEK, offset=EARLIEST))
    assert await member.settle(await member.lease(), REJECT) == [0]
    await simulated_broker.pass_time(1)
    assert [one.attempt for one in await member.lease()] == [1]


async def test_dying_messages_that_retention_deleted_are_settled(simulated_broker: SimulatedBroker) -> None:
    producer = FakeDeadLetterProducer(simulated_broker, failures=1)
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"poison", b"good")
    await produce(simulated_broker, "jobs", b"more")
    member = SubscriptionMember(simulated_broker)
    assert await member.settle((await member.lease())[:1], REJECT) == [0]
    await simulated_broker.host.start(simulated_broker.partition("jobs").log.advance_start(2), "trim")
    await simulated_broker.pass_time(10)
    assert len(producer.calls) == 1
    (message,) = await status(simulated_broker, 0)
    assert message.state == "settled"
