"""The byte budget of all requests that are being received, and a pool of receive buffers.

Small requests fit into the shared scratch buffer and do not use the budget. A large request takes bytes from the budget
as they arrive. When the budget is exhausted, connections stop reading until a buffer is returned. Buffers are reused,
because the page faults of newly allocated memory cost more than processing the request.

Invariant: `taken` is the capacity of all lent buffers. It exceeds `size_bytes` by at most the first piece (64 KiB or
the bytes of a single read) per connection, since received bytes must be stored somewhere, and by one frame: the first
reader that finds the budget exhausted may exceed it. Otherwise incomplete frames that each hold a part of the budget
would deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_KEPT_BYTES_MAX = 32 << 20


class ByteBudget:
    __slots__ = ("_free_buffer_bytes", "_free_buffers", "_overdraft_reader", "_waiting", "size_bytes", "taken")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken = 0
        self._free_buffers: list[bytearray] = []
        self._free_buffer_bytes = 0
        self._overdraft_reader: object | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def take_buffer(self, capacity: int) -> bytearray:
        """Return a buffer of at least this capacity, with undefined content."""
        for index, buffer in enumerate(self._free_buffers):
            if capacity <= len(buffer) <= 4 * capacity:
                del self._free_buffers[index]
                self._free_buffer_bytes -= len(buffer)
                break
        else:
            buffer = bytearray(capacity)
        self.taken += len(buffer)
        return buffer

    def has_room(self, size_bytes: int, reader: object) -> bool:
        """Whether this reader's frame may grow by this size; if not, use `on_release` to retry."""
        if self.taken + size_bytes <= self.size_bytes:
            return True
        if self._overdraft_reader is None:
            self._overdraft_reader = reader
        return self._overdraft_reader is reader

    def finish(self, reader: object, buffer: bytearray) -> None:
        """Return the buffer of a frame that is complete or abandoned and will not grow further."""
        if self._overdraft_reader is reader:
            self._overdraft_reader = None
        self.give_back(buffer)

    def give_back(self, buffer: bytearray) -> None:
        self.taken -= len(buffer)
        assert self.taken >= 0
        if self._free_buffer_bytes + len(buffer) <= _KEPT_BYTES_MAX:
            self._free_buffers.append(buffer)
            self._free_buffer_bytes += len(buffer)
        # Notify all: each one retries, and waits again if there is still no room for it.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()

    def on_release(self, callback: Callable[[], None]) -> None:
        """Call back once after the next buffer has been returned; the caller then retries."""
        self._waiting.append(callback)
