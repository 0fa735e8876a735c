"""One segment of a log: consecutive batches in one append-only file, with its indexes.

- A segment that compaction has cleaned has gaps between its batches, is never appended to, and may be empty. A segment
  that was replicated from a compacted log has gaps too, but it ends with a batch and can be appended to.
- Trust: bytes that this process wrote (from `written_from` on) or has checked since it opened the file may be served
  without reading them. All other bytes have the CRC of their batches checked first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from headrace.runtime.disk import Disk, File, LazyFile
from headrace.storage.segments.gaps import CleanedGaps, CopiedGaps, GapList, read_gaps
from headrace.storage.segments.index import NotInPageCache, OffsetIndex, TimeIndex
from headrace.storage.segments.scan import BadBatch, headers
from headrace.wire.batches.batch import BatchHeader


class ByteRanges:
    """A set of disjoint half-open byte ranges, stored as one sorted list [start, end, start, end, ...]."""

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        self._bounds: list[int] = []

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        # An odd index in the list is inside a range, which then absorbs the new bound.
        left, right = bisect_left(self._bounds, start), bisect_right(self._bounds, end)
        bounds = [] if left % 2 else [start]
        if right % 2 == 0:
            bounds.append(end)
        self._bounds[left:right] = bounds

    def cut(self, limit: int) -> None:
        """Remove everything from `limit` on."""
        left = bisect_left(self._bounds, limit)
        self._bounds[left:] = [limit] if left % 2 else []

    def covers(self, start: int, end: int) -> bool:
        right = bisect_right(self._bounds, start)
        return right % 2 == 1 and self._bounds[right] >= end

    def first_gap(self, limit: int) -> tuple[int, int] | None:
        """The first range below `limit` that the set does not cover."""
        bounds = self._bounds
        if bounds and bounds[0] == 0:
            start, end = bounds[1], bounds[2] if len(bounds) > 2 else limit
        else:
            start, end = 0, bounds[0] if bounds else limit
        end = min(end, limit)
        return (start, end) if start < end else None


NO_TIMESTAMP = -1
NEVER_SYNCED = -1
NAME_DIGITS = 20
RELATIVE_OFFSET_MAX = (1 << 31) - 1  # the largest relative offset that fits into an index entry
LOG, INDEX, TIME_INDEX, GAPS, COPIED_GAPS = ".log", ".index", ".timeindex", ".gaps", ".copied-gaps"
CLEANED_SUFFIXES = (LOG, INDEX, TIME_INDEX, GAPS)
SUFFIXES = (*CLEANED_SUFFIXES, COPIED_GAPS)
DELETED = ".deleted"  # suffix of a file that is about to be removed


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:0{NAME_DIGITS}d}{suffix}"


class Segment(LazyFile):
    """Batches [base_offset, base offset of the next segment) of one log."""

    __slots__ = (
        "base_offset",
        "bytes_since_entry",
        "checked",
        "created_ms",
        "dropped",
        "folder",
        "gaps",
        "index",
        "indexed_timestamp",
        "max_timestamp",
        "max_timestamp_offset",
        "size",
        "sync_requested",
        "time_index",
        "written_from",
    )

    def __init__(
        self, disk: Disk, folder: str, base_offset: int, *, index_entries: int = 0, time_entries: int = 0
    ) -> None:
        super().__init__(disk, f"{folder}/{file_name(base_offset, LOG)}")
        self.folder = folder
        self.base_offset = base_offset
        self.size = 0
        self.sync_requested = 0  # bytes that are covered by a requested sync; at most `size`
        self.created_ms = 0  # when the first batch was appended
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = NO_TIMESTAMP
        self.indexed_timestamp = NO_TIMESTAMP  # of the last entry of the time index
        self.bytes_since_entry = 0
        self.index = OffsetIndex(disk, self.path_of(INDEX), index_entries)
        self.time_index = TimeIndex(disk, self.path_of(TIME_INDEX), time_entries)
        self.written_from = 0
        self.checked: ByteRanges | None = None
        self.gaps: GapList | None = None
        self.dropped = False  # no longer part of its log: a read that waited for its bytes must start over

    @property
    def newest_ms(self) -> int:
        """The largest timestamp, or when the first batch was appended if no record has one."""
        return self.max_timestamp if self.max_timestamp != NO_TIMESTAMP else self.created_ms

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        return self.index, self.time_index

    @property
    def cleaned(self) -> CleanedGaps | None:
        """The gaps, if compaction has cleaned this segment."""
        return self.gaps if isinstance(self.gaps, CleanedGaps) else None

    @property
    def copied(self) -> CopiedGaps | None:
        """The gaps, if they were replicated with the batches."""
        return self.gaps if isinstance(self.gaps, CopiedGaps) else None

    @property
    def has_gaps(self) -> bool:
        """Whether recovery must find gaps. Copied gaps may have been removed again before any was durable."""
        return self.cleaned is not None or bool(self.copied)

    def add_batch(self, header: BatchHeader, last_offset: int, position: int, index_interval_bytes: int) -> None:
        """Add a batch that was appended or found at `position`, and index it sparsely, as Kafka does."""
        size = header.size_bytes
        self.size = position + size
        if header.max_timestamp > self.max_timestamp and header.record_count:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_entry > index_interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.index_time()
            self.bytes_since_entry = 0
        self.bytes_since_entry += size

    def index_time(self) -> None:
        """Add the largest timestamp to the time index, unless it is there or its relative offset is too large."""
        relative_offset = self.max_timestamp_offset - self.base_offset
        if self.max_timestamp > self.indexed_timestamp and relative_offset <= RELATIVE_OFFSET_MAX:
            self.indexed_timestamp = self.max_timestamp
            self.time_index.append(self.max_timestamp, relative_offset)

    def twin(self) -> Segment:
        """A segment with the same file, but without size, indexes and gaps."""
        return Segment(self._disk, self.folder, self.base_offset)

    def read_gaps(self) -> None:
        """Read the gaps of a segment that has some; they stay None if they are missing or damaged. Blocks."""
        if self._disk.exists(self.path_of(GAPS)):
            self.gaps = read_gaps(self._disk, self.path_of(GAPS), self.base_offset)
        elif self._disk.exists(self.path_of(COPIED_GAPS)):
            self.gaps = CopiedGaps.read(self._disk, self.path_of(COPIED_GAPS))

    def copy_gaps(self, pairs: list[tuple[int, int]]) -> CopiedGaps:
        """Record the gaps before batches that are about to be appended. Raises DiskFull or DiskFailed."""
        gaps = self.copied
        if gaps is None:  # an empty list still has its file open
            gaps = CopiedGaps(self._disk, self.path_of(COPIED_GAPS))
        gaps.add(pairs)
        self.gaps = gaps
        return gaps

    def adopt_indexes(self, fresh: Segment) -> None:
        """Replace the indexes by those of a twin that has scanned the file; they are still in memory only."""
        for index in self.indexes:
            index.reset(0)
            index.close()
        self.index, self.time_index = fresh.index, fresh.time_index
        self.indexed_timestamp = fresh.indexed_timestamp
        self.bytes_since_entry = fresh.bytes_since_entry

    def cut(self, twin: Segment) -> None:
        """Adopt the state of the twin, to which the file was cut."""
        self.size = twin.size
        if self.copied is not None:
            self.copied.close()
        self.gaps = twin.gaps
        self.sync_requested = 0
        self.max_timestamp, self.max_timestamp_offset = twin.max_timestamp, twin.max_timestamp_offset
        self.adopt_indexes(twin)
        self.written_from = min(self.written_from, self.size)
        if self.checked is not None:
            self.checked.cut(self.size)

    def ends_before(self, offset: int) -> bool:
        """Whether no batch of this segment holds or follows `offset`."""
        gaps = self.cleaned
        return gaps is not None and max(offset, self.base_offset) >= gaps.end_offset

    def trusts(self, start: int, end: int) -> bool:
        if start >= self.written_from:
            return True
        return self.checked is not None and self.checked.covers(start, min(end, self.written_from))

    def trust(self, start: int, end: int) -> None:
        """Record that the batches between these positions were checked."""
        if self.checked is None:
            self.checked = ByteRanges()
        self.checked.add(start, min(end, self.written_from))
        if self.checked.covers(0, self.written_from):
            self.written_from = 0
            self.checked = None

    def first_unchecked(self) -> tuple[int, int] | None:
        if self.checked is None:
            return (0, self.written_from) if self.written_from else None
        return self.checked.first_gap(self.written_from)

    def find_batch(self, file: File, offset: int, limit: int, *, hot: bool = False) -> int:
        """The position of the batch that holds `offset` or, if that is in a gap, of the next batch.

        Raises BadBatch if index and log disagree; with `hot`, raises NotInPageCache instead of waiting for the disk.
        """
        hint = self.index.floor(offset - self.base_offset, hot=hot)
        position = hint[1] if hint else 0
        for at, header in headers(file, position, limit, self.gaps, hot=hot):
            if hint and at == position and header.last_offset != self.base_offset + hint[0]:
                raise BadBatch(at, f"the index says that offset {self.base_offset + hint[0]} is here")
            if header.last_offset >= offset:
                return at
        if hot:
            raise NotInPageCache
        raise BadBatch(limit, f"the segment ends before offset {offset}")

    def find_slice_end(self, file: File, position: int, wanted: int, limit: int) -> tuple[int, int]:
        """The end of a slice that begins at `position`, and the offset of the batch there.

        The slice ends after the last batch that ends at or below `wanted`, or after the first. Raises NotInPageCache.
        """
        hint = self.index.floor(wanted, column=1, hot=True)
        start = hint[1] if hint and hint[1] > position else position
        end = next_offset = -1
        for at, header in headers(file, start, limit, self.gaps, hot=True):
            end, next_offset = at + header.size_bytes, header.next_offset
            if end > wanted and at > position:
                return at, header.base_offset
        if end < limit:
            raise NotInPageCache
        return end, next_offset

    def rebuild_indexes(self, file: File, limit: int, index_interval_bytes: int) -> Segment:
        """A twin of the segment with rebuilt indexes, in memory. Blocks; raises BadBatch."""
        twin = self.twin()
        for position, header in headers(file, 0, limit, self.gaps):
            twin.add_batch(header, header.last_offset, position, index_interval_bytes)
        twin.index_time()
        return twin

    def paths(self) -> tuple[str, ...]:
        return tuple(map(self.path_of, SUFFIXES))

    def close(self) -> None:
        super().close()
        if self.copied is not None:
            self.copied.close()
        for index in self.indexes:
            index.close()

    def path_of(self, suffix: str) -> str:
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"


PAGE_BYTES = 4096
POSITIONS_MAX = 64


class PositionIndex(dict[int, tuple[Segment, int]]):
    """The positions of recently read batches, so that a reader that continues after a slice needs no index lookup."""

    __slots__ = ()

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        if offset not in self and len(self) >= POSITIONS_MAX:
            del self[next(iter(self))]
        self[offset] = (segment, position)

    def forget(self, removed: list[Segment]) -> None:
        for offset in [offset for offset, (segment, _) in self.items() if segment in removed]:
            del self[offset]


def is_in_page_cache(file: File, position: int, limit: int) -> bool:
    """Whether the first and the last byte of the slice are in the page cache."""
    if file.pread_hot(1, limit - 1) is None:
        return False
    return limit - position <= PAGE_BYTES or file.pread_hot(1, position) is not None
