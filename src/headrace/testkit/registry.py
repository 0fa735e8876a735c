"""A registry in memory that keeps the contract of headrace.registry.interface, with injected faults.

Several `SimRegistry` objects may share one `SimRegistryEnsemble`: they belong to several brokers, or to one broker
before and after a crash. Every call lets other tasks run first, so that races show.

By default nothing takes time and nothing fails. A scenario sets these attributes of the ensemble before it is used:

- `delay_seconds`: how long a message is in flight, by seed. Requests, responses and watch events of one client stay in
  order.
- `session_timeout_seconds`: a session ends when nothing was heard from its client for this long. Pings are timers of
  the host that opened the session, so a crashed host stops pinging.
- `break_chance`: how often a connection breaks during a commit and reconnects at once.
- `behind_seconds`: for up to this long after a commit, the server of another client still returns reads without it, by
  seed. A client sees its own commits, and everything that it has seen once, as ZooKeeper promises.
- `split_seconds`: up to this much time passes between the watch events of two keys of one commit. A client whose
  process was paused gets its pending events up to `WAKING_SECONDS` later than the rest of the process resumes: a real
  client has a separate thread, or a timer that runs after buffered requests.

`disconnect` cuts off a client until `reconnect`. Its session is in doubt when the client notices, and lost only when it
is back and learns so, however long ago the ensemble ended the session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from headrace.registry.interface import (
    VALID_SHARE,
    BadVersion,
    Check,
    Create,
    Delete,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    OutcomeUnknown,
    RegistryConflict,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    Session,
    SessionLost,
    SessionState,
    Set,
    check_key,
    is_beneath,
)

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
        """Record a ping. False if the session has ended."""
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
        """Whether the session has ended because no ping arrived within its timeout."""
        self.expire_silent()
        return session.id in self._timed_out

    def expire(self, session: Session) -> None:
        """End a session. Its keys are removed; other clients are notified, and its owner too if it can be reached."""
        ended = self._sessions.pop(session.id, None)
        if ended is None:
            return
        gone = [key for key, holder in self._holders.items() if holder == session.id]
        # A new dict, because lagging servers keep the old one.
        self.entries = {key: entry for key, entry in self.entries.items() if key not in gone}
        for key in gone:
            del self._holders[key]
        self._tell(gone)
        ended.client.on_session_ended(session)

    def expire_holder(self, key: str) -> None:
        """End the session that owns an ephemeral key, if there is one."""
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


T = TypeVar("T")

STEP_SECONDS = 1e-6  # between two messages that arrive in order
PINGS_PER_TIMEOUT = 3
WAKING_SECONDS = 0.05
LATE_SECONDS = 0.1  # only a pause delays a callback this much
PINGS_MISSED = 2  # in a row, before a client treats its connection as broken


class _SimConnection:
    """The connection of a client. `is_cut`: nothing passes. `dropped`: the client has noticed."""

    def __init__(self) -> None:
        self.is_cut = False
        self.dropped = asyncio.Event()


@dataclass(eq=False, slots=True)
class _SimSession:
    """A session as its owner sees it. Notifications run in the context of the owner."""

    session: Session
    on_state: Callable[[SessionState], None] | None
    context: Context
    confirmed: float  # when the last ping that reached the ensemble was sent
    state: SessionState = SessionState.HELD
    pings_missed: int = 0

    def turn(self, state: SessionState) -> None:
        if self.state is not state and self.state is not SessionState.LOST:  # which is final
            self.state = state
            if self.on_state is not None:
                self.on_state(state)


@dataclass(frozen=True, eq=False, slots=True)
class _UnappliedCommit:
    """A commit that a client's server has not applied yet: all keys after it, and those that it changed."""

    entries: dict[str, RegistryEntry]
    keys: Sequence[str]


@dataclass(eq=False, slots=True)
class _SimWatch:
    prefix: str
    changed: Callable[[str], None]
    context: Context
    siblings: dict[_SimWatch, None]

    def cancel(self) -> None:
        self.siblings.pop(self, None)


