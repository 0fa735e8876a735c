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
"""Identifies a file of Headrace: "HRAC"."""

BUSY_SECONDS = 5.0
"""How long a commit waits for one of another process."""

FORMAT_VERSION = 1
"""Incremented when older releases can no longer read the file."""

_SCHEMA = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session INTEGER
) WITHOUT ROWID;
CREATE INDEX entries_by_session ON entries (session) WHERE session IS NOT NULL;
"""


def open_registry_file(path: str) -> sqlite3.Connection:
    try:
        create_file(path)  # SQLite creates its other files with the mode of this one
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
        raise RegistryDamaged(_damaged(path, "it is the database of another application"))
    if version > FORMAT_VERSION:
        raise RegistryTooNew(
            f"The registry {path} has format {version}, but this release supports only up to {FORMAT_VERSION}; "
            "start the newer release that wrote it"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    if not tables:
        # In one transaction: after a power failure the file has either all of this or nothing.
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
        )
    problems = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problems != "ok":
        raise RegistryDamaged(_damaged(path, problems))


def reopen_registry_file(path: str) -> sqlite3.Connection:
    """Reopen the file after a failed COMMIT, and determine the outcome of that transaction by another commit.

    The frames of the failed transaction may be in the write-ahead log, where a recovery would find them. The next
    commit either overwrites them or, if this connection has recovered them, makes them durable.
    """
    connection = connect_registry_file(path)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        with sqlite_transaction(connection):
            connection.execute(f"PRAGMA user_version = {version}")  # writes a page even if the value is the same
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def sqlite_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """BEGIN and COMMIT, or ROLLBACK after an exception. A failure of COMMIT raises `OutcomeUnknown`."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise OutcomeUnknown(
            f"The registry's commit failed, and may or may not have taken effect: {error}; check the disk"
        ) from error


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise RegistryUnavailable(f"The registry is not available: {error}") from error
    except sqlite3.DatabaseError as error:
        raise RegistryDamaged(f"The registry is damaged: {error}; stop the broker and restore a copy") from error


def _damaged(path: str, reason: str) -> str:
    return (
        f"The registry {path} is damaged: {reason}. Restore a copy of it with its -wal file, or move it "
        "away; then run `headrace registry rebuild --from-logs`. The logs beside it are not touched"
    )


def key_range_beneath(prefix: str) -> tuple[str, str]:
    """Return the bounds of the keys beneath a key: '0' is the character after '/'."""
    return f"{prefix}/", f"{prefix}0"


T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs blocking work outside of the event loop, such as `Disk.run`."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class _Commit(msgspec.Struct):
    operations: Sequence[RegistryOperation]
    session: Session | None
    done: bool = False
    error: HeadraceError | None = None
    changed: list[str] = msgspec.field(default_factory=list)


