"""Work in a process of its own: it is done, it fails or its process dies, and the one who waits hears of it."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.unit.runtime.inline_coroutines import (
    die,
    double,
    hang,
    look_around,
    raise_unreadable,
    refuse,
    write_and_read,
)

from headrace.runtime.disk import DiskFull, SystemDisk
from headrace.runtime.worker_process import LOWEST_PRIORITY, WorkerDied, WorkerProcess, _IoPace
from headrace.testkit.world import World


@asynccontextmanager
async def opened(idle_seconds: float = 60.0) -> AsyncIterator[WorkerProcess]:
    apart = WorkerProcess(idle_seconds)
    try:
        yield apart
    finally:
        apart.close()


async def test_work_is_done_in_another_process_of_the_lowest_priority() -> None:
    async with opened() as apart:
        process_id, priority = await apart.run(look_around, (), math.inf)
        assert process_id != os.getpid()
        assert priority == LOWEST_PRIORITY
        assert await apart.run(double, (21,), math.inf) == 42
        assert (await apart.run(look_around, (), math.inf))[0] == process_id
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


async def test_what_the_work_raises_is_raised_here() -> None:
    async with opened() as apart:
        with pytest.raises(DiskFull, match="no room"):
            await apart.run(refuse, (), math.inf)
        assert await apart.run(double, (1,), math.inf) == 2


@pytest.mark.parametrize("work", [die, raise_unreadable])
async def test_a_worker_that_dies_is_replaced(work: object, capfd: pytest.CaptureFixture[str]) -> None:
    async with opened() as apart:
        with pytest.raises(WorkerDied):
            await apart.run(work, (), math.inf)  # type: ignore[arg-type]
        assert await apart.run(double, (1,), math.inf) == 2
    capfd.readouterr()


async def test_work_that_is_cancelled_is_killed(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    async with opened() as apart:
        waiting = asyncio.get_running_loop().create_task(apart.run(hang, (pipe,), math.inf))
        end = await asyncio.to_thread(open, pipe)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(end.read) == ""  # returns when no process holds the other end
        end.close()
        assert await apart.run(double, (1,), math.inf) == 2


async def test_work_that_is_cancelled_before_it_began_is_not_waited_for(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    async with opened() as apart:
        waiting = asyncio.get_running_loop().create_task(apart.run(hang, (pipe,), math.inf))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await apart.run(double, (1,), math.inf) == 2


async def test_a_worker_ends_when_it_was_idle_for_a_while() -> None:
    async with opened(idle_seconds=0.0) as apart:
        process_id, _ = await apart.run(look_around, (), math.inf)
        async with asyncio.timeout(60):
            with suppress(ProcessLookupError):
                while True:
                    os.kill(process_id, 0)
                    await asyncio.sleep(0.001)
        assert await apart.run(double, (2,), math.inf) == 4


def test_a_worker_ends_with_its_parent_in_the_middle_of_its_work(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import asyncio, math\n"
        "from headrace.runtime.worker_process import WorkerProcess\n"
        "from tests.unit.runtime.inline_coroutines import hang\n"
        f"asyncio.run(WorkerProcess().run(hang, ({pipe!r},), math.inf))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent, open(pipe) as end:
        parent.kill()
        assert end.read() == ""  # returns when no process holds the other end


def test_the_pace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pace = _IoPace(1000.0)
    for _ in range(100):
        pace(100)
    assert sum(waits) == pytest.approx(10.0)
    unbounded = _IoPace(math.inf)
    waits.clear()
    unbounded(1 << 60)
    assert not waits


async def test_the_system_disk_hands_the_work_a_disk_of_its_own(tmp_path: Path) -> None:
    disk = SystemDisk()
    try:
        found = await disk.run_in_worker_process(
            write_and_read, str(tmp_path / "file"), b"data", bytes_per_second=math.inf
        )
    finally:
        disk.close()
    assert found == b"data"
    assert (tmp_path / "file").read_bytes() == b"data"


def test_the_simulated_disk_does_the_work_in_virtual_time() -> None:
    world = World(1)
    assert (
        world.run(world.disk.run_in_worker_process(write_and_read, "/file", b"data", bytes_per_second=1.0)) == b"data"
    )
    assert world.disk.read("/file") == b"data"
