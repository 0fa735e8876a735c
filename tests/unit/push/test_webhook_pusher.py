"""One webhook: delivery, circuit breaker and order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.push.push_support import (
    ABSENT,
    FAILED,
    WELL,
    WebhookReceiver,
    backlog,
    leased,
    push_of,
    put,
    until,
    with_queue,
)

from headrace.client.admin.subscription_admin import END, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.leased_messages import LeasedMessage
from headrace.client.queues.subscription import Subscription
from headrace.push.webhook import AcknowledgeType, DeliveryOutcome
from headrace.push.webhook_pusher import WebhookPusher
from headrace.testkit.world import World


@asynccontextmanager
async def pushing(cluster: Cluster, receiver: WebhookReceiver, **push: object) -> AsyncIterator[WebhookPusher]:
    pusher = WebhookPusher(push_of(**push), ["jobs"], cluster, receiver)
    running = asyncio.create_task(pusher.run())
    try:
        yield pusher
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_messages_are_sent_and_settled() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        async with pushing(cluster, receiver) as pusher:
            await put(cluster, *(b"%d" % number for number in range(30)))
            await until(lambda: pusher.status.delivered == 30)
            await asyncio.sleep(1.0)
            assert await backlog(cluster) == 0
            assert (pusher.status.circuit, pusher.status.in_flight, pusher.status.failed) == ("closed", 0, 0)

    with_queue(scenario)


def test_concurrent_sends_and_leases_are_limited() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.seconds = 5.0
        async with pushing(cluster, receiver, concurrency=3):
            await put(cluster, *(b"%d" % number for number in range(20)))
            await until(lambda: len(receiver.got) == 3)
            assert await leased(cluster) <= 3
            await until(lambda: len(receiver.got) == 20)
            assert receiver.most_in_flight == 3

    with_queue(scenario)


def test_no_more_are_sent_per_second_than_is_allowed() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        receiver = WebhookReceiver()
        await put(cluster, *(b"%d" % number for number in range(41)))
        async with pushing(cluster, receiver, rate=4):
            before = world.clock.monotonic()
            await until(lambda: len(receiver.got) == 41)
            assert 10.0 <= world.clock.monotonic() - before < 12.0

    with_queue(scenario)


def test_a_failing_message_is_retried_and_becomes_a_dead_letter() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        receiver = WebhookReceiver()
        poison = DeliveryOutcome(AcknowledgeType.NACK, is_healthy=True, error="HTTP 400")
        receiver.answer = lambda message: poison if message.value == b"b" else WELL
        async with pushing(cluster, receiver):
            before = world.clock.monotonic()
            await put(cluster, b"a", b"b", b"c")
            await until(lambda: receiver.values.count(b"b") == 5)
            assert 12.0 < world.clock.monotonic() - before < 18.0, "1, 2, 4 and 8 seconds, less a tenth at most"
            await asyncio.sleep(60.0)
            assert await backlog(cluster) == 0
            assert sorted(receiver.values) == [b"a", *[b"b"] * 5, b"c"]  # type: ignore[type-var]
        assert (await cluster.topic("jobs.dlq")).ready

    with_queue(scenario, headrace_retry_backoff_ms="0", share_delivery_count_limit="5")


def test_a_message_with_status_410_is_a_dead_letter_at_once() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.answer = lambda _message: DeliveryOutcome(AcknowledgeType.REJECT, is_healthy=True, error="HTTP 410")
        async with pushing(cluster, receiver) as pusher:
            await put(cluster, b"a")
            await until(lambda: pusher.status.rejected == 1)
            await asyncio.sleep(5.0)
            assert (await backlog(cluster), receiver.values) == (0, [b"a"])

    with_queue(scenario)


def test_retry_after_of_a_receiver_is_respected() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        receiver = WebhookReceiver()
        busy = DeliveryOutcome(AcknowledgeType.NACK, is_healthy=False, error="HTTP 429", delay_seconds=100.0)
        receiver.answer = lambda message: busy if message.attempt == 1 else WELL
        async with pushing(cluster, receiver):
            await put(cluster, b"a")
            await until(lambda: len(receiver.got) == 1)
            before = world.clock.monotonic()
            await until(lambda: len(receiver.got) == 2)
            assert 99.0 < world.clock.monotonic() - before < 102.0

    with_queue(scenario)


def test_the_back_off_of_the_subscription_overrides_the_default() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        receiver = WebhookReceiver()
        receiver.answer = lambda message: FAILED if message.attempt == 1 else WELL
        async with pushing(cluster, receiver, backoff_ms=30_000):
            await put(cluster, b"a")
            await until(lambda: len(receiver.got) == 1)
            before = world.clock.monotonic()
            await until(lambda: len(receiver.got) == 2)
            assert 26.0 < world.clock.monotonic() - before < 32.0

    with_queue(scenario, headrace_retry_backoff_ms="30000")


def test_a_receiver_down_for_hours_loses_no_message_and_uses_no_delivery_attempt() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        tries = 0

        def absent(_message: LeasedMessage) -> DeliveryOutcome:
            nonlocal tries
            tries += 1
            return ABSENT

        receiver.answer = absent
        async with pushing(cluster, receiver, concurrency=4) as pusher:
            await put(cluster, *(b"%d" % number for number in range(50)))
            await until(lambda: pusher.status.circuit == "open")
            assert pusher.status.last_error == "cannot connect"
            await asyncio.sleep(3600.0)
            assert 60 <= tries < 90, "once a minute, when it has failed for long"
            assert await leased(cluster) <= 4
            receiver.answer = lambda _message: WELL
            await until(lambda: len(receiver.got) == 50)
            assert pusher.status.circuit == "closed"
            assert {message.attempt for message in receiver.got} == {1}

    with_queue(scenario)


def test_an_open_circuit_leases_nothing_and_a_half_open_one_sends_one_message_at_a_time() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.answer = lambda _message: FAILED
        async with pushing(cluster, receiver, concurrency=4) as pusher:
            await put(cluster, *(b"%d" % number for number in range(50)))
            await until(lambda: pusher.status.circuit == "open")
            await until(lambda: pusher.status.in_flight == 0)
            failed = pusher.status.failed
            assert 5 <= failed < 5 + 4
            receiver.seconds, receiver.most_in_flight = 8.0, 0
            for _ in range(20):
                await asyncio.sleep(1.0)
                assert await leased(cluster) <= 1
            assert receiver.most_in_flight == 1, "although it takes longer than the circuit was open"
            receiver.answer, receiver.seconds = lambda _message: WELL, 0.0
            await until(lambda: pusher.status.circuit == "closed")
            await until(lambda: pusher.status.delivered == 50)

    with_queue(scenario, share_delivery_count_limit="100")


def test_messages_that_were_not_sent_when_the_circuit_opens_are_released_uncounted() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.answer = lambda _message: FAILED
        await put(cluster, *(b"%d" % number for number in range(20)))
        async with pushing(cluster, receiver, concurrency=20, rate=2) as pusher:
            await until(lambda: pusher.status.in_flight >= 19)
            await until(lambda: pusher.status.circuit == "open")
            await asyncio.sleep(0.5)
            assert await leased(cluster) == 0
        async with Subscription(cluster, "jobs", "workers") as other:
            sent = {message.id for message in receiver.got}
            unsent = [message.attempt for message in await other.lease(100) if message.id not in sent]
            assert unsent == [1] * (20 - len(sent))

    with_queue(scenario)


def test_an_unreliable_receiver_gets_every_message_in_key_order() -> None:
    async def scenario(cluster: Cluster, world: World) -> None:
        receiver = WebhookReceiver()
        hung = DeliveryOutcome(AcknowledgeType.NACK, is_healthy=False, error="no answer within 10000 ms")
        seasons = [FAILED, WELL, hung, WELL, ABSENT, WELL]
        began = world.clock.monotonic()

        def response(_message: LeasedMessage) -> DeliveryOutcome:
            season = int((world.clock.monotonic() - began) / 20)
            outcome = seasons[season] if season < len(seasons) else WELL
            receiver.seconds = 10.0 if outcome is hung else 0.05
            return outcome

        receiver.answer = response
        states = set[str]()
        async with pushing(cluster, receiver) as pusher:
            for number in range(40):
                for key in (b"x", b"y", b"z"):
                    await put(cluster, b"%d" % number, key=key)
                await asyncio.sleep(2.0)
                states.add(pusher.status.circuit)
            await until(lambda: pusher.status.delivered == 120, 3600.0)
        assert {"open", "closed"} <= states
        expected = [b"%d" % number for number in range(40)]
        assert {key: list(dict.fromkeys(got)) for key, got in receiver.by_key.items()} == dict.fromkeys(
            (b"x", b"y", b"z"), expected
        )
        assert sum(map(len, receiver.by_key.values())) == 120

    with_queue(scenario, headrace_key_concurrency="1", share_delivery_count_limit="100")


def test_leases_of_a_slow_receiver_are_extended() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.seconds = 300.0
        async with pushing(cluster, receiver, timeout_ms=600_000):
            await put(cluster, b"a")
            await until(lambda: len(receiver.got) == 1)
            await asyncio.sleep(1.0)
            assert (await backlog(cluster), receiver.got[0].attempt) == (0, 1)

    with_queue(scenario)


def test_a_stopped_pusher_settles_sent_messages_and_releases_the_others() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        receiver.seconds = 5.0
        await put(cluster, b"a", b"b", b"c", b"d")
        pusher = WebhookPusher(push_of(concurrency=4, rate=1), ["jobs"], cluster, receiver)
        running = asyncio.create_task(pusher.run())
        await until(lambda: receiver.in_flight == 2)
        pusher.stop()
        await running
        assert len(receiver.got) == 2
        assert (await backlog(cluster), await leased(cluster)) == (2, 0)
        async with Subscription(cluster, "jobs", "workers") as other:
            assert {message.attempt for message in await other.lease(10)} == {1}, "they were not delivered"

    with_queue(scenario)


def test_a_pusher_stopped_before_its_start_does_nothing() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        await put(cluster, b"a")
        pusher = WebhookPusher(push_of(), ["jobs"], cluster, receiver)
        pusher.stop()
        await pusher.run()
        assert receiver.got == []

    with_queue(scenario)


def test_broker_errors_are_reported_and_retried() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        async with pushing(cluster, receiver) as pusher:
            pusher.set_topics(["nothing"])
            await until(lambda: "nothing" in pusher.status.last_error)
            pusher.set_topics(["jobs"])
            await put(cluster, b"a")
            await until(lambda: pusher.status.delivered == 1)

    with_queue(scenario)


def test_a_message_whose_lease_was_lost_is_not_sent() -> None:
    async def scenario(cluster: Cluster, _world: World) -> None:
        receiver = WebhookReceiver()
        await put(cluster, *(b"%d" % number for number in range(100)))
        async with pushing(cluster, receiver, concurrency=100, rate=1) as pusher:
            await until(lambda: len(receiver.got) == 2)
            await SubscriptionAdmin(cluster).seek("jobs", "workers", Position(END))
            await until(lambda: pusher.status.in_flight == 0)
            await asyncio.sleep(200.0)
            assert len(receiver.got) < 20

    with_queue(scenario)