class SqliteKeys:
    """Implements `Registry` except for the sessions."""

    def __init__(self, connection: sqlite3.Connection, run: RunBlocking) -> None:
        self._connection = connection
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._watches = RegisteredWatches()
        self._waiting: list[_Commit] = []
        # At most one disk thread works for the registry. The thread lock matters only after a cancellation, when the
        # asyncio lock is released while the thread of the cancelled caller is still busy.
        self._using_thread = asyncio.Lock()
        self._using_connection = threading.RLock()
        self._path: str = connection.execute("PRAGMA database_list").fetchone()[2]
        self._is_outcome_unknown = False
        self._session: Session | None = None
        self._is_over = False

    async def get(self, key: str) -> RegistryEntry | None:
        check_key(key)
        rows = await self._blocking(lambda: self._query("WHERE key = ?", (key,)))
        return rows[0] if rows else None

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        check_key(prefix)
        where = "WHERE key > ? AND key < ? ORDER BY key"
        return await self._blocking(lambda: self._query(where, key_range_beneath(prefix)))

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        for operation in operations:
            check_key(operation.key)
            if isinstance(operation, Create) and operation.session not in (None, self._session):
                raise SessionLost(f"{operation.key}: session {operation.session.id} is over")
        if self._is_over:
            raise _session_lost()
        commit = _Commit(operations, self._session)
        self._waiting.append(commit)
        async with self._using_thread:
            if not commit.done:
                await self._run(self._commit_waiting)
        assert commit.done
        if commit.error:
            raise commit.error

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], object]:
        check_key(prefix)
        return self._watches.add(prefix, changed)

    async def _blocking(self, work: Callable[[], T]) -> T:
        """Run the work in a disk thread, after earlier work."""
        async with self._using_thread:
            return await self._run(work)

    # The methods below run in a disk thread.

    def _session_exists(self, session: Session | None) -> bool:
        """Whether commits in this session are allowed. Called within the transaction."""
        return session is self._session

    def _record_changes(self, changed: Sequence[str]) -> None:
        """Called within the transaction that changes these keys."""

    def _notify_changes(self, changed: Sequence[str]) -> None:
        """Called after the transaction has committed."""
        self._loop.call_soon_threadsafe(self._watches.tell, changed)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Use the connection exclusively. After a failed COMMIT, replace it first."""
        with self._using_connection, translated_errors():
            if self._is_outcome_unknown:
                self._connection.close()
                self._connection = reopen_registry_file(self._path)
                self._is_outcome_unknown = False
            try:
                yield
            except OutcomeUnknown:
                self._is_outcome_unknown = True
                self._loop.call_soon_threadsafe(self._watches.tell_all)
                raise

    def _query(self, where: str, parameters: Sequence[str]) -> list[RegistryEntry]:
        with self._exclusive():
            rows = self._connection.execute(f"SELECT key, value, version FROM entries {where}", parameters)
            return [RegistryEntry(*row) for row in rows]

    def _commit_waiting(self) -> None:
        """Commit all waiting commits with one sync."""
        with self._using_connection:
            commits, self._waiting = self._waiting, []
            changed: list[str] = []
            try:
                with self._exclusive(), sqlite_transaction(self._connection):
                    for commit in commits:
                        self._apply(commit)
                    changed = [key for commit in commits if not commit.error for key in commit.changed]
                    self._record_changes(changed)
            except HeadraceError as error:
                changed = []
                for commit in commits:
                    # A conflict may be with another commit of this transaction, whose outcome is as unknown.
                    if not isinstance(commit.error, SessionLost):
                        commit.error = error
            for commit in commits:
                commit.done = True
            self._notify_changes(changed)

    def _apply(self, commit: _Commit) -> None:
        if not self._session_exists(commit.session):
            commit.error = _session_lost()
            return
        self._connection.execute("SAVEPOINT one")
        try:
            for operation in commit.operations:
                self._apply_one(operation)
                if not isinstance(operation, Check):
                    commit.changed.append(operation.key)
        except RegistryConflict as conflict:
            self._connection.execute("ROLLBACK TO one")
            commit.error = conflict
        self._connection.execute("RELEASE one")

    def _apply_one(self, operation: RegistryOperation) -> None:
        key, execute = operation.key, self._connection.execute
        found = execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
        if isinstance(operation, Create):
            if found:
                raise KeyExists(f"{key} already exists")
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
        with self._using_connection, translated_errors():
            self._connection.close()


def delete_keys_of(connection: sqlite3.Connection, session: int) -> list[str]:
    """Delete the keys of a session, within a transaction, and return them."""
    rows = connection.execute("SELECT key FROM entries WHERE session = ?", (session,)).fetchall()
    connection.execute("DELETE FROM entries WHERE session = ?", (session,))
    return [key for (key,) in rows]


def _session_lost() -> SessionLost:
    return SessionLost("The session is over; open a new one")


class SqliteRegistry(SqliteKeys):
    """Implements `Registry`. Open it with `await SqliteRegistry.open(path, disk.run)`."""

    _sessions_opened = 0

    @classmethod
    async def open(cls, path: str, run: RunBlocking) -> SqliteRegistry:
        """Open or create the file; its folder must exist. Raises `RegistryDamaged` or `RegistryTooNew`."""
        return cls(await run(lambda: _open(path)), run)

    @property
    def session_valid_until(self) -> float:
        """The session is valid until it is closed, because no other process can end it."""
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

    # The methods below run in a disk thread.

    def _end(self, session: Session) -> None:
        with self._exclusive(), sqlite_transaction(self._connection):
            changed = delete_keys_of(self._connection, session.id)
        self._notify_changes(changed)


def _open(path: str) -> sqlite3.Connection:
    connection = open_registry_file(path)
    with translated_errors():
        connection.execute("DELETE FROM entries WHERE session IS NOT NULL")
    return connection
