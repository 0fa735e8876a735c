"""What several registries on one file make of each other: sessions that end, doubt, and watches.

Time is a number that the tests move; that processes are killed and paused is tested in tests/integration.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.registry.contract import until

from headrace.registry import sqlite_shared as sqlite_follower
from headrace.registry.interface import (
    VALID_SHARE,
    BadVersion,
    Create,
    RegistryDamaged,
    RegistryEntry,
    RegistryUnavailable,
    SessionLost,
    SessionState,
    Set,
)
from headrace.registry.sqlite import connect_registry_file, sqlite_transaction
from headrace.registry.sqlite_shared import (
    PAUSE_DETECTED_SECONDS,
    SessionLockFile,
    SharedSqliteRegistry,
    read_beat,
    session_files,
    session_path,
)

HELD, DOUBTED, LOST = SessionState.HELD, SessionState.DOUBTED, SessionState.LOST
TIMEOUT_SECONDS = 0.6

Open = Callable[..., Any]


class ManualClock:
    """Time stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 0


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "registry.db")


@pytest.fixture
def open_registry(path: str, clock: ManualClock) -> Iterator[Open]:
    opened: list[SharedSqliteRegistry] = []

    async def open_one(its_clock: ManualClock = clock) -> SharedSqliteRegistry:
        opened.append(await SharedSqliteRegistry.open(path, in_thread, its_clock, TIMEOUT_SECONDS))
        return opened[-1]

    yield open_one
    for registry in opened:
        registry._follower.stop()
        registry._close()


def file_of(registry: SharedSqliteRegistry) -> SessionLockFile:
    assert registry._held is not None
    return registry._held.file


def silence(registry: SharedSqliteRegistry) -> None:
    """As if its process did not run any more: it neither beats nor follows."""
    file_of(registry).beat = lambda: None  # type: ignore[method-assign]
    registry._follower.stop()
    registry._follower.is_alive = lambda: True  # type: ignore[method-assign]
    registry._follower.stop = lambda: None  # type: ignore[method-assign]


async def let_pass(clock: ManualClock, seconds: float, condition: Callable[[], bool]) -> None:
    """Move the clock in small steps, until a condition holds and so much time has passed at least."""
    end = clock.seconds + seconds
    async with asyncio.timeout(20):
        while clock.seconds < end or not condition():
            clock.seconds += 0.02
            await asyncio.sleep(0.005)


async def test_a_change_is_heard_by_all_in_the_order_of_the_commits(open_registry: Open) -> None:
    registries = [await open_registry() for _ in range(3)]
    heard: list[list[str]] = [[] for _ in registries]
    for registry, keys in zip(registries, heard, strict=True):
        registry.watch("/a", keys.append)
    for number in range(9):
        await registries[number % 3].commit([Create(f"/a/{number}", b""), Create(f"/b/{number}", b"")])
    await until(lambda: all(len(keys) == 9 for keys in heard))
    assert heard == [[f"/a/{number}" for number in range(9)]] * 3


async def test_of_many_registries_that_set_the_same_version_exactly_one_wins(open_registry: Open) -> None:
    registries = [await open_registry() for _ in range(4)]
    await registries[0].commit([Create("/a", b"")])
    for version in range(10):
        won: list[int] = []

        async def compete(number: int, version: int = version, won: list[int] = won) -> None:
            try:
                await registries[number].commit([Set("/a", str(number).encode(), version)])
            except BadVersion:
                return
            won.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(len(registries)):
                group.create_task(compete(number))
        assert len(won) == 1
        entry = await registries[0].get("/a")
        assert entry == RegistryEntry("/a", str(won[0]).encode(), version + 1)


async def test_many_may_open_a_file_that_is_not_there_yet_at_the_same_time(open_registry: Open) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(open_registry()) for _ in range(8)]
    await tasks[0].result().commit([Create("/a", b"")])
    assert await tasks[7].result().get("/a") == RegistryEntry("/a", b"", 0)


async def test_one_who_missed_more_than_is_kept_is_told_to_look_at_everything(
    open_registry: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_follower, "CHANGES_KEPT", 5)
    slow, quick = await open_registry(), await open_registry()
    heard: list[str] = []
    slow.watch("/a", heard.append)
    await quick.commit([Create("/a/0", b"")])
    await until(lambda: heard == ["/a/0"])
    await quick.commit([Create(f"/a/{number}", b"") for number in range(1, 7)])
    await until(lambda: heard == ["/a/0", "/a"])
    await quick.commit([Create("/a/last", b"")])
    await until(lambda: heard == ["/a/0", "/a", "/a/last"])


