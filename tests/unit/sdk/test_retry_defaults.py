"""The retry defaults of a subscription: an outage of the handler's dependencies makes no dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from tests.unit.sdk.simulated_client import next_of, run_scenario

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.sdk import AsyncClient, AsyncMessage
from headrace.testkit.world import World


async def work_until(
    client: AsyncClient, handler: Callable[[AsyncMessage], Awaitable[None]], is_done: Callable[[], Awaitable[bool]]
) -> None:
    working = asyncio.create_task(client.work("jobs", "workers", handler))
    async with asyncio.timeout(4 * 3600):  # of simulated time
        while not await is_done():
            await asyncio.sleep(1)
    client.stop()
    await working


async def backlog(client: AsyncClient) -> int:
    return sum(one.backlog for one in await SubscriptionAdmin(client.cluster).describe("workers", ["jobs"]))


def outage(seconds: float) -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", [f"{number}" for number in range(100)])
        await client.create_subscription("jobs", "workers")
        ends_at = world.clock.monotonic() + seconds
        done: list[str] = []

        async def handler(message: AsyncMessage) -> None:
            if world.clock.monotonic() < ends_at:
                raise ConnectionError("the database is down")
            done.append(message.text)

        async def is_done() -> bool:
            return await backlog(client) == 0

        await work_until(client, handler, is_done)
        assert sorted(done, key=int) == [f"{number}" for number in range(100)]
        assert await client.dead_letters("jobs") == []

    run_scenario(scenario)


def test_an_outage_of_a_second_makes_no_dead_letters() -> None:
    outage(1)


def test_an_outage_of_an_hour_makes_no_dead_letters() -> None:
    outage(3600)


def test_a_message_that_always_fails_becomes_a_dead_letter_after_more_than_an_hour() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", "poison")
        attempts: list[float] = []

        async def handler(_message: AsyncMessage) -> None:
            attempts.append(world.clock.monotonic())
            raise ValueError("cannot be processed")

        async def is_done() -> bool:
            return bool(await client.dead_letters("jobs"))

        await work_until(client, handler, is_done)
        (letter,) = await client.dead_letters("jobs")
        assert letter.death is not None
        assert (len(attempts), letter.death.attempts) == (15, 15)
        pauses = [round(after - before, 3) for before, after in pairwise(attempts)]
        expected = [min(2**failed, 900) for failed in range(14)]
        assert all(0.9 * most <= pause < most + 0.1 for most, pause in zip(expected, pauses, strict=True)), pauses
        assert 3600 < attempts[-1] - attempts[0] < 80 * 60

    run_scenario(scenario)


def test_an_explicit_delay_replaces_the_back_off() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", "a")
        async with client.subscribe("jobs", "workers") as messages:
            message = await next_of(messages)
            began = world.clock.monotonic()
            await message.nack(delay="0s")
            again = await next_of(messages)
            assert (again.attempt, world.clock.monotonic() - began < 0.5) == (2, True)
            await again.nack()
            third = await next_of(messages)
            assert third.attempt == 3
            assert world.clock.monotonic() - began >= 1.8, "the back-off after two failed attempts is two seconds"

    run_scenario(scenario)
