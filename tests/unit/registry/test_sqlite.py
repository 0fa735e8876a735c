"""What is particular to the SQLite file: durability, group commit, damage."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from headrace.registry.counters import ProducerIds
from headrace.registry.interface import (
    BadVersion,
    Create,
    OutcomeUnknown,
    RegistryDamaged,
    RegistryEntry,
    RegistryTooNew,
    RegistryUnavailable,
    Set,
)
from headrace.registry.sqlite import FORMAT_VERSION, SqliteRegistry


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


class HeldThread:
    """Runs work in a thread, but only when let go; counts what was run."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.let_go.set()
        self.begun = asyncio.Event()
        self.runs = 0

    async def __call__(self, work: Callable[[], Any]) -> Any:
        self.runs += 1
        self.begun.set()

        def held() -> Any:
            assert self.let_go.wait(10)
            return work()

        return await asyncio.to_thread(held)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "registry.db")


COMMIT_FOR_EVER = """
import asyncio, itertools, sys
from headrace.registry.counters import ProducerIds
from headrace.registry.sqlite import SqliteRegistry

async def main():
    registry = await SqliteRegistry.open(sys.argv[1], asyncio.to_thread)
    for _ in itertools.count():
        print(await ProducerIds(registry).next(), flush=True)

asyncio.run(main())
"""


async def test_a_producer_id_that_was_handed_out_before_kill_9_is_not_handed_out_after(path: str) -> None:
    given: list[int] = []
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", COMMIT_FOR_EVER, path], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            given += [int(process.stdout.readline()) for _ in range(10)]
            process.kill()
            given += [int(line) for line in process.stdout]
    assert len(set(given)) == len(given)
    registry = await SqliteRegistry.open(path, in_thread)
    assert await ProducerIds(registry).next() > max(given)
    await registry.close()


async def test_a_process_that_did_not_close_leaves_its_commits_and_no_ephemeral_keys(path: str) -> None:
    killed = await SqliteRegistry.open(path, in_thread)
    await killed.commit([Create("/a", b"kept")])
    await killed.commit([Create("/e", b"gone", await killed.open_session())])
    # Not closed: a second connection on the same file sees what a process started after kill -9 sees.
    registry = await SqliteRegistry.open(path, in_thread)
    assert await registry.get("/a") == RegistryEntry("/a", b"kept", 0)
    assert await registry.get("/e") is None
    await registry.close()
    await killed.close()


async def test_the_file_is_written_in_the_mode_that_survives_a_power_cut(path: str) -> None:
    registry = await SqliteRegistry.open(path, in_thread)
    assert registry._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert registry._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    await registry.close()


async def test_commits_that_arrive_during_one_share_the_next(path: str) -> None:
    run = HeldThread()
    registry = await SqliteRegistry.open(path, run)
    run.runs = 0
    run.begun.clear()
    run.let_go.clear()
    refused: list[int] = []

    async def create(number: int) -> None:
        try:
            await registry.commit([Create(f"/{number % 40}", b"")])
        except Exception:
            refused.append(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(create(0))
        await run.begun.wait()
        tasks = [group.create_task(create(number)) for number in range(1, 50)]
        await asyncio.sleep(0)
        assert len(tasks) == 49
        run.let_go.set()
    assert run.runs <= 2
    # In the shared transaction, one that does not fit is refused alone.
    assert refused == list(range(40, 50))
    assert len(await registry.entries("/0")) == 0
    assert all([await registry.get(f"/{number}") for number in range(40)])
    await registry.close()


async def test_a_cancelled_commit_leaves_the_registry_usable(path: str) -> None:
    run = HeldThread()
    registry = await SqliteRegistry.open(path, run)
    run.begun.clear()
    run.let_go.clear()
    cancelled = asyncio.ensure_future(registry.commit([Create("/a", b"")]))
    await run.begun.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    run.let_go.set()
    await registry.commit([Create("/b", b"")])
    assert await registry.get("/b") == RegistryEntry("/b", b"", 0)
    await registry.close()


async def test_a_cancelled_commit_does_not_happen_after_its_session_was_closed(path: str) -> None:
    run = HeldThread()
    registry = await SqliteRegistry.open(path, run)
    old = await registry.open_session()
    run.begun.clear()
    run.let_go.clear()
    reading = asyncio.ensure_future(registry.get("/a"))
    await run.begun.wait()
    waiting = asyncio.ensure_future(registry.commit([Create("/a", b"", old)]))
    await asyncio.sleep(0)
    waiting.cancel()
    run.let_go.set()
    await reading
    await registry.close_session(old)
    await registry.open_session()
    await registry.commit([Create("/b", b"")])
    assert await registry.get("/a") is None
    await registry.close()


class FailingConnection(sqlite3.Connection):
    """COMMIT reports an I/O error, before or after the transaction has become durable."""

    fails: ClassVar[list[Literal["before", "after"]]] = []

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT" or not self.fails:
            return super().execute(sql, *parameters)
        when = self.fails.pop(0)
        if when == "after":
            super().execute(sql)
        raise sqlite3.OperationalError("disk I/O error")


@pytest.fixture
def failing_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Literal["before", "after"]]]:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FailingConnection))
    yield FailingConnection.fails
    FailingConnection.fails.clear()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_error_at_commit_leaves_the_outcome_unknown_and_reading_again_tells_it(
    path: str, failing_commits: list[str], when: str
) -> None:
    registry = await SqliteRegistry.open(path, in_thread)
    told: list[str] = []
    registry.watch("/a", told.append)
    failing_commits.append(when)
    with pytest.raises(OutcomeUnknown, match="disk I/O error"):
        await registry.commit([Create("/a", b"")])
    found = await registry.get("/a")
    assert found == (RegistryEntry("/a", b"", 0) if when == "after" else None)
    assert told == ["/a"], "a mirror must read again, because the change may have happened"
    await registry.close()
    again = await SqliteRegistry.open(path, in_thread)
    assert await again.get("/a") == found
    await again.close()