async def test_a_session_whose_process_is_gone_is_over_at_once(open_registry: Open) -> None:
    killed, other = await open_registry(), await open_registry()
    heard: list[str] = []
    states: list[SessionState] = []
    other.watch("/live", heard.append)
    session = await killed.open_session(states.append)
    await killed.commit([Create("/live/1", b"", session), Create("/kept", b"")])
    await until(lambda: heard == ["/live/1"])
    held = file_of(killed)
    held.close()  # what the kernel does with the files of a process that ends
    held.close = lambda: None  # type: ignore[method-assign]
    held.beat = lambda: None  # type: ignore[method-assign]
    clock = other._clock
    await let_pass(clock, 0.0, lambda: heard == ["/live/1", "/live/1"])
    assert clock.seconds < 1000.0 + TIMEOUT_SECONDS
    assert await other.get("/live/1") is None
    assert await other.get("/kept") is not None
    with pytest.raises(SessionLost):
        await killed.commit([Set("/kept", b"by the dead", 0)])
    await until(lambda: states == [HELD, LOST])


async def test_a_session_that_is_silent_for_its_timeout_is_over_for_all_and_its_commits_are_refused(
    open_registry: Open, clock: ManualClock
) -> None:
    silent, other = await open_registry(ManualClock()), await open_registry()
    heard: list[str] = []
    other.watch("/live", heard.append)
    session = await silent.open_session()
    await silent.commit([Create("/live/1", b"", session), Create("/kept", b"")])
    silence(silent)
    await let_pass(clock, TIMEOUT_SECONDS - 0.2, lambda: heard == ["/live/1"])
    assert await other.get("/live/1") is not None
    await let_pass(clock, 0.0, lambda: heard == ["/live/1", "/live/1"])
    assert await other.get("/live/1") is None
    with pytest.raises(SessionLost):
        await silent.commit([Set("/kept", b"by the dead", 0)])
    assert await other.get("/kept") == RegistryEntry("/kept", b"", 0)


async def test_a_session_that_beats_is_held_however_much_time_passes(open_registry: Open, clock: ManualClock) -> None:
    beating, other = await open_registry(), await open_registry()
    states: list[SessionState] = []
    session = await beating.open_session(states.append)
    await other.open_session(states.append)
    await beating.commit([Create("/live/1", b"", session)])
    await let_pass(clock, 5 * TIMEOUT_SECONDS, lambda: True)
    assert await other.get("/live/1") is not None
    assert LOST not in states


async def test_a_session_is_valid_for_two_thirds_of_its_timeout_after_its_last_beat(
    open_registry: Open, clock: ManualClock
) -> None:
    registry = await open_registry()
    began = clock.seconds
    await registry.open_session()
    assert registry.session_valid_until == began + VALID_SHARE * TIMEOUT_SECONDS
    clock.seconds += TIMEOUT_SECONDS / 2
    await until(lambda: registry.session_valid_until == clock.seconds + VALID_SHARE * TIMEOUT_SECONDS)
    before = registry.session_valid_until
    silence(registry)
    clock.seconds += TIMEOUT_SECONDS
    assert before == registry.session_valid_until < clock.seconds


async def test_a_follower_that_was_away_gives_the_others_their_time_anew(
    open_registry: Open, clock: ManualClock
) -> None:
    silent, other = await open_registry(ManualClock()), await open_registry()
    session = await silent.open_session()
    await silent.commit([Create("/live/1", b"", session)])
    silence(silent)
    follower = other._follower
    await let_pass(clock, TIMEOUT_SECONDS / 3, lambda: session.id in follower._heartbeats)
    clock.seconds += PAUSE_DETECTED_SECONDS + TIMEOUT_SECONDS
    since = clock.seconds
    await until(lambda: session.id in follower._heartbeats and follower._heartbeats[session.id].since == since)
    assert await other.get("/live/1") is not None


async def test_a_beat_that_comes_late_puts_the_session_in_doubt_until_it_is_found(
    open_registry: Open, clock: ManualClock
) -> None:
    registry = await open_registry()
    states: list[SessionState] = []
    await registry.open_session(states.append)
    clock.seconds += VALID_SHARE * TIMEOUT_SECONDS + 0.01
    await until(lambda: len(states) == 3)
    assert states == [HELD, DOUBTED, HELD]
    await registry.commit([Create("/a", b"")])


async def test_an_answer_that_is_old_when_it_is_heard_does_not_end_the_doubt(
    open_registry: Open, clock: ManualClock
) -> None:
    registry = await open_registry()
    states: list[SessionState] = []
    session = await registry.open_session(states.append)
    registry._follower.check_session = lambda _: None
    clock.seconds += TIMEOUT_SECONDS
    await until(lambda: states == [HELD, DOUBTED])
    clock.seconds += TIMEOUT_SECONDS  # paused again, after the look and before its answer is heard
    registry.on_session_found(session)
    assert states == [HELD, DOUBTED]


