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
from functools import partial
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
    """`changed` is called in a thread of kazoo with the path of every node that changes beneath a watched one.

    `last_confirmed` is the id of the ZooKeeper session, and when the last ping or request with a response was sent.
    Every request extends the session, and kazoo pings only when it sends nothing else."""

    def __init__(self, hosts: str, timeout_seconds: float, changed: Callable[[str], None], clock: Clock) -> None:
        self._changed = changed
        self._clock = clock
        self.negotiated_seconds = timeout_seconds
        self.last_confirmed: tuple[int, float] | None = None
        self._heartbeat: tuple[int, float] | None = None  # xid and send time of the oldest unconfirmed one
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

    def read_all_async(self, kind: int, paths: Sequence[str]) -> Any:
        """Read each node; None if it does not exist."""
        result = self.handler.async_result()
        self._call(_ReadAll(kind, paths), result)
        return result

    def _reset_watchers(self) -> None:
        self._child_watchers: dict[str, Any] = {}
        self._data_watchers = _RecursiveWatch(lambda event: self._changed(event.path))

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
    """Replaces kazoo's table of one-time watches: the same callback is called for every path."""

    def __init__(self, callback: Callable[[WatchedEvent], None]) -> None:
        self._callbacks = [callback]

    def pop(self, _path: str, _default: object) -> list[Callable[[WatchedEvent], None]]:
        return self._callbacks


class _AddWatch(msgspec.Struct, frozen=True):
    path: str

    type: ClassVar[int] = 106
    recursive: ClassVar[int] = 1

    def serialize(self) -> bytes:
        return write_string(self.path) + int_struct.pack(self.recursive)  # type: ignore[no-any-return]

    @staticmethod
    def deserialize(_response: bytes, _offset: int) -> bool:
        return True


class _ReadAll(msgspec.Struct, frozen=True):
    """ZooKeeper's multiRead: each read succeeds or fails separately."""

    kind: int
    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        header = multiheader_struct.pack(self.kind, False, -1)
        reads = b"".join(header + write_string(path) + b"\0" for path in self.paths)  # zero: no watch
        return reads + multiheader_struct.pack(_ERROR, True, -1)  # type: ignore[no-any-return]

    @staticmethod
    def deserialize(response: bytes, offset: int) -> list[Any]:
        found: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(response, offset)
            if header.done:
                return found
            if header.type == _GET_DATA:
                value, offset = read_buffer(response, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(response, offset))
                offset += stat_struct.size
                found.append((value, stat.version))
            elif header.type == _GET_CHILDREN:
                names, offset = _read_names(response, offset)
                found.append(names)
            else:
                (code,) = int_struct.unpack_from(response, offset)
                offset += int_struct.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code]
                found.append(None)


