"""Recover a log after a restart: load the newest checkpoint, scan the batches after it, cut off the damaged tail.

    below the newest checkpoint     durable and indexed: accepted as recorded, checked when read (see `Segment.trusts`)
    checkpoint .. flushed offset    acknowledged: damage here is corruption, and the log is quarantined
    flushed offset .. end of file   never acknowledged: the first bad batch and everything after it are cut off

- Without a checkpoint the scan begins at the first segment.
- A segment in which damage was found at run time is checked as a whole (see the file `damaged` in `checkpoint`).
- A committed reset or swap of cleaned segments is finished first. Cleaned segments are durable as a whole, so damage in
  one of them is always corruption.
- Everything here blocks and runs in disk threads, in steps of bounded size. It touches only objects that it owns; the
  event loop takes over the result.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from itertools import zip_longest

from headrace.runtime.disk import Disk
from headrace.storage.compaction import swap
from headrace.storage.config import MIB
from headrace.storage.errors import CorruptionReport
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log import truncation
from headrace.storage.log.checkpoint import DAMAGED, START_OFFSET, Checkpoint, SegmentCheckpoint
from headrace.storage.log.derived_state import LeaderEpochCache
from headrace.storage.segments.scan import BadBatch, ReplayedBatch, checked_batches, read_replayed_batch
from headrace.storage.segments.segment import COPIED_GAPS, DELETED, GAPS, LOG, NAME_DIGITS, SUFFIXES, Segment, file_name
from headrace.storage.store.flushed_offsets import FlushedPoint
from headrace.wire.batches.batch import BatchHeader

logger = logging.getLogger(__name__)

DRAFT = ".tmp"
STEP_BYTES = MIB


class Recovery:
    """The recovery of one log. Call `step` until it returns True; between steps, apply `replayed` and clear it."""

    def __init__(self, disk: Disk, folder: str, flushed: FlushedPoint | None, index_interval_bytes: int) -> None:
        self._disk = disk
        self.folder = folder
        self._index_interval_bytes = index_interval_bytes
        self._steps = self._recover()
        self._names: list[str] = []
        self.replayed: list[ReplayedBatch] = []  # to be applied to `snapshot`
        self.snapshot: bytes | None = None  # set by the first step
        self.segments: list[Segment] = []
        self.epochs = LeaderEpochCache()
        self.start_offset = 0
        self.end_offset = 0
        self.flushed_offset = flushed.offset if flushed else 0
        self._flushed = flushed or FlushedPoint(0, 0, 0)
        self.quarantined: CorruptionReport | None = None
        self.checkpoint_offset = -1
        self.cleaned_offset = 0
        self.scanned_bytes = 0

    def step(self) -> bool:
        """Do a bounded part of the work. True if recovery is complete."""
        budget = STEP_BYTES
        while budget > 0:
            checked_bytes = next(self._steps, None)
            if checked_bytes is None:
                return True
            budget -= checked_bytes
        return False

    def _recover(self) -> Iterator[int]:
        """Each part yields how many bytes it has checked."""
        names = self._names = self._tidy()
        checkpoint = checkpoints.newest_checkpoint(self._disk, self.folder, names)
        self.snapshot = checkpoint.state if checkpoint else b""
        bases = _base_offsets(names)
        if START_OFFSET in names:
            self.start_offset = checkpoints.read_start_offset(self._disk, self.folder)
        if checkpoint is not None:
            self.start_offset = max(self.start_offset, checkpoint.start_offset)
        self.flushed_offset = max(self.flushed_offset, self.start_offset)
        marks = list(checkpoint.segments) if checkpoint else []
        bases, marks = self._drop_below_start(bases, marks)
        if checkpoint is not None:
            if marks and marks[-1].base_offset not in bases and self.start_offset >= checkpoint.offset:
                marks.clear()  # everything in the checkpoint was deleted
            self._take_over(checkpoint, marks, bases)
        if not self.segments:
            self.end_offset = min([self.start_offset, *bases[:1]])
        yield STEP_BYTES  # the caller restores the snapshot first
        if DAMAGED in names and self.quarantined is None:
            yield from self._look_for_damage()
        if self.quarantined is None:
            yield from self._scan(bases)
        if not self.segments or self.segments[-1].cleaned is not None:  # a cleaned segment is never appended to
            self.segments.append(Segment(self._disk, self.folder, self.end_offset))
        if self.quarantined is not None:
            logger.error("log is quarantined log=%s damage=%s", self.folder, self.quarantined)

    def _tidy(self) -> list[str]:
        """Finish or remove what a crash interrupted: a reset, a swap, drafts, removals. Returns the names that are
        left.
        """
        names = self._disk.list(self.folder)
        for name, resume in ((truncation.RESTART, truncation.resume_reset), (swap.MANIFEST, swap.resume_swap)):
            if name in names:
                if not resume(self._disk, self.folder):
                    path = f"{self.folder}/{name}"
                    self.quarantined = CorruptionReport(path, 0, 0, "the file is damaged")
                    return []
                names = self._disk.list(self.folder)
        if swap.DRAFTS in names:
            swap.remove_drafts(self._disk, self.folder)
        kept = []
        for name in names:
            is_orphan = name.endswith((GAPS, COPIED_GAPS)) and name[:NAME_DIGITS] + LOG not in names
            if name.endswith((DELETED, DRAFT)) or is_orphan:
                self._disk.remove(f"{self.folder}/{name}")
            elif name != swap.DRAFTS:
                kept.append(name)
        return kept

    def _drop_below_start(
        self, bases: list[int], marks: list[SegmentCheckpoint]
    ) -> tuple[list[int], list[SegmentCheckpoint]]:
        """Remove segments that end at or below the start offset: their deletion was acknowledged."""
        known = sorted({*bases, *(mark.base_offset for mark in marks)})
        first = known[max(bisect_right(known, self.start_offset) - 1, 0)] if known else 0
        for base in bases:
            if base < first:
                self._remove_segment(base)
        return [base for base in bases if base >= first], [mark for mark in marks if mark.base_offset >= first]

    def _take_over(self, checkpoint: Checkpoint, marks: list[SegmentCheckpoint], bases: list[int]) -> None:
        self.checkpoint_offset = checkpoint.offset
        self.cleaned_offset = checkpoint.cleaned_offset
        self.epochs = LeaderEpochCache(checkpoint.epochs)
        self.flushed_offset = max(self.flushed_offset, checkpoint.offset)
        for mark in marks:
            segment = mark.segment(self._disk, self.folder)
            self._read_gaps(segment, must_have=mark.has_gaps)
            found = segment.open().size() if mark.base_offset in bases else 0
            if found > mark.size and mark is not marks[-1]:
                # The segment was rolled at that size: the rest was left by an append that failed.
                segment.open().truncate(mark.size)
                segment.open().sync()
            if found < mark.size:
                reason = f"the file has {found} bytes, the checkpoint says {mark.size}"
                self.quarantined = CorruptionReport(segment.path, found, mark.base_offset, reason)
            elif not (segment.index.file_fits() and segment.time_index.file_fits()):
                self._restore_indexes(segment)
            self.segments.append(segment)
            self.end_offset = checkpoint.offset

    def _read_gaps(self, segment: Segment, *, must_have: bool) -> None:
        """Read the gaps of a segment. It may have received some from a leader since the checkpoint."""
        must_have = must_have or file_name(segment.base_offset, GAPS) in self._names
        if not must_have and file_name(segment.base_offset, COPIED_GAPS) not in self._names:
            return
        segment.read_gaps()
        if segment.gaps is None:
            reason = "the gaps of this segment are missing or damaged"
            self.quarantined = CorruptionReport(segment.path_of(GAPS), 0, segment.base_offset, reason)

    def _restore_indexes(self, segment: Segment) -> None:
        """Cut off the index entries written since the checkpoint. If the files still do not fit, rebuild them."""
        for index in segment.indexes:
            if self._disk.exists(index.path) and index.open().size() > index.saved * index.ENTRY.size:
                index.reset(index.saved)
        if segment.index.file_fits() and segment.time_index.file_fits():
            return
        try:
            fresh = segment.rebuild_indexes(segment.open(), segment.size, self._index_interval_bytes)
            segment.adopt_indexes(fresh)
        except BadBatch as bad:
            self.quarantined = CorruptionReport(segment.path, bad.position, segment.base_offset, bad.reason)

    def _look_for_damage(self) -> Iterator[int]:
        """Check the part below the checkpoint of the segment in which damage was found, or of all segments if the file
        `damaged` is unreadable. The scan checks the rest."""
        base = checkpoints.read_damaged(self._disk, self.folder)
        for segment in self.segments:
            if base not in (segment.base_offset, None):
                continue
            try:
                for _, header in checked_batches(segment.open(), 0, segment.size, segment.base_offset, segment.gaps):
                    yield header.size_bytes
            except BadBatch as bad:
                offset = segment.base_offset if bad.offset is None else bad.offset
                self.quarantined = CorruptionReport(segment.path, bad.position, offset, bad.reason)
                return
        self._disk.remove(f"{self.folder}/{DAMAGED}")

    def _scan(self, bases: list[int]) -> Iterator[int]:
        """Check every batch after the checkpoint, segment by segment."""
        for base, following in zip_longest(bases, bases[1:]):
            if self.segments and base < self.segments[-1].base_offset:
                continue
            segment = self._segment(base)
            if self.quarantined is not None:
                return
            if not segment.size and base != self.end_offset:
                self._end_at(segment, 0, f"the segment begins at {base}, not at {self.end_offset}")
                return
            file, cleaned = segment.open(), segment.cleaned
            if cleaned is not None and not segment.size:
                self.end_offset = cleaned.after(base)
                self.flushed_offset = max(self.flushed_offset, cleaned.following)
            try:
                for position, header in checked_batches(file, segment.size, file.size(), self.end_offset, segment.gaps):
                    if self.end_offset == following or segment.ends_before(header.base_offset):
                        raise BadBatch(position, f"offset {header.base_offset} lies beyond this segment")
                    self._replay(segment, position, header)
                    yield header.size_bytes
                if cleaned is not None and self.end_offset != cleaned.following:
                    raise BadBatch(file.size(), f"the cleaned segment continues to offset {cleaned.end_offset}")
            except BadBatch as bad:
                if self.end_offset != following:
                    self._end_at(segment, bad.position, bad.reason)
                    return
                # No batch is missing before the next segment: an append that failed has left these bytes.
                logger.warning("segment cut path=%s position=%d reason=%s", segment.path, bad.position, bad.reason)
                file.truncate(bad.position)
                file.sync()
        self._finish()

    def _segment(self, base: int) -> Segment:
        if self.segments and self.segments[-1].base_offset == base:
            return self.segments[-1]
        if self.segments:
            self.segments[-1].index_time()  # as `Log.roll` does
        segment = Segment(self._disk, self.folder, base)
        segment.index.reset(0)
        segment.time_index.reset(0)
        self._read_gaps(segment, must_have=False)
        self.segments.append(segment)
        return segment

    def _replay(self, segment: Segment, position: int, header: BatchHeader) -> None:
        self.replayed.append(read_replayed_batch(segment.open(), position, header))
        self.scanned_bytes += header.size_bytes
        segment.add_batch(header, header.last_offset, position, self._index_interval_bytes)
        self.epochs.assign(header.leader_epoch, header.base_offset)
        self.end_offset = header.next_offset if segment.cleaned is None else segment.cleaned.after(header.next_offset)

    def _end_at(self, segment: Segment, position: int, reason: str) -> None:
        """End the log here: cut off a tail that was never acknowledged, or report damage to acknowledged data."""
        if self._is_all_deleted():
            self._reset_log()
            return
        if self.end_offset < self.flushed_offset:
            self.quarantined = CorruptionReport(segment.path, position, self.end_offset, reason)
            return
        logger.warning(
            "log cut path=%s position=%d offset=%d reason=%s", segment.path, position, self.end_offset, reason
        )
        if segment.base_offset == self.end_offset or position > 0:
            segment.open().truncate(position)
            segment.open().sync()
        else:
            self.segments.pop()
            self._remove_segment(segment.base_offset)
        self._remove_segments_above(segment.base_offset)
        self._finish()

    def _is_all_deleted(self) -> bool:
        """Whether everything left is below the start offset, and nothing above it was acknowledged."""
        return self.end_offset < self.start_offset == self.flushed_offset

    def _reset_log(self) -> None:
        self._remove_segments_above(-1)
        self.segments.clear()
        self.end_offset = self.start_offset

    def _finish(self) -> None:
        if self._is_all_deleted():
            self._reset_log()
        elif self.end_offset < self.flushed_offset:
            path = self.segments[-1].path if self.segments else self.folder
            reason = f"the log ends here, but was durable up to offset {self.flushed_offset}"
            position = self.segments[-1].size if self.segments else 0
            self.quarantined = CorruptionReport(path, position, self.end_offset, reason)
        elif self.end_offset > self.flushed_offset:
            # The batches above the flushed offset count as flushed from now on, so make them durable.
            for segment in self.segments:
                if segment.sync_requested < segment.size:
                    self._write_again(segment)
                    segment.open().sync()
                    if segment.copied is not None:
                        segment.copied.save()
            self._disk.sync_directory(self.folder)
            self.flushed_offset = self.end_offset
        if self.segments and (copied := self.segments[-1].copied) is not None:
            # Remove gaps whose following batch was lost: another batch may be appended there.
            self.segments[-1].gaps = gaps = copied.cut(self.end_offset)
            gaps.save()
        for segment in self.segments:
            segment.sync_requested = segment.size
            for index in segment.indexes:
                if index.unsynced:  # a dirty file would keep its descriptor until the next checkpoint
                    index.open().sync()
                    index.unsynced = False

    def _write_again(self, segment: Segment) -> None:
        """Make the tail dirty again. After a failed sync the kernel treats its pages as clean, so another sync would do
        nothing, and the pages would stay in the page cache but never reach the disk."""
        if segment.base_offset < self._flushed.segment_base:
            return
        position = segment.sync_requested
        if segment.base_offset == self._flushed.segment_base:
            position = max(position, self._flushed.position)
        file = segment.open()
        while position < segment.size:
            data = file.pread(min(MIB, segment.size - position), position)
            file.pwrite(data, position)
            position += len(data)

    def _remove_segments_above(self, base: int) -> None:
        for found in _base_offsets(self._disk.list(self.folder)):
            if found > base:
                self._remove_segment(found)
        self._disk.sync_directory(self.folder)

    def _remove_segment(self, base: int) -> None:
        for suffix in SUFFIXES:
            path = f"{self.folder}/{file_name(base, suffix)}"
            if self._disk.exists(path):
                self._disk.remove(path)


def _base_offsets(names: list[str]) -> list[int]:
    return [int(name[:NAME_DIGITS]) for name in names if name.endswith(LOG)]
