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
    SessionFile,
    read_beat,
    remove_session_file,
    session_files,
    session_path,
)
from headrace.registry.sqlite_file import BUSY_SECONDS, Transaction, TypedErrors, connect, open_file
from headrace.registry.sqlite_follower import (
    SCHEMA,
    SqliteFollower,
    end_session,
    is_there,
    latest_change,
    note_changes,
)
from headrace.registry.sqlite_keys import Run, SqliteKeys
from headrace.runtime.clock import Clock
from headrace.runtime.permissions import FILE_MODE

BEATS_PER_TIMEOUT = 12
_RETRY_SECONDS = 0.01


class _Held(msgspec.Struct, eq=False):
    """`beaten`: when the beat was raised last, or a little earlier."""

    session: Session
    file: SessionFile
    beaten: float
    on_state: Callable[[SessionState], None] | None
    next_beat: asyncio.TimerHandle | None = None
    state: SessionState = SessionState.HELD

    def turn(self, state: SessionState) -> None:
        if self.state is not state:
            self.state = state
            if self.on_state is not None:
                self.on_state(state)


class _Opened(NamedTuple):
    """`following` is the connection of the thread that follows the others."""

    connection: sqlite3.Connection
    following: sqlite3.Connection
    latest_change: int


class SharedSqliteRegistry(SqliteKeys):
    """Implements `Registry`. Open it with `await SharedSqliteRegistry.open(path, disk.run, clock, 6.0)`."""

    def __init__(self, path: str, opened: _Opened, run: Run, clock: Clock, session_timeout_seconds: float) -> None:
        super().__init__(opened.connection, run)
        self._path = path
        self._clock = clock
        self._timeout = session_timeout_seconds
        self._held: _Held | None = None
        self._follower = SqliteFollower(path, opened.following, opened.latest_change, clock, self)
        self._follower.start()

    @classmethod
    async def open(cls, path: str, run: Run, clock: Clock, session_timeout_seconds: float) -> SharedSqliteRegistry:
        """Open or create the file; its folder must exist. Raises `RegistryDamaged` or `RegistryTooNew`."""
        return cls(path, await run(lambda: _open(path, clock)), run, clock, session_timeout_seconds)

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def session_valid_until(self) -> float:
        held = self._held
        return float("-inf") if held is None else held.beaten + VALID_SHARE * self._timeout

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        assert self._session is None, "a session is open already"
        assert self._follower.is_alive(), "the thread that follows the registry has died; stderr says of what"
        began = self._clock.monotonic()
        session, file = await self._blocking(self._begin)
        self._held = _Held(session, file, began, on_state)
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

    def heard(self, changed: Sequence[str]) -> None:
        self._watches.tell(changed)

    def missed(self) -> None:
        self._watches.tell_all()

    def found(self, session: Session) -> None:
        """It was there, after the beat that the question was asked with."""
        held = self._held
        if held is not None and held.session is session and not self._is_late(held):
            held.turn(SessionState.HELD)

    def found_over(self, session: Session) -> None:
        if self._held is not None and self._held.session is session:
            held = self._drop()
            held.file.close()
            held.turn(SessionState.LOST)

    def _beat(self, held: _Held) -> None:
        if not self._follower.is_alive():
            self.found_over(held.session)
            return
        now = self._clock.monotonic()
        if self._is_late(held):
            held.turn(SessionState.DOUBTED)
        held.file.beat()
        held.beaten = now
        if held.state is SessionState.DOUBTED:
            self._follower.ask_for(held.session)
        self._beat_later(held)

    def _beat_later(self, held: _Held) -> None:
        held.next_beat = self._loop.call_later(self._timeout / BEATS_PER_TIMEOUT, self._beat, held)

    def _is_late(self, held: _Held) -> bool:
        return self._clock.monotonic() - held.beaten > VALID_SHARE * self._timeout

    def _drop(self) -> _Held:
        held = self._held
        assert held is not None
        assert held.next_beat is not None
        held.next_beat.cancel()
        self._held, self._session, self._is_over = None, None, True
        return held

    # From here on in a disk thread

    def _stands(self, session: Session | None) -> bool:
        return super()._stands(session) and (session is None or is_there(self._connection, session))

    def _note(self, changed: Sequence[str]) -> None:
        note_changes(self._connection, changed)

    def _tell(self, changed: Sequence[str]) -> None:  # noqa: ARG002  # the follower finds them in their order
        self._follower.wake()

    def _begin(self) -> tuple[Session, SessionFile]:
        """The file is locked before others can see the row: they never find a session without its process."""
        with ExitStack() as undo:
            with self._exclusive(), Transaction(self._connection):
                added = self._connection.execute("INSERT INTO sessions (timeout) VALUES (?)", (self._timeout,))
                assert added.lastrowid is not None
                try:
                    file = SessionFile(session_path(self._path, added.lastrowid))
                except OSError as error:
                    raise RegistryUnavailable(f"A session cannot be opened: {error}") from error
                undo.callback(file.close)  # the next session may have the same number
            undo.pop_all()
        return Session(added.lastrowid), file

    def _end(self, session: Session) -> None:
        with self._exclusive(), Transaction(self._connection):
            end_session(self._connection, session.id)
        remove_session_file(self._path, session.id)
        self._follower.wake()


def _open(path: str, clock: Clock) -> _Opened:
    with _OneAtATime(path, clock):
        connection = open_file(path)
        try:
            with TypedErrors(), Transaction(connection):
                for statement in SCHEMA:
                    connection.execute(statement)
                _remove_left_behind(path, connection)
                latest = latest_change(connection)
            return _Opened(connection, connect(path), latest)
        except BaseException:
            connection.close()
            raise


def _remove_left_behind(path: str, connection: sqlite3.Connection) -> None:
    """Files of processes that were killed before their session began; in a transaction, when none can begin."""
    rows = connection.execute("SELECT id FROM sessions").fetchall()
    for session in session_files(path) - {number for (number,) in rows}:
        if read_beat(session_path(path, session)) is None:
            remove_session_file(path, session)


class _OneAtATime:
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
