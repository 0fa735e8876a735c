"""The gaps in the offsets of a segment, where compaction has removed batches, on this broker or on the leader.

No CRC covers the base offset of a batch. So a batch must begin exactly where the previous batch ends, or where a gap
ends; otherwise a flipped bit in an offset would look like a gap.

`CleanedGaps`, the file `<base>.gaps`: the gaps of a segment that compaction has cleaned. It is written with the
segment, and a segment without it is damaged.

    file    "HRGP" u16 version u32 crc (of all that follows)
            i64 base offset  i64 end offset  i64 following offset  u32 gaps  u32 markers
            ends: (i64 end offset of a batch)    starts: (i64 base offset of the next batch)    markers

`CopiedGaps`, the file `<base>.copied-gaps`: the gaps of a segment that was replicated from a compacted log. A gap is
appended before the batch that follows it, and both are synced before that batch counts as flushed. A gap whose batch
was lost or truncated is removed before another batch may be appended there. The first entry that is torn or not
ascending ends the list; a batch that needed it is then reported as damaged.

    entry   i64 end offset of a batch  i64 base offset of the next batch  u32 crc
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from struct import error as struct_error
from zlib import crc32

from headrace.runtime.disk import Disk, LazyFile

_HEAD = Struct(">4sHI")
_COUNTS = Struct(">qqqII")
_MAGIC, _VERSION = b"HRGP", 1
_OFFSET_BYTES = 8


class GapList:
    """The ends of the batches before each gap, and the starts of the batches after it; both ascending.

    The event loop is the only writer. Disk threads may read concurrently, for the part of the segment that they read.
    """

    __slots__ = ()

    _ends: array[int]
    _starts: array[int]

    def after(self, offset: int) -> int:
        """The base offset of the batch that follows a batch with end offset `offset`."""
        starts, ends = self._starts, self._ends  # in this order, so that there are never fewer starts than ends
        at = bisect_left(ends, offset)
        return starts[at] if at < len(ends) and ends[at] == offset else offset


class CleanedGaps(GapList):
    """The gaps of a cleaned segment.

    base_offset    of the segment; if the first batch begins later, there is a gap before it
    end_offset     of the last batch of the segment
    following      the base offset of the next segment
    markers        offsets of the abort markers that compaction removed, together with their transactions
    """

    __slots__ = ("_ends", "_starts", "base_offset", "end_offset", "following", "markers")

    def __init__(self, base_offset: int, following: int) -> None:
        self._ends, self._starts = array("q"), array("q")
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.following = following
        self.markers: array[int] = array("q")

    def add_batch(self, base_offset: int, next_offset: int) -> None:
        """Add the next batch that compaction keeps."""
        if base_offset != self.end_offset:
            self._ends.append(self.end_offset)
            self._starts.append(base_offset)
        self.end_offset = next_offset

    def after(self, offset: int) -> int:
        """As in `GapList`, but the last batch is followed by the next segment."""
        return self.following if offset == self.end_offset else super().after(offset)

    def cut(self, end_offset: int, following: int) -> CleanedGaps:
        """The gaps of the segment when it is truncated to `end_offset`, and the next segment begins at `following`."""
        shorter = CleanedGaps(self.base_offset, following)
        at = bisect_left(self._ends, end_offset)
        shorter._ends, shorter._starts = self._ends[:at], self._starts[:at]
        shorter.end_offset = end_offset
        shorter.markers = array("q", (marker for marker in self.markers if marker < following))
        return shorter

    def encode(self) -> bytes:
        counts = len(self._ends), len(self.markers)
        body = _COUNTS.pack(self.base_offset, self.end_offset, self.following, *counts)
        body += b"".join(map(_packed, (self._ends, self._starts, self.markers)))
        return _HEAD.pack(_MAGIC, _VERSION, crc32(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> CleanedGaps | None:
        """None if the bytes are damaged or incomplete."""
        try:
            magic, version, crc = _HEAD.unpack_from(data)
        except struct_error:
            return None
        if (magic, version) != (_MAGIC, _VERSION) or crc32(data[_HEAD.size :]) != crc:
            return None
        base_offset, end_offset, following, count, marker_count = _COUNTS.unpack_from(data, _HEAD.size)
        at = _HEAD.size + _COUNTS.size
        gaps = cls(base_offset, following)
        gaps.end_offset = end_offset
        gaps._ends = _unpacked(data, at, count)
        gaps._starts = _unpacked(data, at + count * _OFFSET_BYTES, count)
        gaps.markers = _unpacked(data, at + 2 * count * _OFFSET_BYTES, marker_count)
        return gaps


def read_gaps(disk: Disk, path: str, base_offset: int) -> CleanedGaps | None:
    """The gaps of a cleaned segment; None if they are missing or damaged. Blocks."""
    gaps = CleanedGaps.decode(disk.read(path)) if disk.exists(path) else None
    return gaps if gaps is not None and gaps.base_offset == base_offset else None


def _packed(values: array[int]) -> bytes:
    swapped = values[:]
    swapped.byteswap()
    return swapped.tobytes()


def _unpacked(data: bytes, at: int, count: int) -> array[int]:
    values: array[int] = array("q")
    values.frombytes(data[at : at + count * _OFFSET_BYTES])
    values.byteswap()
    return values


_PAIR = Struct(">qq")
_ENTRY = Struct(">16sI")


class CopiedGaps(GapList, LazyFile):
    __slots__ = ("_ends", "_starts", "unsynced")

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk, path)
        self._ends, self._starts = array("q"), array("q")
        self.unsynced = False  # whether the file has changed since it was last synced

    @classmethod
    def read(cls, disk: Disk, path: str) -> CopiedGaps:
        """Read the entries up to the first damaged one. Blocks."""
        gaps, data, last = cls(disk, path), disk.read(path), -1
        for pair, crc in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
            end_offset, base_offset = _PAIR.unpack(pair)
            if crc32(pair) != crc or not last < end_offset < base_offset:
                break
            gaps._starts.append(base_offset)
            gaps._ends.append(end_offset)
            last = base_offset
        return gaps

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, pairs: list[tuple[int, int]]) -> None:
        """Append gaps, each as (end of the batch before, start of the batch after); not yet durably.

        Raises DiskFull, in which case nothing was added, or DiskFailed.
        """
        packed = [_PAIR.pack(*pair) for pair in pairs]
        file = self.open(create=True)
        self.unsynced = True  # even if it fails: a part may have been written and then cut off in the page cache only
        file.append([b"".join(_ENTRY.pack(pair, crc32(pair)) for pair in packed)])
        self._starts.extend(start for _, start in pairs)  # starts first: see `after`
        self._ends.extend(end for end, _ in pairs)

    def take_back(self, count: int) -> None:
        """Remove the last gaps again, because the batches after them were not appended."""
        kept = len(self) - count
        self._ends, self._starts = self._ends[:kept], self._starts[:kept]
        self.unsynced = True
        self.open().truncate(kept * _ENTRY.size)

    def cut(self, end_offset: int) -> CopiedGaps:
        """The gaps of the segment when it is truncated to `end_offset`, not yet saved."""
        shorter = CopiedGaps(self._disk, self.path)
        kept = bisect_left(self._ends, end_offset)
        shorter._ends, shorter._starts = self._ends[:kept], self._starts[:kept]
        return shorter

    def save(self) -> None:
        """Make the file hold exactly these gaps, durably. Blocks.

        The whole file is rewritten: if a sync failed before a restart, the kernel treats its pages as clean.
        """
        file, size = self.open(), len(self) * _ENTRY.size
        if file.size() != size:
            file.truncate(size)
        file.pwrite(file.pread(size, 0), 0)
        file.sync()
