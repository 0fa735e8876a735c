"""One compaction pass over a log: keep the newest record of each key, or the records that are not settled.

- A pass runs in a worker process, on closed segments that do not change. It writes only drafts (see `swap`); the
  process of the broker decides whether they are used.
- Every batch has its CRC checked before it is decoded, and every draft is read back and checked, so that damage is
  neither copied nor hidden.
- Memory is bounded: the offset map, one batch with its records, one number for each recent producer, the gaps of one
  segment. When the map is full, the pass ends there, and the next pass continues.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.runtime.disk import Disk, DiskFailed, File, IoPace
from headrace.storage.compaction.batch_cleaning import (
    AbortedTransactions,
    CleaningRules,
    CompactionRules,
    SettledCleaningRules,
    unpack_records,
)
from headrace.storage.compaction.offset_map import OffsetMap
from headrace.storage.compaction.swap import DRAFTS, CompactionManifest, SegmentGroup, remove_drafts
from headrace.storage.config import MIB, LogConfig
from headrace.storage.log.checkpoint import SegmentCheckpoint
from headrace.storage.segments.gaps import CleanedGaps
from headrace.storage.segments.scan import BadBatch, check_batch, check_frame, checked_batches, headers
from headrace.storage.segments.segment import GAPS, RELATIVE_OFFSET_MAX, Segment
from headrace.wire.batches.batch import HEADER_SIZE, BatchHeader, parse_header

if TYPE_CHECKING:
    from headrace.machines.queues.settled_offsets import SettledOffsets

CHUNK_BYTES = MIB
SIZE_BYTES_MAX = (1 << 31) - 1  # the largest position that fits into an index entry


class DamagedSegment(Exception):
    """The segment that begins at `base_offset` is damaged."""

    def __init__(self, base_offset: int, position: int, reason: str) -> None:
        super().__init__(base_offset, position, reason)
        self.base_offset = base_offset
        self.position = position
        self.reason = reason


class SourceSegment(NamedTuple):
    mark: SegmentCheckpoint
    end_offset: int  # the base offset of the next one
    expected_bytes: int  # about how many the pass will keep


class SettledBitmap(msgspec.Struct, frozen=True):
    """Settled offsets: all below the ack floor, and those in a portable 64-bit roaring bitmap."""

    floor: int
    above: bytes = b""

    def offsets(self) -> SettledOffsets:
        from headrace.machines.queues.settled_offsets import SettledOffsets  # loaded with the first subscription

        offsets = SettledOffsets(self.floor)
        if self.above:
            offsets.add_slice(self.above)
        return offsets


class CompactionJob(msgspec.Struct, frozen=True):
    """The input of a pass; plain data, because it is sent to another process."""

    folder: str
    sources: tuple[SourceSegment, ...]
    dirty_offset: int  # an earlier pass has cleaned everything below
    aborted: tuple[AbortedTransaction, ...]
    config: LogConfig
    now_ms: int
    keeps_last: bool  # the log ends with these segments
    map_bytes: int
    producer_ids: frozenset[int]  # of the producers that the broker remembers
    settled: SettledBitmap | None = None


class CompactionResult(NamedTuple):
    manifest: CompactionManifest
    records_read: int
    records_kept: int
    bytes_read: int
    bytes_written: int


def compact(disk: Disk, pace: IoPace, job: CompactionJob) -> CompactionResult:
    """Write drafts of the cleaned segments, durably. The result says which segments they replace."""
    remove_drafts(disk, job.folder)
    disk.make_directory(f"{job.folder}/{DRAFTS}")
    outcome = _CompactionPass(disk, pace, job).run()
    disk.sync_directory(f"{job.folder}/{DRAFTS}")
    return outcome


class _CompactionPass:
    def __init__(self, disk: Disk, pace: IoPace, job: CompactionJob) -> None:
        self._disk = disk
        self._pace = pace
        self._job = job
        self._aborted = AbortedTransactions(job.aborted)
        self._bytes_read = 0
        self._bytes_written = 0
        self._records_read = 0

    def run(self) -> CompactionResult:
        job = self._job
        rules: CleaningRules
        last_batches, end_offset, cleaned_offset = self._last_batches(), job.sources[-1].end_offset, 0
        if job.settled is not None:
            rules = SettledCleaningRules(last_batches, settled=job.settled.offsets())
        else:
            newest, end_offset = self._newest()
            cleaned_offset = end_offset  # the log is clean below
            rules = CompactionRules(
                last_batches,
                newest=newest,
                end_offset=end_offset,
                aborted=self._aborted,
                now_ms=job.now_ms,
                delete_retention_ms=job.config.delete_retention_ms,
            )
        if job.keeps_last:
            rules.last_offset = job.sources[-1].end_offset - 1
        groups, replaced_to = [], 0
        for sources in self._grouped(end_offset):
            group = self._clean(sources, rules)
            if group is not None:
                groups.append(group)
                replaced_to = sources[-1].end_offset
        manifest = CompactionManifest(groups, cleaned_offset, replaced_to)
        return CompactionResult(manifest, self._records_read, rules.records_kept, self._bytes_read, self._bytes_written)

    def _last_batches(self) -> dict[int, int]:
        """The last batch of each producer that the broker remembers, or its last marker if it has no batch."""
        job = self._job
        batches: dict[int, int] = {}
        markers: dict[int, int] = {}
        for source in job.sources:
            with opened_segment(self._disk, job.folder, source.mark) as segment:
                for _, header in headers(segment.open(), 0, segment.size, segment.gaps):
                    if header.producer_id in job.producer_ids:
                        (markers if header.is_control else batches)[header.producer_id] = header.base_offset
        return markers | batches

    def _newest(self) -> tuple[OffsetMap, int]:
        """The newest record of every key in the dirty part, as far as the map has room, and the end of that part."""
        job = self._job
        newest = OffsetMap(job.map_bytes)
        for source in job.sources:
            if source.end_offset <= job.dirty_offset:
                continue
            for batch, header in self._batches(source):
                if header.last_offset < job.dirty_offset or header.is_control or self._aborted.holds(header):
                    continue
                if not newest.has_room(header.record_count):
                    return newest, header.base_offset
                unpacked = unpack_records(batch, header)
                if unpacked is None:
                    continue
                base_offset = header.base_offset
                for _, _, delta, key, _ in unpacked[1]:
                    if key is not None:
                        newest.put(key, base_offset + delta)
        return newest, job.sources[-1].end_offset

    def _grouped(self, end_offset: int) -> Iterator[list[SourceSegment]]:
        """Neighbouring segments that fit into one, and into the limits of an index even if they lose no records."""
        config = self._job.config
        group: list[SourceSegment] = []
        expected_bytes = size_bytes = index_bytes = 0
        for source in self._job.sources:
            mark = source.mark
            if mark.base_offset >= end_offset:
                break
            expected_bytes += source.expected_bytes
            size_bytes += mark.size
            index_bytes += mark.index_entries * 8
            if group and (
                mark.base_offset != group[-1].end_offset
                or expected_bytes > config.segment_bytes
                or size_bytes > SIZE_BYTES_MAX
                or index_bytes > config.index_bytes_max
                or source.end_offset - 1 - group[0].mark.base_offset > RELATIVE_OFFSET_MAX
            ):
                yield group
                group = []
                expected_bytes, size_bytes, index_bytes = source.expected_bytes, mark.size, mark.index_entries * 8
            group.append(source)
        if group:
            yield group

    def _clean(self, sources: list[SourceSegment], rules: CleaningRules) -> SegmentGroup | None:
        """Write one cleaned segment; None if a single segment would not change."""
        base_offset = sources[0].mark.base_offset
        draft = Segment(self._disk, f"{self._job.folder}/{DRAFTS}", base_offset)
        draft.created_ms = max(source.mark.created_ms for source in sources)
        gaps = CleanedGaps(base_offset, sources[-1].end_offset)
        writer = _DraftWriter(draft.open(create=True), self._pace)
        aborts_before, is_changed = len(rules.dropped_aborts), len(sources) > 1
        for source in sources:
            for batch, header in self._batches(source):
                self._records_read += header.record_count
                cleaned = rules.clean(batch, header)
                is_changed = is_changed or cleaned is not batch
                if cleaned is not None:
                    gaps.add_batch(header.base_offset, header.next_offset)
                    writer.write(cleaned)
        if not is_changed:
            draft.close()
            self._disk.remove(draft.path)
            return None
        writer.flush()
        gaps.markers = array("q", rules.dropped_aborts[aborts_before:])
        self._bytes_written += writer.size_bytes
        self._finish(draft, gaps, writer.size_bytes)
        return SegmentGroup([source.mark.base_offset for source in sources], SegmentCheckpoint.of(draft))

    def _finish(self, draft: Segment, gaps: CleanedGaps, size_bytes: int) -> None:
        """Read the draft back, build its indexes on the way, and make all four files durable."""
        draft.gaps = gaps
        replayed_to = draft.base_offset
        try:
            for position, header in checked_batches(draft.open(), 0, size_bytes, draft.base_offset, gaps):
                draft.add_batch(header, header.last_offset, position, self._job.config.index_interval_bytes)
                replayed_to = header.next_offset
        except BadBatch as bad:
            raise DiskFailed(f"read back {draft.path} at byte {bad.position}: {bad.reason}") from bad
        assert (draft.size, replayed_to) == (size_bytes, gaps.end_offset)
        draft.index_time()
        for index in draft.indexes:
            index.save()
            index.open(create=True).sync()
        sidecar = self._disk.open(draft.path_of(GAPS), create=True)
        sidecar.append([gaps.encode()])
        sidecar.sync()
        sidecar.close()
        draft.close()

    def _batches(self, source: SourceSegment) -> Iterator[tuple[bytes, BatchHeader]]:
        """Every batch of the segment, with its CRC checked."""
        for batch, header in read_segment(self._disk, self._pace, self._job.folder, source.mark):
            self._bytes_read += len(batch)
            yield batch, header


class _DraftWriter:
    """Writes a draft in chunks and syncs each: one large sync would delay those of the broker."""

    def __init__(self, file: File, pace: IoPace) -> None:
        self._file = file
        self._pace = pace
        self._pending: list[bytes | bytearray] = []
        self._pending_bytes = 0
        self.size_bytes = 0

    def write(self, batch: bytes | bytearray) -> None:
        self._pending.append(batch)
        self._pending_bytes += len(batch)
        if self._pending_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        self._file.append(self._pending)
        self._pace(self._pending_bytes)
        self._file.sync()
        self.size_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0


@contextmanager
def opened_segment(disk: Disk, folder: str, mark: SegmentCheckpoint) -> Iterator[Segment]:
    """A segment that is read in a worker process. Raises DamagedSegment, also for a BadBatch within."""
    segment = mark.segment(disk, folder)
    try:
        if mark.has_gaps:
            segment.read_gaps()
            if segment.gaps is None:
                raise BadBatch(0, f"the gaps of {segment.path} are missing or damaged")
        yield segment
    except BadBatch as bad:
        raise DamagedSegment(segment.base_offset, bad.position, bad.reason) from bad
    finally:
        segment.close()


def read_segment(disk: Disk, pace: IoPace, folder: str, mark: SegmentCheckpoint) -> Iterator[tuple[bytes, BatchHeader]]:
    """The batches of a segment, checked; at most one chunk or one batch is in memory. Raises DamagedSegment."""
    if not mark.size:
        return  # there may be no file
    with opened_segment(disk, folder, mark) as segment:
        file, limit, next_offset, gaps = segment.open(), segment.size, segment.base_offset, segment.gaps
        position, wanted = 0, CHUNK_BYTES
        while position < limit:
            data = file.pread(min(wanted, limit - position), position)
            at = 0
            while (found := check_batch(data, at, position + at, limit - position - at, next_offset, gaps)) is not None:
                batch = data[at : at + found[0]]
                pace(len(batch))
                yield batch, parse_header(batch)
                at += found[0]
                next_offset = found[1]
            if at:
                wanted = CHUNK_BYTES
            elif len(data) < HEADER_SIZE:
                raise BadBatch(position, "the file ends inside a batch header")
            else:
                wanted, *_ = check_frame(data, 0, position, limit - position, next_offset, gaps)
                if file.size() < position + wanted:
                    raise BadBatch(position, "the file ends inside a batch")
            position += at
