"""One byte budget for all requests that are being received, and the warm buffers that they are received into.

Small requests lie whole in the shared scratch buffer and cost nothing here. A large one takes its bytes from this
budget as they arrive, and whoever finds it spent stops reading until somebody gives back. Buffers are kept and lent
again, because the first touch of fresh memory costs more than all the work that is done on it.

Invariant: `taken` is the capacity of all buffers on loan. It exceeds `size_bytes` by at most one first piece (64 KiB or
what a single read brought) per connection, since bytes that have arrived must lie somewhere, and by one frame: whoever
finds the budget spent first may overdraw it, or frames that each hold a part of it would wait for each other for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_KEPT_BYTES_MAX = 32 << 20


class ByteBudget:
    __slots__ = ("_kept", "_kept_bytes", "_overdrawn_by", "_waiting", "size_bytes", "taken")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.taken = 0
        self._kept: list[bytearray] = []
        self._kept_bytes = 0
        self._overdrawn_by: object | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def lend(self, capacity: int) -> bytearray:
        """A buffer of at least this capacity; its old content is garbage."""
        for index, buffer in enumerate(self._kept):
            if capacity <= len(buffer) <= 4 * capacity:
                del self._kept[index]
                self._kept_bytes -= len(buffer)
                break
        else:
            buffer = bytearray(capacity)
        self.taken += len(buffer)
        return buffer

    def has_room(self, size_bytes: int, reader: object) -> bool:
        """Whether this reader's frame may grow by so much; if not, `when_released` tells when to ask again."""
        if self.taken + size_bytes <= self.size_bytes:
            return True
        if self._overdrawn_by is None:
            self._overdrawn_by = reader
        return self._overdrawn_by is reader

    def finish(self, reader: object, buffer: bytearray) -> None:
        """The reader's frame is complete or given up: it will not grow any more."""
        if self._overdrawn_by is reader:
            self._overdrawn_by = None
        self.give_back(buffer)

    def give_back(self, buffer: bytearray) -> None:
        self.taken -= len(buffer)
        assert self.taken >= 0
        if self._kept_bytes + len(buffer) <= _KEPT_BYTES_MAX:
            self._kept.append(buffer)
            self._kept_bytes += len(buffer)
        # All are told: each asks again and waits again if it is still too early for it.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()

    def when_released(self, callback: Callable[[], None]) -> None:
        """Call back once, when somebody has given back; the caller then asks again."""
        self._waiting.append(callback)
