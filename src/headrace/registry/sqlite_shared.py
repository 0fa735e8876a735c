"""The registry of several broker processes on one host: one SQLite file, and one lock file per session.

    registry.db-session-17    locked by the process that holds session 17; contains its heartbeat counter

- A session is a row in the table `sessions`. Every commit in a session checks within its transaction that the row
  exists, so decisions of a session that is over have no effect, however late they arrive. Session ids are never reused.
- The lock file shows whether a session is alive. A process that exits loses its lock at once. A paused or wedged
  process keeps it, but its heartbeat counter stops. When a process finds a session whose process is gone, or silent for
  longer than its timeout, it checks once more in a transaction and removes the row and the keys of the session.
- The holder increments its counter on the event loop, so a process with a wedged loop is not alive. The counter is in
  mapped memory, so a busy disk does not make a process look dead. After a heartbeat that is late by two thirds of the
  timeout the session is in doubt, until a transaction of its own has found the row: such a transaction waits for
  any other process that is ending the session.
- Every commit writes the keys that it changes to the table `changes`. A thread of each process (`SqliteFollower`) reads
  there the changes of all processes. So a watch may report a change that was committed just before it was set.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import HeadraceError
from headrace.registry.interface import (
    VALID_SHARE,
    HeldSession,
    RegisteredWatches,
    RegistryUnavailable,
    Session,
    SessionState,
)
from headrace.registry.sqlite import (
    BUSY_SECONDS,
    RunBlocking,
    SqliteKeys,
    connect_registry_file,
    delete_keys_of,
    open_registry_file,
    sqlite_transaction,
    translated_errors,
)
from headrace.runtime.clock import Clock
from headrace.runtime.permissions import FILE_MODE

_BEAT = Struct("<Q")


class SessionLockFile:
    """The lock file of a session of this process. Raises `OSError` if the file cannot be created."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written, not only extended: a full disk raises an error here instead of a signal at the first heartbeat.
            os.pwrite(self._descriptor, _BEAT.pack(0), 0)
            self._memory = mmap.mmap(self._descriptor, _BEAT.size)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._beats = 0

    def beat(self) -> None:
        self._beats += 1
        _BEAT.pack_into(self._memory, 0, self._beats)

    def close(self) -> None:
        """Release the lock: other processes will end the session."""
        self._memory.close()
        os.close(self._descriptor)


