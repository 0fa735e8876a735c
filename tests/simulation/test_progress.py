"""A loop without progress fails its seed and does not hang the process that runs the seeds."""

from __future__ import annotations

import pytest
from tests.simulation.progress import NoProgress, limited_time

from headrace.testkit.world import World


def test_a_task_that_loops_without_waiting_ends_its_seed() -> None:
    async def loop_endlessly() -> None:
        while True:
            pass

    world = World(seed=1)
    with pytest.raises(NoProgress, match=r"test_progress\.py"), limited_time(0.1):
        world.run(loop_endlessly())


def test_a_seed_that_ends_in_time_does_not_fail() -> None:
    with limited_time(5.0):
        assert sum(range(1000)) == 499_500