class SimRegistry:
    """Implements `Registry`. `unavailable = True` makes every call fail, as an ensemble without a majority does."""

    def __init__(self, state: SimRegistryEnsemble | None = None) -> None:
        self.state = state if state is not None else SimRegistryEnsemble()
        self.unavailable = False
        self._is_cut_off = False
        self._connection = _SimConnection()
        self._watches: dict[_SimWatch, None] = {}
        self._held: _SimSession | None = None
        self._is_over = False
        self._last_sent = 0.0
        self._last_heard = 0.0
        self._woken_at = 0.0
        self.behind_seconds = self.state.random.uniform(0, limit) if (limit := self.state.behind_seconds) else 0.0
        self._seen = self.state.entries  # the state of the server that this client is connected to
        self._unseen: deque[_UnappliedCommit] = deque()
        self.state.clients.append(self)

    @property
    def session_state(self) -> SessionState | None:
        if self._is_over:
            return SessionState.LOST
        return None if self._held is None else self._held.state

    @property
    def session_valid_until(self) -> float:
        if self._held is None:
            return float("-inf")
        timeout = self.state.session_timeout_seconds
        return float("inf") if timeout is None else self._held.confirmed + VALID_SHARE * timeout

    @property
    def has_missed_the_end(self) -> bool:
        """Whether the session has timed out and the client has not noticed yet."""
        held = self._held
        return held is not None and held.state is SessionState.HELD and self.state.has_timed_out(held.session)

    async def get(self, key: str) -> RegistryEntry | None:
        check_key(key)
        return await self._ask(lambda: self._seen.get(key))

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        check_key(prefix)
        return await self._ask(lambda: [entry for key, entry in sorted(self._seen.items()) if is_beneath(key, prefix)])

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        for operation in operations:
            check_key(operation.key)
        if self.state.on_commit is not None:
            self.state.on_commit(self, operations, self.session_state)
        if self._is_over:
            raise SessionLost("The session is over; open a new one")
        session = None if self._held is None else self._held.session
        connection = self._connection
        await self._send(connection)
        if self.state.break_chance and self.state.random.random() < self.state.break_chance:
            self.disconnect()
            self.reconnect()
        refused: RegistryConflict | None = None
        if not connection.is_cut or self.state.random.random() < 0.5:
            try:
                self.state.commit(operations, session)
            except RegistryConflict as conflict:
                refused = conflict
            self._see_all()
        if not await self._hear_back(connection):
            raise OutcomeUnknown("The connection was lost under a commit")
        if refused is not None:
            raise refused

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        assert self._held is None, "a session is open already"
        began = asyncio.get_running_loop().time()
        session = await self._ask(lambda: self.state.open_session(self))
        self._see_all()
        self._held, self._is_over = _SimSession(session, on_state, copy_context(), began), False
        if on_state is not None:
            on_state(SessionState.HELD)
        self._ping_later(self._held)
        if not self.state.record_ping(session):  # it ended while its response was on the way
            self.on_session_ended(session)
        return session

    async def close_session(self, session: Session) -> None:
        if self._held is None or self._held.session != session:
            return
        self._held, self._is_over = None, True
        with suppress(RegistryUnavailable):  # the session ends by timeout then
            await self._ask(lambda: self.state.expire(session))

    def expire(self, session: Session) -> None:
        """End a session from outside, as an ensemble does that receives no pings."""
        self.state.expire(session)

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], None]:
        check_key(prefix)
        watch = _SimWatch(prefix, changed, copy_context(), self._watches)
        self._watches[watch] = None
        return watch.cancel

    async def close(self) -> None:
        if self._held is not None and not self._connection.is_cut:
            self.state.expire(self._held.session)
        self.crash()

    def crash(self) -> None:
        """The process has ended: it gets no more notifications, and its session ends, by timeout if they are set."""
        held, self._held, self._is_over = self._held, None, True
        self._watches.clear()
        if self in self.state.clients:
            self.state.clients.remove(self)
        if held is not None and self.state.session_timeout_seconds is None:
            self.state.expire(held.session)

    def disconnect(self, *, silently: bool = False) -> None:
        """Disconnect the client. It notices at once or, if `silently`, when its pings get no response."""
        self._is_cut_off = self._connection.is_cut = True
        if not silently:
            self._drop()

    def reconnect(self) -> None:
        """Let the client reconnect and learn the state of its session."""
        self._is_cut_off = False
        self._drop()
        self._tell_in_order(self._come_back, context=self._held.context if self._held else None)

    def hear(self, keys: Sequence[str]) -> None:
        """Deliver a commit of the ensemble to the client's server: at once or, if the server lags, later."""
        unseen = _UnappliedCommit(self.state.entries, keys)
        self._unseen.append(unseen)
        if self.behind_seconds:
            asyncio.get_running_loop().call_later(self.behind_seconds, self._see, unseen, context=Context())
        else:
            self._see_all()

    def on_session_ended(self, session: Session) -> None:
        """Break the connection from the ensemble's side; the client notices and reconnects at once."""
        held = self._held
        if held is not None and held.session == session and not self._connection.is_cut:
            self._tell_in_order(held.turn, SessionState.DOUBTED, context=held.context)
            self._tell_in_order(self._lose, held, context=held.context)

    def _see_all(self) -> None:
        if self._unseen:
            self._see(self._unseen[-1])

    def _see(self, last: _UnappliedCommit) -> None:
        """Let the server apply a commit, unless it has; watches are notified while the connection is up."""
        while last in self._unseen:
            self._seen, keys = (unseen := self._unseen.popleft()).entries, unseen.keys
            for number, key in enumerate(keys):
                if number and self.state.split_seconds:
                    self._last_heard = max(self._last_heard, asyncio.get_running_loop().time())
                    self._last_heard += self.state.random.uniform(0, self.state.split_seconds)
                for watch in self._watches:
                    if key == watch.prefix or is_beneath(key, watch.prefix):
                        self._tell_in_order(self._tell, self._connection, watch, key, context=watch.context)

    async def _ask(self, question: Callable[[], T]) -> T:
        connection = self._connection
        await self._send(connection)
        if not connection.is_cut:
            self.state.expire_silent()
            answer = question()
            if await self._hear_back(connection):
                return answer
        await connection.dropped.wait()
        raise RegistryUnavailable("The registry cannot be reached")

    async def _send(self, connection: _SimConnection) -> None:
        """Return when a request arrives; `connection` says whether it did."""
        now = asyncio.get_running_loop().time()
        self._last_sent = max(now + self.state.delay(), self._last_sent + STEP_SECONDS) if self._takes_time else now
        was_dropped = connection.dropped.is_set()
        await asyncio.sleep(self._last_sent - now)
        if self.unavailable or was_dropped:
            raise RegistryUnavailable("The registry cannot be reached")

    async def _hear_back(self, connection: _SimConnection) -> bool:
        """Return when the response is there; False if it never arrives."""
        if self._takes_time:
            arrived = asyncio.Event()
            self._tell_in_order(arrived.set, context=None)
            await arrived.wait()
        if connection.is_cut:
            await connection.dropped.wait()
        return not connection.is_cut

    @property
    def _takes_time(self) -> bool:
        return self.state.delay_seconds[1] > 0

    def _tell_in_order(self, callback: Callable[..., object], *arguments: Any, context: Context | None) -> None:
        loop = asyncio.get_running_loop()
        if self._takes_time:
            self._last_heard = max(loop.time() + self.state.delay(), self._last_heard + STEP_SECONDS)
            self._call_at(self._last_heard, callback, *arguments, context=context)
        else:
            loop.call_soon(callback, *arguments, context=context)

    def _call_at(self, when: float, callback: Callable[..., object], *arguments: Any, context: Context | None) -> None:
        asyncio.get_running_loop().call_at(when, self._call, when, context, callback, arguments, context=context)

    def _call(
        self, when: float, context: Context | None, callback: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        """Call it, or if the process was paused meanwhile, a little later, in order."""
        now = asyncio.get_running_loop().time()
        if now - when < LATE_SECONDS:
            callback(*arguments)
            return
        if now > self._woken_at + WAKING_SECONDS:
            self._woken_at = now + self.state.random.uniform(0, WAKING_SECONDS)
        self._last_heard = max(self._woken_at, self._last_heard + STEP_SECONDS)
        self._call_at(self._last_heard, callback, *arguments, context=context)

    def _tell(self, connection: _SimConnection, watch: _SimWatch, key: str) -> None:
        if watch in self._watches and not connection.is_cut:
            watch.changed(key)

    def _tell_of_everything(self) -> None:
        for watch in self._watches:
            self._tell_in_order(self._tell, self._connection, watch, watch.prefix, context=watch.context)

    def _drop(self) -> None:
        if not self._connection.dropped.is_set():
            self._connection.is_cut = True
            self._connection.dropped.set()
            if self._held is not None:
                loop, held = asyncio.get_running_loop(), self._held
                loop.call_soon(held.turn, SessionState.DOUBTED, context=held.context)

    def _come_back(self) -> None:
        if self._is_cut_off or not self._connection.dropped.is_set():
            return
        self._connection = _SimConnection()
        if self._held is not None and self.state.record_ping(self._held.session):
            self._held.pings_missed = 0
            self._held.confirmed = asyncio.get_running_loop().time()
            self._held.turn(SessionState.HELD)
        elif self._held is not None:
            self._lose(self._held)
        self._tell_of_everything()

    def _lose(self, held: _SimSession) -> None:
        if held is self._held:
            self._held, self._is_over = None, True
            held.turn(SessionState.LOST)
            self._tell_of_everything()

    def _ping_later(self, held: _SimSession) -> None:
        if self.state.session_timeout_seconds is not None:
            interval = self.state.session_timeout_seconds / PINGS_PER_TIMEOUT
            when = asyncio.get_running_loop().time() + interval
            self._call_at(when, self._ping, held, context=held.context)

    def _ping(self, held: _SimSession) -> None:
        if held is not self._held:
            return
        if self._is_cut_off or self.unavailable:
            held.pings_missed += 1
            if held.pings_missed == PINGS_MISSED:
                self._drop()
        elif self._connection.dropped.is_set():
            self._tell_in_order(self._come_back, context=held.context)
        elif self.state.record_ping(held.session):
            held.pings_missed = 0
            held.confirmed = asyncio.get_running_loop().time()
        self._ping_later(held)
