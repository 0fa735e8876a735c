"""One partition's log: segments of batches, appended at the end and read from anywhere.

    start_offset <= flushed_offset <= end_offset
    everything below flushed_offset is durable; what lies above may be lost with the power, but never torn

Single writer. All state changes happen on the loop without an await; whatever waits for the disk runs in its
threads.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.model.errors import OffsetOutOfRange, StorageFailure
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk, DiskFailed, DiskFull, File
from headrace.storage.config import LogConfig
from headrace.storage.log import follower_batches as copying
from headrace.storage.log import reading as timestamps
from headrace.storage.log import truncation as restart
from headrace.storage.log import truncation as trimming
from headrace.storage.log.derived_state import DerivedState
from headrace.storage.log.flusher import PendingFlush, UnsyncedFiles
from headrace.storage.log.follower_batches import FollowerBatches
from headrace.storage.log.quarantine import LogHealth
from headrace.storage.log.reading import ColdRead, LogSlice, ReadSpec, TimestampOffset
from headrace.storage.log.recovery import Recovery
from headrace.storage.segments.index import NotInPageCache
from headrace.storage.segments.scan import BadBatch
from headrace.storage.segments.segment import (
    NEVER_SYNCED,
    RELATIVE_OFFSET_MAX,
    PositionIndex,
    Segment,
    find_batch,
    find_slice_end,
    is_in_page_cache,
)
from headrace.storage.store.flushed_offsets import FlushedSlot, LogKey
from headrace.wire.batches.batch import BatchHeader, assign_offset_and_epoch

if TYPE_CHECKING:
    from headrace.storage.log.flusher import Flusher

__all__ = ["ColdRead", "Log", "LogConfig", "LogSlice", "TimestampOffset"]

POSITION_MAX = (1 << 31) - 1  # what an index entry can say

_base_offset = attrgetter("base_offset")


class Log(LogHealth):
    __slots__ = (
        "_flushed_position",
        "_flushed_segment",
        "_maintenance_lock",
        "_now_ms",
        "_unsynced",
        "active",
        "checkpoint_offset",
        "checkpoint_seconds",
        "cleaned_offset",
        "clock",
        "committed_offset",
        "compactable_offset",
        "config",
        "deletes_old",
        "end_offset",
        "epochs",
        "flushed_offset",
        "flusher",
        "generation",
        "key",
        "on_flushed",
        "places",
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
        found: Recovery,
    ) -> None:
        super().__init__(disk, found.folder, found.quarantined)
        self.clock = clock
        self._now_ms = clock.now_ms
        self.key = key
        self.config = config
        self.flusher = flusher
        self.state = state
        self.start_offset = found.start_offset
        self.end_offset = found.end_offset
        self.flushed_offset = found.flushed_offset
        self.epochs = found.epochs
        self.segments = found.segments
        self.active = found.segments[-1]
        self.size_bytes = sum(segment.size for segment in found.segments)
        self.on_flushed: Callable[[Log], None] | None = None
        self.generation = 0  # changes whenever positions that somebody remembers may have become wrong
        self.unsaved_bytes = found.scanned_bytes  # appended since the last checkpoint
        self.checkpoint_offset = found.checkpoint_offset
        self.cleaned_offset = found.cleaned_offset  # compaction has been below it
        # A broker opens its logs before it hears from the registry who leads their partitions. Until a partition sets
        # these, nothing is known to be committed: housekeeping must neither delete nor compact.
        self.compactable_offset: Callable[[], int] = lambda: self.start_offset  # what lies above must stay as it is
        self.committed_offset: Callable[[], int] = lambda: self.start_offset  # a partition sets its high watermark
        self.checkpoint_seconds = clock.monotonic()
        self._maintenance_lock: asyncio.Lock | None = None
        self.deletes_old = False  # retention is for the leader: its followers are told where the log starts
        self.slot = slot
        self._unsynced = UnsyncedFiles()
        self.places = PositionIndex()
        self._flushed_segment = self.active
        self._flushed_position = self.active.size
        for segment in self.segments:
            # Nobody knows when a segment began that no checkpoint tells of: not before now, to be on the safe side.
            segment.created_ms = segment.created_ms or self._now_ms()
        if self.quarantined is None:
            assert self.start_offset <= self.flushed_offset == self.end_offset

    @property
    def topic_id(self) -> UUID:
        return self.key[0]

    @property
    def partition(self) -> int:
        return self.key[1]

    # Writing

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int) -> int:
        """Give the batch its offset and write it; durable only after a flush. Returns the offset.

        Raises DiskFull, and then the log is as it was; any other StorageFailure is for good.
        """
        if self._write_error is not None:
            raise self._write_error()
        size = header.size_bytes
        assert size == len(batch)
        offset = self.end_offset
        last_offset = offset + header.last_offset_delta
        segment = self.active
        if segment.size and self.must_roll(segment, size, last_offset):
            segment = self.roll()
        file = segment.file
        try:
            if file is None or not segment.size:
                file = self.begin(segment)
            assign_offset_and_epoch(batch, offset, leader_epoch)
            position = file.append((batch,))
        except DiskFull:
            segment.syncing = NEVER_SYNCED  # a part may have been written, and cut off again in memory only
            raise
        except DiskFailed as error:
            self.fail(error)
            raise
        assert position == segment.size
        segment.note(header, last_offset, position, self.config.index_interval_bytes)
        self.end_offset = last_offset + 1
        self.size_bytes += size
        self.unsaved_bytes += size
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, offset)
        return offset

    def append_as_follower(self, copied: FollowerBatches) -> int:
        """Write batches of a leader as they are, durable only after a flush. Returns the end offset.

        Raises InvalidFollowerAppend if they do not follow what is here, and DiskFull, perhaps after the first of them.
        """
        return copying.append_follower_batches(self, copied)

    def roll(self) -> Segment:
        """Begin a new segment; the old one is synced with the next flush."""
        old = self.active
        assert old.size, "an empty segment is never rolled"
        old.index_time()
        self._unsynced.add([old])
        self.active = Segment(self.disk, self.folder, self.end_offset)
        self.segments.append(self.active)
        return self.active

    def must_roll(self, segment: Segment, size: int, last_offset: int) -> bool:
        config = self.config
        return (
            segment.size + size > config.segment_bytes
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.size + size > POSITION_MAX
            or self._now_ms() - segment.created_ms >= config.segment_ms
            or segment.index.size_bytes >= config.index_bytes_max
        )

    def begin(self, segment: Segment) -> File:
        """Before the first append of this process to a segment, or of anybody."""
        file = segment.open(create=True)
        # It may be new; and if not, a crash may have come before its name was made durable.
        self._unsynced.directory = True
        if not segment.size:
            segment.created_ms = self._now_ms()
        return file

    # Flushing; see Flusher

    def flush_due(self) -> bool:
        return self.end_offset - self.flushed_offset >= self.config.flush_messages

    def begin_flush(self) -> PendingFlush | None:
        """What a sync must cover to make all of the log durable; None if it is, or if the log has failed."""
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
        """The sync is over. One that failed, or that nobody saw the end of, is final: it is never retried."""
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

    # Reading

    def read(self, offset: int, size_bytes_max: int, end_offset: int) -> LogSlice | ColdRead:
        """Whole batches from the one that holds or follows `offset` up to `end_offset`, at least one if there is any.

        At most `size_bytes_max`, unless the first batch alone is larger; never beyond the segment's end. Every slice
        below `end_offset` ends behind `offset`, also an empty one: a loop that reads on at `next_offset` ends.
        """
        if self._read_error is not None:
            raise self._read_error()
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(f"{offset} is not within {self.start_offset} to {self.end_offset}")
        place = self.places.get(offset)
        segment, position = place if place is not None else (self._segment_of(offset), None)
        if position == segment.size and segment is not self.active:
            segment, position = self._segment_of(offset), 0
        if offset >= end_offset:
            if offset == self.end_offset:
                self.places.note(offset, self.active, self.active.size)
            return LogSlice(None, 0, 0, offset)
        if not segment.size:
            return LogSlice(None, 0, 0, self.end_offset)  # only gaps are left between here and the end
        try:
            file = segment.open()
            if position is None:
                position = self._find_batch(segment, file, offset)
            limit, next_offset = self._slice_limit(segment, file, end_offset)
            if limit <= position:
                return LogSlice(None, 0, 0, next_offset)  # a gap reaches to where reading must end
            if limit - position > size_bytes_max:
                limit, next_offset = find_slice_end(segment, file, position, position + size_bytes_max, limit)
            if not segment.trusts(position, limit) or not is_in_page_cache(file, position, limit):
                raise NotInPageCache
        except (NotInPageCache, BadBatch):
            # If it is damage and not just a wrong index, the cold read will find and report it.
            return ColdRead(self, ReadSpec(segment, offset, position, size_bytes_max, end_offset))
        assert next_offset > offset, f"a read at {offset} made no progress"
        self.places.note(next_offset, segment, limit)
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
        position = find_batch(segment, file, offset, segment.size, hot=True)
        if not segment.trusts(position, position + 1):
            raise NotInPageCache  # a position that rests on unchecked bytes
        return position

    def _slice_limit(self, segment: Segment, file: File, end_offset: int) -> tuple[int, int]:
        """Where a slice of this segment must end, and the offset of the batch there."""
        if segment is not self.active:
            following = self.segments[bisect_right(self.segments, segment.base_offset, key=_base_offset)]
            if end_offset >= following.base_offset or segment.ends_before(end_offset):
                return segment.size, following.base_offset
        if end_offset >= self.end_offset:
            return segment.size, self.end_offset
        if end_offset == self.flushed_offset and segment is self._flushed_segment:
            return self._flushed_position, end_offset
        place = self.places.get(end_offset)
        if place is not None and place[0] is segment:
            return place[1], end_offset
        position = self._find_batch(segment, file, end_offset)
        self.places.note(end_offset, segment, position)
        return position, end_offset

    async def offset_for_timestamp(self, timestamp_ms: int, end_offset: int | None = None) -> TimestampOffset | None:
        """The first record below `end_offset` whose timestamp is not below `timestamp_ms`."""
        return await timestamps.find_first_at_or_after(self, timestamp_ms, end_offset)

    async def max_timestamp(self, end_offset: int | None = None) -> TimestampOffset | None:
        """The record with the largest timestamp below `end_offset`; the first one if several have it."""
        return await timestamps.find_largest(self, end_offset)

    # Cutting and upkeep; see trimming, restart, retention and upkeep

    async def advance_start(self, offset: int) -> None:
        """Nothing below `offset` is readable any more; durable on return."""
        await trimming.advance_start(self, offset)

    async def truncate(self, offset: int) -> None:
        """Cut the log to end with the last batch below `offset`; durable on return. Nobody may append meanwhile.

        Raises OffsetOutOfRange where that lies below the start: then `restart_at` is what is left.
        """
        await trimming.truncate(self, offset)

    async def restart_at(self, offset: int) -> None:
        """Drop everything and begin empty at `offset`; durable on return. Nobody may append meanwhile."""
        await restart.restart_at(self, offset)

    def drop_segments(self, removed_segments: list[Segment], merged: Segment | None = None) -> None:
        """These are no longer part of the log, but for what compaction has `merged`. Files are for the caller."""
        self.segments = [segment for segment in self.segments if segment not in removed_segments]
        if merged is not None:
            insort(self.segments, merged, key=_base_offset)
            self.size_bytes += merged.size
        self._unsynced.rolled = [segment for segment in self._unsynced.rolled if segment not in removed_segments]
        self.places.forget(removed_segments)
        for segment in removed_segments:
            self.size_bytes -= segment.size
            segment.dropped = True
            segment.close()

    def end_at(self, offset: int) -> None:
        """The log was cut: it ends with the segments as they are now, at `offset`, and goes on in a new one.

        Somebody may be sending from the file that was cut: he finds it too short, but never finds other bytes.
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
        self.places.clear()
        self._unsynced.directory = True
        self.size_bytes = sum(segment.size for segment in self.segments)
        self.epochs.truncate_end(offset)
        assert self.start_offset <= self.flushed_offset <= self.end_offset

    def reset_to(self, offset: int) -> None:
        """All that the log held is void: it is empty, and starts and ends at `offset`."""
        self.drop_segments(list(self.segments))
        self.epochs.truncate_end(0)
        self.start_offset = self.flushed_offset = offset
        self.end_at(offset)
        self.state.restore(b"")

    def close(self) -> None:
        """No more calls. Flush and checkpoint before, where that is wanted."""
        self.reject_all()
        self.generation += 1
        self.places.clear()
        for segment in self.segments:
            segment.close()

    def maintenance_lock(self) -> asyncio.Lock:
        """Held by whoever cuts the log or writes its checkpoint."""
        if self._maintenance_lock is None:
            self._maintenance_lock = asyncio.Lock()
        return self._maintenance_lock
