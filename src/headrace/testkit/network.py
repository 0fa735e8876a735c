"""A network in memory: hosts, paths that are slow, cut or one-way, and connections that break.

- `SimNetwork` is the whole network and the `Network` interface of one host, "localhost"; `at(host)` is that of another
  host.
- A path is named by its two hosts. All randomness comes from the seed, and `digest` covers every event.
- Each direction of a connection is a `SimChannel`: bytes arrive in order, split at random, each piece after a delay.
  Bytes that the reader has not received count against the writer's window, so a slow reader stops the writer.
- A channel whose path is cut holds its bytes until the path heals and a while longer, as TCP's retransmission does.
  They may arrive long after both ends gave up, and after bytes that were sent later on another connection.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from random import Random

from headrace.runtime.disk import Buffer, File
from headrace.runtime.network import ByteStream

Callback = Callable[[], None]

FIN = object()
RESET = object()


class SimChannel:
    """One direction of a connection. `carries_responses`: from the accepting end to the connecting end."""

    def __init__(self, network: SimNetwork, source: str, target: str, *, carries_responses: bool = False) -> None:
        self.source = source
        self.target = target
        self.carries_responses = carries_responses
        self.vanished = False  # nothing arrives any more, silently
        self._network = network
        self._wire: deque[object] = deque()  # in flight
        self._waiting: deque[object] = deque()  # arrived where the path was cut
        self._in_window = 0  # accepted bytes that the reader has not received
        self._last_arrival = 0.0
        self.reader: SimByteStream
        self.writer: SimByteStream

    @property
    def over(self) -> bool:
        return self.vanished or (self.reader.closed and self.writer.closed)

    def room(self) -> int:
        return self._network.window_bytes - self._in_window

    def take(self, data: bytes) -> None:
        if self.carries_responses and self._network.loses_response(self.source):
            self._network.note("lose answer", self.source, self.target)
            self.carry(RESET)
            self.writer.reset_by_fault()
            return
        self._in_window += len(data)
        taken = 0
        while taken < len(data):
            piece = data[taken : taken + self._network.piece_size(len(data) - taken)]
            taken += len(piece)
            self.carry(piece)

    def carry(self, piece: object) -> None:
        """Send a piece, the end of the stream or a reset; the order is kept."""
        self._wire.append(piece)
        self._schedule(len(piece) if isinstance(piece, bytes) else 0)

    def release(self, size: int) -> None:
        self._in_window -= size
        self.writer.window_opened()

    def healed(self) -> None:
        """Release the waiting pieces, before those that were sent later and are still in flight."""
        while self._waiting:
            self._wire.appendleft(self._waiting.pop())
            self._schedule(0)

    def _schedule(self, size: int) -> None:
        # Each timer delivers the next piece, because timers of the same time have no order.
        self._last_arrival = self._network.arrival(self.source, self.target, size, self._last_arrival)
        self._network.loop.call_at(self._last_arrival, self._arrive, context=self._network.context)

    def _arrive(self) -> None:
        piece = self._wire.popleft()
        if self.vanished:
            return
        if self._waiting or self._network.is_cut(self.source, self.target):
            self._waiting.append(piece)
            return
        size = len(piece) if isinstance(piece, bytes) else 0
        self._network.note("arrive", self.reader.name, size)
        self.reader.arrived(piece)


class SimByteStream:
    """Implements `headrace.runtime.network.ByteStream`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, peer: str, inward: SimChannel, outward: SimChannel
    ) -> None:
        self.name = name
        self.peer = peer
        self._inward = inward
        self._outward = outward
        self._unread = bytearray()
        self._ended = False
        self._broken = False
        self.closed = False
        self._reading = _ReadinessWatch(loop, self._is_readable)
        self._writing = _ReadinessWatch(loop, self._is_writable)
        inward.reader = outward.writer = self

    def receive_into(self, buffer: bytearray | memoryview, /) -> int:
        self._check_usable()
        if not self._unread:
            if self._ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        size = min(len(buffer), len(self._unread))
        buffer[:size] = self._unread[:size]
        del self._unread[:size]
        self._inward.release(size)
        return size

    def send(self, chunks: Sequence[Buffer], more: bool) -> int:  # noqa: ARG002
        return self._send(b"".join(chunks))

    def send_file(self, file: File, position: int, count: int) -> int:
        return self._send(file.pread(min(count, max(1, self._outward.room())), position))

    def when_readable(self, callback: Callback | None) -> None:
        self._reading.call(callback)

    def when_writable(self, callback: Callback | None) -> None:
        self._writing.call(callback)

    def close(self) -> None:
        # As in the kernel, closing a socket with unread bytes resets the connection: its peer must not assume that they
        # were read.
        self._end(RESET if self._unread else FIN)

    def abort(self) -> None:
        self._end(RESET)

    def reset_by_fault(self) -> None:
        """Reset the connection from outside."""
        if not self.closed:
            self._broken = True
            self._unread.clear()
            self._reading.poke()
            self._writing.poke()

    def vanish(self) -> None:
        """Let this end vanish silently: the peer gets no response to what it sends."""
        self.closed = True
        self._inward.vanished = self._outward.vanished = True

    def arrived(self, piece: object) -> None:
        if piece is RESET:
            self.reset_by_fault()
        elif self.closed:
            if piece is not FIN:
                self._outward.carry(RESET)  # no reader is left
            return
        elif piece is FIN:
            self._ended = True
        elif isinstance(piece, bytes) and not self._broken:
            self._unread += piece
        self._reading.poke()

    def window_opened(self) -> None:
        self._writing.poke()

    def _send(self, data: bytes) -> int:
        self._check_usable()
        room = self._outward.room()
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = data[:room]
        self._outward.take(taken)
        return len(taken)

    def _end(self, how: object) -> None:
        if self.closed:
            return
        self.closed = True
        self._reading.call(None)
        self._writing.call(None)
        if not self._broken:
            self._outward.carry(how)

    def _check_usable(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._broken:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def _is_readable(self) -> bool:
        return not self.closed and bool(self._unread or self._ended or self._broken)

    def _is_writable(self) -> bool:
        return not self.closed and (self._broken or self._outward.room() > 0)


class _ReadinessWatch:
    """Calls back once per iteration of the loop while the condition holds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, condition: Callable[[], bool]) -> None:
        self._loop = loop
        self._condition = condition
        self._callback: Callback | None = None
        self._context: Context | None = None  # of the watching task, not of the one whose bytes arrive
        self._due: asyncio.Handle | None = None

    def call(self, callback: Callback | None) -> None:
        self._callback = callback
        if callback is None:
            if self._due is not None:
                self._due.cancel()
                self._due = None
            return
        self._context = copy_context()
        self.poke()

    def poke(self) -> None:
        if self._callback is not None and self._due is None and self._condition():
            self._due = self._loop.call_soon(self._fire, context=self._context)

    def _fire(self) -> None:
        self._due = None
        if self._callback is not None and self._condition():
            self._callback()
            self.poke()


LOCAL_NAMES = frozenset({"", "localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})
PIECE_SECONDS = 10e-6  # between two pieces, so that a reader receives them separately
FIRST_PORT = 20_000
FIRST_CLIENT_PORT = 40_000


class HostNetwork:
    """The `Network` interface of one host. Implements `headrace.runtime.network.Network`."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self.host = host
        self._network = network

    async def listen(
        self, host: str, port: int, accept: Callable[[ByteStream], None], backlog: int = 1024
    ) -> SimListener:
        if host not in LOCAL_NAMES and host != self.host:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), host)
        address = (self.host, port or self._network.next_port())
        if address in self._network.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{address}")
        listener = SimListener(self._network, address, accept, backlog)
        self._network.listeners[address] = listener
        return listener

    async def connect(self, host: str, port: int, deadline_seconds: float) -> SimByteStream:
        network, target = self._network, self.host if host in LOCAL_NAMES else host
        async with asyncio.timeout(deadline_seconds):
            await asyncio.sleep(network.delay())
            await network.path(self.host, target)
            listener = network.listeners.get((target, port))
            if listener is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            await listener.room()
            mine, theirs = network.link(self.host, target, port)
            listener.offer(theirs)
            try:
                await asyncio.sleep(network.delay())
            except BaseException:
                mine.abort()
                raise
        return mine


