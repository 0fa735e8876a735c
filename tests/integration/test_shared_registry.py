"""The SQLite registry that processes of one host share: the contract under load, kill -9 and SIGSTOP."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.conftest import Figures
from tests.integration.process import PATIENCE_SECONDS
from tests.unit.registry.contract import Opened, RegistryContract

from headrace.registry.counters import ProducerIds
from headrace.registry.interface import Registry, RegistryEntry
from headrace.registry.sqlite_shared import SharedSqliteRegistry, session_files
from headrace.runtime.clock import SystemClock

LONG_SECONDS = 300.0
"""A timeout that does not expire in the tests."""

_OPEN = """
import asyncio, itertools, sys
from headrace.registry.interface import Create, SessionLost, SessionState, Set
from headrace.registry.counters import ProducerIds
from headrace.registry.sqlite_shared import SharedSqliteRegistry
from headrace.runtime.clock import SystemClock

def open_registry(path, seconds):
    return SharedSqliteRegistry.open(path, asyncio.to_thread, SystemClock(), float(seconds))
"""

BE_BUSY = (
    _OPEN
    + """
async def main():
    for path in map(str.strip, sys.stdin):
        registry = await open_registry(path, 6.0)
        session = await registry.open_session()
        registry.watch("/busy", lambda key: None)
        print("busy", flush=True)
        for number in range(200):
            await registry.commit([Create(f"/busy/{number}", b"x" * 100, session)])
        await registry.close()

asyncio.run(main())
"""
)

TAKE_NUMBERS = (
    _OPEN
    + """
async def main():
    registry = await open_registry(*sys.argv[1:])
    await registry.open_session()
    for _ in itertools.count():
        print(await ProducerIds(registry).next(), flush=True)

asyncio.run(main())
"""
)

LIVE = (
    _OPEN
    + """
async def main():
    registry = await open_registry(*sys.argv[1:])
    for number in itertools.count():
        lost = asyncio.Event()

        def turn(state):
            print(state.value, flush=True)
            if state is SessionState.LOST:
                lost.set()

        session = await registry.open_session(turn)
        await registry.commit([Create("/live/1", b"%d" % number, session)])
        if number == 0:
            await registry.commit([Create("/kept", b"")])
        print("live", flush=True)
        await lost.wait()
        try:
            await registry.commit([Set("/kept", b"by the dead", 0)])
        except SessionLost:
            print("refused", flush=True)

asyncio.run(main())
"""
)


class Neighbour:
    """A process with the registry; its output is read line by line."""

    def __init__(self, script: str, *arguments: str) -> None:
        command = [sys.executable, "-c", script, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the neighbour has ended"
        return line.strip()

    async def heard(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.to_thread(self.hear)

    async def heard_until(self, last: str) -> list[str]:
        lines = [await self.heard()]
        while lines[-1] != last:
            lines.append(await self.heard())
        return lines


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def shared(path: str, seconds: float = 6.0) -> AsyncIterator[SharedSqliteRegistry]:
    registry = await SharedSqliteRegistry.open(path, asyncio.to_thread, SystemClock(), seconds)
    try:
        yield registry
    finally:
        await registry.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "registry.db")


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Neighbour]:
    """Commits to one registry after the other as fast as possible."""
    with Neighbour(BE_BUSY) as process:
        yield process


class TestContract(RegistryContract):
    @pytest.fixture
    def opened(self, neighbour: Neighbour, path: str) -> Opened:
        @asynccontextmanager
        async def beside_a_neighbour() -> AsyncIterator[Registry]:
            neighbour.say(path)
            assert await neighbour.heard() == "busy"
            async with shared(path) as registry:
                yield registry

        return beside_a_neighbour()


async def test_the_session_of_a_killed_process_ends_at_once(path: str, figures: Figures) -> None:
    heard: list[str] = []
    async with shared(path, LONG_SECONDS) as registry:
        registry.watch("/live", heard.append)
        with Neighbour(LIVE, path, str(LONG_SECONDS)) as killed:
            assert await killed.heard_until("live") == ["held", "live"]
            await until(lambda: heard == ["/live/1"])
            killed.process.kill()
            began = time.monotonic()
            await until(lambda: heard == ["/live/1", "/live/1"])
            figures.add(f"{1000 * (time.monotonic() - began):.0f} ms from kill -9 to hearing of it")
        assert await registry.get("/live/1") is None
        assert await registry.get("/kept") == RegistryEntry("/kept", b"", 0)
        assert session_files(path) == set()


async def test_a_paused_process_loses_its_session_and_its_commits_fail(path: str) -> None:
    heard: list[str] = []
    async with shared(path) as registry:
        registry.watch("/live", heard.append)
        with Neighbour(LIVE, path, "1.0") as paused:
            assert await paused.heard_until("live") == ["held", "live"]
            await until(lambda: heard == ["/live/1"])
            paused.process.send_signal(signal.SIGSTOP)
            await until(lambda: heard == ["/live/1", "/live/1"])
            assert await registry.get("/live/1") is None
            paused.process.send_signal(signal.SIGCONT)
            output = await paused.heard_until("live")
            # Which of the two it learns first is chance: that it was away, or that the session is over.
            assert [line for line in output if line != "doubted"] == ["lost", "refused", "held", "live"]
            assert await registry.get("/live/1") == RegistryEntry("/live/1", b"1", 0)
            assert await registry.get("/kept") == RegistryEntry("/kept", b"", 0)


async def test_a_process_paused_with_its_peer_does_not_end_the_session_of_the_peer(path: str) -> None:
    """Both processes are paused for longer than the timeout; the first one to resume must not expire the other's
    session."""
    heard: list[str] = []
    async with shared(path, LONG_SECONDS) as registry:
        registry.watch("/live", heard.append)
        with Neighbour(LIVE, path, "3.0") as paused:
            assert await paused.heard_until("live") == ["held", "live"]
            await until(lambda: heard == ["/live/1"])
            paused.process.send_signal(signal.SIGSTOP)
            # As if this process had been stopped, too: its thread comes back late.
            registry._follower._checked_at -= 2.0
            since = registry._follower._clock.monotonic()
            await until(lambda: any(pulse.since >= since for pulse in registry._follower._heartbeats.values()))
            paused.process.send_signal(signal.SIGCONT)
            await registry.get("/live/1")
            assert heard == ["/live/1"]


async def test_numbers_are_unique_although_processes_are_killed(path: str) -> None:
    given: list[int] = []
    for _ in range(3):
        takers = [Neighbour(TAKE_NUMBERS, path, str(LONG_SECONDS)) for _ in range(3)]
        for taker in takers:
            given += [int(await taker.heard()) for _ in range(10)]
        for taker in takers:
            taker.process.kill()
            assert taker.process.stdout is not None
            given += [int(line) for line in taker.process.stdout]
            taker.__exit__()
    assert len(set(given)) == len(given)
    async with shared(path) as registry:
        assert await ProducerIds(registry).next() > max(given)
