"""Supervision of child processes: restarts, and the end of all of them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

import pytest

from headrace.server import child_process
from headrace.server.child_process import ChildProcess


class Short(ChildProcess):
    """A child whose lives and ends are given, each as the seconds that it ran and its status. Then all are stopped."""

    def __init__(self, lives: Sequence[tuple[float, int]], last: int = 0) -> None:
        super().__init__("broker 1", ["false"], 1.0)
        self._clock = self  # type: ignore[assignment]
        self._seconds = 0.0
        self._lives = list(lives)
        self._last = last
        self.starts = 0

    def monotonic(self) -> float:
        return self._seconds

    async def _run(self, stop: asyncio.Event) -> int:
        self.starts += 1
        if not self._lives:
            stop.set()
            return self._last
        seconds, status = self._lives.pop(0)
        self._seconds += seconds
        return status


@pytest.mark.parametrize(
    ("child", "starts", "is_in_order"),
    [
        (Short([]), 1, True),
        (Short([(1.0, -9), (1.0, 1)]), 3, True),
        (Short([(1.0, -9), (1.0, 1), (1.0, 70), (1.0, 1)]), 3, False),
        (Short([(1.0, -9), (1.0, -9), (11.0, -9), (1.0, -9), (1.0, 0)]), 6, True),
        (Short([(11.0, -9)] * 9), 10, True),
        (Short([], last=-signal.SIGTERM), 1, True),
        (Short([], last=-signal.SIGKILL), 1, False),
        (Short([], last=1), 1, False),
    ],
)
async def test_an_exited_child_is_restarted_unless_it_exits_quickly_three_times_in_a_row(
    child: Short, starts: int, is_in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "BACK_OFF_SECONDS", 0.0)
    stop = asyncio.Event()
    assert await child.supervise(stop) == is_in_order
    assert child.starts == starts
    assert stop.is_set()


async def test_all_children_stop_while_one_waits_for_its_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "BACK_OFF_SECONDS", 1000.0)
    stop = asyncio.Event()
    child = Short([(1.0, -9)])
    async with asyncio.TaskGroup() as group:
        supervised = group.create_task(child.supervise(stop))
        while not child.starts:
            await asyncio.sleep(0)
        stop.set()
    assert supervised.result()
    assert child.starts == 1


async def test_a_child_is_restarted_when_it_is_asked_to_be() -> None:
    stop = asyncio.Event()
    program = "import sys, time; print('ready pid=1', flush=True); time.sleep(300)"
    child = ChildProcess("child", [sys.executable, "-c", program], 30.0)
    async with asyncio.TaskGroup() as group:
        supervised = group.create_task(child.supervise(stop))
        await child.is_ready.wait()
        child.is_ready.clear()
        child.restart()
        await child.is_ready.wait()
        stop.set()
    assert supervised.result()
    assert child.ready_fields == {"pid": "1"}
