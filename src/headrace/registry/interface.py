"""What the cluster's truth offers, whoever keeps it: SQLite, ZooKeeper or the simulation.

    /topics/orders  -> bytes, version 3        keys are paths; parents need not exist
    commit([Check(...), Set(...), Create(...)])    all of it or nothing of it

Rules that every implementation keeps, and that tests/unit/registry/test_contract.py tests:
- A key is created with version 0; every `Set` names the version that it replaces and adds one. There is no
  blind write. A key that was deleted and created again starts at 0, so what may be confused with its
  predecessor carries an identity of its own (a topic its id).
- When `commit` returns, the change survives a power cut. When it is cancelled, it may have happened or not.
- An ephemeral key lives as long as its session. A session ends when it is closed, or when its process does.
- A watch is called on the event loop, once per changed key, in the order of the commits; it tells that the
  key changed, not what it was: read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headrace.model.errors import HeadraceError, RetriableError


class Registry(Protocol):
    async def get(self, key: str) -> Entry | None: ...

    async def entries(self, prefix: str) -> Sequence[Entry]:
        """All entries beneath a key (not the key itself), sorted by key."""
        ...

    async def children(self, key: str) -> Sequence[str]:
        """The names directly beneath a key, sorted."""
        ...

    async def commit(self, operations: Sequence[Operation]) -> None:
        """All operations in order, or none and a `RegistryConflict` that says which one did not fit."""
        ...

    async def open_session(self) -> Session: ...

    async def close_session(self, session: Session) -> None:
        """Remove the session's keys. Closing it again does nothing."""
        ...

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Watch:
        """Call `changed(key)` after every change of that key or of one beneath it."""
        ...

    async def close(self) -> None: ...


class Entry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    version: int


class Session(msgspec.Struct, frozen=True):
    id: int


class Watch(Protocol):
    def cancel(self) -> None: ...


class Check(msgspec.Struct, frozen=True):
    """The key exists at this version."""

    key: str
    version: int


class Create(msgspec.Struct, frozen=True):
    """The key does not exist; now it does, with version 0. With a session it is ephemeral."""

    key: str
    value: bytes
    session: Session | None = None


class Set(msgspec.Struct, frozen=True):
    """The key exists at this version; now it has the value and the next version."""

    key: str
    value: bytes
    version: int


class Delete(msgspec.Struct, frozen=True):
    """The key exists at this version and nothing is beneath it; now it is gone."""

    key: str
    version: int


Operation = Check | Create | Set | Delete


class RegistryConflict(RetriableError):
    """The registry has changed meanwhile; read again and decide anew."""


class BadVersion(RegistryConflict):
    """The key has another version."""


class NoKey(RegistryConflict):
    """The key does not exist."""


class KeyExists(RegistryConflict):
    """The key exists already."""


class KeyNotEmpty(RegistryConflict):
    """There are keys beneath the key."""


class SessionLost(RegistryConflict):
    """The session is over, and its ephemeral keys are gone."""


class RegistryDamaged(HeadraceError):
    """The registry's file is not what was written."""


class RegistryTooNew(HeadraceError):
    """The registry was written by a newer Headrace."""


class RegistryUnavailable(RetriableError):
    """The registry cannot be read or written now."""


def check_key(key: str) -> None:
    """Keys are made by our own code, so a bad one is a bug."""
    assert key.startswith("/"), key
    assert all(key[1:].split("/")), key


def is_beneath(key: str, prefix: str) -> bool:
    return key.startswith(prefix + "/")
