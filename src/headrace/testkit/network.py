"""A network in memory: hosts, paths that are slow, cut or one-way, and connections that break.

`SimNetwork` is the whole network and the door of one host, "localhost"; `at(host)` is the door of another.
Paths are named by their two hosts. All chance comes from the seed, and `digest` covers every event.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random

from headrace.runtime.network import ByteStream
from headrace.testkit.links import SimByteStream, SimChannel

LOCAL_NAMES = frozenset({"", "localhost", "127.0.0.1", "0.0.0.0", "::1", "::"})
PIECE_SECONDS = 10e-6  # between two pieces, so that a reader sees them apart
FIRST_PORT = 20_000
FIRST_CLIENT_PORT = 40_000


class NetworkFabric:
    """What the doors of all hosts share."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.context = Context()  # what is under way belongs to no host
        self.delay_seconds = (0.00005, 0.001)
        self.window_bytes = 256 * 1024
        self.whole_chance = 0.5  # that a write arrives in one piece
        self.retry_seconds = 0.0  # how long after a path was healed what was sent before may still be under way
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

    def connect(self, source: str, target: str, port: int) -> tuple[SimByteStream, SimByteStream]:
        """Both ends of a new connection, the caller's first."""
        self._last_client_port += 1
        caller, called = f"{source}:{self._last_client_port}", f"{target}:{port}"
        there, back = SimChannel(self, source, target), SimChannel(self, target, source, carries_responses=True)
        self._streams = [stream for stream in self._streams if not stream.over] + [there, back]
        self.note("connect", caller, called)
        return (
            SimByteStream(self.loop, caller, called, inward=back, outward=there),
            SimByteStream(self.loop, called, caller, inward=there, outward=back),
        )

    def cut(self, source: str, target: str) -> None:
        self.note("cut", source, target)
        self._cuts.add((source, target))

    def heal(self, paths: list[tuple[str, str]]) -> None:
        self.note("heal", paths)
        self._cuts.difference_update(paths)
        for stream in self._streams:
            if (stream.source, stream.target) in paths:
                self.loop.call_later(self._random.uniform(0.0, self.retry_seconds), stream.healed, context=self.context)
        for waiter in self._healing:
            if not waiter.done():
                waiter.set_result(None)
        self._healing.clear()

    def cut_paths(self) -> list[tuple[str, str]]:
        return sorted(self._cuts)

    def slow_down(self, source: str, target: str, bytes_per_second: float) -> None:
        self._rates[source, target] = bytes_per_second

    def speed_up(self) -> None:
        self._rates.clear()

    def lose_responses(self, host: str, chance: float) -> None:
        self._loss_chances[host] = chance

    def loses_response(self, host: str) -> bool:
        chance = self._loss_chances.get(host, 0.0)
        return chance > 0 and self._random.random() < chance

    def links(self, host: str, other: str | None = None) -> list[SimByteStream]:
        """The ends at `host`, of all its connections or of those to one other host."""
        return [stream.reader for stream in self._streams if stream.target == host and other in (None, stream.source)]

    async def path(self, source: str, target: str) -> None:
        """Return when packets get through both ways."""
        while self.is_cut(source, target) or self.is_cut(target, source):
            healed: asyncio.Future[None] = self.loop.create_future()
            self._healing.append(healed)
            await healed


class HostNetwork:
    """One host's door. Implements `headrace.runtime.network.Network`."""

    def __init__(self, fabric: NetworkFabric, host: str) -> None:
        self.host = host
        self._fabric = fabric

    async def listen(
        self, host: str, port: int, accept: Callable[[ByteStream], None], backlog: int = 1024
    ) -> SimListener:
        if host not in LOCAL_NAMES and host != self.host:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), host)
        address = (self.host, port or self._fabric.next_port())
        if address in self._fabric.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"{address}")
        listener = SimListener(self._fabric, address, accept, backlog)
        self._fabric.listeners[address] = listener
        return listener

    async def connect(self, host: str, port: int, deadline_seconds: float) -> SimByteStream:
        fabric, target = self._fabric, self.host if host in LOCAL_NAMES else host
        async with asyncio.timeout(deadline_seconds):
            await asyncio.sleep(fabric.delay())
            await fabric.path(self.host, target)
            listener = fabric.listeners.get((target, port))
            if listener is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            await listener.room()
            mine, theirs = fabric.connect(self.host, target, port)
            listener.offer(theirs)
            try:
                await asyncio.sleep(fabric.delay())
            except BaseException:
                mine.abort()
                raise
        return mine