async def test_after_an_error_at_commit_a_write_settles_the_outcome_before_anything_is_read(
    path: str, failing_commits: list[str]
) -> None:
    """Frames of the failed transaction may lie in the write-ahead log; the next commit overwrites them."""
    registry = await SqliteRegistry.open(path, in_thread)
    failing_commits += ["before", "before"]
    with pytest.raises(OutcomeUnknown):
        await registry.commit([Create("/a", b"")])
    with pytest.raises(RegistryUnavailable):
        await registry.get("/a")
    observer = sqlite3.connect(path)
    before = observer.execute("PRAGMA data_version").fetchone()
    assert await registry.get("/a") is None
    assert observer.execute("PRAGMA data_version").fetchone() != before
    await registry.commit([Create("/a", b"")])
    observer.close()
    await registry.close()


async def test_after_an_error_at_commit_no_conflict_with_what_shared_the_transaction_is_reported(
    path: str, failing_commits: list[str]
) -> None:
    """`KeyExists` is a final answer, and the key that it speaks of may never come to exist."""
    run = HeldThread()
    registry = await SqliteRegistry.open(path, run)
    run.begun.clear()
    run.let_go.clear()
    reading = asyncio.ensure_future(registry.get("/a"))
    await run.begun.wait()
    commits = [asyncio.ensure_future(registry.commit([Create("/a", b"%d" % number)])) for number in range(2)]
    await asyncio.sleep(0)
    failing_commits.append("before")
    run.let_go.set()
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown, OutcomeUnknown]
    assert await reading is None
    await registry.commit([Create("/a", b"")])
    await registry.close()


async def test_a_conflict_names_the_key_and_both_versions(path: str) -> None:
    registry = await SqliteRegistry.open(path, in_thread)
    await registry.commit([Create("/a", b"")])
    with pytest.raises(BadVersion, match="/a has version 0, not 5"):
        await registry.commit([Set("/a", b"", 5)])
    await registry.close()


async def test_a_file_that_is_no_database_is_refused_with_what_to_do(path: str) -> None:
    Path(path).write_bytes(b"this is no database" * 100)
    with pytest.raises(RegistryDamaged, match="Restore a copy"):
        await SqliteRegistry.open(path, in_thread)


async def test_a_file_with_overwritten_pages_is_refused(path: str) -> None:
    registry = await SqliteRegistry.open(path, in_thread)
    await registry.commit([Create(f"/{number}", b"x" * 500) for number in range(200)])
    await registry.close()
    raw = bytearray(Path(path).read_bytes())
    raw[8192:16384] = b"\xff" * 8192
    Path(path).write_bytes(raw)
    with pytest.raises(RegistryDamaged, match="damaged"):
        await SqliteRegistry.open(path, in_thread)


async def test_the_database_of_another_program_is_not_touched(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE precious (x)")
    other.commit()
    other.close()
    before = Path(path).read_bytes()
    with pytest.raises(RegistryDamaged, match="another application"):
        await SqliteRegistry.open(path, in_thread)
    assert Path(path).read_bytes() == before


async def test_a_newer_format_is_refused_and_not_touched(path: str) -> None:
    await (await SqliteRegistry.open(path, in_thread)).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    newer.close()
    with pytest.raises(RegistryTooNew, match="newer release"):
        await SqliteRegistry.open(path, in_thread)


async def test_a_folder_that_does_not_exist_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailable, match="cannot be opened"):
        await SqliteRegistry.open(str(tmp_path / "missing" / "registry.db"), in_thread)


async def test_when_the_disk_is_full_a_commit_is_refused_and_the_next_may_succeed(path: str) -> None:
    registry = await SqliteRegistry.open(path, in_thread)
    pages = registry._connection.execute("PRAGMA page_count").fetchone()[0]
    registry._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RegistryUnavailable, match="full"):
        await registry.commit([Create(f"/{number}", b"x" * 1000) for number in range(20)])
    assert await registry.get("/0") is None
    registry._connection.execute("PRAGMA max_page_count = 1000000")
    await registry.commit([Create("/0", b"")])
    assert await registry.get("/0") is not None
    await registry.close()


async def test_the_only_process_needs_no_heartbeats_to_know_that_its_session_is_valid(path: str) -> None:
    registry = await SqliteRegistry.open(path, in_thread)
    await registry.open_session()
    assert registry.session_valid_until == float("inf")
    await registry.close()
