"""The wait for an operation of the cluster."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import in_world

from headrace.cli.cluster.reassign import wait_until_none
from headrace.testkit.world import World


def test_the_wait_ends_when_nothing_remains_even_if_the_total_grows() -> None:
    async def scenario(_world: World) -> list[int]:
        looks = [3, 2, 4, 1, 0]

        async def left() -> int:
            return looks.pop(0)

        await wait_until_none(left, "partitions moving")
        return looks

    assert in_world(scenario) == []


def test_an_interrupted_wait_reports_that_the_operation_continues(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(_world: World) -> None:
        async def left() -> int:
            return 1

        waiting = asyncio.create_task(wait_until_none(left, "partitions moving"))
        await asyncio.sleep(10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    in_world(scenario)
    assert "the operation continues" in capsys.readouterr().err
