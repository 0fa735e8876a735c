"""What `Log.read` hands out: bytes that can go straight to the socket, or a read for the disk threads.

A LogSlice is hot: trusted and in the page cache. A ColdRead is checked batch by batch before anybody sees it,
which is also how bytes found at start become trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import NotLeader
from headrace.runtime.disk import File
from headrace.storage.errors import CorruptBatch
from headrace.storage.segments.scan import BadBatch, check_batch, check_frame
from headrace.storage.segments.segment import Segment, find_batch, rebuild_indexes
from headrace.wire.batches.batch import HEADER_SIZE

if TYPE_CHECKING:
    from headrace.storage.log.log import Log


class LogSlice:
    """Whole batches in a segment's file. Pins the file until `release`, also if the segment is deleted.

    An empty slice has no file.
    """

    __slots__ = ("_held", "file", "next_offset", "position", "size")

    file: File

    def __init__(self, file: File | None, position: int, size: int, next_offset: int) -> None:
        self.position = position
        self.size = size
        self.next_offset = next_offset  # of the batch behind this slice
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
    """What a cold read is for. The position may be unknown."""

    segment: Segment
    offset: int
    position: int | None
    size_bytes_max: int
    end_offset: int


class ColdRead:
    """A read that must wait for the disk. `load` it once; then `next_offset` is that of the batch behind."""

    __slots__ = ("_generation", "_log", "next_offset", "wanted")

    def __init__(self, log: Log, wanted: ReadSpec) -> None:
        self._log = log
        self._generation = log.generation
        self.wanted = wanted
        self.next_offset = wanted.offset

    @property
    def size_bytes_max(self) -> int:
        """What `load` returns at most, unless the first batch alone is larger."""
        return self.wanted.size_bytes_max

    async def load(self) -> bytes:
        """Whole batches, at least the first, every CRC checked. Empty only if a gap is all that is left below the end
        offset; `next_offset` is behind the gap then.

        A segment that was compacted or deleted meanwhile is looked up again. Raises CorruptBatch, OffsetOutOfRange if
        the offset was deleted, and NotLeader if the log was truncated: only a follower truncates, and then the offset
        may be part of another history.
        """
        log, wanted = self._log, self.wanted
        while True:
            log.ensure_readable()
            if log.generation != self._generation:
                raise NotLeader(f"the log {log.folder} was truncated while it was read; another broker leads it")
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
        """None if the segment was replaced, deleted or truncated meanwhile, and its files with it."""
        log, segment = self._log, wanted.segment
        file = segment.open()
        file.pin()
        try:
            found = await log.disk.run(_load, file, wanted, log.config.index_interval_bytes)
        except (BadBatch, FileNotFoundError) as bad:
            if log.generation != self._generation or segment.dropped:
                return None
            if isinstance(bad, FileNotFoundError):
                raise
            report = log.quarantine(segment, bad, wanted.offset)
            raise CorruptBatch(str(report)) from bad
        finally:
            file.unpin()
        if log.generation == self._generation and not segment.dropped:
            end = found.position + len(found.data)
            segment.trust(found.position, end)
            log.places.note(found.next_offset, segment, end)
            if found.indexes is not None and segment is not log.active:
                segment.adopt_indexes(found.indexes)
        return found


class _LoadedBatches(NamedTuple):
    data: bytes
    position: int
    next_offset: int
    indexes: Segment | None  # made anew, because the old ones were wrong


def _load(file: File, wanted: ReadSpec, index_interval_bytes: int) -> _LoadedBatches:
    """In a disk thread: find the batch, read on from it, check all, and cut behind a whole batch."""
    segment, offset, position, size_bytes_max, end_offset = wanted
    limit, fresh = segment.size, None
    if position is None:
        try:
            position = find_batch(segment, file, offset, limit)
        except BadBatch:
            # Either the index is wrong or the log is: a walk from the beginning tells, and mends the index.
            fresh = rebuild_indexes(segment, file, limit, index_interval_bytes)
            position = find_batch(fresh, file, offset, limit)
    data = _read_first_batch(file, position, limit, max(size_bytes_max, HEADER_SIZE))
    at, next_offset, expected = 0, offset, None
    while at < len(data) and next_offset < end_offset:
        found = check_batch(data, at, position + at, limit - position - at, expected, segment.gaps)
        if found is None:
            break
        if found[1] > end_offset:
            next_offset = end_offset  # a gap reaches to where reading must end; this batch lies behind it
            break
        at += found[0]
        next_offset = expected = found[1]
        if next_offset <= offset:
            raise BadBatch(position, f"the batch ends before offset {offset}, which it should hold")
    return _LoadedBatches(data[:at], position, next_offset, fresh)


def _read_first_batch(file: File, position: int, limit: int, size_bytes: int) -> bytes:
    """At least the whole first batch, if that is what these bytes are."""
    data = file.pread(min(size_bytes, limit - position), position)
    if len(data) < HEADER_SIZE:
        raise BadBatch(position, "the file ends inside a batch header")
    first_bytes, *_ = check_frame(data, 0, position, limit - position, None)
    if first_bytes > len(data):
        data = file.pread(first_bytes, position)
    if first_bytes > len(data):
        raise BadBatch(position, "the file ends inside a batch")
    return data
