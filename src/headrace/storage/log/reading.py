"""The results of `Log.read`, and lookups by timestamp.

- `LogSlice`: bytes that are trusted and in the page cache; they can go straight to a socket.
- `ColdRead`: a read that must wait for the disk. Disk threads check the CRC of every batch before it is returned, which
  is also how bytes found at start become trusted.
- A lookup by timestamp uses the time index to select a range of one segment, then reads the batches there. Disk threads
  run it; a batch has its CRC checked before it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import CorruptMessage, HeadraceError, NotLeader
from headrace.runtime.disk import File
from headrace.storage.config import MIB
from headrace.storage.segments.scan import BadBatch, check_batch, check_frame, headers
from headrace.storage.segments.segment import Segment
from headrace.wire.batches.batch import HEADER_SIZE, BatchHeader, check_crc, read_records

if TYPE_CHECKING:
    from headrace.storage.log.log import Log


class LogSlice:
    """Whole batches in a segment's file, which stays pinned until `release`, even if the segment is deleted.

    An empty slice has no file.
    """

    __slots__ = ("_held", "file", "next_offset", "position", "size")

    file: File

    def __init__(self, file: File | None, position: int, size: int, next_offset: int) -> None:
        self.position = position
        self.size = size
        self.next_offset = next_offset  # of the batch after this slice
        self._held = file is not None
        if file is not None:
            self.file = file
            file.pin()

    def __len__(self) -> int:
        return self.size

    def bytes(self) -> bytes:
        return self.file.pread(self.size, self.position) if self.size else b""

    def release(self) -> None:
        if self._held:
            self._held = False
            self.file.unpin()


class ReadSpec(NamedTuple):
    """The arguments of a read; the position is None if it is unknown."""

    segment: Segment
    offset: int
    position: int | None
    size_bytes_max: int
    end_offset: int


class ColdRead:
    """A read that must wait for the disk. Call `load` once; then `next_offset` is that of the batch after it."""

    __slots__ = ("_generation", "_log", "next_offset", "wanted")

    def __init__(self, log: Log, wanted: ReadSpec) -> None:
        self._log = log
        self._generation = log.generation
        self.wanted = wanted
        self.next_offset = wanted.offset

    @property
    def size_bytes_max(self) -> int:
        """The most that `load` returns, unless the first batch alone is larger."""
        return self.wanted.size_bytes_max

    async def load(self) -> bytes:
        """Whole batches, at least one, every CRC checked. Empty only if there is nothing but a gap below the end
        offset; `next_offset` is the end of the gap then.

        If the segment was compacted or deleted meanwhile, the read starts over. Raises CorruptBatch, OffsetOutOfRange
        if the offset was deleted, and NotLeader if the log was truncated or closed: only followers truncate, and
        the offset may now belong to a different history.
        """
        log, wanted = self._log, self.wanted
        while True:
            log.ensure_readable()
            if log.generation != self._generation:
                raise NotLeader(f"the log {log.folder} was truncated or closed while it was read; refresh the metadata")
            if not wanted.segment.dropped:
                found = await self._load(wanted)
                if found is not None:
                    self.next_offset = found.next_offset
                    return found.data
                continue
            again = log.read(wanted.offset, wanted.size_bytes_max, wanted.end_offset)
            if isinstance(again, LogSlice):
                self.next_offset = again.next_offset
                try:
                    return again.bytes()
                finally:
                    again.release()
            wanted = again.wanted

    async def _load(self, wanted: ReadSpec) -> _LoadedBatches | None:
        """None if the segment was replaced, deleted or truncated meanwhile."""
        log, segment = self._log, wanted.segment
        found = await log.run_on_segment(
            _load, segment, wanted, log.config.index_interval_bytes, damaged_from=wanted.offset
        )
        if found is not None and log.generation == self._generation and not segment.dropped:
            end = found.position + len(found.data)
            segment.trust(found.position, end)
            log.positions.remember(found.next_offset, segment, end)
            if found.indexes is not None and segment is not log.active:
                segment.adopt_indexes(found.indexes)
        return found


class _LoadedBatches(NamedTuple):
    data: bytes
    position: int
    next_offset: int
    indexes: Segment | None  # rebuilt, because the old ones were wrong


def _load(file: File, segment: Segment, wanted: ReadSpec, index_interval_bytes: int) -> _LoadedBatches:
    """In a disk thread: find the batch, read from there, check every batch, and end after a whole one."""
    _, offset, position, size_bytes_max, end_offset = wanted
    limit, fresh = segment.size, None
    if position is None:
        try:
            position = segment.find_batch(file, offset, limit)
        except BadBatch:
            # Either the index or the log is damaged. A scan from the start of the segment raises BadBatch for the log,
            # or rebuilds the index.
            fresh = segment.rebuild_indexes(file, limit, index_interval_bytes)
            position = fresh.find_batch(file, offset, limit)
    data = _read_first_batch(file, position, limit, max(size_bytes_max, HEADER_SIZE))
    at, next_offset, expected = 0, offset, None
    while at < len(data) and next_offset < end_offset:
        found = check_batch(data, at, position + at, limit - position - at, expected, segment.gaps)
        if found is None:
            break
        if found[1] > end_offset:
            next_offset = end_offset  # a gap extends to the end of the range; this batch is beyond it
            break
        at += found[0]
        next_offset = expected = found[1]
        if next_offset <= offset:
            raise BadBatch(position, f"the batch ends before offset {offset}")
    return _LoadedBatches(data[:at], position, next_offset, fresh)


def _read_first_batch(file: File, position: int, limit: int, size_bytes: int) -> bytes:
    """Read at least the whole first batch."""
    data = file.pread(min(size_bytes, limit - position), position)
    if len(data) < HEADER_SIZE:
        raise BadBatch(position, "the file ends inside a batch header")
    first_bytes, *_ = check_frame(data, 0, position, limit - position, None)
    if first_bytes > len(data):
        data = file.pread(first_bytes, position)
    if first_bytes > len(data):
        raise BadBatch(position, "the file ends inside a batch")
    return data


RECORDS_BYTES_MAX = 64 * MIB  # of one uncompressed batch; for a larger one the header's timestamp is used


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class SearchRange(NamedTuple):
    """The range of offsets to search, and the valid size of the segment's file."""

    start_offset: int
    end_offset: int
    limit: int


