"""Messages of a subscription: settled by `async with`, leases extended and released."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.unit.sdk.simulated_client import next_of, run_scenario, sdk

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.model.errors import InvalidRequest
from headrace.sdk import AsyncClient, LeaseLost, Reject, Retry
from headrace.testkit.world import World

LEASE = "share.record.lock.duration.ms"


async def backlog(client: AsyncClient) -> list[int]:
    found = await SubscriptionAdmin(client.cluster).describe("workers", ["jobs"])
    return [sum(one.backlog for one in found), sum(one.leased for one in found), sum(one.waiting for one in found)]


def test_the_end_of_the_block_acks_and_an_acked_message_is_not_redelivered() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("jobs", ["a", "b"])
        texts = []
        async for message in client.subscribe("jobs", "workers"):
            async with message:
                texts.append(message.text)
                assert message.attempt == 1
            if len(texts) == 2:
                break
        assert texts == ["a", "b"]
        assert await backlog(client) == [0, 0, 0]

    run_scenario(scenario)


def test_an_exception_nacks_the_message_and_the_loop_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        configs = {"headrace.retry.backoff.ms": "60000", "headrace.retry.jitter": "0"}
        await client.create_subscription("jobs", "workers", configs=configs)
        await client.publish_many("jobs", ["bad", "good"])
        seen: list[tuple[str, int]] = []
        began = world.clock.monotonic()
        async with client.subscribe("jobs", "workers") as messages:
            async for message in messages:
                async with message:
                    seen.append((message.text, message.attempt))
                    if message.attempt == 1 and message.text == "bad":
                        raise ValueError("not today")
                if len(seen) == 3:
                    break
        assert seen == [("bad", 1), ("good", 1), ("bad", 2)]
        assert 60 <= world.clock.monotonic() - began < 62
        assert await backlog(client) == [0, 0, 0]

    with caplog.at_level(logging.WARNING, "headrace"):
        run_scenario(scenario)
    assert "handler failed message=jobs:0:0 attempt=1" in caplog.text
    assert "not today" in caplog.text


def test_reject_and_retry_settle_the_message() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", ["hopeless", "later"])
        began = world.clock.monotonic()
        async with client.subscribe("jobs", "workers", prefetch=1) as messages:
            async with await next_of(messages):
                raise Reject("no such address")
            async with await next_of(messages):
                raise Retry("busy", delay="10m")
            async with await next_of(messages) as again:
                assert (again.text, again.attempt) == ("later", 2)
        assert world.clock.monotonic() - began >= 600
        (letter,) = await client.dead_letters("jobs")
        assert letter.death is not None
        assert letter.death.reason == "no such address"

    run_scenario(scenario)


def test_a_base_exception_is_raised_and_the_message_released() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("jobs", b"a")
        async with client.subscribe("jobs", "workers") as messages:
            with pytest.raises(KeyboardInterrupt):
                async with await next_of(messages):
                    raise KeyboardInterrupt
            assert (await next_of(messages)).attempt == 1

    run_scenario(scenario)


def test_a_message_can_be_settled_once_by_a_method() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("jobs", ["a", "b", "c"])
        async with client.subscribe("jobs", "workers", prefetch=1) as messages:
            first = await next_of(messages)
            await first.extend("1m")
            await first.ack()
            for settle in (first.ack, first.nack, first.reject, first.extend):
                with pytest.raises(LeaseLost, match="settled before"):
                    await settle()
            async with first:
                raise ValueError("it is logged, and changes nothing any more")
            await (await next_of(messages)).nack(delay=0)
            again = await next_of(messages)
            assert (again.text, again.attempt) == ("b", 2)
            await again.reject("no use")
        await asyncio.sleep(1)  # until it is a dead letter
        assert await backlog(client) == [1, 0, 0]

    run_scenario(scenario)


def test_a_lease_is_extended_for_as_long_as_the_work_takes() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.create_subscription("jobs", "workers", configs={LEASE: "2000"})
        await client.publish_many("jobs", ["in hand", "waits for its turn"])
        async with sdk(world, "there") as other, client.subscribe("jobs", "workers", prefetch=2) as messages:
            async with await next_of(messages):
                theirs = asyncio.create_task(other.subscribe("jobs", "workers").take())
                await asyncio.sleep(600)
                assert not theirs.done()
            async with await next_of(messages) as second:
                assert second.attempt == 1
            assert await backlog(client) == [0, 0, 0]
            theirs.cancel()

    run_scenario(scenario)


def test_a_message_that_arrives_after_an_extension_of_leases_is_delivered() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("jobs", "long")
        async with client.subscribe("jobs", "workers", prefetch=1) as messages:
            await next_of(messages)
            waiting = asyncio.create_task(messages.take())
            await asyncio.sleep(15)  # the lease of the first message is extended after 10 s
            await client.publish("jobs", "next")
            async with asyncio.timeout(5):
                message = await waiting
            assert message is not None
            assert (message.text, message.attempt) == ("next", 1)

    run_scenario(scenario)


def test_a_lease_is_not_extended_beyond_max_work(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", b"a")
        async with sdk(world, "there") as other:
            messages = client.subscribe("jobs", "workers", lease="3s", max_work="1m")
            mine = await next_of(messages)
            began = world.clock.monotonic()
            theirs = await next_of(other.subscribe("jobs", "workers"))
            assert 59 <= world.clock.monotonic() - began < 66
            assert theirs.attempt == 2
            with pytest.raises(LeaseLost, match="jobs:0:0"):
                await mine.ack()
            await theirs.ack()

    run_scenario(scenario)


def test_a_lost_lease_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", b"a")
        async with sdk(world, "there") as other:
            messages = client.subscribe("jobs", "workers", lease="3s", max_work="3s")
            async with await next_of(messages):
                await (await next_of(other.subscribe("jobs", "workers"))).ack()

    with caplog.at_level(logging.WARNING, "headrace"):
        run_scenario(scenario)
    assert "message was processed but not settled message=jobs:0:0" in caplog.text


def test_a_stop_ends_the_iteration_and_releases_prefetched_messages() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", ["a", "b", "c"])
        texts = []
        async for message in client.subscribe("jobs", "workers", prefetch=3):
            async with message:
                texts.append(message.text)
                client.stop()
        assert texts == ["a"]
        assert await backlog(client) == [2, 0, 0]
        async with sdk(world, "there") as other, other.subscribe("jobs", "workers") as messages:
            second = await next_of(messages)
            assert (second.text, second.attempt) == ("b", 1)
        assert [message async for message in client.subscribe("jobs", "workers")] == []

    run_scenario(scenario)


def test_a_stop_ends_a_wait_for_messages() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", b"a")
        await (await next_of(client.subscribe("jobs", "workers"))).ack()
        waiting = asyncio.create_task(client.subscribe("jobs", "workers").take())
        await asyncio.sleep(1)
        began = world.clock.monotonic()
        client.stop()
        assert await waiting is None
        assert world.clock.monotonic() - began < 0.1

    run_scenario(scenario)


def test_closing_a_client_releases_unsettled_messages() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", b"a")
        async with sdk(world, "there") as other:
            message = await next_of(other.subscribe("jobs", "workers"))
        with pytest.raises(LeaseLost):
            await message.ack()
        assert (await next_of(client.subscribe("jobs", "workers"))).attempt == 1

    run_scenario(scenario)


def test_leaving_a_loop_keeps_delivered_messages_and_releases_prefetched_ones() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.create_subscription("jobs", "workers", configs={LEASE: "2000"})
        await client.publish_many("jobs", ["a", "b"])
        async for message in client.subscribe("jobs", "workers"):
            held = message
            break
        await asyncio.sleep(60)
        assert await backlog(client) == [2, 1, 0]
        await held.ack()
        assert await backlog(client) == [1, 0, 0]

    run_scenario(scenario)


def test_concurrency_limits_the_unsettled_messages() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("jobs", ["a", "b", "c"])
        messages = client.subscribe("jobs", "workers", concurrency=2)
        first, _second = await next_of(messages), await next_of(messages)
        third = asyncio.create_task(next_of(messages))
        await asyncio.sleep(60)
        assert not third.done()
        await first.ack()
        assert (await third).text == "c"

    run_scenario(scenario)


def test_a_new_subscription_starts_at_the_given_position() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("jobs", "old")
        late = client.subscribe("jobs", "late", start="latest")
        async with late:
            await client.publish("jobs", "new")
            assert (await next_of(late)).text == "new"
        assert (await next_of(client.subscribe("jobs", "early"))).text == "old"

    run_scenario(scenario)


def test_a_subscription_to_a_missing_topic_creates_it_or_raises() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        taking = asyncio.create_task(next_of(client.subscribe("fresh", "workers")))
        await asyncio.sleep(1)
        await client.publish("fresh", b"a")
        assert (await taking).value == b"a"
        strict = AsyncClient(cluster=client.cluster, create_topics=False)
        with pytest.raises(Exception, match="there is no topic 'missing'"):
            await strict.subscribe("missing", "workers").take()

    run_scenario(scenario)


def test_invalid_numbers_are_rejected() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        for prefetch, concurrency in ((0, None), (1, 0)):
            with pytest.raises(InvalidRequest, match="at least 1"):
                client.subscribe("jobs", "workers", prefetch=prefetch, concurrency=concurrency)

    run_scenario(scenario)


def test_several_messages_are_taken_at_once() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", range(25))
        async with client.subscribe("jobs", "workers") as messages:
            taken = await messages.take(20)
            assert [message.json() for message in taken] == list(range(20)), "more than the prefetch"
            assert [message.json() for message in await messages.take(20, "1m")] == list(range(20, 25))
            began = world.clock.monotonic()
            assert await messages.take(20, timeout="90s") == []
            assert await messages.take(timeout=5) is None
            assert await messages.take(1, timeout=0) == []
            assert 95 <= world.clock.monotonic() - began < 96
            await client.publish("jobs", "late")
            (late,) = await messages.take(1, timeout=0)
            assert late.text == "late"
            with pytest.raises(InvalidRequest, match="count=0 is not valid"):
                await messages.take(0)
        assert await messages.take(5) == []

    run_scenario(scenario)


def test_no_more_messages_are_taken_at_once_than_the_concurrency_allows() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", range(5))
        async with client.subscribe("jobs", "workers", concurrency=3) as messages:
            taken = await messages.take(5)
            assert len(taken) == 3
            assert await messages.take(5, timeout="10s") == []
            waiting = asyncio.create_task(messages.take())
            await asyncio.sleep(0)
            assert await messages.take(5, timeout="10s") == [], "also while another task waits"
            await taken[0].ack()
            following = await waiting
            assert following is not None
            assert following.json() == 3

    run_scenario(scenario)
