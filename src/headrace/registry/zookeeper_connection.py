"""The connection to ZooKeeper, used from the event loop, and kazoo's client with the features that it lacks.

- kazoo runs its connection in threads; `ZooKeeperConnection` passes their results to the event loop.
- Requests are sent in order, and ZooKeeper answers one client in that order. A missing node is None. Other errors of
  kazoo are translated, except the one that says why an operation of a transaction failed.
- `ZooKeeperClient` adds to kazoo: recursive watches, many reads in one request, the negotiated session timeout, and the
  time of the last confirmed heartbeat. A recursive watch stays until the connection ends and reports every change in
  order; ZooKeeper's older watches must be set again on each node and miss changes in between. kazoo takes a third of a
  millisecond per request, and a broker reads thousands of keys at startup. Both need a server of version 3.6 (2020).
- It depends on private parts of kazoo 2.11; tests/integration/test_zookeeper.py checks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import (
    MultiHeader,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import KazooState, WatchedEvent, ZnodeStat

from headrace.registry.interface import CommitTooLarge, OutcomeUnknown, RegistryUnavailable, SessionLost
from headrace.registry.zookeeper_plan import BYTES_MAX, StepKind, ZooKeeperStep, size_of
from headrace.runtime.clock import Clock
from headrace.runtime.inline_start import switch_to_task

RETRY_SECONDS = 0.05
RETRY_SECONDS_MAX = 1.0
_GET_DATA = 4
_GET_CHILDREN = 8
_ERROR = -1
_READ_SHARE = 2 / 3  # kazoo's: of the session's timeout, until it takes a silent connection for dead


class ZooKeeperClient(KazooClient):  # type: ignore[misc]
    """`changed` is called with the path of every node that changes beneath a watched one, in a thread of kazoo's.

    `last_confirmed`: the number of ZooKeeper's session, and when the last ping or request that the server has answered
    was sent. Any request extends the session, and kazoo pings only when it sends nothing else."""

    def __init__(self, hosts: str, timeout_seconds: float, changed: Callable[[str], None], clock: Clock) -> None:
        self._changed = changed
        self._clock = clock
        self.negotiated_seconds = timeout_seconds
        self.last_confirmed: tuple[int, float] | None = None
        self._heartbeat: tuple[int, float] | None = (
            None  # the oldest that is not confirmed: its xid, and when it was sent
        )
        super().__init__(
            hosts=hosts,
            timeout=timeout_seconds,
            connection_retry={"max_tries": -1, "delay": RETRY_SECONDS, "max_delay": RETRY_SECONDS_MAX},
        )
        connection = self._connection
        self._connect_once = connection._connect  # noqa: SLF001
        self._submit_once = connection._submit  # noqa: SLF001
        self._read_header_once = connection._read_header  # noqa: SLF001
        connection._connect = self._connect  # noqa: SLF001
        connection._submit = self._submit  # noqa: SLF001
        connection._read_header = self._read_header  # noqa: SLF001

    def watch_beneath_async(self, path: str) -> Any:
        result = self.handler.async_result()
        self._call(_AddWatch(path), result)
        return result

    def get_all_async(self, paths: Sequence[str]) -> Any:
        """Of each node its value and version; None for one that is not there."""
        return self._read_all_async(_GET_DATA, paths)

    def children_of_all_async(self, paths: Sequence[str]) -> Any:
        """Of each node the names of its children; None for one that is not there."""
        return self._read_all_async(_GET_CHILDREN, paths)

    def _read_all_async(self, kind: int, paths: Sequence[str]) -> Any:
        result = self.handler.async_result()
        self._call(_ReadAll(kind, paths), result)
        return result

    def _reset_watchers(self) -> None:
        self._child_watchers: dict[str, Any] = {}
        self._data_watchers = _RecursiveWatch(self._on_event)

    def _on_event(self, event: WatchedEvent) -> None:
        self._changed(event.path)

    def _connect(self, host: str, address: str, port: int) -> tuple[float, float]:
        sent = self._clock.monotonic()
        read_timeout_ms, connect_timeout_ms = self._connect_once(host, address, port)
        self.negotiated_seconds = read_timeout_ms / _READ_SHARE / 1000
        self._heartbeat = None
        self.last_confirmed = self._session_id, sent
        return read_timeout_ms, connect_timeout_ms

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if self._heartbeat is None and xid is not None and (xid > 0 or xid == PING_XID):
            self._heartbeat = xid, self._clock.monotonic()
        self._submit_once(request, timeout, xid)

    def _read_header(self, timeout: float) -> Any:
        read = self._read_header_once(timeout)
        if self._heartbeat is not None and read[0].xid == self._heartbeat[0]:
            self.last_confirmed = self._session_id, self._heartbeat[1]
            self._heartbeat = None
        return read


class _RecursiveWatch:
    """Stands where kazoo keeps its one-time watches: whatever changed, the same one is told."""

    def __init__(self, told: Callable[[WatchedEvent], None]) -> None:
        self._told = [told]

    def pop(self, _path: str, _default: object) -> list[Callable[[WatchedEvent], None]]:
        return self._told


class _AddWatch(msgspec.Struct, frozen=True):
    path: str

    type: ClassVar[int] = 106
    recursive: ClassVar[int] = 1

    def serialize(self) -> bytes:
        return write_string(self.path) + int_struct.pack(self.recursive)  # type: ignore[no-any-return]

    @staticmethod
    def deserialize(_answer: bytes, _offset: int) -> bool:
        return True


class _ReadAll(msgspec.Struct, frozen=True):
    """ZooKeeper's multiRead: each read succeeds or fails for itself."""

    kind: int
    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        header = multiheader_struct.pack(self.kind, False, -1)
        reads = b"".join(header + write_string(path) + b"\0" for path in self.paths)  # the zero: no watch
        return reads + multiheader_struct.pack(_ERROR, True, -1)  # type: ignore[no-any-return]

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[Any]:
        found: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(answer, offset)
            if header.done:
                return found
            if header.type == _GET_DATA:
                value, offset = read_buffer(answer, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(answer, offset))
                offset += stat_struct.size
                found.append((value, stat.version))
            elif header.type == _GET_CHILDREN:
                names, offset = _read_names(answer, offset)
                found.append(names)
            else:
                (code,) = int_struct.unpack_from(answer, offset)
                offset += int_struct.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]
                found.append(None)


