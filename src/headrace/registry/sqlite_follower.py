"""Follows, in a thread and by a connection of its own, what the processes that share a registry's file do to it.

- SQLite tells by `data_version` that anybody else has committed; to ask for it many times a second costs next to
  nothing. Then the new rows of the table `changes` are read, which say in the order of the commits what has changed.
  If the oldest of them are gone, all may have changed.
- It ends sessions: at once where the process is gone, after their timeout where the beat stands still. A follower that
  was away itself counts anew, because the others may have been paused with it.

What it finds it tells on the loop. It may wait for the disk: nobody takes it for dead because of that.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from headrace.model.errors import HeadraceError
from headrace.registry.interface import Session
from headrace.registry.session_files import read_beat, remove_session_file, session_path
from headrace.registry.sqlite_file import SqliteErrors, SqliteTransaction
from headrace.registry.sqlite_keys import delete_keys_of
from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

POLL_SECONDS = 0.02
SESSION_CHECK_SECONDS = 0.1
PAUSE_DETECTED_SECONDS = 1.0
CHANGES_KEPT = 10_000

SCHEMA = (
    # AUTOINCREMENT: the number of a session that is over must not come to mean another.
    "CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, timeout REAL NOT NULL)",
    # Without it the numbers have no gaps, since the latest row is never removed; so one who missed some notices it.
    "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY, key TEXT NOT NULL)",
)


class RegistryChangeListener(Protocol):
    """Who is told, on the loop; the thread asks it for the session that this process holds now."""

    @property
    def session(self) -> Session | None: ...

    def on_keys_changed(self, changed: Sequence[str]) -> None: ...

    def on_changes_missed(self) -> None: ...

    def on_session_found(self, session: Session) -> None: ...

    def on_session_over(self, session: Session) -> None: ...


class _Heartbeat(NamedTuple):
    beat: int
    since: float


class SqliteFollower:
    def __init__(
        self, path: str, connection: sqlite3.Connection, latest: int, clock: Clock, listener: RegistryChangeListener
    ) -> None:
        """`latest`: the number of the last change that need not be told."""
        self._path = path
        self._connection = connection
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._is_stopped = False
        self._sessions_to_check: Session | None = None
        self._version = -1
        self._seen = latest
        self._timeouts: dict[int, float] = {}
        self._pulses: dict[int, _Heartbeat] = {}
        self._looked = clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="registry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """There is something to read."""
        self._wake.set()

    def check_session(self, session: Session) -> None:
        """Tell whether it is still there."""
        self._sessions_to_check = session
        self._wake.set()

    def stop(self) -> None:
        """Blocks until the thread has ended."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join()
        self._connection.close()

    # From here on in the thread

    def _run(self) -> None:
        is_failing = False
        while not self._is_stopped:
            try:
                with SqliteErrors():
                    self._follow()
                is_failing = False
            except (HeadraceError, OSError) as error:
                if not is_failing:
                    log.warning("what others do to the registry cannot be read: %s", error)
                is_failing = True
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()

    def _follow(self) -> None:
        self._read_changes()
        if self._sessions_to_check is not None:
            session, self._sessions_to_check = self._sessions_to_check, None
            # In a transaction that writes: whoever is about to end the session has done so when this one begins.
            with SqliteTransaction(self._connection):
                found = session_exists(self._connection, session)
            self._tell(self._listener.on_session_found if found else self._listener.on_session_over, session)
        now = self._clock.monotonic()
        if now - self._looked >= SESSION_CHECK_SECONDS:
            if now - self._looked > PAUSE_DETECTED_SECONDS:
                self._pulses.clear()
            self._looked = now
            self._check_sessions(now)

    def _read_changes(self) -> None:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return
        own = self._listener.session  # first: one that is opened after the rows were read is not missing in them
        query = "SELECT number, key FROM changes WHERE number > ? ORDER BY number"
        rows = self._connection.execute(query, (self._seen,)).fetchall()
        if rows and rows[0][0] == self._seen + 1:
            self._tell(self._listener.on_keys_changed, [key for _, key in rows])
        elif rows:
            self._tell(self._listener.on_changes_missed)
        self._seen = rows[-1][0] if rows else self._seen
        self._timeouts = dict(self._connection.execute("SELECT id, timeout FROM sessions").fetchall())
        if own is not None and own.id not in self._timeouts:
            self._tell(self._listener.on_session_over, own)
        self._version = version  # last: what could not be read is read the next time

    def _check_sessions(self, now: float) -> None:
        own = self._listener.session
        for session, timeout in self._timeouts.items():
            if own is not None and session == own.id:
                continue
            beat = read_beat(session_path(self._path, session))
            pulse = self._pulses.get(session)
            if beat is None:
                self._end(session, beat, "its process is gone")
            elif pulse is None or pulse.beat != beat:
                self._pulses[session] = _Heartbeat(beat, now)
            elif now - pulse.since > timeout:
                self._end(session, beat, f"its process was silent for more than {timeout:.1f} s")

    def _end(self, session: int, beat: int | None, why: str) -> None:
        with SqliteTransaction(self._connection):
            if (
                not session_exists(self._connection, Session(session))
                or read_beat(session_path(self._path, session)) != beat
            ):
                return
            end_session(self._connection, session)
        log.info("session %d is over: %s", session, why)
        self._pulses.pop(session, None)
        remove_session_file(self._path, session)
        self._version = -1  # SQLite does not count what this connection commits itself

    def _tell(self, what: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody listens any more
            self._loop.call_soon_threadsafe(what, *args)


# Within a transaction


def session_exists(connection: sqlite3.Connection, session: Session) -> bool:
    return connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone() is not None


def end_session(connection: sqlite3.Connection, session: int) -> None:
    connection.execute("DELETE FROM sessions WHERE id = ?", (session,))
    note_changes(connection, delete_keys_of(connection, session))


def note_changes(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    connection.executemany("INSERT INTO changes (key) VALUES (?)", ((key,) for key in keys))
    connection.execute("DELETE FROM changes WHERE number <= ?", (latest_change(connection) - CHANGES_KEPT,))


def latest_change(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT max(number) FROM changes").fetchone()
    return number or 0
