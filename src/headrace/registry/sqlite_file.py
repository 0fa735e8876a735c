"""The SQLite file that keeps a registry: opened only if it is whole and ours. All of this blocks.

WAL with `synchronous=FULL` keeps every commit through a power cut (WAL with NORMAL loses the last ones).
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress

from headrace.registry.interface import OutcomeUnknown, RegistryDamaged, RegistryTooNew, RegistryUnavailable
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
