"""The registry's keys in SQLite: what `SqliteRegistry` and `SharedSqliteRegistry` have in common. Who holds a session,
and who is told of a change, is up to them.

Blocking work runs where the caller says (`Disk.run`), never on the loop. Commits that arrive while one is
under way join the next: one sync for all of them, each still all or nothing by itself (a savepoint).

When COMMIT itself fails, the transaction may still survive. The commits get `OutcomeUnknown`, as after a lost
connection to ZooKeeper; the file is opened again and the outcome settled before anything else is read or written.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

from headrace.model.errors import HeadraceError
from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    OutcomeUnknown,
    RegistryConflict,
    RegistryEntry,
    RegistryOperation,
    Session,
    SessionLost,
    Set,
    check_key,
)
from headrace.registry.sqlite_file import SqliteErrors, SqliteTransaction, key_range_beneath, reopen_registry_file
from headrace.registry.watches import RegisteredWatch, RegisteredWatches

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs blocking work off the loop; the Disk door's `run` is one."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class _Commit(msgspec.Struct):
    operations: Sequence[RegistryOperation]
    session: Session | None
    done: bool = False
    refused: HeadraceError | None = None
    changed: list[str] = msgspec.field(default_factory=list)


class SqliteKeys:
    """All of `Registry` but the sessions."""

    def __init__(self, connection: sqlite3.Connection, run: RunBlocking) -> None:
        self._connection = connection
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._watches = RegisteredWatches()
        self._waiting: list[_Commit] = []
        # At most one disk thread works for the registry. The thread lock matters only after a cancellation,
        # when the turn has passed on while the cancelled caller's thread is still busy.
        self._turn = asyncio.Lock()
        self._using_connection = threading.RLock()
        self._path: str = connection.execute("PRAGMA database_list").fetchone()[2]
        self._is_in_doubt = False
        self._session: Session | None = None
        self._is_over = False

    async def get(self, key: str) -> RegistryEntry | None:
        check_key(key)
        rows = await self._select("WHERE key = ?", key)
        return rows[0] if rows else None

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        check_key(prefix)
        return await self._select("WHERE key > ? AND key < ? ORDER BY key", *key_range_beneath(prefix))

    async def children(self, key: str) -> Sequence[str]:
        entries = await self.entries(key)
        return sorted({entry.key[len(key) + 1 :].split("/", 1)[0] for entry in entries})

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        for operation in operations:
            check_key(operation.key)
            if isinstance(operation, Create) and operation.session not in (None, self._session):
                raise SessionLost(f"{operation.key}: session {operation.session.id} is over")
        if self._is_over:
            raise _session_lost()
        commit = _Commit(operations, self._session)
        self._waiting.append(commit)
        await self._commit_and_wait(commit)
        assert commit.done
        if commit.refused:
            raise commit.refused

    def watch(self, prefix: str, changed: Callable[[str], None]) -> RegisteredWatch:
        check_key(prefix)
        return self._watches.add(prefix, changed)

    async def _blocking(self, work: Callable[[], T]) -> T:
        """In a disk thread, when it is its turn."""
        async with self._turn:
            return await self._run(work)

    async def _select(self, where: str, *parameters: str) -> list[RegistryEntry]:
        return await self._blocking(lambda: self._query(where, parameters))

    async def _commit_and_wait(self, commit: _Commit) -> None:
        async with self._turn:
            if not commit.done:
                await self._run(self._commit_waiting)

    # From here on in a disk thread.

    def _session_exists(self, session: Session | None) -> bool:
        """Whether one may commit by this session; asked within the transaction."""
        return session is self._session

    def _record_changes(self, changed: Sequence[str]) -> None:
        """Called within the transaction that changes these keys."""

    def _notify_changes(self, changed: Sequence[str]) -> None:
        """Called when they are changed for good."""
        self._loop.call_soon_threadsafe(self._watches.tell, changed)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Use the connection alone, and after a COMMIT that failed a new one."""
        with self._using_connection, SqliteErrors():
            if self._is_in_doubt:
                self._connection.close()
                self._connection = reopen_registry_file(self._path)
                self._is_in_doubt = False
            try:
                yield
            except OutcomeUnknown:
                self._is_in_doubt = True
                self._loop.call_soon_threadsafe(self._watches.tell_all)
                raise

    def _query(self, where: str, parameters: Sequence[str]) -> list[RegistryEntry]:
        with self._exclusive():
            rows = self._connection.execute(f"SELECT key, value, version FROM entries {where}", parameters)
            return [RegistryEntry(*row) for row in rows]

    def _commit_waiting(self) -> None:
        """Commit everything that waits, with one sync."""
        with self._using_connection:
            commits, self._waiting = self._waiting, []
            changed: list[str] = []
            try:
                with self._exclusive(), SqliteTransaction(self._connection):
                    for commit in commits:
                        self._apply(commit)
                    changed = [key for commit in commits if not commit.refused for key in commit.changed]
                    self._record_changes(changed)
            except HeadraceError as error:
                changed = []
                for commit in commits:
                    # A conflict may be with another commit of this transaction: then it is as uncertain as that one.
                    if not isinstance(commit.refused, SessionLost):
                        commit.refused = error
            for commit in commits:
                commit.done = True
            self._notify_changes(changed)

    def _apply(self, commit: _Commit) -> None:
        if not self._session_exists(commit.session):
            commit.refused = _session_lost()
            return
        self._connection.execute("SAVEPOINT one")
        try:
            for operation in commit.operations:
                self._apply_one(operation)
                if not isinstance(operation, Check):
                    commit.changed.append(operation.key)
        except RegistryConflict as conflict:
            self._connection.execute("ROLLBACK TO one")
            commit.refused = conflict
        self._connection.execute("RELEASE one")

    def _apply_one(self, operation: RegistryOperation) -> None:
        key, execute = operation.key, self._connection.execute
        found = execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
        if isinstance(operation, Create):
            if found:
                raise KeyExists(f"{key} exists already")
            session = operation.session.id if operation.session else None
            execute("INSERT INTO entries VALUES (?, ?, 0, ?)", (key, operation.value, session))
            return
        if not found:
            raise NoKey(f"{key} does not exist")
        if found[0] != operation.version:
            raise BadVersion(f"{key} has version {found[0]}, not {operation.version}")
        match operation:
            case Set(_, value, version):
                execute("UPDATE entries SET value = ?, version = ? WHERE key = ?", (value, version + 1, key))
            case Delete():
                if execute(
                    "SELECT 1 FROM entries WHERE key > ? AND key < ? LIMIT 1", key_range_beneath(key)
                ).fetchone():
                    raise KeyNotEmpty(f"{key} has keys beneath it")
                execute("DELETE FROM entries WHERE key = ?", (key,))

    def _close(self) -> None:
        with self._using_connection, SqliteErrors():
            self._connection.close()


def delete_keys_of(connection: sqlite3.Connection, session: int) -> list[str]:
    """Within a transaction: remove the keys of a session; which they were."""
    rows = connection.execute("SELECT key FROM entries WHERE session = ?", (session,)).fetchall()
    connection.execute("DELETE FROM entries WHERE session = ?", (session,))
    return [key for (key,) in rows]


def _session_lost() -> SessionLost:
    return SessionLost("The session is over; open a new one")
