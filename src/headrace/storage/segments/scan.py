"""Scan the batches of a segment file. Reads may wait for the disk: call these functions in disk threads.

- The frame of a batch is checked first (magic, length, the expected base offset, allowing for gaps), so that zeros and
  garbage never count as batches; then its CRC.
- Memory is bounded, whatever length a batch claims to have.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import google_crc32c

from headrace.runtime.disk import File
from headrace.storage.segments.gaps import GapList
from headrace.wire.batches.batch import (
    CRC_START,
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    Marker,
    crc32c,
    parse_header,
    parse_marker,
)

CHUNK_BYTES = 1 << 20
HEADER_CHUNK_BYTES = 8 << 10
COPY_BYTES_MAX = 1 << 16
MARKER_BYTES_MAX = 4096
LENGTH_END = 12  # the length field does not count the bytes up to its own end

# The checked fields: base offset, length, magic, CRC, last offset delta. Three times cheaper than parsing the whole
# header.
_FRAME = Struct(">qi4xbI2xi")


class BadBatch(Exception):
    """The bytes at `position` are not the complete, undamaged batch that must begin there."""

    def __init__(self, position: int, reason: str, offset: int | None = None) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason
        self.offset = offset  # the expected base offset, if it is known


class ReplayedBatch(NamedTuple):
    """The parts of a batch from which a partition derives its state."""

    header: BatchHeader
    marker: Marker | None  # set for a control batch that ends a transaction


def check_frame(
    data: bytes, at: int, position: int, room_bytes: int, next_offset: int | None, gaps: GapList | None = None
) -> tuple[int, int, int]:
    """Size, next offset and CRC of the batch at data[at], which is at `position` of the file. Raises BadBatch."""
    base_offset, length, magic, crc, last_offset_delta = _FRAME.unpack_from(data, at)
    size = length + LENGTH_END
    if magic != MAGIC:
        raise BadBatch(position, f"magic is {magic}, not {MAGIC}", next_offset)
    if not HEADER_SIZE <= size <= room_bytes:
        raise BadBatch(position, f"a batch of {size} bytes where {room_bytes} remain", next_offset)
    if next_offset is not None:
        if gaps is not None:
            next_offset = gaps.after(next_offset)
        if base_offset != next_offset:
            raise BadBatch(position, f"base offset is {base_offset}, not {next_offset}", next_offset)
    if last_offset_delta < 0:
        raise BadBatch(position, f"last offset delta is {last_offset_delta}", next_offset)
    return size, base_offset + last_offset_delta + 1, crc


def check_batch(
    data: bytes, at: int, position: int, room_bytes: int, next_offset: int | None, gaps: GapList | None = None
) -> tuple[int, int] | None:
    """Size and next offset of the batch at data[at], whose CRC is checked; None if `data` ends inside it."""
    if len(data) - at < HEADER_SIZE:
        return None
    size, end_offset, expected = check_frame(data, at, position, room_bytes, next_offset, gaps)
    end = at + size
    if end > len(data):
        return None
    if size <= COPY_BYTES_MAX:
        crc = google_crc32c.value(data[at + CRC_START : end])
    else:
        crc = crc32c(memoryview(data)[at + CRC_START : end])
    if crc != expected:
        raise BadBatch(position, f"CRC is {crc:#010x}, the header says {expected:#010x}", next_offset)
    return size, end_offset


def checked_batches(
    file: File, position: int, limit: int, next_offset: int | None, gaps: GapList | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch between `position` and `limit` with its position, checked. Raises BadBatch."""
    while position < limit:
        data = file.pread(min(CHUNK_BYTES, limit - position), position)
        at = 0
        while (found := check_batch(data, at, position + at, limit - position - at, next_offset, gaps)) is not None:
            yield position + at, parse_header(data, at)
            at += found[0]
            next_offset = found[1]
        if not at:
            at, next_offset = _check_large_batch(file, data, position, limit, next_offset, gaps)
            yield position, parse_header(data)
        position += at


def headers(
    file: File, position: int, limit: int, gaps: GapList | None, *, hot: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch header between `position` and `limit` with its position; frames are checked, CRCs are not.

    With `hot`, stops early at bytes that are not in the page cache.
    """
    read = file.pread_hot if hot else file.pread
    next_offset = None
    while position < limit:
        data = read(min(HEADER_CHUNK_BYTES, limit - position), position)
        if data is None:
            return
        if len(data) < HEADER_SIZE:
            raise BadBatch(position, "the file ends inside a batch header")
        at = 0
        while len(data) - at >= HEADER_SIZE:
            size, next_offset, _ = check_frame(data, at, position + at, limit - position - at, next_offset, gaps)
            yield position + at, parse_header(data, at)
            at += size
        position += at


def read_replayed_batch(file: File, position: int, header: BatchHeader) -> ReplayedBatch:
    """The batch at `position`, as its partition replays it."""
    if not header.is_control or header.size_bytes > MARKER_BYTES_MAX:
        return ReplayedBatch(header, None)
    return to_replayed_batch(memoryview(file.pread(header.size_bytes, position)), header)


def to_replayed_batch(batch: memoryview, header: BatchHeader) -> ReplayedBatch:
    is_marker = header.is_control and header.size_bytes <= MARKER_BYTES_MAX
    return ReplayedBatch(header, parse_marker(batch, header) if is_marker else None)


def _check_large_batch(
    file: File, data: bytes, position: int, limit: int, next_offset: int | None, gaps: GapList | None
) -> tuple[int, int]:
    """Check the batch at `position`, which is longer than one chunk or truncated, computing its CRC in pieces."""
    if len(data) < HEADER_SIZE:
        raise BadBatch(position, "the file ends inside a batch header")
    size, next_offset, expected = check_frame(data, 0, position, limit - position, next_offset, gaps)
    crc, at, end = 0, position + CRC_START, position + size
    while at < end:
        piece = file.pread(min(CHUNK_BYTES, end - at), at)
        if not piece:
            raise BadBatch(position, "the file ends inside a batch")
        crc = google_crc32c.extend(crc, piece)
        at += len(piece)
    if crc != expected:
        raise BadBatch(position, f"CRC is {crc:#010x}, the header says {expected:#010x}")
    return size, next_offset