def read_beat(path: str) -> int | None:
    """Return the heartbeat counter of a session, or None if no process holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # A shared lock, so that several processes that check do not mistake each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        beat: int
        (beat,) = _BEAT.unpack(os.pread(descriptor, _BEAT.size, 0))
        return beat
    finally:
        os.close(descriptor)
    return None


def session_path(registry: str, session: int) -> str:
    return f"{_prefix(registry)}{session}"


def remove_session_file(registry: str, session: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(session_path(registry, session))


def session_files(registry: str) -> set[int]:
    folder, prefix = os.path.split(_prefix(registry))
    ends = (name.removeprefix(prefix) for name in os.listdir(folder or ".") if name.startswith(prefix))
    return {int(end) for end in ends if end.isdigit()}


def _prefix(registry: str) -> str:
    return f"{registry}-session-"


log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
SESSION_CHECK_SECONDS = 0.1
PAUSE_DETECTED_SECONDS = 1.0
CHANGES_KEPT = 10_000

SCHEMA = (
    # AUTOINCREMENT, because the id of a past session must not be reused.
    "CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, timeout REAL NOT NULL)",
    # Without AUTOINCREMENT the numbers have no gaps, since the latest row is never removed: a follower that missed
    # changes notices it.
    "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, key TEXT NOT NULL)",
)


class _Heartbeat(NamedTuple):
    beat: int
    since: float


class SqliteFollower:
    """A thread that reads the changes of all processes, and ends sessions of dead ones.

    - SQLite's `data_version` shows that another connection has committed, and reading it is cheap. The thread then
      reads the new rows of the table `changes`. If the oldest of them were already deleted, any key may have changed.
    - If this process was paused itself, the timeouts of all sessions restart, because the other processes may have been
      paused with it.
    - It may wait for the disk without being considered dead.
    """

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        latest: int,
        clock: Clock,
        registry: SharedSqliteRegistry,
        watches: RegisteredWatches,
    ) -> None:
        """`latest` is the number of the last change that the registry already knows."""
        self._path = path
        self._connection = connection
        self._clock = clock
        self._registry = registry
        self._watches = watches
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._is_stopped = False
        self._session_to_check: Session | None = None
        self._version = -1
        self._seen = latest
        self._timeouts: dict[int, float] = {}
        self._heartbeats: dict[int, _Heartbeat] = {}
        self._checked_at = clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """Read changes now."""
        self._wake.set()

    def check_session(self, session: Session) -> None:
        """Check in a transaction whether the session still exists, and call the registry with the result."""
        self._session_to_check = session
        self._wake.set()

    def stop(self) -> None:
        """Blocks until the thread has ended."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join()
        self._connection.close()

    # The methods below run in the thread

    def _run(self) -> None:
        is_failing = False
        while not self._is_stopped:
            try:
                with translated_errors():
                    self._follow()
                is_failing = False
            except (HeadraceError, OSError) as error:
                if not is_failing:
                    log.warning("reading changes of the registry failed error=%s", error)
                is_failing = True
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

    def _follow(self) -> None:
        self._read_changes()
        if self._session_to_check is not None:
            session, self._session_to_check = self._session_to_check, None
            # In a write transaction: a process that is ending the session has committed when this one begins.
            with sqlite_transaction(self._connection):
                found = session_exists(self._connection, session)
            self._call(self._registry.on_session_found if found else self._registry.on_session_over, session)
        now = self._clock.monotonic()
        if now - self._checked_at >= SESSION_CHECK_SECONDS:
            if now - self._checked_at > PAUSE_DETECTED_SECONDS:
                self._heartbeats.clear()
            self._checked_at = now
            self._check_sessions(now)

    def _read_changes(self) -> None:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return
        own = self._registry.session  # read before the rows, which may lack a session that is opened later
        query = "SELECT number, key FROM changes WHERE number > ? ORDER BY number"
        rows = self._connection.execute(query, (self._seen,)).fetchall()
        if rows and rows[0][0] == self._seen + 1:
            self._call(self._watches.tell, [key for _, key in rows])
        elif rows:
            self._call(self._watches.tell_all)
        self._seen = rows[-1][0] if rows else self._seen
        self._timeouts = dict(self._connection.execute("SELECT id, timeout FROM sessions").fetchall())
        if own is not None and own.id not in self._timeouts:
            self._call(self._registry.on_session_over, own)
        self._version = version  # last: after an error, the changes are read again

    def _check_sessions(self, now: float) -> None:
        own = self._registry.session
        for session, timeout in self._timeouts.items():
            if own is not None and session == own.id:
                continue
            beat = read_beat(session_path(self._path, session))
            heartbeat = self._heartbeats.get(session)
            if beat is None:
                self._end(session, beat, "process gone")
            elif heartbeat is None or heartbeat.beat != beat:
                self._heartbeats[session] = _Heartbeat(beat, now)
            elif now - heartbeat.since > timeout:
                self._end(session, beat, f"no heartbeat for more than {timeout:.1f} s")

    def _end(self, session: int, beat: int | None, why: str) -> None:
        with sqlite_transaction(self._connection):
            if (
                not session_exists(self._connection, Session(session))
                or read_beat(session_path(self._path, session)) != beat
            ):
                return
            end_session(self._connection, session)
        log.info("registry session ended session=%d reason=%s", session, why)
        self._heartbeats.pop(session, None)
        remove_session_file(self._path, session)
        self._version = -1  # data_version does not count commits of this connection

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(function, *args)


# The functions below run within a transaction.


def session_exists(connection: sqlite3.Connection, session: Session) -> bool:
    return connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone() is not None


def end_session(connection: sqlite3.Connection, session: int) -> None:
    connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
    record_changes(connection, delete_keys_of(connection, session))


