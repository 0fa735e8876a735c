"""The registry of several brokers on one host: one SQLite file, and for each session a file beside it (session_files).

- A session is a row in the table `sessions`. Every commit by a session checks within its transaction that the row is
  there, so what was decided in a life that has ended has no effect, however late it comes. Numbers are never reused.
- Liveness is a matter of the session's file: whoever finds that its process is gone, or silent for longer than its
  timeout, removes the row and the session's keys in one transaction, in which it looks once more.
- The holder raises its beat on the loop: one whose loop is wedged is not alive. When it comes to it late, by two thirds
  of the timeout, the session is in doubt until a look in a transaction of its own, which stands behind that of
  anybody who was about to end the session, has found the row.
- Every commit writes the keys that it changes into the table `changes`; sqlite_follower reads there what others and we
  did. So a watch may still hear of a change that was committed a moment before it was set.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec

from headrace.registry.interface import VALID_SHARE, RegistryUnavailable, Session, SessionState
from headrace.registry.session_files import (
    SessionLockFile,
    read_beat,
    remove_session_file,
    session_files,
    session_path,
)
from headrace.registry.sqlite_file import (
    BUSY_SECONDS,
    SqliteErrors,
    SqliteTransaction,
    connect_registry_file,
    open_registry_file,
)
from headrace.registry.sqlite_follower import (
    SCHEMA,
    SqliteFollower,
    end_session,
    latest_change,
    note_changes,
    session_exists,
)
from headrace.registry.sqlite_keys import RunBlocking, SqliteKeys
from headrace.runtime.clock import Clock
from headrace.runtime.permissions import FILE_MODE

BEATS_PER_TIMEOUT = 12
_RETRY_SECONDS = 0.01


class _SharedSession(msgspec.Struct, eq=False):
    """`last_beat_at`: when the beat was raised last, or a little earlier."""

    session: Session
    file: SessionLockFile
    last_beat_at: float
    on_state: Callable[[SessionState], None] | None
    next_beat: asyncio.TimerHandle | None = None
    state: SessionState = SessionState.HELD

    def turn(self, state: SessionState) -> None:
        if self.state is not state:
            self.state = state
            if self.on_state is not None:
                self.on_state(state)


class _OpenedFile(NamedTuple):
    """`following` is the connection of the thread that follows the others."""

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
        self._follower = SqliteFollower(path, opened.following, opened.latest_change, clock, self)
        self._follower.start()

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
        assert self._follower.is_alive(), "the thread that follows the registry has died; stderr says of what"
        began = self._clock.monotonic()
        session, file = await self._blocking(self._begin)
        self._held = _SharedSession(session, file, began, on_state)
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

    # What the follower tells, on the loop

    def on_keys_changed(self, changed: Sequence[str]) -> None:
        self._watches.tell(changed)

    def on_changes_missed(self) -> None:
        self._watches.tell_all()

    def on_session_found(self, session: Session) -> None:
        """It was there, after the beat that the question was asked with."""
        held = self._held
        if held is not None and held.session is session and not self._is_late(held):
            held.turn(SessionState.HELD)

    def on_session_over(self, session: Session) -> None:
        if self._held is not None and self._held.session is session:
            held = self._drop()
            held.file.close()
            held.turn(SessionState.LOST)

    def _beat(self, held: _SharedSession) -> None:
        if not self._follower.is_alive():
            self.on_session_over(held.session)
            return
        now = self._clock.monotonic()
        if self._is_late(held):
            held.turn(SessionState.DOUBTED)
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

    # From here on in a disk thread

    def _session_exists(self, session: Session | None) -> bool:
        return super()._session_exists(session) and (session is None or session_exists(self._connection, session))

    def _record_changes(self, changed: Sequence[str]) -> None:
        note_changes(self._connection, changed)

    def _notify_changes(self, changed: Sequence[str]) -> None:  # noqa: ARG002  # the follower finds them in their order
        self._follower.wake()

    def _begin(self) -> tuple[Session, SessionLockFile]:
        """The file is locked before others can see the row: they never find a session without its process."""
        with ExitStack() as undo:
            with self._exclusive(), SqliteTransaction(self._connection):
                added = self._connection.execute("INSERT INTO sessions (timeout) VALUES (?)", (self._timeout,))
                assert added.lastrowid is not None
                try:
                    file = SessionLockFile(session_path(self._path, added.lastrowid))
                except OSError as error:
                    raise RegistryUnavailable(f"A session cannot be opened: {error}") from error
                undo.callback(file.close)  # the next session may have the same number
            undo.pop_all()
        return Session(added.lastrowid), file

    def _end(self, session: Session) -> None:
        with self._exclusive(), SqliteTransaction(self._connection):
            end_session(self._connection, session.id)
        remove_session_file(self._path, session.id)
        self._follower.wake()


def _open(path: str, clock: Clock) -> _OpenedFile:
    with _OpenLock(path, clock):
        connection = open_registry_file(path)
        try:
            with SqliteErrors(), SqliteTransaction(connection):
                for statement in SCHEMA:
                    connection.execute(statement)
                _remove_left_behind(path, connection)
                latest = latest_change(connection)
            return _OpenedFile(connection, connect_registry_file(path), latest)
        except BaseException:
            connection.close()
            raise


def _remove_left_behind(path: str, connection: sqlite3.Connection) -> None:
    """Files of processes that were killed before their session began; in a transaction, when none can begin."""
    rows = connection.execute("SELECT id FROM sessions").fetchall()
    for session in session_files(path) - {number for (number,) in rows}:
        if read_beat(session_path(path, session)) is None:
            remove_session_file(path, session)


class _OpenLock:
    """Processes open the file one after the other: SQLite does not wait where two of them make it at the same time."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = f"{path}-opening"
        self._clock = clock

    def __enter__(self) -> None:
        deadline = self._clock.monotonic() + BUSY_SECONDS
        pause = threading.Event()
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise RegistryUnavailable(f"The registry cannot be opened: {error}") from error
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock.monotonic() > deadline:
                    os.close(self._descriptor)
                    raise RegistryUnavailable(f"Another process does not get done with opening {self._path}") from None
                pause.wait(_RETRY_SECONDS)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
