"""Split the byte stream of a connection into frames, with memory only for bytes that have arrived.

A frame is an int32 length followed by that many bytes. Complete frames in the shared scratch buffer are served in
place; only an incomplete frame gets its own buffer. The buffer grows with the received bytes rather than the announced
length, so a length of 100 MB without data costs nothing. To save copies, a connection initially gets a buffer of the
size of its last complete frame. Growth requires room in the byte budget of the listener; when the budget is exhausted,
the connection stops reading until a buffer is returned.

The bytes of a frame are valid only during the call of `serve`; they are overwritten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from headrace.model.errors import MalformedFrame
from headrace.protocols.kafka.byte_budget import ByteBudget

# Serves one frame; False stops the reader until `resume`.
ServeFrame = Callable[[memoryview], bool]

_LENGTH = Struct(">i")
_SIZE_BYTES_MIN = 8  # api key, version, correlation id
_GROWTH = 4
_CAPACITY_FIRST = 65_536


class RequestFrameReader:
    """The receiving half of a connection, independent of sockets: it provides a buffer, and its caller reports how many
    bytes were received."""

    __slots__ = ("_budget", "_buffer", "_filled", "_first", "_rest", "_scratch", "_size_bytes_max", "_wanted")

    def __init__(self, scratch: memoryview, budget: ByteBudget, size_bytes_max: int) -> None:
        self._scratch = scratch
        self._budget = budget
        self._size_bytes_max = size_bytes_max
        # Unparsed bytes: part of a length, or the bytes after the frame at which serving stopped. Writable like all
        # frames, because the log updates the batch header in place.
        self._rest = bytearray()
        self._buffer: bytearray | None = None  # the incomplete frame, without its length
        self._filled = 0
        self._wanted = 0
        self._first = _CAPACITY_FIRST  # initial capacity of an incomplete frame: the size of the last one

    @property
    def unfinished(self) -> bool:
        """Whether a frame is incomplete."""
        return self._buffer is not None or bool(self._rest)

    def room(self) -> memoryview | None:
        """Return the buffer for the next bytes, or None while the budget has no room."""
        buffer = self._buffer
        if buffer is None:
            return self._scratch
        if self._filled == len(buffer):
            capacity = min(self._wanted, len(buffer) * _GROWTH)
            if not self._budget.has_room(capacity - len(buffer), self):
                return None
            buffer = self._move_to(capacity, memoryview(buffer))
        return memoryview(buffer)[self._filled : self._wanted]

    def received(self, count: int, serve: ServeFrame) -> bool:
        """Serve all frames that `count` more bytes have completed. If it returns False, call `resume` later."""
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

    def resume(self, serve: ServeFrame) -> bool:
        """Continue at the frame where serving stopped."""
        view = memoryview(self._rest)
        self._rest = bytearray()
        return self._cut(view, serve)

    def release(self) -> None:
        """Return the buffer of an incomplete frame when the connection is closed."""
        if self._buffer is not None:
            self._budget.finish(self, self._buffer)
            self._buffer = None
        self._rest = bytearray()

    def _cut(self, view: memoryview, serve: ServeFrame) -> bool:
        position, end = 0, len(view)
        while end - position >= 4:
            (size,) = _LENGTH.unpack_from(view, position)
            if not _SIZE_BYTES_MIN <= size <= self._size_bytes_max:
                raise MalformedFrame(
                    f"invalid frame length {size}; it must be from {_SIZE_BYTES_MIN} to {self._size_bytes_max} bytes"
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
            # Store the bytes that have already arrived, but allocate no more than that.
            capacity = min(size, max(_CAPACITY_FIRST, self._filled))
        self._move_to(capacity, start)

    def _move_to(self, capacity: int, start: memoryview) -> bytearray:
        larger = self._budget.take_buffer(capacity)
        larger[: self._filled] = start[: self._filled]
        if self._buffer is not None:
            self._budget.give_back(self._buffer)
        self._buffer = larger
        return larger