class SimNetwork(HostNetwork):
    """The network, with its faults, and the door of the host "localhost"."""

    def __init__(self, seed: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(NetworkFabric(seed, loop), "localhost")

    @property
    def digest(self) -> str:
        return self._fabric.digest

    @property
    def fabric(self) -> NetworkFabric:
        """For its settings: delays, window, pieces."""
        return self._fabric

    def at(self, host: str) -> HostNetwork:
        return HostNetwork(self._fabric, host)

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Nothing gets from `a` to `b`, nor back unless `one_way`. Connections stay, and are not told."""
        self._fabric.cut(a, b)
        if not one_way:
            self._fabric.cut(b, a)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Open the paths between two hosts, or all. What was sent meanwhile arrives now."""
        everything = a is None or b is None
        self._fabric.heal([path for path in self._fabric.cut_paths() if everything or set(path) == {a, b}])

    def slow(self, a: str, b: str, bytes_per_second: float) -> None:
        """Bytes from `a` to `b` pass at this rate from now on."""
        self._fabric.slow_down(a, b, bytes_per_second)

    def speed_up(self) -> None:
        """No path is slow any more."""
        self._fabric.speed_up()

    def lose_responses(self, host: str, chance: float) -> None:
        """From now on, break a connection to this host instead of carrying what it answers, so often: its peer never
        learns that the request took effect. 0 ends it."""
        self._fabric.lose_responses(host, chance)

    def reset(self, a: str, b: str) -> None:
        """Break all connections between two hosts; both ends learn it when they next use them."""
        self._fabric.note("reset", a, b)
        for link in self._fabric.links(a, b) + self._fabric.links(b, a):
            link.reset_by_fault()

    def crash(self, host: str, *, silently: bool = False) -> None:
        """End all that a host has open. Its peers see a reset, or nothing if `silently` (half-open)."""
        self._fabric.note("crash", host, silently)
        for address in [address for address in self._fabric.listeners if address[0] == host]:
            self._fabric.listeners[address].close()
        for link in self._fabric.links(host):
            if silently:
                link.vanish()
            else:
                link.abort()


class SimListener:
    """Implements `headrace.runtime.network.Listener`."""

    def __init__(
        self, fabric: NetworkFabric, address: tuple[str, int], accept: Callable[[ByteStream], None], backlog: int
    ) -> None:
        self.address = address
        self._fabric = fabric
        self._accept = accept
        self._backlog = backlog
        self._waiting: deque[SimByteStream] = deque()
        self._callers: list[asyncio.Future[None]] = []  # whose handshake waits for room in the backlog
        self._context = copy_context()  # of the host that listens, not of those that call
        self._paused = False

    async def room(self) -> None:
        """Return when the backlog has room; raise if nobody listens any more."""
        while len(self._waiting) >= self._backlog:
            accepted: asyncio.Future[None] = self._fabric.loop.create_future()
            self._callers.append(accepted)
            await accepted
        if self._fabric.listeners.get(self.address) is not self:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    def offer(self, link: SimByteStream) -> None:
        self._waiting.append(link)
        self._fabric.loop.call_soon(self._accept_waiting, context=self._context)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._fabric.loop.call_soon(self._accept_waiting, context=self._context)

    def close(self) -> None:
        self._fabric.listeners.pop(self.address, None)
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
