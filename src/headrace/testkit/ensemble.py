"""The ensemble behind the simulated registries: the keys, whose they are, and which sessions live.

What is set here before a scenario uses it is explained in headrace.testkit.registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    RegistryEntry,
    RegistryOperation,
    Session,
    SessionLost,
    SessionState,
    Set,
    is_beneath,
)

if TYPE_CHECKING:
    from headrace.testkit.registry import SimRegistry

OnCommit = Callable[["SimRegistry", Sequence[RegistryOperation], SessionState | None], None]


class SimRegistryEnsemble:
    """The ensemble. `on_commit` sees every attempt to commit, with the state of its client's session (None: it never
    had one) at the moment when it was decided."""

    def __init__(self, seed: int = 0) -> None:
        self.delay_seconds = (0.0, 0.0)
        self.session_timeout_seconds: float | None = None
        self.break_chance = 0.0
        self.behind_seconds = 0.0
        self.split_seconds = 0.0
        self.on_commit: OnCommit | None = None
        self.random = Random(f"registry {seed}")
        self.entries: dict[str, RegistryEntry] = {}
        self.clients: list[SimRegistry] = []
        self._holders: dict[str, int] = {}
        self._sessions: dict[int, _EnsembleSession] = {}
        self._sessions_opened = 0
        self._timed_out: set[int] = set()

    def delay(self) -> float:
        return self.random.uniform(*self.delay_seconds) if self.delay_seconds[1] else 0.0

    def open_session(self, client: SimRegistry) -> Session:
        self._sessions_opened += 1
        session = Session(self._sessions_opened)
        self._sessions[session.id] = _EnsembleSession(client, float("inf"))
        self.record_ping(session)
        if self.session_timeout_seconds is not None:
            self._wait_for_silence(session)
        return session

    def record_ping(self, session: Session) -> bool:
        """A sign of life. False when it comes too late."""
        self.expire_silent()
        if session.id not in self._sessions:
            return False
        if self.session_timeout_seconds is not None:
            self._sessions[session.id].ends_at = asyncio.get_running_loop().time() + self.session_timeout_seconds
        return True

    def expire_silent(self) -> None:
        now = asyncio.get_running_loop().time()
        for number in [number for number, session in self._sessions.items() if session.ends_at <= now]:
            self._timed_out.add(number)
            self.expire(Session(number))

    def has_timed_out(self, session: Session) -> bool:
        """Whether the session is over because nothing was heard of it for its timeout."""
        self.expire_silent()
        return session.id in self._timed_out

    def expire(self, session: Session) -> None:
        """End a session. Its keys are gone, the others are told, and its holder too if it can be reached."""
        ended = self._sessions.pop(session.id, None)
        if ended is None:
            return
        gone = [key for key, holder in self._holders.items() if holder == session.id]
        self.entries = {key: entry for key, entry in self.entries.items() if key not in gone}  # servers keep the old
        for key in gone:
            del self._holders[key]
        self._tell(gone)
        ended.client.on_session_ended(session)

    def expire_holder(self, key: str) -> None:
        """End the session that holds an ephemeral key, if one does."""
        if key in self._holders:
            self.expire(Session(self._holders[key]))

    def commit(self, operations: Sequence[RegistryOperation], session: Session | None) -> None:
        if session is not None and not self.record_ping(session):
            raise SessionLost(f"Session {session.id} is over; open a new one")
        entries, holders = dict(self.entries), dict(self._holders)
        for operation in operations:
            _apply(entries, holders, operation, session)
        self.entries, self._holders = entries, holders
        self._tell([operation.key for operation in operations if not isinstance(operation, Check)])

    def _wait_for_silence(self, session: Session) -> None:
        self.expire_silent()
        if session.id in self._sessions:
            ends_at = self._sessions[session.id].ends_at
            asyncio.get_running_loop().call_at(ends_at, self._wait_for_silence, session, context=Context())

    def _tell(self, keys: Sequence[str]) -> None:
        for client in self.clients:
            client.hear(keys)


@dataclass(slots=True)
class _EnsembleSession:
    client: SimRegistry
    ends_at: float


def _apply(
    entries: dict[str, RegistryEntry], holders: dict[str, int], operation: RegistryOperation, session: Session | None
) -> None:
    key, found = operation.key, entries.get(operation.key)
    if isinstance(operation, Create):
        if operation.session is not None and operation.session != session:
            raise SessionLost(f"{key}: session {operation.session.id} is over")
        if found:
            raise KeyExists(f"{key} exists already")
        if operation.session is not None:
            holders[key] = operation.session.id
        entries[key] = RegistryEntry(key, operation.value, 0)
        return
    if not found:
        raise NoKey(f"{key} does not exist")
    if found.version != operation.version:
        raise BadVersion(f"{key} has version {found.version}, not {operation.version}")
    match operation:
        case Set(_, value, version):
            entries[key] = RegistryEntry(key, value, version + 1)
        case Delete():
            if any(is_beneath(other, key) for other in entries):
                raise KeyNotEmpty(f"{key} has keys beneath it")
            del entries[key]
            holders.pop(key, None)
