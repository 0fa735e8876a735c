"""Cuts the byte stream of one connection into frames, taking memory only for bytes that have arrived.

A frame is an int32 length and that many bytes. Whole frames that lie in the shared scratch buffer are served in
place; only an unfinished frame gets a buffer of its own. That buffer grows with what was received, not with what was
announced, so a length of 100 MB that is never followed by its bytes costs nothing; only a connection whose last frame
really came is given as much at once for the next, which saves copying. Growth is asked of the door's byte
budget first; when that is spent, reading stops until somebody gives back.

A frame's bytes are valid only during the call of `serve`: they are overwritten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from headrace.doors.kafka.budget import ByteBudget
from headrace.model.errors import MalformedFrame

# Serves one frame; False stops the cutting until `resume`.
Serve = Callable[[memoryview], bool]

_LENGTH = Struct(">i")
_SIZE_BYTES_MIN = 8  # api key, version, correlation id
_GROWTH = 4
_CAPACITY_FIRST = 65_536


class FrameReader:
    """The receiving half of a connection. Knows no socket: it says where bytes belong and is told how many came."""

    __slots__ = ("_budget", "_buffer", "_filled", "_first", "_rest", "_scratch", "_size_bytes_max", "_wanted")

    def __init__(self, scratch: memoryview, budget: ByteBudget, size_bytes_max: int) -> None:
        self._scratch = scratch
        self._budget = budget
        self._size_bytes_max = size_bytes_max
        # Not yet cut: part of a length, or what follows the frame at which serving stopped. Writable, like all frames:
        # the log stamps a batch where it lies.
        self._rest = bytearray()
        self._buffer: bytearray | None = None  # the unfinished frame, without its length
        self._filled = 0
        self._wanted = 0
        self._first = _CAPACITY_FIRST  # how much an unfinished frame gets at first: as much as the last one turned out

    @property
    def unfinished(self) -> bool:
        """Whether the peer owes us the rest of something that it began."""
        return self._buffer is not None or bool(self._rest)

    def room(self) -> memoryview | None:
        """Where the next bytes belong, or None while the budget has no room for them."""
        buffer = self._buffer
        if buffer is None:
            return self._scratch
        if self._filled == len(buffer):
            capacity = min(self._wanted, len(buffer) * _GROWTH)
            if not self._budget.has_room(capacity - len(buffer), self):
                return None
            buffer = self._move_to(capacity, memoryview(buffer))
        return memoryview(buffer)[self._filled : self._wanted]

    def received(self, count: int, serve: Serve) -> bool:
        """Serve every frame that `count` more bytes have completed. False: serving stopped, call `resume` later."""
        buffer = self._buffer
        if buffer is None:
            view = self._scratch[:count]
            if self._rest:
                view = memoryview(self._rest + view)
                self._rest = bytearray()
            return self._cut(view, serve)
        self._filled += count
        if self._filled < self._wanted:
            return True
        self._buffer = None
        self._first = max(self._wanted, _CAPACITY_FIRST)
        try:
            return serve(memoryview(buffer)[: self._wanted])
        finally:
            self._budget.finish(self, buffer)

    def resume(self, serve: Serve) -> bool:
        """Go on where serving stopped."""
        view = memoryview(self._rest)
        self._rest = bytearray()
        return self._cut(view, serve)

    def release(self) -> None:
        """The connection is over: give back what the unfinished frame holds."""
        if self._buffer is not None:
            self._budget.finish(self, self._buffer)
            self._buffer = None
        self._rest = bytearray()

    def _cut(self, view: memoryview, serve: Serve) -> bool:
        position, end = 0, len(view)
        while end - position >= 4:
            (size,) = _LENGTH.unpack_from(view, position)
            if not _SIZE_BYTES_MIN <= size <= self._size_bytes_max:
                raise MalformedFrame(
                    f"a frame of {size} bytes was announced; {_SIZE_BYTES_MIN} to {self._size_bytes_max} are accepted"
                )
            position += 4
            if end - position < size:
                self._begin_unfinished(view[position:end], size)
                return True
            position += size
            if not serve(view[position - size : position]):
                self._rest = bytearray(view[position:end])
                return False
        self._rest = bytearray(view[position:end])
        return True

    def _begin_unfinished(self, start: memoryview, size: int) -> None:
        self._wanted = size
        self._filled = len(start)
        capacity = min(size, max(self._first, self._filled * _GROWTH))
        if not self._budget.has_room(capacity, self):
            # These bytes have arrived and must lie somewhere, but no more than these.
            capacity = min(size, max(_CAPACITY_FIRST, self._filled))
        self._move_to(capacity, start)

    def _move_to(self, capacity: int, start: memoryview) -> bytearray:
        larger = self._budget.lend(capacity)
        larger[: self._filled] = start[: self._filled]
        if self._buffer is not None:
            self._budget.give_back(self._buffer)
        self._buffer = larger
        return larger
