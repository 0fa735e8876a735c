"""Finding records by time: the time index narrows it to a stretch of one segment, the batches tell exactly.

Reads log files, so the search runs in disk threads; the batch that is opened has its CRC checked first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import CorruptMessage, HeadraceError
from headrace.runtime.disk import File
from headrace.storage.config import MIB
from headrace.storage.errors import CorruptBatch
from headrace.storage.segments.scan import BadBatch, headers
from headrace.storage.segments.segment import Segment, find_batch
from headrace.wire.batches.batch import BatchHeader, check_crc, read_records

if TYPE_CHECKING:
    from headrace.storage.log.log import Log

RECORDS_BYTES_MAX = 64 * MIB  # of one batch when unpacked; a larger one is answered by its header


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class SearchRange(NamedTuple):
    """The offsets that may be answered, and how far the segment's file is valid."""

    start_offset: int
    end_offset: int
    limit: int


SearchSegment = Callable[[Segment, File, SearchRange], TimestampOffset | None]


async def find_first_at_or_after(log: Log, timestamp_ms: int, end_offset: int | None) -> TimestampOffset | None:
    def search(segment: Segment, file: File, search_range: SearchRange) -> TimestampOffset | None:
        return _first_in(segment, file, search_range, timestamp_ms)

    while True:
        segments = log.segments
        for segment in list(segments):
            if segment.max_timestamp >= timestamp_ms:
                found = await _search_segment(log, segment, end_offset, search)
                if found is not None:
                    return found
                if log.segments is not segments:
                    break  # segments were deleted or merged: the record may be in one that was skipped, so start over
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
    generation = log.generation
    search_range = SearchRange(log.start_offset, log.end_offset if end_offset is None else end_offset, segment.size)
    file = segment.open()
    file.pin()
    try:
        return await log.disk.run(search, segment, file, search_range)
    except (BadBatch, FileNotFoundError) as bad:
        if log.generation != generation or segment.dropped:
            return None
        if isinstance(bad, FileNotFoundError):
            raise
        report = log.quarantine(segment, bad, segment.base_offset)
        raise CorruptBatch(str(report)) from bad
    finally:
        file.unpin()


def _first_in(segment: Segment, file: File, search_range: SearchRange, timestamp_ms: int) -> TimestampOffset | None:
    # All batches before the one of the hint have smaller timestamps than it.
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


def _largest_in(segment: Segment, file: File, search_range: SearchRange) -> TimestampOffset | None:
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
    """Where the batch of a time index entry is; 0, where every search may begin, if an index is wrong."""
    timestamp, last_offset = entry[0], segment.base_offset + entry[1]
    try:
        position = find_batch(segment, file, last_offset, search_range.limit)
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
    except HeadraceError:  # too large when unpacked, or as its producer made it
        return [TimestampOffset(header.max_timestamp, header.base_offset)]
