"""The small files in a log's folder: checkpoints, `start-offset`, `damaged`.

- A checkpoint is written only after the log and its indexes were synced up to its offset. It holds what is derived from
  the log up to there: segments, leader epochs and the state of the partition. Recovery begins at its offset. The newest
  two are kept; a checkpoint whose CRC is wrong is ignored.
- `start-offset`: nothing below it belongs to the log any more, whichever segments survive.
- `damaged`: the base offset of the segment in which damage was found at run time. Recovery checks that segment as a
  whole. Without the file recovery would trust everything below the checkpoint, so a damaged log could be served and
  lead again after a restart. If the segment is sound after all, the disk or memory erred only once, and recovery
  removes the file.

    checkpoint   "HRCP" u16 version u32 crc (of all that follows)
                 i64 offset  i64 start offset  i64 cleaned offset  u32 segments  u32 epochs  u32 state bytes
                 segments: the fields of SegmentCheckpoint    epochs: (i32 epoch, i64 start offset)    state

Version 1, written before compaction existed, has no cleaned offset and no gaps of segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple
from zlib import crc32

import msgspec

from headrace.runtime.disk import Disk
from headrace.storage.segments.index import SparseIndex
from headrace.storage.segments.segment import NAME_DIGITS, Segment, file_name

START_OFFSET = "start-offset"
DAMAGED = "damaged"
CHECKPOINT = ".checkpoint"
CHECKPOINTS_KEPT = 2

_OFFSET = Struct(">qI")
_HEAD = Struct(">4sHI")
_COUNTS = Struct(">qqqIII")
_COUNTS_1 = Struct(">qqIII")
_MARK = Struct(">qqqqqqqIII")
_MARK_1 = Struct(">qqqqqqqII")
_EPOCH = Struct(">iq")
_MAGIC, _VERSION = b"HRCP", 2


def encode_offset(offset: int) -> bytes:
    """The content of a file that holds one offset."""
    return _OFFSET.pack(offset, crc32(b"%d" % offset))


def decode_offset(data: bytes) -> int | None:
    """None if the bytes are damaged."""
    if len(data) != _OFFSET.size:
        return None
    offset, crc = _OFFSET.unpack(data)
    return int(offset) if crc == crc32(b"%d" % offset) else None


def read_start_offset(disk: Disk, folder: str) -> int:
    return decode_offset(disk.read(f"{folder}/{START_OFFSET}")) or 0


def write_start_offset(disk: Disk, folder: str, offset: int) -> None:
    """Write the start offset durably. Blocks."""
    disk.write_atomically(f"{folder}/{START_OFFSET}", encode_offset(offset))


def write_damaged(disk: Disk, folder: str, base_offset: int) -> None:
    """Record durably in which segment damage was found. Blocks."""
    disk.write_atomically(f"{folder}/{DAMAGED}", b"%d" % base_offset)


def read_damaged(disk: Disk, folder: str) -> int | None:
    """The base offset of the damaged segment; None if the file itself is damaged."""
    text = disk.read(f"{folder}/{DAMAGED}")
    return int(text) if text.isdigit() else None


class SegmentCheckpoint(NamedTuple):
    """The state of one segment at a checkpoint."""

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
        segment.size = segment.sync_requested = segment.written_from = self.size
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
    cleaned_offset: int = 0  # compaction has cleaned everything below; 0 is always safe

    def encode(self) -> bytes:
        counts = len(self.segments), len(self.epochs), len(self.state)
        parts = [_COUNTS.pack(self.offset, self.start_offset, self.cleaned_offset, *counts)]
        parts += [_MARK.pack(*mark) for mark in self.segments]
        parts += [_EPOCH.pack(*entry) for entry in self.epochs]
        body = b"".join((*parts, self.state))
        return _HEAD.pack(_MAGIC, _VERSION, crc32(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """None if the bytes are damaged or incomplete."""
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


def save_checkpoint(disk: Disk, folder: str, checkpoint: Checkpoint, indexes: Sequence[SparseIndex]) -> None:
    """Sync the indexes first: recovery trusts the entries that a checkpoint counts. Blocks."""
    for index in indexes:
        index.open().sync()
    if indexes:
        disk.sync_directory(folder)
    write_checkpoint_file(disk, folder, checkpoint)


def write_checkpoint_file(disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint durably, then remove the oldest ones. Blocks."""
    disk.write_atomically(f"{folder}/{file_name(checkpoint.offset, CHECKPOINT)}", checkpoint.encode())
    for offset in checkpoint_offsets(disk.list(folder))[:-CHECKPOINTS_KEPT]:
        disk.remove(f"{folder}/{file_name(offset, CHECKPOINT)}")


def newest_checkpoint(disk: Disk, folder: str, names: Iterable[str]) -> Checkpoint | None:
    """The newest checkpoint that is undamaged."""
    for offset in reversed(checkpoint_offsets(names)):
        checkpoint = Checkpoint.decode(disk.read(f"{folder}/{file_name(offset, CHECKPOINT)}"))
        if checkpoint is not None:
            return checkpoint
    return None


def remove_checkpoints_above(disk: Disk, folder: str, offset: int) -> None:
    """Remove durably the checkpoints above `offset`, before the log is truncated there. Blocks."""
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