def record_changes(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    connection.executemany("INSERT INTO changes (key) VALUES (?)", ((key,) for key in keys))
    connection.execute("DELETE FROM changes WHERE number <= ?", (latest_change(connection) - CHANGES_KEPT,))


def latest_change(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT max(number) FROM changes").fetchone()
    return number or 0


BEATS_PER_TIMEOUT = 12
_RETRY_SECONDS = 0.01


class _SharedSession(HeldSession, eq=False, kw_only=True):
    """`last_beat_at` is the time of the last heartbeat, or slightly earlier."""

    file: SessionLockFile
    last_beat_at: float
    next_beat: asyncio.TimerHandle | None = None


class _OpenedFile(NamedTuple):
    """`following` is the connection of the `SqliteFollower`."""

    connection: sqlite3.Connection
    following: sqlite3.Connection
    latest_change: int


class SharedSqliteRegistry(SqliteKeys):
    """Implements `Registry`. Open it with `await SharedSqliteRegistry.open(path, disk.run, clock, 6.0)`."""

    def __init__(
        self, path: str, opened: _OpenedFile, run: RunBlocking, clock: Clock, session_timeout_seconds: float
    ) -> None:
        super().__init__(opened.connection, run)
        self._path = path
        self._clock = clock
        self._timeout = session_timeout_seconds
        self._held: _SharedSession | None = None
        self._follower = SqliteFollower(path, opened.following, opened.latest_change, clock, self, self._watches)

    @classmethod
    async def open(
        cls, path: str, run: RunBlocking, clock: Clock, session_timeout_seconds: float
    ) -> SharedSqliteRegistry:
        """Open or create the file; its folder must exist. Raises `RegistryDamaged` or `RegistryTooNew`."""
        return cls(path, await run(lambda: _open(path, clock)), run, clock, session_timeout_seconds)

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def session_valid_until(self) -> float:
        held = self._held
        return float("-inf") if held is None else held.last_beat_at + VALID_SHARE * self._timeout

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        assert self._session is None, "a session is open already"
        assert self._follower.is_alive(), "the registry thread has died; see stderr"
        began = self._clock.monotonic()
        session, file = await self._blocking(self._begin)
        self._held = _SharedSession(session, on_state, file=file, last_beat_at=began)
        self._session, self._is_over = session, False
        self._beat_later(self._held)
        if on_state is not None:
            on_state(SessionState.HELD)
        return session

    async def close_session(self, session: Session) -> None:
        if self._held is not None and session == self._held.session:
            held = self._drop()
            try:
                await self._blocking(lambda: self._end(session))
            finally:
                held.file.close()

    async def close(self) -> None:
        if self._session is not None:
            await self.close_session(self._session)
        await self._run(self._follower.stop)
        await self._blocking(self._close)

    # Calls of the follower, on the event loop

    def on_session_found(self, session: Session) -> None:
        """The session still existed after the heartbeat that requested the check."""
        held = self._held
        if held is not None and held.session is session and not self._is_late(held):
            held.change(SessionState.HELD)

    def on_session_over(self, session: Session) -> None:
        if self._held is not None and self._held.session is session:
            held = self._drop()
            held.file.close()
            held.change(SessionState.LOST)

    def _beat(self, held: _SharedSession) -> None:
        if not self._follower.is_alive():
            self.on_session_over(held.session)
            return
        now = self._clock.monotonic()
        if self._is_late(held):
            held.change(SessionState.DOUBTED)
        held.file.beat()
        held.last_beat_at = now
        if held.state is SessionState.DOUBTED:
            self._follower.check_session(held.session)
        self._beat_later(held)

    def _beat_later(self, held: _SharedSession) -> None:
        held.next_beat = self._loop.call_later(self._timeout / BEATS_PER_TIMEOUT, self._beat, held)

    def _is_late(self, held: _SharedSession) -> bool:
        return self._clock.monotonic() - held.last_beat_at > VALID_SHARE * self._timeout

    def _drop(self) -> _SharedSession:
        held = self._held
        assert held is not None
        assert held.next_beat is not None
        held.next_beat.cancel()
        self._held, self._session, self._is_over = None, None, True
        return held

    # The methods below run in a disk thread

    def _session_exists(self, session: Session | None) -> bool:
        return super()._session_exists(session) and (session is None or session_exists(self._connection, session))

    def _record_changes(self, changed: Sequence[str]) -> None:
        record_changes(self._connection, changed)

    def _notify_changes(self, changed: Sequence[str]) -> None:  # noqa: ARG002  # the follower reads them in order
        self._follower.wake()

    def _begin(self) -> tuple[Session, SessionLockFile]:
        """Lock the file before the row is visible, so that other processes never find a session without a process."""
        with ExitStack() as undo:
            with self._exclusive(), sqlite_transaction(self._connection):
                added = self._connection.execute("INSERT INTO sessions (timeout) VALUES (?)", (self._timeout,))
                assert added.lastrowid is not None
                try:
                    file = SessionLockFile(session_path(self._path, added.lastrowid))
                except OSError as error:
                    raise RegistryUnavailable(f"The registry session cannot be opened: {error}") from error
                undo.callback(file.close)  # the next session may have the same number
            undo.pop_all()
        return Session(added.lastrowid), file

    def _end(self, session: Session) -> None:
        with self._exclusive(), sqlite_transaction(self._connection):
            end_session(self._connection, session.id)
        remove_session_file(self._path, session.id)
        self._follower.wake()


def _open(path: str, clock: Clock) -> _OpenedFile:
    with _open_lock(path, clock):
        connection = open_registry_file(path)
        try:
            with translated_errors(), sqlite_transaction(connection):
                for statement in SCHEMA:
                    connection.execute(statement)
                _remove_left_behind(path, connection)
                latest = latest_change(connection)
            return _OpenedFile(connection, connect_registry_file(path), latest)
        except BaseException:
            connection.close()
            raise


def _remove_left_behind(path: str, connection: sqlite3.Connection) -> None:
    """Delete lock files of processes that were killed before their session began. It runs in a transaction, while no
    session can begin."""
    rows = connection.execute("SELECT id FROM sessions").fetchall()
    for session in session_files(path) - {number for (number,) in rows}:
        if read_beat(session_path(path, session)) is None:
            remove_session_file(path, session)


@contextmanager
def _open_lock(path: str, clock: Clock) -> Iterator[None]:
    """Processes open the file one at a time, because SQLite does not wait when two of them create it concurrently."""
    path = f"{path}-opening"
    deadline = clock.monotonic() + BUSY_SECONDS
    pause = threading.Event()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise RegistryUnavailable(f"The registry cannot be opened: {error}") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic() > deadline:
                    raise RegistryUnavailable(f"The registry cannot be opened: {path} is locked") from None
                pause.wait(_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)
