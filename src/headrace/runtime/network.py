"""The system interface `Network`: listeners, connections, and byte streams that never block.

- A `ByteStream` is one connection. Its calls do what is possible at once and raise `BlockingIOError` otherwise. The
  caller registers callbacks with `when_readable` and `when_writable`. A broken connection raises an `OSError`.
- Streams own their sockets. By measurement this halves the cost of asyncio's transports.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.runtime.disk import Buffer, File

log = logging.getLogger(__name__)

ACCEPTS_PER_WAKE_UP = 64  # a burst of new connections must not starve existing ones
ACCEPT_PAUSE_SECONDS = 0.1
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
CHUNKS_MAX = os.sysconf("SC_IOV_MAX")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Callback = Callable[[], None]


class ByteStream(Protocol):
    @property
    def peer(self) -> str:
        """`host:port` of the peer, for logs and quotas."""
        ...

    def receive_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive bytes. Returns how many; 0 if the peer has closed."""
        ...

    def send(self, chunks: Sequence[Buffer], more: bool) -> int:
        """Send bytes. Returns how many were accepted, possibly not all. With `more`, the rest of a message follows at
        once.
        """
        ...

    def send_file(self, file: File, position: int, count: int) -> int:
        """Send bytes directly from the file's page cache. Returns how many were accepted."""
        ...

    def when_readable(self, callback: Callback | None) -> None:
        """Call `callback` repeatedly while there is something to receive; None unregisters it."""
        ...

    def when_writable(self, callback: Callback | None) -> None: ...

    def close(self) -> None:
        """Close gracefully: everything sent still arrives. Further calls do nothing."""
        ...

    def abort(self) -> None:
        """Close at once; the peer receives a reset."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]: ...

    def pause(self) -> None:
        """Leave new connections in the backlog until `resume`."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Network(Protocol):
    async def listen(
        self, host: str, port: int, accept: Callable[[ByteStream], None], backlog: int = 1024
    ) -> Listener: ...

    async def connect(self, host: str, port: int, deadline_seconds: float) -> ByteStream:
        """Raises `TimeoutError` at the deadline and `OSError` if the connection fails."""
        ...


class SystemNetwork:
    """Real TCP on the running loop."""

    async def listen(
        self, host: str, port: int, accept: Callable[[ByteStream], None], backlog: int = 1024
    ) -> SystemListener:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # One address per listener. If a name has IPv4 and IPv6 addresses, use IPv4, which every client can reach.
        family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit these options, which saves a system call for each.
            _set_socket_options(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            sock.listen(backlog)
        except BaseException:
            sock.close()
            raise
        return SystemListener(sock, loop, accept)

    async def connect(self, host: str, port: int, deadline_seconds: float) -> SocketStream:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(deadline_seconds):
            failure: OSError | None = None
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.setblocking(False)
                    _set_socket_options(sock)
                    await loop.sock_connect(sock, address)
                    return SocketStream(sock, loop, _format_address(address))
                except OSError as error:
                    sock.close()
                    failure = error
                except BaseException:
                    sock.close()
                    raise
            raise failure or OSError(f"{host} has no address")


class SocketStream:
    """One TCP socket. Hot calls are the socket's own methods where possible."""

    __slots__ = ("_descriptor", "_loop", "_send", "_sendmsg", "_socket", "peer", "receive_into")

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self.peer = peer
        self.receive_into = sock.recv_into
        self._socket = sock
        self._loop = loop
        self._descriptor = sock.fileno()
        self._send = sock.send
        self._sendmsg = sock.sendmsg

    def send(self, chunks: Sequence[Buffer], more: bool) -> int:
        flags = socket.MSG_MORE if more else 0
        if len(chunks) == 1:
            return self._send(chunks[0], flags)
        return self._sendmsg(chunks if len(chunks) <= CHUNKS_MAX else chunks[:CHUNKS_MAX], (), flags)

    def send_file(self, file: File, position: int, count: int) -> int:
        return os.sendfile(self._descriptor, file.descriptor(), position, count)

    def when_readable(self, callback: Callback | None) -> None:
        if callback is None:
            self._loop.remove_reader(self._descriptor)
        else:
            self._loop.add_reader(self._descriptor, callback)

    def when_writable(self, callback: Callback | None) -> None:
        if callback is None:
            self._loop.remove_writer(self._descriptor)
        else:
            self._loop.add_writer(self._descriptor, callback)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._descriptor = -1  # the descriptor number may soon belong to another socket
        self._socket.close()

    def abort(self) -> None:
        if self._descriptor >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self.close()


class SystemListener:
    """Accepts connections. It pauses and continues when the process has run out of descriptors."""

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, accept: Callable[[ByteStream], None]
    ) -> None:
        self.address: tuple[str, int] = sock.getsockname()[:2]
        self._socket = sock
        self._descriptor = sock.fileno()
        self._loop = loop
        self._accept = accept
        self._closed = False
        self._paused = False
        self._exhausted = False
        self._exhaustion_logged = False
        self.resume()

    def pause(self) -> None:
        self._paused = True
        self._watch()

    def resume(self) -> None:
        self._paused = False
        self._watch()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watch()
            self._socket.close()

    def _watch(self) -> None:
        if self._closed or self._paused or self._exhausted:
            self._loop.remove_reader(self._descriptor)
        else:
            self._loop.add_reader(self._descriptor, self._accept_waiting)

    def _accept_waiting(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE_UP):
            if self._closed or self._paused:
                return
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # the peer closed before the accept
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._wait_for_descriptors(error)
                return
            sock.setblocking(False)
            self._exhaustion_logged = False
            self._accept(SocketStream(sock, self._loop, _format_address(address)))

    def _wait_for_descriptors(self, error: OSError) -> None:
        # The backlog stays readable, so without a pause the event loop would spin.
        if not self._exhaustion_logged:
            log.error("cannot accept connections, retrying address=%s error=%s", self.address, error)
        self._exhaustion_logged = True
        self._exhausted = True
        self._watch()
        self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._exhausted = False
        if not self._closed:
            self._watch()


def _set_socket_options(sock: socket.socket) -> None:
    # Responses are written as a whole, so Nagle's algorithm only adds delay. Keep-alive detects peers that vanished.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _format_address(address: tuple[object, ...]) -> str:
    return f"{address[0]}:{address[1]}"
