"""The log of one partition: segments of batches, appended at the end and read from any offset.

    start_offset <= flushed_offset <= end_offset

- Everything below `flushed_offset` is durable. Batches above it may be lost in a power failure, but are never torn.
- There is one writer. The event loop changes the state of a log in single steps without an `await`; blocking work runs
  in disk threads.
- Operations that remove data (`advance_start`, `truncate`, `reset`) return only when the removal is durable. They and
  `save_checkpoint` hold the maintenance lock, and run to completion if their caller is cancelled.
- A failed write or sync is never retried: the log has `failed`, accepts no more writes, and serves what it has.
- Damage to flushed data quarantines the log: it neither accepts nor serves batches, its files stay as they are, and the
  file `damaged` tells the next start where to look.

The parts of a log: `flusher` (group commit), `reading` (results of `read`), `recovery`, `retention`, `acked_retention`,
`checkpoint` (the small files beside the segments), `truncation` (the blocking steps of truncate and reset).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from headrace.model.errors import HeadraceError, OffsetOutOfRange, StorageFailure
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk, DiskFailed, DiskFull, File
from headrace.runtime.tasks import runs_to_completion
from headrace.storage.config import LogConfig
from headrace.storage.errors import CorruptBatch, CorruptionReport, LogDeleted, LogQuarantined
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log import reading, truncation
from headrace.storage.log.checkpoint import Checkpoint, SegmentCheckpoint
from headrace.storage.log.derived_state import DerivedState, forget_dropped_transactions
from headrace.storage.log.flusher import Flusher, PendingFlush, UnsyncedFiles
from headrace.storage.log.follower_batches import FollowerBatches, gaps_before
from headrace.storage.log.reading import ColdRead, LogSlice, ReadSpec, TimestampOffset
from headrace.storage.log.recovery import Recovery
from headrace.storage.segments.gaps import CopiedGaps
from headrace.storage.segments.index import NotInPageCache, SparseIndex
from headrace.storage.segments.scan import BadBatch, to_replayed_batch
from headrace.storage.segments.segment import (
    NEVER_SYNCED,
    RELATIVE_OFFSET_MAX,
    PositionIndex,
    Segment,
    is_in_page_cache,
)
from headrace.storage.store.flushed_offsets import FlushedSlot, LogKey
from headrace.wire.batches.batch import BatchHeader, assign_offset_and_epoch

__all__ = ["ColdRead", "Log", "LogConfig", "LogSlice", "TimestampOffset"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

POSITION_MAX = (1 << 31) - 1  # the largest position that fits into an index entry

_base_offset = attrgetter("base_offset")


class Log:
    __slots__ = (
        "_flushed_position",
        "_flushed_segment",
        "_now_ms",
        "_read_error",
        "_unsynced",
        "_write_error",
        "active",
        "checkpoint_offset",
        "checkpoint_seconds",
        "cleaned_offset",
        "clock",
        "committed_offset",
        "compactable_offset",
        "config",
        "disk",
        "end_offset",
        "enforces_retention",
        "epochs",
        "failed",
        "flushed_offset",
        "flusher",
        "folder",
        "generation",
        "key",
        "maintenance_lock",
        "on_failed",
        "on_flushed",
        "positions",
        "quarantined",
        "segments",
        "size_bytes",
        "slot",
        "start_offset",
        "state",
        "unsaved_bytes",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        key: LogKey,
        *,
        config: LogConfig,
        state: DerivedState,
        slot: FlushedSlot,
        flusher: Flusher,
        recovery: Recovery,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self._now_ms = clock.now_ms
        self.key = key
        self.config = config
        self.flusher = flusher
        self.state = state
        self.slot = slot
        self.folder = recovery.folder
        self.start_offset = recovery.start_offset
        self.end_offset = recovery.end_offset
        self.flushed_offset = recovery.flushed_offset
        self.epochs = recovery.epochs
        self.segments = recovery.segments
        self.active = recovery.segments[-1]
        self.size_bytes = sum(segment.size for segment in recovery.segments)
        self.unsaved_bytes = recovery.scanned_bytes  # appended since the last checkpoint
        self.checkpoint_offset = recovery.checkpoint_offset
        self.checkpoint_seconds = clock.monotonic()
        self.cleaned_offset = recovery.cleaned_offset  # compaction has cleaned everything below
        self.generation = 0  # changes whenever remembered positions may have become wrong
        # A broker opens its logs before the registry tells it who leads their partitions. Until a partition sets these
        # two, nothing is known to be committed, so nothing may be deleted or compacted.
        self.compactable_offset: Callable[[], int] = lambda: self.start_offset  # compaction stays below it
        self.committed_offset: Callable[[], int] = lambda: self.start_offset  # a partition's high watermark
        self.enforces_retention = False  # only leaders do; followers learn the start offset from their leader
        self.on_flushed: Callable[[Log], None] | None = None
        self.on_failed: Callable[[Log], None] | None = None  # also called when the log is quarantined
        self.failed: StorageFailure | None = None
        self.quarantined = recovery.quarantined
        self._write_error: Callable[[], HeadraceError] | None = None  # raised by everything that changes the log
        self._read_error: Callable[[], HeadraceError] | None = None
        # Held while the log is cut, compacted segments are swapped in, or a checkpoint is written.
        self.maintenance_lock = asyncio.Lock()
        self._unsynced = UnsyncedFiles()
        self.positions = PositionIndex()
        self._flushed_segment = self.active
        self._flushed_position = self.active.size
        for segment in self.segments:
            # Without a checkpoint it is unknown when a segment began. Assuming now, nothing expires early.
            segment.created_ms = segment.created_ms or self._now_ms()
        if self.quarantined is not None:
            self._reject_all(LogQuarantined, f"this log is quarantined: {self.quarantined}")
        else:
            assert self.start_offset <= self.flushed_offset == self.end_offset
            if self.flushed_offset > (slot.point.offset if slot.point is not None else 0):
                # Recovery has synced what it found. Otherwise the next start would cut damage there like a torn tail.
                slot.record(self.flushed_offset, self.active.base_offset, self.active.size)

    # Append

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int) -> int:
        """Assign the next offset to a batch and write it; it is durable only after a flush. Returns the offset.

        Raises DiskFull and leaves the log unchanged; any other StorageFailure is permanent.
        """
        if self._write_error is not None:
            raise self._write_error()
        size = header.size_bytes
        assert size == len(batch)
        offset = self.end_offset
        last_offset = offset + header.last_offset_delta
        segment = self.active
        if segment.size and self._must_roll(segment, size, last_offset):
            segment = self.roll()
        file = segment.file
        try:
            if file is None or not segment.size:
                file = self._open_for_append(segment)
            assign_offset_and_epoch(batch, offset, leader_epoch)
            position = file.append((batch,))
        except DiskFull:
            # A part may have been written and then cut off in the page cache only.
            segment.sync_requested = NEVER_SYNCED
            raise
        except DiskFailed as error:
            self.fail(error)
            raise
        assert position == segment.size
        segment.add_batch(header, last_offset, position, self.config.index_interval_bytes)
        self.end_offset = last_offset + 1
        self.size_bytes += size
        self.unsaved_bytes += size
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, offset)
        return offset

    def append_as_follower(self, batches: FollowerBatches) -> int:
        """Write a leader's batches byte for byte, with one write per segment; durable only after a flush.

        Returns the end offset. Raises InvalidFollowerAppend if they do not follow this log's last batch, and DiskFull,
        in which case the first of them may have been appended.
        """
        self.ensure_usable()
        data, headers = batches
        batches.check_follows(self.end_offset, self.epochs.latest)
        at = position = 0
        while at < len(headers):
            first, segment = headers[at], self.active
            if segment.size and self._must_roll(segment, first.size_bytes, first.last_offset):
                segment = self.roll()
            try:
                file = self._open_for_append(segment)
                end, size = self._batches_that_fit(segment, headers, at)
                self._write_follower_batches(segment, file, data[position : position + size], headers[at:end])
            except DiskFailed as error:
                self.fail(error)
                raise
            at, position = end, position + size
        return self.end_offset

    def _batches_that_fit(self, segment: Segment, headers: Sequence[BatchHeader], at: int) -> tuple[int, int]:
        """The end of the run of batches from `at` that goes to this segment, at least one; and the run's bytes."""
        size = headers[at].size_bytes
        for end in range(at + 1, len(headers)):
            header = headers[end]
            if self._must_roll(segment, size + header.size_bytes, header.last_offset):
                return end, size
            size += header.size_bytes
        return len(headers), size

    def _write_follower_batches(
        self, segment: Segment, file: File, data: memoryview, headers: Sequence[BatchHeader]
    ) -> None:
        gaps = gaps_before(headers, self.end_offset)
        copied: CopiedGaps | None = None
        try:
            if gaps:
                copied = segment.copy_gaps(gaps)
            position = file.append((data,))
        except DiskFull:
            segment.sync_requested = NEVER_SYNCED  # as in `append`
            if copied is not None:
                copied.take_back(len(gaps))
            raise
        assert position == segment.size
        interval, begin = self.config.index_interval_bytes, 0
        for header in headers:
            segment.add_batch(header, header.last_offset, position + begin, interval)
            if header.leader_epoch != self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            self.state.replay(to_replayed_batch(data[begin : begin + header.size_bytes], header))
            begin += header.size_bytes
        self.end_offset = headers[-1].next_offset
        self.size_bytes += begin
        self.unsaved_bytes += begin

    def roll(self) -> Segment:
        """Begin a new segment; the next flush syncs the old one."""
        old = self.active
        assert old.size, "an empty segment is never rolled"
        old.index_time()
        self._unsynced.add([old])
        self.active = Segment(self.disk, self.folder, self.end_offset)
        self.segments.append(self.active)
        return self.active

    def _must_roll(self, segment: Segment, size: int, last_offset: int) -> bool:
        config = self.config
        return (
            segment.size + size > config.segment_bytes
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.size + size > POSITION_MAX
            or self._now_ms() - segment.created_ms >= config.segment_ms
            or segment.index.size_bytes >= config.index_bytes_max
        )

    def _open_for_append(self, segment: Segment) -> File:
        """Open the file of a segment before its first append, or the first one of this process."""
        file = segment.open(create=True)
        # The file may be new, or a crash may have come before its name was durable.
        self._unsynced.directory = True
        if not segment.size:
            segment.created_ms = self._now_ms()
        return file

    # Flush; see Flusher

    def flush_due(self) -> bool:
        return self.end_offset - self.flushed_offset >= self.config.flush_messages

    def begin_flush(self) -> PendingFlush | None:
        """What must be synced to make the whole log durable; None if it is durable already, or has failed."""
        if self._write_error is not None:
            return None
        files = self._unsynced.take(self.active)
        if not files:
            assert self.flushed_offset == self.end_offset
            return None
        flush = PendingFlush(self, self.active, files, self._unsynced.directory)
        self._unsynced.directory = False
        for file in files:
            file.pin()
        return flush

    def complete_flush(self, flush: PendingFlush) -> None:
        """Advance the flushed offset. A sync that failed, or whose end is unknown, is final: it is never retried."""
        for file in flush.files:
            file.unpin()
        if flush.failure is not None or not flush.over:
            self.fail(flush.failure or StorageFailure("a sync was abandoned"))
        elif flush.generation != self.generation:
            self._unsynced.put_back(flush, self.segments, self.active)
        else:
            assert self.flushed_offset <= flush.end_offset <= self.end_offset
            self.flushed_offset = flush.end_offset
            self._flushed_segment = flush.segment
            self._flushed_position = flush.position
            self.slot.record(flush.end_offset, flush.segment.base_offset, flush.position)
            if self.on_flushed is not None:
                self.on_flushed(self)

    # Read

    def read(self, offset: int, size_bytes_max: int, end_offset: int) -> LogSlice | ColdRead:
        """Whole batches from the one that holds or follows `offset` up to `end_offset`, at least one if there is any.

        At most `size_bytes_max`, unless the first batch alone is larger; never beyond the end of a segment. Every slice
        below `end_offset` ends above `offset`, also an empty one, so a loop that continues at `next_offset` terminates.
        """
        if self._read_error is not None:
            raise self._read_error()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(f"{offset} is not within {self.start_offset} to {self.end_offset}")
        known = self.positions.get(offset)
        segment, position = known if known is not None else (self._segment_of(offset), None)
        if position == segment.size and segment is not self.active:
            segment, position = self._segment_of(offset), 0
        if offset >= end_offset:
            if offset == self.end_offset:
                self.positions.remember(offset, self.active, self.active.size)
            return LogSlice(None, 0, 0, offset)
        if not segment.size:
            return LogSlice(None, 0, 0, self.end_offset)  # only gaps are left up to the end
        try:
            file = segment.open()
            if position is None:
                position = self._find_batch(segment, file, offset)
            limit, next_offset = self._slice_limit(segment, file, end_offset)
            if limit <= position:
                return LogSlice(None, 0, 0, next_offset)  # a gap extends to the end of the range
            if limit - position > size_bytes_max:
                limit, next_offset = segment.find_slice_end(file, position, position + size_bytes_max, limit)
            if not segment.trusts(position, limit) or not is_in_page_cache(file, position, limit):
                raise NotInPageCache
        except (NotInPageCache, BadBatch):
            # If the log is damaged, and not only its index, the cold read finds and reports it.
            return ColdRead(self, ReadSpec(segment, offset, position, size_bytes_max, end_offset))
        assert next_offset > offset, f"a read at {offset} made no progress"
        self.positions.remember(next_offset, segment, limit)
        return LogSlice(file, position, limit - position, next_offset)

    def _segment_of(self, offset: int) -> Segment:
        if offset >= self.active.base_offset:
            return self.active
        at = max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)
        while self.segments[at].ends_before(offset):
            at += 1
        return self.segments[at]

    def _find_batch(self, segment: Segment, file: File, offset: int) -> int:
        if offset <= segment.base_offset:
            return 0
        position = segment.find_batch(file, offset, segment.size, hot=True)
        if not segment.trusts(position, position + 1):
            raise NotInPageCache  # the position was derived from unchecked bytes
        return position

    def _slice_limit(self, segment: Segment, file: File, end_offset: int) -> tuple[int, int]:
        """The position where a slice of this segment must end, and the offset of the batch there."""
        if segment is not self.active:
            following = self.segments[bisect_right(self.segments, segment.base_offset, key=_base_offset)]
            if end_offset >= following.base_offset or segment.ends_before(end_offset):
                return segment.size, following.base_offset
        if end_offset >= self.end_offset:
            return segment.size, self.end_offset
        if end_offset == self.flushed_offset and segment is self._flushed_segment:
            return self._flushed_position, end_offset
        known = self.positions.get(end_offset)
        if known is not None and known[0] is segment:
            return known[1], end_offset
        position = self._find_batch(segment, file, end_offset)
        self.positions.remember(end_offset, segment, position)
        return position, end_offset

    async def run_on_segment(
        self, work: Callable[..., T], segment: Segment, *args: object, damaged_from: int
    ) -> T | None:
        """Call `work(file, segment, *args)` in a disk thread, with the segment's file pinned.

        None if the segment was replaced, deleted or truncated meanwhile and could not be read. Damage quarantines the
        log, is reported at or above `damaged_from`, and raises CorruptBatch.
        """
        generation = self.generation
        file = segment.open()
        file.pin()
        try:
            return await self.disk.run(work, file, segment, *args)
        except (BadBatch, FileNotFoundError) as error:
            if self.generation != generation or segment.dropped:
                return None
            if isinstance(error, FileNotFoundError):
                raise
            raise CorruptBatch(str(self.quarantine(segment, error, damaged_from))) from error
        finally:
            file.unpin()

    async def offset_for_timestamp(self, timestamp_ms: int, end_offset: int | None = None) -> TimestampOffset | None:
        """The first record below `end_offset` whose timestamp is at or above `timestamp_ms`."""
        return await reading.find_first_at_or_after(self, timestamp_ms, end_offset)

    async def max_timestamp(self, end_offset: int | None = None) -> TimestampOffset | None:
        """The record with the largest timestamp below `end_offset`; the first one if several have it."""
        return await reading.find_largest(self, end_offset)

    # Remove data at the start, at the end, or all of it

    @runs_to_completion
    async def advance_start(self, offset: int) -> int:
        """Make everything below `offset` unreadable. Returns how many segments were removed.

        The start offset is made durable before the segments below it are removed.
        """
        async with self.maintenance_lock:
            self.ensure_usable()
            if offset > self.end_offset:
                raise OffsetOutOfRange(f"{offset} lies above the end {self.end_offset}")
            if offset <= self.start_offset:
                return 0
            if offset > self.flushed_offset:
                await self.flusher.flush(self)
            await self.disk.run(checkpoints.write_start_offset, self.disk, self.folder, offset)
            self.ensure_usable()
            self.start_offset = offset
            self.epochs.truncate_start(offset)
            removed = [segment for segment, following in pairwise(self.segments) if following.base_offset <= offset]
            if removed:
                self._drop_segments(removed)
                try:
                    await self.disk.run(truncation.remove_files, self.disk, self.folder, removed)
                except StorageFailure as error:
                    # The next start of the broker removes them, because they are below the start offset.
                    logger.warning("old segments not removed log=%s error=%s", self.folder, error)
            return len(removed)

    @runs_to_completion
    async def truncate(self, offset: int) -> None:
        """Make the log end with its last batch that ends at or below `offset`. No append may run meanwhile.

        A truncated log never ends in a gap: a follower receives only batches, so it could not reach an end in a gap.
        Checkpoints, the flushed point and the gaps of the segment are lowered durably before the files are cut, so that
        recovery never expects more than what is left. Raises OffsetOutOfRange if nothing above the start offset would
        be left; `reset` the log then.
        """
        async with self.maintenance_lock:
            self.ensure_usable()
            if offset < self.start_offset:
                raise OffsetOutOfRange(f"{offset} lies below the start {self.start_offset}")
            if offset >= self.end_offset:
                return
            end_offset = self.end_offset
            segment, kept, cut_offset = await self._find_truncation_point(offset)
            if cut_offset < self.start_offset:
                raise OffsetOutOfRange(f"no batch of the log ends between its start {self.start_offset} and {offset}")
            with self.slot.lowered(cut_offset, segment.base_offset, kept.size):
                await self.disk.run(truncation.lower_flushed_point, self.disk, self.slot, segment, kept, cut_offset)
                self.ensure_usable()
                assert self.end_offset == end_offset, "appended to during a truncation"
                removed = self.segments[self.segments.index(segment) + bool(kept.size) :]
                self._drop_segments(removed)
                if kept.size:
                    segment.open().truncate(kept.size)
                    segment.cut(kept)
                self._end_at(cut_offset)
            try:
                cut = None if segment.dropped else segment
                await self.disk.run(truncation.remove_files, self.disk, self.folder, removed, cut)
                checkpoint, tail = await self.disk.run(
                    truncation.read_tail, self.disk, self.folder, list(self.segments)
                )
            except StorageFailure as error:
                self.fail(error)
                raise
            self.checkpoint_offset = checkpoint.offset if checkpoint else -1
            self.state.restore(checkpoint.state if checkpoint else b"")
            for batch in tail:
                self.state.replay(batch)
            forget_dropped_transactions(self.state, self.segments)

    async def _find_truncation_point(self, offset: int) -> tuple[Segment, Segment, int]:
        """The segment with the last batch that ends at or below `offset`, a twin of what is left of it, and the end of
        that batch. If nothing is left of the segment, it is removed as a whole, with the gap before it."""
        at = len([segment for segment in self.segments if segment.base_offset <= offset]) - 1
        while True:
            segment = self.segments[at]
            try:
                kept, end_offset = await self.disk.run(
                    truncation.twin_below, segment, offset, self.config.index_interval_bytes
                )
            except BadBatch as bad:
                raise CorruptBatch(str(self.quarantine(segment, bad, segment.base_offset))) from bad
            if kept.size or not at or not self.segments[at - 1].ends_before(segment.base_offset):
                return segment, kept, end_offset
            at, offset = at - 1, segment.base_offset

    @runs_to_completion
    async def reset(self, offset: int) -> None:
        """Remove everything and begin empty at `offset`: for a follower that shares no data with its leader.

        No append may run meanwhile. The file `restart` is the commit point: once it is durable, all other files are
        void, and the next start finishes the reset after a crash.
        """
        async with self.maintenance_lock:
            self.ensure_usable()
            with self.slot.lowered(offset, 0, 0):
                try:
                    await self.disk.run(truncation.commit_reset, self.disk, self.folder, self.slot, offset)
                except StorageFailure as error:
                    if self.disk.exists(f"{self.folder}/{truncation.RESTART}"):
                        self.fail(error)  # whether the reset is durable is unknown: the next start finds out
                    raise
                self.ensure_usable()  # if not usable, the next start carries the reset out
                self._drop_segments(list(self.segments))
                self.epochs.truncate_end(0)
                self.start_offset = self.flushed_offset = offset
                self._end_at(offset)
                self.state.restore(b"")
            try:
                await self.disk.run(truncation.resume_reset, self.disk, self.folder)
            except StorageFailure as error:
                self.fail(error)
                raise
            assert self.end_offset == offset, "appended to during a reset"
            self.slot.record(offset, offset, 0)
            self.checkpoint_offset = -1
            self.unsaved_bytes = 0

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Let one cleaned segment take the place of those that compaction has merged. The caller moves the files."""
        self._drop_segments(old)
        insort(self.segments, new, key=_base_offset)
        self.size_bytes += new.size
        forget_dropped_transactions(self.state, [new])

    def _drop_segments(self, removed: list[Segment]) -> None:
        """Remove segments from the log, but not their files."""
        self.segments = [segment for segment in self.segments if segment not in removed]
        self._unsynced.rolled = [segment for segment in self._unsynced.rolled if segment not in removed]
        self.positions.forget(removed)
        for segment in removed:
            self.size_bytes -= segment.size
            segment.dropped = True
            segment.close()

    def _end_at(self, offset: int) -> None:
        """End the log with its present segments at `offset`, and continue in a new segment.

        A connection may still be sending from a file that was cut: it finds the file too short, but no other bytes.
        """
        self.generation += 1
        self._unsynced.add(self.segments[-1:])
        self.active = Segment(self.disk, self.folder, offset)
        self.segments.append(self.active)
        self.end_offset = offset
        self.cleaned_offset = min(self.cleaned_offset, offset)
        if self.flushed_offset >= offset:
            self.flushed_offset = offset
            self._flushed_segment, self._flushed_position = self.active, 0
        self.positions.clear()
        self._unsynced.directory = True
        self.size_bytes = sum(segment.size for segment in self.segments)
        self.epochs.truncate_end(offset)
        assert self.start_offset <= self.flushed_offset <= self.end_offset

    # Checkpoint and close

    @runs_to_completion
    async def save_checkpoint(self) -> None:
        """Make the log and its indexes durable and write a checkpoint, from which recovery begins.

        Raises DiskFull; the previous checkpoint is still valid then.
        """
        async with self.maintenance_lock:
            self.ensure_usable()
            generation = self.generation
            saved_bytes = self.unsaved_bytes
            try:
                checkpoint, indexes = self._take_checkpoint()
                await self.flusher.flush(self)
                self.ensure_usable()
                await self.disk.run(checkpoints.save_checkpoint, self.disk, self.folder, checkpoint, indexes)
            except DiskFailed as error:
                self.fail(error)
                raise
            if self.generation == generation:
                self.checkpoint_offset = checkpoint.offset
                self.unsaved_bytes -= saved_bytes
                self.checkpoint_seconds = self.clock.monotonic()

    def _take_checkpoint(self) -> tuple[Checkpoint, list[SparseIndex]]:
        """Write the indexes to their files and take a snapshot of everything else, in one step on the event loop.

        Returns the indexes that must be synced before the checkpoint is written.
        """
        indexes: list[SparseIndex] = [index for segment in self.segments for index in segment.indexes]
        for index in indexes:
            index.save()
        unsynced = [index for index in indexes if index.unsynced]
        for index in unsynced:
            index.unsynced = False
        marks = [SegmentCheckpoint.of(segment) for segment in self.segments]
        epochs, state = self.epochs.entries(), self.state.snapshot()
        return Checkpoint(self.end_offset, self.start_offset, marks, epochs, state, self.cleaned_offset), unsynced

    def close(self) -> None:
        """End all use of the log. It is neither flushed nor checkpointed."""
        self._reject_all(LogDeleted, f"the log {self.folder} has been deleted or closed")
        self.generation += 1
        self.positions.clear()
        for segment in self.segments:
            segment.close()

    # Failure and quarantine

    @property
    def usable(self) -> bool:
        return self._write_error is None

    def ensure_usable(self) -> None:
        if self._write_error is not None:
            raise self._write_error()

    def ensure_readable(self) -> None:
        if self._read_error is not None:
            raise self._read_error()

    def fail(self, error: StorageFailure) -> None:
        """After a failed write or sync: accept no more writes until the broker restarts."""
        if self._write_error is None:
            logger.error("log has failed log=%s error=%s", self.folder, error)
            self.failed = error
            self._write_error = partial(StorageFailure, f"this log has failed: {error}")
            if self.on_failed is not None:
                self.on_failed(self)

    def quarantine(self, segment: Segment, bad: BadBatch, offset: int) -> CorruptionReport:
        """After damage was found at or above `offset`: neither accept nor serve batches any more."""
        report = CorruptionReport(segment.path, bad.position, offset if bad.offset is None else bad.offset, bad.reason)
        if self.quarantined is None:
            logger.error("log is quarantined log=%s damage=%s", self.folder, report)
            self.quarantined = report
            self._reject_all(LogQuarantined, f"this log is quarantined: {report}")
            try:
                checkpoints.write_damaged(self.disk, self.folder, segment.base_offset)
            except (StorageFailure, FileNotFoundError) as error:
                logger.warning("damage not recorded for the next start log=%s error=%s", self.folder, error)
            if self.on_failed is not None:
                self.on_failed(self)
        return report

    def _reject_all(self, error: type[HeadraceError], reason: str) -> None:
        self._write_error = self._read_error = partial(error, reason)
