"""The registry on one host: a SQLite file in the data folder.

WAL with `synchronous=FULL` keeps every commit through a power cut (WAL with NORMAL loses the last ones).
Blocking work runs where the caller says (`Disk.run`), never on the loop. Commits that arrive while one is
under way join the next: one sync for all of them, each still all or nothing by itself (a savepoint).

The process that holds the data folder's lock is the only one, so ephemeral keys that are found at start
belong to sessions that are over.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from headrace.model.errors import HeadraceError
from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    Operation,
    RegistryConflict,
    RegistryDamaged,
    RegistryTooNew,
    RegistryUnavailable,
    Session,
    SessionLost,
    Set,
    check_key,
)
from headrace.registry.watches import Watch, Watches

T = TypeVar("T")

APPLICATION_ID = 0x48524143
"""Marks the file as ours: "HRAC"."""

FORMAT_VERSION = 1
"""Raised when an older Headrace could no longer read what this one writes."""

_SCHEMA = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session INTEGER
) WITHOUT ROWID;
CREATE INDEX entries_by_session ON entries (session) WHERE session IS NOT NULL;
"""


class Run(Protocol):
    """Runs blocking work off the loop; the Disk door's `run` is one."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class _Commit(msgspec.Struct):
    operations: Sequence[Operation]
    done: bool = False
    refused: HeadraceError | None = None
    changed: list[str] = msgspec.field(default_factory=list)


class SqliteRegistry:
    """Implements `Registry`. Open it with `await SqliteRegistry.open(path, disk.run)`."""

    def __init__(self, connection: sqlite3.Connection, run: Run) -> None:
        self._connection = connection
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._watches = Watches()
        self._waiting: list[_Commit] = []
        # At most one disk thread works for the registry. The thread lock matters only after a cancellation,
        # when the turn has passed on while the cancelled caller's thread is still busy.
        self._turn = asyncio.Lock()
        self._using_connection = threading.Lock()
        self._sessions: set[int] = set()
        self._last_session = 0

    @classmethod
    async def open(cls, path: str, run: Run) -> SqliteRegistry:
        """Open or create the file; its folder must exist. Raises `RegistryDamaged` or `RegistryTooNew`."""
        return cls(await run(lambda: _open(path)), run)

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        rows = await self._select("WHERE key = ?", key)
        return rows[0] if rows else None

    async def entries(self, prefix: str) -> Sequence[Entry]:
        check_key(prefix)
        return await self._select("WHERE key > ? AND key < ? ORDER BY key", *_beneath(prefix))

    async def children(self, key: str) -> Sequence[str]:
        entries = await self.entries(key)
        return sorted({entry.key[len(key) + 1 :].split("/", 1)[0] for entry in entries})

    async def commit(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            check_key(operation.key)
            if isinstance(operation, Create) and operation.session and operation.session.id not in self._sessions:
                raise SessionLost(f"{operation.key}: session {operation.session.id} is over")
        commit = _Commit(operations)
        self._waiting.append(commit)
        await self._work_off(commit)
        assert commit.done
        if commit.refused:
            raise commit.refused

    async def open_session(self) -> Session:
        self._last_session += 1
        self._sessions.add(self._last_session)
        return Session(self._last_session)

    async def close_session(self, session: Session) -> None:
        self._sessions.discard(session.id)
        async with self._turn:
            await self._run(lambda: self._delete_keys_of(session))

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Watch:
        check_key(prefix)
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        for session in [Session(number) for number in self._sessions]:
            await self.close_session(session)
        async with self._turn:
            await self._run(self._close)

    async def _select(self, where: str, *parameters: str) -> list[Entry]:
        async with self._turn:
            return await self._run(lambda: self._query(where, parameters))

    async def _work_off(self, commit: _Commit) -> None:
        async with self._turn:
            if not commit.done:
                await self._run(self._commit_waiting)

    # From here on in a disk thread.

    def _query(self, where: str, parameters: Sequence[str]) -> list[Entry]:
        with self._using_connection, _TypedErrors():
            rows = self._connection.execute(f"SELECT key, value, version FROM entries {where}", parameters)
            return [Entry(*row) for row in rows]

    def _commit_waiting(self) -> None:
        """Commit everything that waits, with one sync."""
        with self._using_connection:
            commits, self._waiting = self._waiting, []
            try:
                with _TypedErrors(), _Transaction(self._connection):
                    for commit in commits:
                        self._apply(commit)
            except HeadraceError as error:
                for commit in commits:
                    commit.refused = commit.refused or error
            for commit in commits:
                commit.done = True
            changed = [key for commit in commits if not commit.refused for key in commit.changed]
            self._loop.call_soon_threadsafe(self._watches.tell, changed)

    def _apply(self, commit: _Commit) -> None:
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

    def _apply_one(self, operation: Operation) -> None:
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
                if execute("SELECT 1 FROM entries WHERE key > ? AND key < ? LIMIT 1", _beneath(key)).fetchone():
                    raise KeyNotEmpty(f"{key} has keys beneath it")
                execute("DELETE FROM entries WHERE key = ?", (key,))

    def _delete_keys_of(self, session: Session) -> None:
        with self._using_connection, _TypedErrors(), _Transaction(self._connection):
            rows = self._connection.execute("SELECT key FROM entries WHERE session = ?", (session.id,)).fetchall()
            self._connection.execute("DELETE FROM entries WHERE session = ?", (session.id,))
        self._loop.call_soon_threadsafe(self._watches.tell, [key for (key,) in rows])

    def _close(self) -> None:
        with self._using_connection, _TypedErrors():
            self._connection.close()


class _Transaction:
    """BEGIN ... COMMIT, or ROLLBACK when anything goes wrong, the COMMIT included."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


class _TypedErrors:
    """SQLite's errors as ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.OperationalError):
            raise RegistryUnavailable(f"The registry cannot be used now: {error}") from error
        if isinstance(error, sqlite3.DatabaseError):
            raise RegistryDamaged(f"The registry is damaged: {error}; stop and restore a copy of it") from error


def _open(path: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        raise RegistryUnavailable(f"The registry {path} cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        raise RegistryDamaged(_damaged(path, str(error))) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application_id != APPLICATION_ID:
        raise RegistryDamaged(_damaged(path, "it is the database of another program"))
    if version > FORMAT_VERSION:
        raise RegistryTooNew(
            f"The registry {path} has format {version}, and this Headrace reads up to {FORMAT_VERSION}; "
            "start the newer Headrace that wrote it"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if not tables:
        # In one transaction: a power cut leaves either nothing or all of it.
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
        )
    problems = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problems != "ok":
        raise RegistryDamaged(_damaged(path, problems))
    connection.execute("DELETE FROM entries WHERE session IS NOT NULL")


def _damaged(path: str, reason: str) -> str:
    return (
        f"The registry {path} is damaged: {reason}. Restore a copy of it with its -wal file, or move it "
        "away to start with no topics; the logs beside it are not touched"
    )


def _beneath(prefix: str) -> tuple[str, str]:
    """The bounds of the keys beneath a key: '0' is the character that follows '/'."""
    return f"{prefix}/", f"{prefix}0"