SearchSegment = Callable[[File, Segment, SearchRange], TimestampOffset | None]


async def find_first_at_or_after(log: Log, timestamp_ms: int, end_offset: int | None) -> TimestampOffset | None:
    search = partial(_first_in, timestamp_ms=timestamp_ms)
    while True:
        segments = log.segments
        for segment in list(segments):
            if segment.max_timestamp >= timestamp_ms:
                found = await _search_segment(log, segment, end_offset, search)
                if found is not None:
                    return found
                if log.segments is not segments:
                    break  # segments were deleted or merged, so the record may be in one that was skipped: start over
        else:
            return None


async def find_largest(log: Log, end_offset: int | None) -> TimestampOffset | None:
    segments = log.segments
    best: TimestampOffset | None = None
    for segment in sorted(segments, key=lambda segment: (-segment.max_timestamp, segment.base_offset)):
        if best is not None and best.timestamp >= segment.max_timestamp:
            break
        found = await _search_segment(log, segment, end_offset, _largest_in)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best if log.segments is segments else await find_largest(log, end_offset)


async def _search_segment(
    log: Log, segment: Segment, end_offset: int | None, search: SearchSegment
) -> TimestampOffset | None:
    log.ensure_readable()
    if segment not in log.segments or not segment.size:
        return None
    search_range = SearchRange(log.start_offset, log.end_offset if end_offset is None else end_offset, segment.size)
    return await log.run_on_segment(search, segment, search_range, damaged_from=segment.base_offset)


def _first_in(file: File, segment: Segment, search_range: SearchRange, timestamp_ms: int) -> TimestampOffset | None:
    # All batches before the one in the index entry have smaller timestamps.
    hint = segment.time_index.floor(timestamp_ms)
    position = _position_of(segment, file, search_range, hint) if hint else 0
    for at, header in headers(file, position, search_range.limit, segment.gaps):
        if header.base_offset >= search_range.end_offset:
            return None
        if header.max_timestamp < timestamp_ms or header.last_offset < search_range.start_offset:
            continue
        for found in _record_timestamps(file, at, header):
            if found.timestamp >= timestamp_ms and search_range.start_offset <= found.offset < search_range.end_offset:
                return found
    return None


def _largest_in(file: File, segment: Segment, search_range: SearchRange) -> TimestampOffset | None:
    whole = segment.base_offset >= search_range.start_offset and segment.max_timestamp_offset < search_range.end_offset
    newest = segment.max_timestamp, segment.max_timestamp_offset - segment.base_offset
    position = _position_of(segment, file, search_range, newest) if whole else 0
    best: tuple[int, BatchHeader] | None = None
    for at, header in headers(file, position, search_range.limit, segment.gaps):
        if header.base_offset >= search_range.end_offset:
            break
        if header.last_offset < search_range.start_offset or not header.record_count:
            continue
        if best is None or header.max_timestamp > best[1].max_timestamp:
            best = at, header
            if whole and header.max_timestamp == segment.max_timestamp:
                break
    if best is None:
        return None
    records = [found for found in _record_timestamps(file, *best) if found.offset >= search_range.start_offset]
    return max(records, key=lambda found: (found.timestamp, -found.offset)) if records else None


def _position_of(segment: Segment, file: File, search_range: SearchRange, entry: tuple[int, int]) -> int:
    """The position of a time index entry's batch; if an index is wrong, 0, from which every search is correct."""
    timestamp, last_offset = entry[0], segment.base_offset + entry[1]
    try:
        position = segment.find_batch(file, last_offset, search_range.limit)
        _, header = next(headers(file, position, search_range.limit, segment.gaps))
    except BadBatch:
        return 0
    return position if (header.max_timestamp, header.last_offset) == (timestamp, last_offset) else 0


def _record_timestamps(file: File, position: int, header: BatchHeader) -> list[TimestampOffset]:
    data = memoryview(file.pread(header.size_bytes, position))
    try:
        check_crc(data, header)
    except CorruptMessage as error:
        raise BadBatch(position, str(error), header.base_offset) from error
    try:
        return [
            TimestampOffset(record.timestamp_ms, record.offset)
            for record in read_records(data, header, RECORDS_BYTES_MAX)
        ]
    except HeadraceError:  # too large when uncompressed, or malformed by its producer
        return [TimestampOffset(header.max_timestamp, header.base_offset)]
