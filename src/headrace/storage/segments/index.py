"""Sparse indexes of a segment, in Kafka's file formats.

    .index      (i32 last offset of a batch - base, i32 position of that batch)
    .timeindex  (i64 largest timestamp so far, i32 last offset of the batch that has it - base)

- An index is a file of `saved` entries and a tail of newer entries in memory, which `save` moves to the file.
- Both columns are ascending, so either can be searched.
- Indexes are derived data: a lookup is only a hint where to begin scanning the log, and a damaged index is rebuilt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct
from typing import ClassVar

from headrace.runtime.disk import Disk, LazyFile

IndexEntry = tuple[int, int]


class NotInPageCache(Exception):
    """The bytes are not in the page cache: read them in a disk thread."""


class SparseIndex(LazyFile):
    """The event loop is the only writer; disk threads may search concurrently."""

    __slots__ = ("_tail", "saved", "unsynced")

    ENTRY: ClassVar[Struct]
    FIRST_TYPE: ClassVar[str]

    def __init__(self, disk: Disk, path: str, saved: int = 0) -> None:
        super().__init__(disk, path)
        self._tail: tuple[array[int], array[int]] | None = None  # no arrays for the many logs that are not written to
        self.saved = saved
        self.unsynced = False  # whether the file has changed since it was last synced

    def __len__(self) -> int:
        return self.saved + (len(self._tail[0]) if self._tail is not None else 0)

    @property
    def size_bytes(self) -> int:
        return len(self) * self.ENTRY.size

    def append(self, first: int, second: int) -> None:
        if self._tail is None:
            self._tail = array(self.FIRST_TYPE), array("i")
        self._tail[1].append(second)  # before the first column, from which a searching thread takes the length
        self._tail[0].append(first)

    def floor(self, value: int, *, column: int = 0, hot: bool = False) -> IndexEntry | None:
        """The last entry whose column is at or below `value`.

        With `hot`, raises NotInPageCache instead of waiting for the disk.
        """
        tail = self._tail
        if tail is not None:
            at = bisect_right(tail[column], value, 0, len(tail[0])) - 1
            if at >= 0:
                return tail[0][at], tail[1][at]
        return self._floor_saved(value, column, hot)

    def save(self) -> None:
        """Move the tail to the file, not yet durably."""
        if self._tail is not None:
            data = b"".join(map(self.ENTRY.pack, *self._tail))
            self.open(create=True).pwrite(data, self.saved * self.ENTRY.size)
            self.unsynced = True
            self.saved += len(self._tail[0])
            self._tail = None

    def reset(self, count: int) -> None:
        """Keep only the first `count` entries of the file."""
        self._tail = None
        self.saved = count
        if count or self._disk.exists(self.path):
            self.open().truncate(count * self.ENTRY.size)
            self.unsynced = True

    def file_fits(self) -> bool:
        """Whether the file has exactly the size of the saved entries."""
        if not self._disk.exists(self.path):
            return self.saved == 0
        return self.open().size() == self.saved * self.ENTRY.size

    def _floor_saved(self, value: int, column: int, hot: bool) -> IndexEntry | None:
        low, high = 0, self.saved
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle, hot)[column] <= value:
                low = middle + 1
            else:
                high = middle
        return self._entry(low - 1, hot) if low else None

    def _entry(self, number: int, hot: bool) -> IndexEntry:
        size = self.ENTRY.size
        file = self.open()
        data = file.pread_hot(size, number * size) if hot else file.pread(size, number * size)
        if data is None:
            raise NotInPageCache
        if len(data) < size:
            return 0, 0  # the file was cut by someone else: begin at the start of the segment
        first, second = self.ENTRY.unpack(data)
        return first, second


class OffsetIndex(SparseIndex):
    __slots__ = ()
    ENTRY = Struct(">ii")
    FIRST_TYPE = "i"


class TimeIndex(SparseIndex):
    __slots__ = ()
    ENTRY = Struct(">qi")
    FIRST_TYPE = "q"
