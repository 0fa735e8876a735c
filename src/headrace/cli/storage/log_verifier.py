"""The checks of `headrace log verify`.

- Batches are contiguous, except for the gaps that compaction has listed.
- The checksum of every batch matches, and so does its number of records.
- Every index entry points to a batch.
- The log extends at least to the offset up to which it was known to be flushed.

A defect after the flushed offset, or in left-over bytes between two contiguous segments, is not damage: the data was
never acknowledged as durable, and the broker truncates it at its next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from headrace.cli.storage.data_folder import LogFolder, segments_in
from headrace.cli.storage.stored_batches import UNPACKED_BYTES_MAX, StoredBatch, UnreadableBatch, stored_batches
from headrace.model.errors import HeadraceError
from headrace.runtime.disk import SystemDisk
from headrace.storage.log.checkpoint import CHECKPOINT, START_OFFSET, Checkpoint, read_start_offset
from headrace.storage.segments.gaps import CleanedGaps, CopiedGaps, GapList
from headrace.storage.segments.index import OffsetIndex, TimeIndex
from headrace.storage.segments.segment import COPIED_GAPS, GAPS, INDEX, TIME_INDEX
from headrace.wire.batches.record_checks import check_records

_EntryOf = Callable[[StoredBatch, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LogFault:
    """A defect. `torn` marks an unfinished end of a log after the flushed offset, which is not damage."""

    path: Path
    position: int
    offset: int | None
    what: str
    torn: bool = False


class LogVerifier:
    """Checks one log; `faults` and the counts are the result."""

    def __init__(self, log: LogFolder, flushed_offset: int | None) -> None:
        self.log = log
        self.faults: list[LogFault] = []
        self.segments = 0
        self.batches = 0
        self.records = 0
        self.size_bytes = 0
        self._flushed_to = flushed_offset  # the minimum end of the log; None if unknown
        self._next_offset: int | None = None  # the expected base offset of the next batch, if known
        self._following: int | None = None  # the base offset of the next segment, if there is one
        self._torn = False

    def run(self) -> None:
        self._check_checkpoints()
        paths = segments_in(self.log.path)
        for path, following in zip(paths, [*paths[1:], None], strict=False):
            base = int(path.stem)
            self._following = None if following is None else int(following.stem)
            if self._next_offset not in (None, base):
                self._add_fault(path, 0, f"the segment begins at {base}, not at {self._next_offset}")
            if not self._torn:
                self._next_offset = base
                self._check_segment(path)
            if self._torn:
                return
        self._check_end()

    def _check_checkpoints(self) -> None:
        newest: Checkpoint | None = None
        for path in sorted(self.log.path.glob(f"*{CHECKPOINT}")):
            checkpoint = Checkpoint.decode(path.read_bytes())
            if checkpoint is None:
                self.faults.append(LogFault(path, 0, None, "the checkpoint is incomplete or damaged"))
            else:
                newest = checkpoint
                self._flushed_to = max(checkpoint.offset, self._flushed_to or 0)
        marks = {mark.base_offset: mark for mark in newest.segments} if newest is not None else {}
        for path in segments_in(self.log.path):
            mark = marks.get(int(path.stem))
            size = path.stat().st_size
            if mark is not None and size < mark.size:
                what = f"the file has {size} bytes, the checkpoint says {mark.size}"
                self.faults.append(LogFault(path, size, mark.base_offset, what))

    def _check_segment(self, path: Path) -> None:
        self.segments += 1
        base = int(path.stem)
        gaps: GapList | None = None
        gaps_path, copied_path = path.with_suffix(GAPS), path.with_suffix(COPIED_GAPS)
        if gaps_path.exists():
            gaps = cleaned = CleanedGaps.decode(gaps_path.read_bytes())
            if cleaned is None or cleaned.base_offset != base:
                self.faults.append(LogFault(gaps_path, 0, base, "the list of the segment's gaps is incomplete"))
                self._next_offset = None
                return
        elif copied_path.exists():
            gaps = CopiedGaps.read(SystemDisk(), str(copied_path))
        if gaps is not None:
            self._next_offset = gaps.after(base)
        indexes = [
            _IndexVerifier(path.with_suffix(INDEX), OffsetIndex.ENTRY, base, _offset_entry),
            _IndexVerifier(path.with_suffix(TIME_INDEX), TimeIndex.ENTRY, base, _time_entry),
        ]
        try:
            for batch in stored_batches(path):
                self._check_batch(path, batch, gaps)
                for index in indexes:
                    self.faults += index.check_batch(batch)
        except UnreadableBatch as bad:
            self._add_fault(path, bad.position, bad.reason)
        except _UnfinishedTail:
            pass
        else:
            for index in indexes:
                self.faults += index.end()

    def _check_batch(self, path: Path, batch: StoredBatch, gaps: GapList | None) -> None:
        faults = list(self._faults(batch, gaps))
        for what in faults:
            self._add_fault(path, batch.position, what)
        if faults and (self._torn or self._next_offset == self._following):
            raise _UnfinishedTail
        header = batch.header
        self.batches += 1
        self.records += header.record_count
        self.size_bytes += header.size_bytes
        self._next_offset = header.next_offset if gaps is None else gaps.after(header.next_offset)

    def _faults(self, batch: StoredBatch, gaps: GapList | None) -> Iterator[str]:
        header = batch.header
        if header.base_offset != self._next_offset:
            yield f"base offset is {header.base_offset}, not {self._next_offset}"
        if header.base_offset == self._following:
            yield f"the batch contains offset {self._following} of the next segment"
        try:
            payload = batch.crc_payload()
            # A follower replicates a compacted log, with or without gaps between the batches.
            if gaps is not None or header.record_count < header.last_offset_delta + 1:
                yield from _sparse_faults(batch)
                return
            if header.record_count != header.last_offset_delta + 1:
                yield f"{header.record_count} records, but a last offset delta of {header.last_offset_delta}"
            check_records(payload, header, size_bytes_max=UNPACKED_BYTES_MAX)
        except HeadraceError as error:
            yield error.message

    def _add_fault(self, path: Path, position: int, what: str) -> None:
        offset = self._next_offset
        self._torn = self._flushed_to is not None and offset is not None and offset >= self._flushed_to
        is_torn = self._torn or (position > 0 and offset == self._following)
        self.faults.append(LogFault(path, position, offset, what, is_torn))

    def _check_end(self) -> None:
        start = 0
        if (self.log.path / START_OFFSET).exists():
            start = read_start_offset(SystemDisk(), str(self.log.path))
        end = max(self._next_offset or 0, start)
        if self._flushed_to is not None and end < self._flushed_to:
            what = f"the log ends at offset {end}, but was flushed up to {self._flushed_to}"
            self.faults.append(LogFault(self.log.path, 0, end, what))


def _sparse_faults(batch: StoredBatch) -> Iterator[str]:
    """Check a compacted batch, which may have fewer records than offsets, but only in order."""
    last = batch.header.base_offset - 1
    for record in batch.records():
        if not last < record.offset <= batch.header.last_offset:
            yield f"a record has offset {record.offset} after {last} in a batch up to {batch.header.last_offset}"
        last = record.offset


class _UnfinishedTail(Exception):
    """The rest of the segment after this batch is left over and not checked."""


class _IndexVerifier:
    """Compares an index with the batches of its segment in one pass; the second column is ordered like the batches."""

    def __init__(self, path: Path, entry: Struct, base_offset: int, entry_of: _EntryOf) -> None:
        self._path = path
        self._entry_bytes = entry.size
        self._base_offset = base_offset
        self._entry_of = entry_of
        data = path.read_bytes() if path.exists() else b""
        self._rest_bytes = len(data) % entry.size
        self._entries = list(entry.iter_unpack(data[: len(data) - self._rest_bytes]))
        self._next = 0

    def check_batch(self, batch: StoredBatch) -> Iterator[LogFault]:
        expected = self._entry_of(batch, self._base_offset)
        while self._next < len(self._entries) and self._entries[self._next][1] <= expected[1]:
            entry = self._entries[self._next]
            if entry != expected:
                yield self._fault(f"entry {self._next} is {entry}, but the entry of the batch is {expected}")
            self._next += 1

    def end(self) -> Iterator[LogFault]:
        if self._next < len(self._entries):
            yield self._fault(f"{len(self._entries) - self._next} entries point after the last batch")
        if self._rest_bytes:
            self._next = len(self._entries)
            yield self._fault(f"the last entry is incomplete: {self._rest_bytes} bytes")

    def _fault(self, what: str) -> LogFault:
        return LogFault(self._path, self._next * self._entry_bytes, None, what)


def _offset_entry(batch: StoredBatch, base_offset: int) -> tuple[int, int]:
    return batch.header.last_offset - base_offset, batch.position


def _time_entry(batch: StoredBatch, base_offset: int) -> tuple[int, int]:
    return batch.header.max_timestamp, batch.header.last_offset - base_offset
