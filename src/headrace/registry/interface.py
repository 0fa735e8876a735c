"""The registry interface, implemented by SQLite, ZooKeeper and the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from headrace.model.errors import HeadraceError, RequestTimedOut, RetriableError

# What the cluster's truth offers, whoever keeps it: SQLite, ZooKeeper or the simulation.
#
#     /topics/orders  -> bytes, version 3        keys are paths; parents need not exist
#     commit([Check(...), Set(...), Create(...)])    all of it or nothing of it
#
# Rules that every implementation keeps, and that tests/unit/registry/test_contract.py tests:
# - A key is created with version 0; every `Set` names the version that it replaces and adds one. There is no
#   blind write. A key that was deleted and created again starts at 0, so what may be confused with its
#   predecessor carries an identity of its own (a topic its id).
# - When `commit` returns, the change survives a power cut. When it is cancelled, it may have happened or not.
# - An ephemeral key lives as long as its session. A session ends when it is closed, or some time after its process
#   ended or could not be heard any more. A registry object holds at most one session at a time.
# - `session_valid_until` is computed from the time at which the last heartbeat that the registry has confirmed was sent.
#   No other process can be told that the session is over before that time, so a process that was paused can tell by its
#   clock alone that its session may be over, before any callback has run.
# - Whoever holds a session commits by it: when it is over, `commit` raises `SessionLost` and changes nothing,
#   until a new one is opened. So what a broker decided in a life that has ended has no effect.
# - `OutcomeUnknown` says that a commit may have happened or not: read again and compare.
# - A watch is called on the event loop, once per changed key, in the order of the commits; it tells that the
#   key changed, not what it was: read again. When changes may have been missed (the connection was lost), it is
#   called with the prefix itself: read all of it again.


VALID_SHARE = 2 / 3
"""The session is certainly valid for this share of its timeout after a confirmed heartbeat. The rest is a margin for
clocks that drift, and for a ZooKeeper server that fails before it has passed the heartbeat on (half a tick at most)."""


class Registry(Protocol):
    @property
    def session_valid_until(self) -> float:
        """Until when, by `Clock.monotonic`, the session is certainly valid; -inf without a session."""
        ...

    async def get(self, key: str) -> RegistryEntry | None: ...

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        """All entries beneath a key (not the key itself), sorted by key."""
        ...

    async def children(self, key: str) -> Sequence[str]:
        """The names directly beneath a key, sorted."""
        ...

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        """All operations in order, or none and a `RegistryConflict` that says which one did not fit."""
        ...

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        """`on_state` is called on the event loop with every change that is not its holder's doing: first with `HELD`,
        before this returns. Closing the session is not told."""
        ...

    async def close_session(self, session: Session) -> None:
        """Remove the session's keys. Closing it again does nothing."""
        ...

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Watch:
        """Call `changed(key)` after every change of that key or of one beneath it."""
        ...

    async def close(self) -> None: ...


class RegistryEntry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    version: int


class Session(msgspec.Struct, frozen=True):
    id: int


class SessionState(Enum):
    """In doubt, the session may be over already, and others may have been told so; the holder learns it last."""

    HELD = "held"
    DOUBTED = "doubted"
    LOST = "lost"


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


RegistryOperation = Check | Create | Set | Delete


class RegistryConflict(RetriableError):
    """The registry has changed meanwhile; read again and decide anew."""

    code = RequestTimedOut.code  # the wire has none for it, and clients are to try again


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

    code = RequestTimedOut.code  # likewise


class CommitTooLarge(HeadraceError):
    """The commit is larger than the registry takes in one piece."""


class OutcomeUnknown(RegistryUnavailable):
    """The connection was lost under a commit: it may have happened or not."""


def check_key(key: str) -> None:
    """Keys are made by our own code, so a bad one is a bug."""
    assert key.startswith("/"), key
    assert all(key[1:].split("/")), key


def is_beneath(key: str, prefix: str) -> bool:
    return key.startswith(prefix + "/")


# Who wants to hear of which keys.


class RegisteredWatches:
    """The watches of one registry object. Used on the loop only."""

    def __init__(self) -> None:
        # A dict and not a set: watches are told in the order in which they were set, in every run.
        self._watches: dict[RegisteredWatch, None] = {}

    def add(self, prefix: str, changed: Callable[[str], None]) -> RegisteredWatch:
        watch = RegisteredWatch(prefix, changed, self)
        self._watches[watch] = None
        return watch

    def forget(self, watch: RegisteredWatch) -> None:
        self._watches.pop(watch, None)

    def tell(self, keys: Iterable[str]) -> None:
        for key in keys:
            for watch in list(self._watches):
                # A watch may be cancelled by one that was called before it.
                if watch in self._watches and (key == watch.prefix or is_beneath(key, watch.prefix)):
                    watch.changed(key)

    def tell_all(self) -> None:
        """Anything may have changed."""
        for watch in list(self._watches):
            if watch in self._watches:
                watch.changed(watch.prefix)


class RegisteredWatch(msgspec.Struct, eq=False):
    prefix: str
    changed: Callable[[str], None]
    watches: RegisteredWatches

    def cancel(self) -> None:
        self.watches.forget(self)
