"""kazoo's client with what it lacks: a watch on everything beneath a path, many reads in one request, the timeout that
was agreed on, and the time of the last confirmed heartbeat.

A recursive watch stays until the connection ends and tells of every change in order, where ZooKeeper's old watches
have to be set anew on each node and pass over what happens meanwhile. kazoo takes a third of a millisecond for each
request, and a broker reads thousands of keys at its start. Both take a server of version 3.6 (2020).

This leans on private parts of kazoo 2.11; tests/integration/test_zookeeper.py shows that they still are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoNodeError
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
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from headrace.runtime.clock import Clock

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
