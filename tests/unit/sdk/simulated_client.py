"""Run the SDK against a real broker on simulated time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.sdk import AsyncClient, AsyncMessage, AsyncMessages
from headrace.testkit.world import World

Scenario = Callable[[AsyncClient, World], Awaitable[None]]


def run_scenario(scenario: Scenario, **configs: str) -> None:
    """Run a scenario against a new broker, with one partition per topic unless configured otherwise."""

    async def run(world: World) -> None:
        await start_broker(world, **{"num_partitions": "1", **configs})
        async with sdk(world) as here:
            await scenario(here, world)

    in_world(run)


def sdk(world: World, host_name: str = "here") -> AsyncClient:
    return AsyncClient(cluster=client(world, host_name))


async def next_of(messages: AsyncMessages) -> AsyncMessage:
    message = await messages.take()
    assert message is not None
    return message
