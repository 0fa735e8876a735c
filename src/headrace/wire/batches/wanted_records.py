"""Read a range of offsets from a batch: records before the range are skipped, records after it are not read.

Leases use this, because they consume a batch piece by piece: skipping a record takes a tenth of the time of reading it,
and an open batch continues where the previous read ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.errors import InvalidRecord, MalformedFrame
from headrace.wire.batches.batch import HEADER_SIZE, BatchHeader, check_crc
from headrace.wire.batches.compression import decompress
from headrace.wire.codec.primitives import read_varint

Headers = list[tuple[str, bytes | None]]
WantedRecord = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset, timestamp, key, value and headers."""

_ONE_BYTE = 0x80  # a varint below this value has one byte


class UnpackedBatch:
    """A decompressed batch with a valid checksum, and the position up to which it was read."""

    __slots__ = ("_append_time", "_data", "_has_gaps", "_header", "_next_offset", "_position")

    def __init__(self, batch: memoryview, header: BatchHeader, size_bytes_max: int) -> None:
        check_crc(batch, header)
        self._header = header
        self._data = decompress(header.compression, batch[HEADER_SIZE : header.size_bytes], size_bytes_max)
        self._has_gaps = header.record_count != header.last_offset_delta + 1
        self._append_time = header.max_timestamp if header.is_log_append_time else None
        self._next_offset = header.base_offset  # the record at the position has this offset or a later one
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    @property
    def is_read(self) -> bool:
        """Whether the batch was read to its end."""
        return self._position >= len(self._data)

    def is_of(self, header: BatchHeader) -> bool:
        """Whether the header is that of the same batch, in another copy."""
        mine = self._header
        return (mine.base_offset, mine.crc, mine.size_bytes) == (header.base_offset, header.crc, header.size_bytes)

    def read(self, first: int, last: int) -> Iterator[WantedRecord]:
        """Yield the records from `first` to `last`, inclusive; raise `InvalidRecord` for an invalid one."""
        data, base_offset, base_timestamp = self._data, self._header.base_offset, self._header.base_timestamp
        try:
            position = self._go_to(first)
            while position < len(data):
                size_bytes, position = _read_size(data, position)
                end = position + size_bytes
                if not position < end <= len(data):
                    raise InvalidRecord(f"a record has {size_bytes} bytes, but only {len(data) - position} remain")
                number = data[position + 1]  # after the attributes, which are unused
                if number < _ONE_BYTE:
                    delta, at = (number >> 1) ^ -(number & 1), position + 2
                else:
                    delta, at = read_varint(data, position + 1)
                offset, at = _read_size(data, at)
                offset += base_offset
                if offset > last:
                    return
                position = self._position = end
                self._next_offset = offset + 1
                if offset >= first:
                    timestamp_ms = base_timestamp + delta if self._append_time is None else self._append_time
                    yield offset, timestamp_ms, *_content(data, at, end)
        except (IndexError, MalformedFrame):
            raise InvalidRecord("a record ends too early") from None

    def _go_to(self, offset: int) -> int:
        """Return the position of a record at or before this offset; without gaps, of the record at this offset."""
        if offset < self._next_offset:
            self._next_offset, self._position = self._header.base_offset, 0
        if not self._has_gaps and offset > self._next_offset:
            count = min(offset, self._header.next_offset) - self._next_offset
            self._position = _position_after(self._data, self._position, count)
            self._next_offset += count
        return self._position


def _position_after(data: bytes, position: int, count: int) -> int:
    """Return the position after `count` more records."""
    for _ in range(count):
        number = data[position]
        if number < _ONE_BYTE:
            position += 1 + (number >> 1)
        elif data[position + 1] < _ONE_BYTE:
            position += 2 + ((number & 0x7F | data[position + 1] << 7) >> 1)
        else:
            size_bytes, position = read_varint(data, position)
            if size_bytes < 0:
                raise InvalidRecord(f"invalid record length {size_bytes}")
            position += size_bytes
    return position


def _read_size(data: bytes, position: int) -> tuple[int, int]:
    """Like `read_varint`, but faster for one and two bytes."""
    number = data[position]
    if number < _ONE_BYTE:
        return (number >> 1) ^ -(number & 1), position + 1
    second = data[position + 1]
    if second < _ONE_BYTE:
        number = number & 0x7F | second << 7
        return (number >> 1) ^ -(number & 1), position + 2
    return read_varint(data, position)


def _content(data: bytes, at: int, end: int) -> tuple[bytes | None, bytes | None, Headers]:
    size_bytes, at = _read_size(data, at)
    key = None
    if size_bytes >= 0:
        key = data[at : at + size_bytes]
        at += size_bytes
    size_bytes, at = _read_size(data, at)
    value = None
    if size_bytes >= 0:
        value = data[at : at + size_bytes]
        at += size_bytes
    if at == end - 1 and data[at] == 0:
        return key, value, []
    return key, value, _headers(data, at, end)


def _headers(data: bytes, at: int, end: int) -> Headers:
    count, at = read_varint(data, at)
    if not 0 <= count <= end - at:
        raise InvalidRecord(f"{count} headers declared, but only {end - at} bytes remain")
    headers: Headers = []
    for _ in range(count):
        size_bytes, at = read_varint(data, at)
        if size_bytes < 0:
            raise InvalidRecord("a header has no name")
        name, at = data[at : at + size_bytes].decode("utf-8", "surrogateescape"), at + size_bytes
        size_bytes, at = read_varint(data, at)
        content = None
        if size_bytes >= 0:
            content, at = data[at : at + size_bytes], at + size_bytes
        headers.append((name, content))
    if at != end:
        raise InvalidRecord("the parts of a record do not add up to its length")
    return headers
