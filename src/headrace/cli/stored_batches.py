"""Read the batches of a segment file one by one, including damaged ones.

The implementation is independent of the broker's, so that each can verify the other. Memory use is bounded by the
largest batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.model.errors import CorruptMessage, HeadraceError
from headrace.wire.batches.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    BatchRecord,
    Marker,
    check_crc,
    parse_header,
    parse_marker,
    read_records,
)

UNPACKED_BYTES_MAX = 1 << 30
_READ_BYTES = 1 << 20


class UnreadableBatch(Exception):
    """No batch begins at this position, so later batches cannot be located either."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class StoredBatch(NamedTuple):
    position: int
    header: BatchHeader
    data: memoryview

    def sealed(self) -> bytes:
        """The bytes that the checksum covers; raises CorruptMessage if it does not match."""
        return check_crc(self.data, self.header)

    @property
    def fault(self) -> str | None:
        try:
            self.sealed()
        except CorruptMessage as error:
            return error.message
        return None

    @property
    def marker(self) -> Marker | None:
        return parse_marker(self.data, self.header) if self.header.is_control else None

    def records(self) -> Iterator[BatchRecord]:
        """Decode the records; raise a HeadraceError if they contradict the header."""
        return read_records(self.data, self.header, UNPACKED_BYTES_MAX)


def stored_batches(path: Path) -> Iterator[StoredBatch]:
    """Yield every batch with its position; raise Unreadable where no batch can begin."""
    with path.open("rb", buffering=_READ_BYTES) as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            head = file.read(HEADER_SIZE)
            header = _header(head, position, size - position)
            data = head + file.read(header.size_bytes - HEADER_SIZE)
            yield StoredBatch(position, header, memoryview(data))
            position += header.size_bytes


def _header(head: bytes, position: int, room_bytes: int) -> BatchHeader:
    if len(head) < HEADER_SIZE:
        raise UnreadableBatch(position, f"{len(head)} bytes are too few for a batch header")
    try:
        header = parse_header(head)
    except HeadraceError as error:
        raise UnreadableBatch(position, error.message) from None
    if header.magic != MAGIC:
        raise UnreadableBatch(position, f"magic is {header.magic}, not {MAGIC}")
    if header.size_bytes > room_bytes:
        raise UnreadableBatch(position, f"the batch size is {header.size_bytes}, but only {room_bytes} bytes remain")
    if header.last_offset_delta < 0:
        raise UnreadableBatch(position, f"last offset delta is {header.last_offset_delta}")
    return header
