"""The two ends of a simulated connection, and what flows between them.

Each direction is a `Stream`: bytes arrive in order, cut into pieces at random, each after a delay. What the
reader has not taken counts against the writer's window, so a slow reader stops the writer. A stream whose
path is cut holds its bytes until the path heals, and for a while more, as TCP's retransmission does; they may
arrive long after both sides gave up, and after what was sent later by another connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from headrace.runtime.disk import Buffer, File

if TYPE_CHECKING:
    from headrace.testkit.network import NetworkFabric

Callback = Callable[[], None]

FIN = object()
RESET = object()


class SimChannel:
    """One direction of a connection. `carries_responses`: from the one that was called to its caller."""

    def __init__(self, fabric: NetworkFabric, source: str, target: str, *, carries_responses: bool = False) -> None:
        self.source = source
        self.target = target
        self.carries_responses = carries_responses
        self.vanished = False  # nothing arrives any more, and nobody is told
        self._fabric = fabric
        self._wire: deque[object] = deque()  # under way
        self._waiting: deque[object] = deque()  # arrived where the path was cut
        self._in_window = 0  # bytes taken from the writer that the reader has not read
        self._last_arrival = 0.0
        self.reader: SimByteStream
        self.writer: SimByteStream

    @property
    def over(self) -> bool:
        return self.vanished or (self.reader.closed and self.writer.closed)

    def room(self) -> int:
        return self._fabric.window_bytes - self._in_window

    def take(self, data: bytes) -> None:
        if self.carries_responses and self._fabric.loses_response(self.source):
            self._fabric.note("lose answer", self.source, self.target)
            self.carry(RESET)
            self.writer.reset_by_fault()
            return
        self._in_window += len(data)
        taken = 0
        while taken < len(data):
            piece = data[taken : taken + self._fabric.piece_size(len(data) - taken)]
            taken += len(piece)
            self.carry(piece)

    def carry(self, piece: object) -> None:
        """Put a piece, the end or a reset on the wire; what is on the wire stays in order."""
        self._wire.append(piece)
        self._schedule(len(piece) if isinstance(piece, bytes) else 0)

    def release(self, size: int) -> None:
        self._in_window -= size
        self.writer.window_opened()

    def healed(self) -> None:
        """What waits goes on, in front of what was sent later and is still under way."""
        while self._waiting:
            self._wire.appendleft(self._waiting.pop())
            self._schedule(0)

    def _schedule(self, size: int) -> None:
        # A timer brings the next piece, whichever that is: timers of the same time have no order.
        self._last_arrival = self._fabric.arrival(self.source, self.target, size, self._last_arrival)
        self._fabric.loop.call_at(self._last_arrival, self._arrive, context=self._fabric.context)

    def _arrive(self) -> None:
        piece = self._wire.popleft()
        if self.vanished:
            return
        if self._waiting or self._fabric.is_cut(self.source, self.target):
            self._waiting.append(piece)
            return
        size = len(piece) if isinstance(piece, bytes) else 0
        self._fabric.note("arrive", self.reader.name, size)
        self.reader.arrived(piece)


class SimByteStream:
    """Implements `headrace.runtime.network.Link`."""

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
        # A socket closed with bytes unread resets, as the kernel's does: its peer must not think they were
        # read.
        self._end(RESET if self._unread else FIN)

    def abort(self) -> None:
        self._end(RESET)

    def reset_by_fault(self) -> None:
        """The connection was reset from outside."""
        if not self.closed:
            self._broken = True
            self._unread.clear()
            self._reading.poke()
            self._writing.poke()

    def vanish(self) -> None:
        """This end is gone without a word: what the peer sends is never answered."""
        self.closed = True
        self._inward.vanished = self._outward.vanished = True

    def arrived(self, piece: object) -> None:
        if piece is RESET:
            self.reset_by_fault()
        elif self.closed:
            if piece is not FIN:
                self._outward.carry(RESET)  # bytes for nobody
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
    """Calls back once per turn of the loop for as long as the condition holds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, condition: Callable[[], bool]) -> None:
        self._loop = loop
        self._condition = condition
        self._callback: Callback | None = None
        self._context: Context | None = None  # of the one who watches, not of the one whose bytes arrive
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