def _read_names(answer: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = int_struct.unpack_from(answer, offset)
    offset += int_struct.size
    names: list[str] = []
    for _ in range(count):
        name, offset = read_string(answer, offset)
        names.append(name)
    return names, offset


PATIENCE_SECONDS = 5.0
"""Added to the session's timeout it makes the deadline of a call: kazoo finds out earlier that a connection is dead."""

READS_AT_ONCE = 500


class ZooKeeperConnection:
    """`on_connection_state` is told, on the loop, when the connection is there, when it is not, and when the session
    was lost; `changed` the path of every node that changes after `watch_beneath`."""

    def __init__(
        self,
        hosts: str,
        timeout_seconds: float,
        on_connection_state: Callable[[str], None],
        changed: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._hosts = hosts
        self._deadline_seconds = timeout_seconds + PATIENCE_SECONDS
        self._loop = asyncio.get_running_loop()
        self._on_connection_state = on_connection_state
        self._changed = changed
        self._connected = asyncio.Event()
        self._may_be_behind = True
        self._client = ZooKeeperClient(hosts, timeout_seconds, self._on_change_in_thread, clock)
        self._client.add_listener(self._on_state_in_thread)

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def session_timeout_seconds(self) -> float:
        return self._client.negotiated_seconds

    @property
    def session_id(self) -> int | None:
        """The number of ZooKeeper's session, while connected."""
        identity = self._client.client_id
        return None if identity is None else int(identity[0])

    def last_confirmed(self, session_id: int) -> float:
        """When the last confirmed heartbeat of this session of ZooKeeper was sent. -inf if kazoo has another session by
        now: after a pause, its thread may have begun one before the loop hears that the old one is over."""
        confirmed = self._client.last_confirmed
        return confirmed[1] if confirmed is not None and confirmed[0] == session_id else float("-inf")

    def start(self) -> None:
        self._client.start_async()

    async def stop(self) -> None:
        """End ZooKeeper's session if it can be told; else it ends when its time is up."""
        self._connected.clear()
        await asyncio.to_thread(self._client.stop)

    def release(self) -> None:
        self._client.close()

    async def until_connected(self) -> None:
        await self.until(self._connected.wait())

    async def until(self, event: Awaitable[object]) -> None:
        await switch_to_task()  # a request's handler may have come here without a wait
        try:
            async with asyncio.timeout(self._deadline_seconds):
                await event
        except TimeoutError:
            raise self._unreachable() from None

    async def catch_up(self) -> None:
        """Connect, and let the server that answers catch up with the others if there is reason to."""
        await self.until_connected()
        if self._may_be_behind:
            self._may_be_behind = False
            try:
                await self._ask(self._client.sync_async("/"))
            except BaseException:
                self._may_be_behind = True
                raise

    async def get_all(self, paths: Sequence[str]) -> list[tuple[bytes, int] | None]:
        """Value and version of each node."""
        found: list[tuple[bytes, int] | None] = []
        for start in range(0, len(paths), READS_AT_ONCE):
            found += await self._ask(self._client.get_all_async(paths[start : start + READS_AT_ONCE]))
        return found

    async def children_of_all(self, paths: Sequence[str]) -> list[list[str] | None]:
        found: list[list[str] | None] = []
        for start in range(0, len(paths), READS_AT_ONCE):
            found += await self._ask(self._client.children_of_all_async(paths[start : start + READS_AT_ONCE]))
        return found

    async def owner(self, path: str) -> int | None:
        """The session of ZooKeeper that an ephemeral node belongs to."""
        stat = await self._ask(self._client.exists_async(path))
        return None if stat is None else int(stat.ephemeralOwner)

    async def make(self, paths: Iterable[str], *, are_ephemeral: bool = False) -> None:
        """Nodes without a value; those that are there stay as they are."""
        for result in [self._client.create_async(path, ephemeral=are_ephemeral) for path in paths]:
            with suppress(NodeExistsError):
                await self._ask(result)

    def remove_if_empty(self, paths: Iterable[str]) -> None:
        """Some time soon, if at all: nobody waits for it."""
        for path in paths:
            self._client.delete_async(path)

    async def transact(self, steps: Sequence[ZooKeeperStep]) -> tuple[ZooKeeperStep, Exception] | None:
        """All of them, or the one that did not fit and why."""
        if not self.is_connected:  # what waits in a queue would happen later, when nobody expects it any more
            raise self._unreachable()
        size = size_of(steps)
        if size > BYTES_MAX:
            raise CommitTooLarge(f"A commit of {size} bytes is too large for ZooKeeper, which takes {BYTES_MAX}")
        try:
            results = await self._answer_of(self._begin(steps))
        except SessionExpiredError as error:
            if steps[0].operation is not None:
                raise self._unreachable(error) from error
            raise SessionLost("The session is over; open a new one") from error
        except (KazooException, TimeoutError) as error:
            self._may_be_behind = True
            raise OutcomeUnknown(f"The connection to ZooKeeper was lost under a commit: {error!r}") from error
        for step, result in zip(steps, results, strict=True):
            # kazoo raises nothing here: the errors stand among the results, the one that counts between its shadows.
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                self._may_be_behind = True
                return step, result
        return None

    def watch_beneath(self, path: str, watching: Callable[[Exception | None], None]) -> None:
        """Until the connection ends. `watching` is told when it stands, or why it does not."""
        result = self._client.watch_beneath_async(path)
        result.rawlink(lambda done: self._on_loop(watching, done.exception))

    def _begin(self, steps: Sequence[ZooKeeperStep]) -> Any:
        transaction = self._client.transaction()
        for step in steps:
            match step.kind:
                case StepKind.CHECK:
                    transaction.check(step.path, step.version)
                case StepKind.CREATE:
                    transaction.create(step.path, step.value, ephemeral=step.is_ephemeral)
                case StepKind.SET:
                    transaction.set_data(step.path, step.value, step.version)
                case StepKind.DELETE:
                    transaction.delete(step.path, step.version)
        return transaction.commit_async()

    async def _ask(self, result: Any) -> Any:
        try:
            return await self._answer_of(result)
        except NodeExistsError:
            raise
        except (KazooException, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def _answer_of(self, result: Any) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        result.rawlink(lambda done: self._on_loop(_resolve, future, done))
        await switch_to_task()
        async with asyncio.timeout(self._deadline_seconds):
            return await future

    def _unreachable(self, error: Exception | None = None) -> RegistryUnavailable:
        reason = "" if error is None else f": {error!r}"
        return RegistryUnavailable(f"ZooKeeper at {self._hosts} cannot be reached{reason}")

    def _turn(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._may_be_behind = True
            self._connected.set()
        else:
            self._connected.clear()
        self._on_connection_state(state)

    # From here on in threads of kazoo's, which may do no more than call the loop.

    def _on_state_in_thread(self, state: str) -> None:
        self._on_loop(self._turn, state)

    def _on_change_in_thread(self, path: str) -> None:
        self._on_loop(self._changed, path)

    def _on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody is left who would want to know
            self._loop.call_soon_threadsafe(callback, *arguments)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)
