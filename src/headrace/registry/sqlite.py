"""The registry of one broker: a SQLite file in its data folder.

The process that holds the data folder's lock is the only one, so ephemeral keys that are found at start
belong to sessions that are over, and a session is never in doubt: it is held until it is closed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from headrace.registry.interface import Session, SessionState
from headrace.registry.sqlite_file import SqliteErrors, SqliteTransaction, open_registry_file
from headrace.registry.sqlite_keys import RunBlocking, SqliteKeys, delete_keys_of


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
