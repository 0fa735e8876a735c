"""The small files beside a log: checkpoint, start offset, known damage.

A checkpoint is written only after log, index and time index were synced up to its offset, and it carries what
else is derived from the log up to there: segments, leader epochs and the partition's own state. The newest
two are kept; one whose CRC is wrong does not count.

    file   "HRCP" u16 version u32 crc (of all that follows)
           i64 offset  i64 start offset  i64 cleaned offset  u32 segments  u32 epochs  u32 state bytes
           segments: the fields of SegmentCheckpoint    epochs: (i32 epoch, i64 start offset)    state

Version 1, from before there was compaction, lacks the cleaned offset and the gaps of segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec

from headrace.runtime.disk import Disk
from headrace.storage.segments.index import SparseIndex
from headrace.storage.segments.segment import NAME_DIGITS, Segment, file_name

if TYPE_CHECKING:
    from headrace.storage.log.log import Log

# The file `start-offset` of a log: nothing below it counts any more, whichever files survive.


START_OFFSET = "start-offset"
_START = Struct(">qI")


def write_start_offset(disk: Disk, folder: str, offset: int) -> None:
    """Durably. Blocks."""
    disk.write_atomically(f"{folder}/{START_OFFSET}", _START.pack(offset, crc32(b"%d" % offset)))


def read_start_offset(disk: Disk, folder: str) -> int:
    data = disk.read(f"{folder}/{START_OFFSET}")
    if len(data) != _START.size:
        return 0
    offset, crc = _START.unpack(data)
    return int(offset) if crc == crc32(b"%d" % offset) else 0


# The file `damaged` of a log: in which segment damage was found while the broker was running.
#
# - Recovery takes what lies below the checkpoint as recorded. Without this file the next start would take the log for
#   sound, serve it again, and let it lead, until the damage is found once more; it would never be copied again.
# - The file holds the base offset of the segment. Recovery checks that segment as a whole. If it is sound after all,
#   the file is removed: the disk or the memory has erred only once.


DAMAGED = "damaged"


def write_damaged(disk: Disk, folder: str, base_offset: int) -> None:
    """Durably. Blocks."""
    disk.write_atomically(f"{folder}/{DAMAGED}", b"%d" % base_offset)


def read_damaged(disk: Disk, folder: str) -> int | None:
    """The base offset of the segment; None if the file cannot be read any more."""
    text = disk.read(f"{folder}/{DAMAGED}")
    return int(text) if text.isdigit() else None


CHECKPOINT = ".checkpoint"
CHECKPOINTS_KEPT = 2

_HEAD = Struct(">4sHI")
_COUNTS = Struct(">qqqIII")
_COUNTS_1 = Struct(">qqIII")
_MARK = Struct(">qqqqqqqIII")
_MARK_1 = Struct(">qqqqqqqII")
_EPOCH = Struct(">iq")
_MAGIC, _VERSION = b"HRCP", 2


class SegmentCheckpoint(NamedTuple):
    """One segment as it was at the checkpoint."""

    base_offset: int
    size: int
    created_ms: int
    max_timestamp: int
    max_timestamp_offset: int
    indexed_timestamp: int
    bytes_since_entry: int
    index_entries: int
    time_entries: int
    has_gaps: bool = False

    @classmethod
    def of(cls, segment: Segment) -> SegmentCheckpoint:
        return cls(
            segment.base_offset,
            segment.size,
            segment.created_ms,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            segment.indexed_timestamp,
            segment.bytes_since_entry,
            segment.index.saved,
            segment.time_index.saved,
            segment.has_gaps,
        )

    def segment(self, disk: Disk, folder: str) -> Segment:
        segment = Segment(
            disk, folder, self.base_offset, index_entries=self.index_entries, time_entries=self.time_entries
        )
        segment.size = segment.syncing = segment.written_from = self.size
        segment.created_ms = self.created_ms
        segment.max_timestamp = self.max_timestamp
        segment.max_timestamp_offset = self.max_timestamp_offset
        segment.indexed_timestamp = self.indexed_timestamp
        segment.bytes_since_entry = self.bytes_since_entry
        return segment


class Checkpoint(msgspec.Struct, frozen=True):
    offset: int
    start_offset: int
    segments: Sequence[SegmentCheckpoint]
    epochs: Sequence[tuple[int, int]]
    state: bytes
    cleaned_offset: int = 0  # below it compaction has been; unknown costs it only work

    def encode(self) -> bytes:
        body = b"".join(
            (
                _COUNTS.pack(
                    self.offset,
                    self.start_offset,
                    self.cleaned_offset,
                    len(self.segments),
                    len(self.epochs),
                    len(self.state),
                ),
                *(_MARK.pack(*mark) for mark in self.segments),
                *(_EPOCH.pack(*entry) for entry in self.epochs),
                self.state,
            )
        )
        return _HEAD.pack(_MAGIC, _VERSION, crc32(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """None if these bytes are not a whole checkpoint."""
        try:
            magic, version, crc = _HEAD.unpack_from(data)
        except struct_error:
            return None
        if magic != _MAGIC or version not in (1, _VERSION) or crc32(data[_HEAD.size :]) != crc:
            return None
        at, counts, mark = _HEAD.size, _COUNTS, _MARK
        if version == 1:
            counts, mark = _COUNTS_1, _MARK_1
        offset, start_offset, *cleaned, segment_count, epoch_count, state_bytes = counts.unpack_from(data, at)
        marks_from = at + counts.size
        epochs_from = marks_from + segment_count * mark.size
        state_from = epochs_from + epoch_count * _EPOCH.size
        return cls(
            offset,
            start_offset,
            [SegmentCheckpoint(*fields) for fields in mark.iter_unpack(data[marks_from:epochs_from])],
            [(epoch, start) for epoch, start in _EPOCH.iter_unpack(data[epochs_from:state_from])],
            data[state_from : state_from + state_bytes],
            *cleaned,
        )


def take_checkpoint(log: Log) -> tuple[Checkpoint, list[SparseIndex]]:
    """Write the indexes to their files and take a snapshot of everything else, in one step on the event loop.

    Returns the indexes that must be synced before the checkpoint is written.
    """
    indexes: list[SparseIndex] = [index for segment in log.segments for index in segment.indexes]
    for index in indexes:
        index.save()
    unsynced = [index for index in indexes if index.unsynced]
    for index in unsynced:
        index.unsynced = False
    marks = [SegmentCheckpoint.of(segment) for segment in log.segments]
    epochs, state = log.epochs.entries(), log.state.snapshot()
    return Checkpoint(log.end_offset, log.start_offset, marks, epochs, state, log.cleaned_offset), unsynced


def save_checkpoint(disk: Disk, folder: str, checkpoint: Checkpoint, indexes: Sequence[SparseIndex]) -> None:
    """Sync the indexes first: recovery trusts the entries that a checkpoint counts. Blocks."""
    for index in indexes:
        index.file().sync()
    if indexes:
        disk.sync_directory(folder)
    write_checkpoint_file(disk, folder, checkpoint)


def write_checkpoint_file(disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
    """Make it durable, then drop the ones that are too old. Blocks."""
    disk.write_atomically(f"{folder}/{file_name(checkpoint.offset, CHECKPOINT)}", checkpoint.encode())
    for offset in checkpoint_offsets(disk.list(folder))[:-CHECKPOINTS_KEPT]:
        disk.remove(f"{folder}/{file_name(offset, CHECKPOINT)}")


def newest_checkpoint(disk: Disk, folder: str, names: Iterable[str]) -> Checkpoint | None:
    """The newest one that is whole."""
    for offset in reversed(checkpoint_offsets(names)):
        checkpoint = Checkpoint.decode(disk.read(f"{folder}/{file_name(offset, CHECKPOINT)}"))
        if checkpoint is not None:
            return checkpoint
    return None


def remove_checkpoints_above(disk: Disk, folder: str, offset: int) -> None:
    """Durably forget the checkpoints above `offset`: the log is about to be cut there. Blocks."""
    for found in checkpoint_offsets(disk.list(folder)):
        if found > offset:
            disk.remove(f"{folder}/{file_name(found, CHECKPOINT)}")
    disk.sync_directory(folder)


def checkpoint_offsets(names: Iterable[str]) -> list[int]:
    """The offsets of the checkpoints among these file names, ascending."""
    return sorted(
        int(name[:NAME_DIGITS])
        for name in names
        if name.endswith(CHECKPOINT) and name[:NAME_DIGITS].isdigit() and len(name) == NAME_DIGITS + len(CHECKPOINT)
    )