async def test_a_session_in_doubt_is_checked_after_a_process_that_is_ending_it_has_committed(
    open_registry: Open, clock: ManualClock, path: str
) -> None:
    registry = await open_registry()
    states: list[SessionState] = []
    session = await registry.open_session(states.append)
    ending = connect_registry_file(path)
    with sqlite_transaction(ending):
        sqlite_follower.end_session(ending, session.id)
        clock.seconds += TIMEOUT_SECONDS
        await until(lambda: states == [HELD, DOUBTED])
        beats = file_of(registry)._beats
        await until(lambda: file_of(registry)._beats > beats + 2)
        assert states == [HELD, DOUBTED]
    ending.close()
    await until(lambda: states == [HELD, DOUBTED, LOST])
    with pytest.raises(SessionLost):
        await registry.commit([Create("/a", b"")])
    again = await registry.open_session(states.append)
    assert again.id > session.id
    await registry.commit([Create("/a", b"", again)])


async def test_a_session_with_a_new_heartbeat_is_not_ended(open_registry: Open) -> None:
    registry, other = await open_registry(), await open_registry()
    session = await registry.open_session()
    beat = read_beat(session_path(registry._path, session.id))
    assert beat is not None
    follower = other._follower
    await asyncio.to_thread(follower.stop)
    follower.stop = lambda: None
    follower._connection = connect_registry_file(registry._path)
    file_of(registry).beat()
    follower._end(session.id, beat, "its beat was seen before")
    await registry.commit([Create("/a", b"", session)])
    follower._connection.close()


async def test_sessions_of_processes_that_are_gone_end_although_nobody_was_there_to_see_it(
    open_registry: Open, path: str, clock: ManualClock
) -> None:
    last = await open_registry()
    session = await last.open_session()
    await last.commit([Create("/live/1", b"", session)])
    silence(last)
    file_of(last).close()
    file_of(last).close = lambda: None  # type: ignore[method-assign]
    first = await open_registry()
    gone: list[str] = []
    first.watch("/live", gone.append)
    await let_pass(clock, 0.0, lambda: not session_files(path))
    assert await first.get("/live/1") is None


async def test_the_file_of_a_session_goes_with_it_and_what_a_kill_left_behind_goes_too(
    open_registry: Open, path: str
) -> None:
    registry = await open_registry()
    session = await registry.open_session()
    assert session_files(path) == {session.id}
    await registry.close_session(session)
    assert session_files(path) == set()
    Path(session_path(path, 99)).touch()
    held = SessionLockFile(session_path(path, 98))
    await open_registry()
    assert session_files(path) == {98}
    held.close()


async def test_the_number_of_a_session_is_never_used_again(open_registry: Open) -> None:
    registry, other = await open_registry(), await open_registry()
    seen: set[int] = set()
    for one in (registry, other, registry, other):
        session = await one.open_session()
        assert session.id not in seen
        seen.add(session.id)
        await one.close_session(session)


async def test_when_the_file_of_a_session_cannot_be_made_there_is_no_session(
    open_registry: Open, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = await open_registry()

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with pytest.raises(RegistryUnavailable, match="No space left"):
            await registry.open_session()
    session = await registry.open_session()
    await registry.commit([Create("/a", b"", session)])


class FailsOnce:
    """A connection whose next COMMIT fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *parameters: Any) -> Any:
        if statement == "COMMIT" and not self._has_failed:
            self._has_failed = True
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *parameters)


async def test_a_session_that_could_not_be_written_down_does_not_stand_in_the_way_of_the_next(
    open_registry: Open,
) -> None:
    registry = await open_registry()
    registry._connection = FailsOnce(registry._connection)
    with pytest.raises(RegistryUnavailable, match="disk I/O error"):
        await registry.open_session()
    other = await open_registry()
    await other.open_session()
    session = await registry.open_session()
    await registry.commit([Create("/a", b"", session)])


async def test_while_another_process_writes_a_commit_waits_its_turn(open_registry: Open, path: str) -> None:
    registry = await open_registry()
    writing = connect_registry_file(path)
    with sqlite_transaction(writing):
        waiting = asyncio.ensure_future(registry.commit([Create("/a", b"")]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    writing.close()


async def test_a_registry_without_its_follower_holds_no_session(open_registry: Open) -> None:
    registry = await open_registry()
    states: list[SessionState] = []
    await registry.open_session(states.append)
    await asyncio.to_thread(registry._follower.stop)
    await until(lambda: states == [HELD, LOST])
    with pytest.raises(AssertionError, match="has died"):
        await registry.open_session()


async def test_a_damaged_file_is_refused_like_that_of_one_broker(path: str, clock: ManualClock) -> None:
    Path(path).write_bytes(b"this is no database" * 100)
    with pytest.raises(RegistryDamaged, match="Restore a copy"):
        await SharedSqliteRegistry.open(path, in_thread, clock, TIMEOUT_SECONDS)


async def test_a_folder_that_does_not_exist_is_a_typed_error(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(RegistryUnavailable, match="cannot be opened"):
        await SharedSqliteRegistry.open(str(tmp_path / "missing" / "registry.db"), in_thread, clock, TIMEOUT_SECONDS)
