"""The registry of a single broker in a SQLite file, and the parts that it shares with `sqlite_shared`.

- The file is opened only if it is intact and was written by Headrace. WAL with `synchronous=FULL` makes every commit
  durable (WAL with NORMAL loses the last ones in a power failure).
- Blocking work runs in the disk threads (`Disk.run`), never on the event loop. Commits that arrive while one is in
  progress join the next one: one sync for all of them, but each is atomic by itself (a savepoint).
- When COMMIT itself fails, the transaction may still survive. The commits raise `OutcomeUnknown`, as after a lost
  connection to ZooKeeper; the file is reopened and the outcome settled before anything else is read or written.
- `SqliteRegistry` is used only by the process that holds the lock of the data folder. Therefore ephemeral keys that are
  found at startup belong to past sessions, and its session is valid until it is closed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
    RegisteredWatch,
    RegisteredWatches,
    RegistryConflict,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    RegistryTooNew,
    RegistryUnavailable,
    Session,
    SessionLost,
    SessionState,
    Set,
    check_key,
)
from headrace.runtime.permissions import create_file

APPLICATION_ID = 0x48524143
"""Marks the file as ours: "HRAC"."""

BUSY_SECONDS = 5.0
"""How long a commit waits for that of another process."""

FORMAT_VERSION = 1
"""Raised when an older Headrace could no longer read what this one writes."""

_SCHEMA = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session INTEGER
) WITHOUT ROWID;
CREATE INDEX entries_by_session ON entries (session) WHERE session IS NOT NULL;
"""


def open_registry_file(path: str) -> sqlite3.Connection:
    try:
        create_file(path)  # SQLite gives its other files the mode of this one
    except OSError as error:
        raise RegistryUnavailable(f"The registry {path} cannot be opened: {error}") from error
    try:
        connection = connect_registry_file(path)
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


def connect_registry_file(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
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
    if not tables:
        # In one transaction: a power cut leaves either nothing or all of it.
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
        )
    problems = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problems != "ok":
        raise RegistryDamaged(_damaged(path, problems))


def reopen_registry_file(path: str) -> sqlite3.Connection:
    """Open the file again after a COMMIT that failed, and settle what became of it by a commit of our own.

    The failed transaction's frames may lie in the write-ahead log, where a recovery would find them. The next commit
    overwrites those that no connection counts; those that this connection has recovered it makes durable.
    """
    connection = connect_registry_file(path)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        with SqliteTransaction(connection):
            connection.execute(f"PRAGMA user_version = {version}")  # writes a page, also if nothing changes
    except BaseException:
        connection.close()
        raise
    return connection


class SqliteTransaction:
    """BEGIN ... COMMIT, or ROLLBACK when anything goes wrong. An error of COMMIT itself is an `OutcomeUnknown`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._roll_back()
            return
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._roll_back()
            raise OutcomeUnknown(
                f"The registry's commit failed and may have happened or not: {error}; read again, and check the disk"
            ) from error

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


class SqliteErrors:
    """SQLite's errors as ours."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, sqlite3.OperationalError):
            raise RegistryUnavailable(f"The registry cannot be used now: {error}") from error
        if isinstance(error, sqlite3.DatabaseError):
            raise RegistryDamaged(f"The registry is damaged: {error}; stop and restore a copy of it") from error


def _damaged(path: str, reason: str) -> str:
    return (
        f"The registry {path} is damaged: {reason}. Restore a copy of it with its -wal file, or move it "
        "away; then run `headrace registry rebuild --from-logs`. The logs beside it are not touched"
    )


def key_range_beneath(prefix: str) -> tuple[str, str]:
    """The bounds of the keys beneath a key: '0' is the character that follows '/'."""
    return f"{prefix}/", f"{prefix}0"


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


class SqliteRegistry(SqliteKeys):
    """Implements `Registry`. Open it with `await SqliteRegistry.open(path, disk.run)`."""

    def __init__(self, connection: sqlite3.Connection, run: RunBlocking) -> None:
        super().__init__(connection, run)
        self._sessions_opened = 0

    @classmethod
    async def open(cls, path: str, run: RunBlocking) -> SqliteRegistry:
        """Open or create the file; its folder must exist. Raises `RegistryDamaged` or `RegistryTooNew`."""
        return cls(await run(lambda: _open(path)), run)

    @property
    def session_valid_until(self) -> float:
        """No other process can end the session."""
        return float("-inf") if self._session is None else float("inf")

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        assert self._session is None, "a session is open already"
        self._sessions_opened += 1
        self._session, self._is_over = Session(self._sessions_opened), False
        if on_state is not None:
            on_state(SessionState.HELD)
        return self._session

    async def close_session(self, session: Session) -> None:
        if session == self._session:
            self._session, self._is_over = None, True
            await self._blocking(lambda: self._end(session))

    async def close(self) -> None:
        if self._session is not None:
            await self.close_session(self._session)
        await self._blocking(self._close)

    # From here on in a disk thread.

    def _end(self, session: Session) -> None:
        with self._exclusive(), SqliteTransaction(self._connection):
            changed = delete_keys_of(self._connection, session.id)
        self._notify_changes(changed)


def _open(path: str) -> sqlite3.Connection:
    connection = open_registry_file(path)
    with SqliteErrors():
        connection.execute("DELETE FROM entries WHERE session IS NOT NULL")
    return connection
