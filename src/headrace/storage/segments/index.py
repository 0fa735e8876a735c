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

from headrace.runtime.disk import Disk, File

IndexEntry = tuple[int, int]


class NotInPageCache(Exception):
    """The bytes are not in the page cache: read them in a disk thread."""


class SparseIndex:
    """The event loop is the only writer; disk threads may search concurrently."""

    __slots__ = ("_disk", "_file", "_firsts", "_seconds", "path", "saved", "unsynced")

    ENTRY: ClassVar[Struct]
    FIRST_TYPE: ClassVar[str]

    def __init__(self, disk: Disk, path: str, saved: int = 0) -> None:
        self._disk = disk
        self._file: File | None = None
        self._firsts: array[int] | None = None  # no arrays for the many logs that are not written to
        self._seconds: array[int] | None = None
        self.path = path
        self.saved = saved
        self.unsynced = False  # whether the file has changed since it was last synced

    def __len__(self) -> int:
        return self.saved + (len(self._firsts) if self._firsts is not None else 0)

    @property
    def size_bytes(self) -> int:
        return len(self) * self.ENTRY.size

    def append(self, first: int, second: int) -> None:
        if self._firsts is None or self._seconds is None:
            self._firsts, self._seconds = array(self.FIRST_TYPE), array("i")
        self._seconds.append(second)  # before `_firsts`, from which a searching thread takes the length
        self._firsts.append(first)

    def floor(self, value: int, *, column: int = 0, hot: bool = False) -> IndexEntry | None:
        """The last entry whose column is at or below `value`.

        With `hot`, raises NotInPageCache instead of waiting for the disk.
        """
        firsts, seconds = self._firsts, self._seconds
        if firsts and seconds:
            tail = seconds if column else firsts
            at = bisect_right(tail, value, 0, len(firsts)) - 1
            if at >= 0:
                return firsts[at], seconds[at]
        return self._floor_saved(value, column, hot)

    def save(self) -> bool:
        """Move the tail to the file, not yet durably. False if the tail is empty."""
        firsts, seconds = self._firsts, self._seconds
        if not firsts or not seconds:
            return False
        pack = self.ENTRY.pack
        data = b"".join(map(pack, firsts, seconds))
        self.file(create=True).pwrite(data, self.saved * self.ENTRY.size)
        self.unsynced = True
        self.saved += len(firsts)
        self._firsts = self._seconds = None
        return True

    def reset(self, count: int) -> None:
        """Keep only the first `count` entries."""
        if count <= self.saved:
            self._firsts = self._seconds = None
            self.saved = count
            if count or self._disk.exists(self.path):
                self.file().truncate(count * self.ENTRY.size)
                self.unsynced = True
        elif self._firsts is not None and self._seconds is not None:
            del self._firsts[count - self.saved :], self._seconds[count - self.saved :]

    def file_fits(self) -> bool:
        """Whether the file has exactly the size of the saved entries."""
        if not self._disk.exists(self.path):
            return self.saved == 0
        return self.file().size() == self.saved * self.ENTRY.size

    def file(self, *, create: bool = False) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, create=create)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

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
        if number >= self.saved:
            assert self._firsts is not None
            assert self._seconds is not None
            return self._firsts[number - self.saved], self._seconds[number - self.saved]
        size = self.ENTRY.size
        file = self.file()
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
