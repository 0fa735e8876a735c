"""The registry: versioned keys with transactions, ephemeral keys and watches. SQLite, ZooKeeper and the simulation
implement it.

    /topics/orders  -> bytes, version 3        keys are paths; parents need not exist
    commit([Check(...), Set(...), Create(...)])    all operations or none

Every implementation keeps these rules, which tests/unit/registry/test_contract.py tests:

- A key is created with version 0. Every `Set` names the version that it replaces, and increments it; there is no blind
  write. A key that is deleted and created again starts at 0, so a value that must not be confused with an earlier one
  contains an identity (a topic its id).
- When `commit` returns, the change is durable. A cancelled `commit` may or may not take effect.
- An ephemeral key lives as long as its session. A session ends when it is closed, or some time after its process has
  died or has become unreachable. A registry object has at most one session at a time.
- `session_valid_until` is computed from the time at which the last confirmed heartbeat was sent. The registry reports
  the end of the session to no other process before that time. Therefore a process that was paused can tell by its clock
  alone that its session may be over, before any callback has run.
- A registry object with a session commits in that session. When the session is over, `commit` raises `SessionLost` and
  changes nothing until a new session is opened: decisions of the earlier session have no effect.
- `OutcomeUnknown` means that a commit may or may not have taken effect: read again and compare.
- A watch is called on the event loop, once per changed key, in the order of the commits. It reports that the key
  changed, not its value: read again. When changes may have been missed (the connection was lost), it is called with the
  prefix itself: read everything beneath it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol, TypeVar

import msgspec

from headrace.model.errors import HeadraceError, RequestTimedOut, RetriableError

T = TypeVar("T")

VALID_SHARE = 2 / 3
"""The session is certainly valid for this share of its timeout after a confirmed heartbeat. The rest is a margin for
clock drift, and for a ZooKeeper server that fails before it has forwarded the heartbeat (half a tick at most)."""


class Registry(Protocol):
    @property
    def session_valid_until(self) -> float:
        """The time of `Clock.monotonic` until which the session is certainly valid; -inf without a session."""
        ...

    async def get(self, key: str) -> RegistryEntry | None: ...

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        """Return all entries beneath a key (not the key itself), sorted by key."""
        ...

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        """Apply all operations in order, or none and raise a `RegistryConflict` that names the one that failed."""
        ...

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        """Open a session. `on_state` is called on the event loop with every change of its state: first with `HELD`,
        before this returns. It is not called when the session is closed."""
        ...

    async def close_session(self, session: Session) -> None:
        """Remove the session's keys. Closing it again does nothing."""
        ...

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], object]:
        """Call `changed(key)` after every change of that key or of one beneath it. Return the function that ends this,
        which may be called again."""
        ...

    async def close(self) -> None: ...


class RegistryEntry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    version: int


class Session(msgspec.Struct, frozen=True):
    id: int


class SessionState(Enum):
    """A session in doubt may be over, and other processes may already know; the holder learns it last."""

    HELD = "held"
    DOUBTED = "doubted"
    LOST = "lost"


class HeldSession(msgspec.Struct, eq=False):
    """The session of a registry object, as its holder knows it."""

    session: Session
    on_state: Callable[[SessionState], None] | None
    state: SessionState = SessionState.HELD

    def change(self, state: SessionState) -> None:
        if self.state is not state and self.state is not SessionState.LOST:  # LOST is final
            self.state = state
            if self.on_state is not None:
                self.on_state(state)


class Check(msgspec.Struct, frozen=True):
    """Require that the key exists at this version."""

    key: str
    version: int


class Create(msgspec.Struct, frozen=True):
    """Create a key, which must not exist, with version 0. With a session it is ephemeral."""

    key: str
    value: bytes
    session: Session | None = None


class Set(msgspec.Struct, frozen=True):
    """Replace the value of a key, which must exist at this version, and increment the version."""

    key: str
    value: bytes
    version: int


class Delete(msgspec.Struct, frozen=True):
    """Delete a key, which must exist at this version and have no keys beneath it."""

    key: str
    version: int


RegistryOperation = Check | Create | Set | Delete


class RegistryConflict(RetriableError):
    """The registry was changed concurrently; read again and retry."""

    code = RequestTimedOut.code  # the wire protocol has no code for it, and clients should retry


class BadVersion(RegistryConflict):
    """The key has another version."""


class NoKey(RegistryConflict):
    """The key does not exist."""


class KeyExists(RegistryConflict):
    """The key already exists."""


class KeyNotEmpty(RegistryConflict):
    """The key has keys beneath it."""


class SessionLost(RegistryConflict):
    """The session is over, and its ephemeral keys are gone."""


class RegistryDamaged(HeadraceError):
    """The registry is damaged."""


class RegistryTooNew(HeadraceError):
    """The registry was written by a newer release of Headrace; start that release."""


class RegistryUnavailable(RetriableError):
    """The registry is not available. Retry."""

    code = RequestTimedOut.code


class CommitTooLarge(HeadraceError):
    """The commit is larger than the registry accepts."""


class OutcomeUnknown(RegistryUnavailable):
    """The connection was lost during a commit, which may or may not have taken effect."""


def check_key(key: str) -> None:
    """Assert that the key is valid: the code constructs all keys, so an invalid one is a bug."""
    assert key.startswith("/"), key
    assert all(key[1:].split("/")), key


def is_beneath(key: str, prefix: str) -> bool:
    return key.startswith(prefix + "/")


async def remove_beneath(registry: Registry, prefix: str, *, keys_per_commit: int) -> None:
    """Delete all keys beneath a key. Several brokers may do this concurrently."""
    while deletions := [Delete(entry.key, entry.version) for entry in await registry.entries(prefix)]:
        for begin in range(0, len(deletions), keys_per_commit):
            try:
                await registry.commit(deletions[begin : begin + keys_per_commit])
            except (BadVersion, NoKey, OutcomeUnknown):
                break


def parent(key: str) -> str:
    return key.rpartition("/")[0]


def decode_json(entry: RegistryEntry, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error


class RegisteredWatches:
    """The watches of one registry object. Used on the event loop only."""

    def __init__(self) -> None:
        # A dict, not a set: watches are called in the order in which they were added, in every run.
        self._watches: dict[object, tuple[str, Callable[[str], None]]] = {}

    def add(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], object]:
        """Return the function that removes the watch."""
        watch = object()
        self._watches[watch] = prefix, changed
        return lambda: self._watches.pop(watch, None)

    def tell(self, keys: Iterable[str]) -> None:
        for key in keys:
            for watch, (prefix, changed) in list(self._watches.items()):
                # An earlier watch may have cancelled this one.
                if watch in self._watches and (key == prefix or is_beneath(key, prefix)):
                    changed(key)

    def tell_all(self) -> None:
        """Call every watch with its prefix, because any key may have changed."""
        for watch, (prefix, changed) in list(self._watches.items()):
            if watch in self._watches:
                changed(prefix)