def _read_names(response: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = int_struct.unpack_from(response, offset)
    offset += int_struct.size
    names: list[str] = []
    for _ in range(count):
        name, offset = read_string(response, offset)
        names.append(name)
    return names, offset


PATIENCE_SECONDS = 5.0
"""The deadline of a call is the session timeout plus this; kazoo detects a dead connection earlier."""

READS_AT_ONCE = 500


class ZooKeeperConnection:
    """Calls, on the event loop, `on_connection_state` when the connection is established or lost and when the session
    has expired, and `changed` with the path of every node that changes after `watch_beneath`."""

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
        self._connected = asyncio.Event()
        self._may_be_behind = True
        # Called in threads of kazoo, which only schedule calls on the event loop.
        self._client = ZooKeeperClient(hosts, timeout_seconds, partial(self._on_loop, changed), clock)
        self._client.add_listener(partial(self._on_loop, self._apply_state))

    @property
    def session_timeout_seconds(self) -> float:
        return self._client.negotiated_seconds

    @property
    def session_id(self) -> int | None:
        """The id of the ZooKeeper session, while connected."""
        identity = self._client.client_id
        return None if identity is None else int(identity[0])

    def last_confirmed(self, session_id: int) -> float:
        """When the last confirmed heartbeat of this ZooKeeper session was sent; -inf if kazoo has another session.
        After a pause, its thread may have opened one before the event loop learns that the old one has expired."""
        confirmed = self._client.last_confirmed
        return confirmed[1] if confirmed is not None and confirmed[0] == session_id else float("-inf")

    def start(self) -> None:
        self._client.start_async()

    async def stop(self) -> None:
        """Close the ZooKeeper session. If no server is reachable, it expires later."""
        self._connected.clear()
        await asyncio.to_thread(self._client.stop)

    def release(self) -> None:
        self._client.close()

    async def until_connected(self) -> None:
        await self.until(self._connected.wait())

    async def until(self, event: Awaitable[object]) -> None:
        await switch_to_task()  # a request handler may have called this without an await before
        try:
            async with asyncio.timeout(self._deadline_seconds):
                await event
        except TimeoutError:
            raise self._unreachable() from None

    async def catch_up(self) -> None:
        """Connect, and let the server catch up with the others if it may lag behind."""
        await self.until_connected()
        if self._may_be_behind:
            self._may_be_behind = False
            try:
                await self._request(self._client.sync_async("/"))
            except BaseException:
                self._may_be_behind = True
                raise

    async def get_all(self, paths: Sequence[str]) -> list[tuple[bytes, int] | None]:
        """Read the value and version of each node; None if it does not exist."""
        return await self._read_all(_GET_DATA, paths)

    async def children_of_all(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Read the names of the children of each node; None if it does not exist."""
        return await self._read_all(_GET_CHILDREN, paths)

    async def _read_all(self, kind: int, paths: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(paths), READS_AT_ONCE):
            found += await self._request(self._client.read_all_async(kind, paths[start : start + READS_AT_ONCE]))
        return found

    async def owner(self, path: str) -> int | None:
        """Return the ZooKeeper session of an ephemeral node."""
        stat = await self._request(self._client.exists_async(path))
        return None if stat is None else int(stat.ephemeralOwner)

    async def make(self, paths: Iterable[str], *, are_ephemeral: bool = False) -> None:
        """Create nodes without a value, unless they exist."""
        for result in [self._client.create_async(path, ephemeral=are_ephemeral) for path in paths]:
            with suppress(NodeExistsError):
                await self._request(result)

    def remove_if_empty(self, paths: Iterable[str]) -> None:
        """Start to delete empty nodes, without waiting for the result."""
        for path in paths:
            self._client.delete_async(path)

    async def transact(self, steps: Sequence[ZooKeeperStep]) -> tuple[ZooKeeperStep, Exception] | None:
        """Carry out all steps, or none and return the failed one with its error."""
        if not self._connected.is_set():  # kazoo would queue the commit and carry it out later, unexpectedly
            raise self._unreachable()
        size = size_of(steps)
        if size > BYTES_MAX:
            raise CommitTooLarge(f"A commit of {size} bytes is too large for ZooKeeper, which accepts {BYTES_MAX}")
        try:
            results = await self._result_of(self._begin(steps))
        except SessionExpiredError as error:
            if steps[0].operation is not None:
                raise self._unreachable(error) from error
            raise SessionLost("The session is over; open a new one") from error
        except (KazooException, TimeoutError) as error:
            self._may_be_behind = True
            raise OutcomeUnknown(f"The connection to ZooKeeper was lost during a commit: {error!r}") from error
        for step, result in zip(steps, results, strict=True):
            # kazoo raises no errors here: they are among the results, the cause between consequential ones.
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                self._may_be_behind = True
                return step, result
        return None

    def watch_beneath(self, path: str, watching: Callable[[Exception | None], None]) -> None:
        """Watch all nodes beneath a path until the connection ends. `watching` is called with None when the watch is
        set, or with an error."""
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

    async def _request(self, result: Any) -> Any:
        try:
            return await self._result_of(result)
        except NodeExistsError:
            raise
        except (KazooException, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def _result_of(self, result: Any) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        result.rawlink(lambda done: self._on_loop(_resolve, future, done))
        await switch_to_task()
        async with asyncio.timeout(self._deadline_seconds):
            return await future

    def _unreachable(self, error: Exception | None = None) -> RegistryUnavailable:
        reason = "" if error is None else f": {error!r}"
        return RegistryUnavailable(f"ZooKeeper at {self._hosts} is not reachable{reason}")

    def _apply_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._may_be_behind = True
            self._connected.set()
        else:
            self._connected.clear()
        self._on_connection_state(state)

    def _on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)