class SimNetwork(HostNetwork):
    """The whole network, with its faults; also the `Network` interface of the host "localhost"."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(self, "localhost")
        self.loop = loop
        self.context = Context()  # bytes in flight belong to no host
        self.delay_seconds = (0.00005, 0.001)
        self.window_bytes = 256 * 1024
        self.whole_chance = 0.5  # probability that a write arrives in one piece
        self.retry_seconds = 0.0  # how long after a path was healed bytes that were sent before may still be in flight
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self._random = Random(f"network {seed}")
        self._digest = hashlib.blake2b(digest_size=16)
        self._cuts: set[tuple[str, str]] = set()
        self._rates: dict[tuple[str, str], float] = {}
        self._loss_chances: dict[str, float] = {}
        self._streams: list[SimChannel] = []
        self._healing: list[asyncio.Future[None]] = []
        self._last_port = FIRST_PORT
        self._last_client_port = FIRST_CLIENT_PORT

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def note(self, *event: object) -> None:
        self._digest.update(f"{self.loop.time():.9f} {event}\n".encode())

    def delay(self) -> float:
        return self._random.uniform(*self.delay_seconds)

    def piece_size(self, size: int) -> int:
        return size if self._random.random() < self.whole_chance else self._random.randint(1, size)

    def arrival(self, source: str, target: str, size: int, not_before: float) -> float:
        rate = self._rates.get((source, target))
        sent = max(self.loop.time() + self.delay(), not_before + PIECE_SECONDS)
        return sent if rate is None else sent + size / rate

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def next_port(self) -> int:
        self._last_port += 1
        return self._last_port

    def link(self, source: str, target: str, port: int) -> tuple[SimByteStream, SimByteStream]:
        """Both ends of a new connection, the connecting end first."""
        self._last_client_port += 1
        caller, called = f"{source}:{self._last_client_port}", f"{target}:{port}"
        there, back = SimChannel(self, source, target), SimChannel(self, target, source, carries_responses=True)
        self._streams = [stream for stream in self._streams if not stream.over] + [there, back]
        self.note("connect", caller, called)
        return (
            SimByteStream(self.loop, caller, called, inward=back, outward=there),
            SimByteStream(self.loop, called, caller, inward=there, outward=back),
        )

    def at(self, host: str) -> HostNetwork:
        return HostNetwork(self, host)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Cut the path from `a` to `b`, and back unless `one_way`. Connections stay open and are not notified."""
        for path in [(a, b)] if one_way else [(a, b), (b, a)]:
            self.note("cut", *path)
            self._cuts.add(path)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Open the paths between two hosts, or all. Bytes sent meanwhile arrive now."""
        everything = a is None or b is None
        paths = [path for path in sorted(self._cuts) if everything or set(path) == {a, b}]
        self.note("heal", paths)
        self._cuts.difference_update(paths)
        for stream in self._streams:
            if (stream.source, stream.target) in paths:
                self.loop.call_later(self._random.uniform(0.0, self.retry_seconds), stream.healed, context=self.context)
        for waiter in self._healing:
            if not waiter.done():
                waiter.set_result(None)
        self._healing.clear()

    def slow(self, a: str, b: str, bytes_per_second: float) -> None:
        """Limit the rate of bytes from `a` to `b`."""
        self._rates[a, b] = bytes_per_second

    def speed_up(self) -> None:
        """Remove all rate limits."""
        self._rates.clear()

    def lose_responses(self, host: str, chance: float) -> None:
        """From now on, break a connection to this host instead of delivering a response, with this probability: the
        peer does not learn that its request took effect. 0 ends it."""
        self._loss_chances[host] = chance

    def loses_response(self, host: str) -> bool:
        chance = self._loss_chances.get(host, 0.0)
        return chance > 0 and self._random.random() < chance

    def links(self, host: str, other: str | None = None) -> list[SimByteStream]:
        """The ends at `host` of all its connections, or of those to one other host."""
        return [stream.reader for stream in self._streams if stream.target == host and other in (None, stream.source)]

    async def path(self, source: str, target: str) -> None:
        """Return when packets pass in both directions."""
        while self.is_cut(source, target) or self.is_cut(target, source):
            healed: asyncio.Future[None] = self.loop.create_future()
            self._healing.append(healed)
            await healed

    def reset(self, a: str, b: str) -> None:
        """Break all connections between two hosts; both ends get an error at their next use."""
        self.note("reset", a, b)
        for link in self.links(a, b) + self.links(b, a):
            link.reset_by_fault()

    def crash(self, host: str, *, silently: bool = False) -> None:
        """End all connections of a host. Its peers receive a reset, or nothing if `silently` (half-open)."""
        self.note("crash", host, silently)
        for address in [address for address in self.listeners if address[0] == host]:
            self.listeners[address].close()
        for link in self.links(host):
            if silently:
                link.vanish()
            else:
                link.abort()


class SimListener:
    """Implements `headrace.runtime.network.Listener`."""

    def __init__(
        self, network: SimNetwork, address: tuple[str, int], accept: Callable[[ByteStream], None], backlog: int
    ) -> None:
        self.address = address
        self._network = network
        self._accept = accept
        self._backlog = backlog
        self._waiting: deque[SimByteStream] = deque()
        self._callers: list[asyncio.Future[None]] = []  # connections whose handshake waits for room in the backlog
        self._context = copy_context()  # of the listening host, not of the connecting ones
        self._paused = False

    async def room(self) -> None:
        """Return when the backlog has room; raise if the listener is closed."""
        while len(self._waiting) >= self._backlog:
            accepted: asyncio.Future[None] = self._network.loop.create_future()
            self._callers.append(accepted)
            await accepted
        if self._network.listeners.get(self.address) is not self:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    def offer(self, link: SimByteStream) -> None:
        self._waiting.append(link)
        self._network.loop.call_soon(self._accept_waiting, context=self._context)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._network.loop.call_soon(self._accept_waiting, context=self._context)

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)
        self._paused = True
        while self._waiting:
            self._waiting.popleft().abort()
        self._wake_callers()

    def _accept_waiting(self) -> None:
        while self._waiting and not self._paused:
            self._accept(self._waiting.popleft())
            self._wake_callers()

    def _wake_callers(self) -> None:
        for caller in self._callers:
            if not caller.done():
                caller.set_result(None)
        self._callers.clear()
