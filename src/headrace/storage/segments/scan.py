"""Walking the batches of a segment file. Reads may wait for the disk: call these in disk threads.

Every batch is judged by its frame first (length, magic, the offset that must come next, by the gaps where there are
some), so that zeros and garbage never count as batches, and then by its CRC. Memory stays bounded however long a batch
claims to be.
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
LENGTH_END = 12  # batch_length does not count the bytes before its own end

# The fields by which a batch is judged: base offset, length, magic, CRC, last offset delta. Three times
# cheaper than the whole header, which only recovery needs.
_FRAME = Struct(">qi4xbI2xi")


class BadBatch(Exception):
    """The bytes at `position` are not the whole, unharmed batch that must begin there."""

    def __init__(self, position: int, reason: str, offset: int | None = None) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason
        self.offset = offset  # that the batch must have, where that is known


class ReplayedBatch(NamedTuple):
    """A batch of the log, by what a partition may derive from it."""

    header: BatchHeader
    marker: Marker | None  # of a control batch that ends a transaction


def check_frame(
    data: bytes, at: int, position: int, room_bytes: int, next_offset: int | None, gaps: GapList | None = None
) -> tuple[int, int, int]:
    """Size, next offset and CRC of the batch at `at`, in the file at `position`. Raises BadBatch."""
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
    """Size and next offset of the batch at `at`, its CRC checked; None if `data` ends inside it."""
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
    """Every batch header between `position` and `limit` with its position; frames are judged, CRCs are not.

    `hot`: stop early at bytes that are not in memory.
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
    """The batch at `position` as its partition must hear of it."""
    if not header.is_control or header.size_bytes > MARKER_BYTES_MAX:
        return ReplayedBatch(header, None)
    return to_replayed_batch(memoryview(file.pread(header.size_bytes, position)), header)


def to_replayed_batch(batch: memoryview, header: BatchHeader) -> ReplayedBatch:
    is_marker = header.is_control and header.size_bytes <= MARKER_BYTES_MAX
    return ReplayedBatch(header, parse_marker(batch, header) if is_marker else None)


def _check_large_batch(
    file: File, data: bytes, position: int, limit: int, next_offset: int | None, gaps: GapList | None
) -> tuple[int, int]:
    """The batch at `position`, longer than one chunk or cut by the file's end: its CRC is taken in pieces."""
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
