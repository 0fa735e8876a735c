"""A registry in memory that keeps the contract of headrace.registry.interface.

Several `SimRegistry` objects may share one `SimRegistryState`: they belong to several brokers, or to one
broker before and after a crash. Every call lets other tasks run first, so that races show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    Operation,
    RegistryUnavailable,
    Session,
    SessionLost,
    Set,
    check_key,
    is_beneath,
)
from headrace.registry.watches import Watch, Watches


@dataclass(slots=True)
class SimRegistryState:
    """What survives: the entries, and which session holds which key."""

    entries: dict[str, Entry] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    sessions: set[int] = field(default_factory=set)
    sessions_opened: int = 0
    listeners: list[Watches] = field(default_factory=list)


class SimRegistry:
    """Implements `Registry`. `unavailable = True` makes every call fail, as a lost ensemble does."""

    def __init__(self, state: SimRegistryState | None = None) -> None:
        self.state = state if state is not None else SimRegistryState()
        self.unavailable = False
        self._watches = Watches()
        self._own_sessions: set[int] = set()
        self.state.listeners.append(self._watches)

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        await self._arrive()
        return self.state.entries.get(key)

    async def entries(self, prefix: str) -> Sequence[Entry]:
        check_key(prefix)
        await self._arrive()
        return [entry for key, entry in sorted(self.state.entries.items()) if is_beneath(key, prefix)]

    async def children(self, key: str) -> Sequence[str]:
        return sorted({entry.key[len(key) + 1 :].split("/", 1)[0] for entry in await self.entries(key)})

    async def commit(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            check_key(operation.key)
        await self._arrive()
        entries, holders = dict(self.state.entries), dict(self.state.holders)
        for operation in operations:
            self._apply(entries, holders, operation)
        self.state.entries, self.state.holders = entries, holders
        self._tell([operation.key for operation in operations if not isinstance(operation, Check)])

    async def open_session(self) -> Session:
        await self._arrive()
        self.state.sessions_opened += 1
        session = Session(self.state.sessions_opened)
        self.state.sessions.add(session.id)
        self._own_sessions.add(session.id)
        return session

    async def close_session(self, session: Session) -> None:
        await self._arrive()
        self.expire(session)

    def expire(self, session: Session) -> None:
        """End a session from outside, as an ensemble does that hears nothing any more."""
        self.state.sessions.discard(session.id)
        self._own_sessions.discard(session.id)
        gone = [key for key, holder in self.state.holders.items() if holder == session.id]
        for key in gone:
            del self.state.entries[key], self.state.holders[key]
        self._tell(gone)

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Watch:
        check_key(prefix)
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        self.crash()

    def crash(self) -> None:
        """The process is gone: its watches are told nothing more and its sessions end."""
        if self._watches in self.state.listeners:
            self.state.listeners.remove(self._watches)
        for number in sorted(self._own_sessions):
            self.expire(Session(number))

    def _apply(self, entries: dict[str, Entry], holders: dict[str, int], operation: Operation) -> None:
        key, found = operation.key, entries.get(operation.key)
        if isinstance(operation, Create):
            if found:
                raise KeyExists(f"{key} exists already")
            if operation.session:
                if operation.session.id not in self.state.sessions:
                    raise SessionLost(f"{key}: session {operation.session.id} is over")
                holders[key] = operation.session.id
            entries[key] = Entry(key, operation.value, 0)
            return
        if not found:
            raise NoKey(f"{key} does not exist")
        if found.version != operation.version:
            raise BadVersion(f"{key} has version {found.version}, not {operation.version}")
        match operation:
            case Set(_, value, version):
                entries[key] = Entry(key, value, version + 1)
            case Delete():
                if any(is_beneath(other, key) for other in entries):
                    raise KeyNotEmpty(f"{key} has keys beneath it")
                del entries[key]
                holders.pop(key, None)

    def _tell(self, keys: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        for watches in self.state.listeners:
            loop.call_soon(watches.tell, keys)

    async def _arrive(self) -> None:
        await asyncio.sleep(0)
        if self.unavailable:
            raise RegistryUnavailable("The registry cannot be reached")
