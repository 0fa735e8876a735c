"""Some records of a batch, by their offsets: those before them are stepped over, and those behind are not looked at.

For whoever takes a batch bit by bit, as leases do: stepping over a record costs a tenth of reading it, and a batch that
is kept open costs nothing to go on in.
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

_ONE_BYTE = 0x80  # below it


class UnpackedBatch:
    """A batch whose checksum is right, unpacked. It knows where it was read to."""

    __slots__ = ("_append_time", "_data", "_has_gaps", "_header", "_next_offset", "_position")

    def __init__(self, batch: memoryview, header: BatchHeader, size_bytes_max: int) -> None:
        check_crc(batch, header)
        self._header = header
        self._data = decompress(header.compression, batch[HEADER_SIZE : header.size_bytes], size_bytes_max)
        self._has_gaps = header.record_count != header.last_offset_delta + 1
        self._append_time = header.max_timestamp if header.is_log_append_time else None
        self._next_offset = header.base_offset  # the record at the position is this one, or behind it
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    @property
    def is_read(self) -> bool:
        """To its end."""
        return self._position >= len(self._data)

    def is_of(self, header: BatchHeader) -> bool:
        """Whether another copy of it has this header."""
        mine = self._header
        return (mine.base_offset, mine.crc, mine.size_bytes) == (header.base_offset, header.crc, header.size_bytes)

    def read(self, first: int, last: int) -> Iterator[WantedRecord]:
        """The records from `first` to `last`, both included; `InvalidRecord` for what is none."""
        data, base_offset, base_timestamp = self._data, self._header.base_offset, self._header.base_timestamp
        try:
            position = self._go_to(first)
            while position < len(data):
                size_bytes, position = _read_size(data, position)
                end = position + size_bytes
                if not position < end <= len(data):
                    raise InvalidRecord(f"a record of {size_bytes} bytes where {len(data) - position} remain")
                number = data[position + 1]  # behind the attributes, which mean nothing
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
        """The position of a record that is not behind this offset; where there are no gaps, of just this one."""
        if offset < self._next_offset:
            self._next_offset, self._position = self._header.base_offset, 0
        if not self._has_gaps and offset > self._next_offset:
            count = min(offset, self._header.next_offset) - self._next_offset
            self._position = _position_behind(self._data, self._position, count)
            self._next_offset += count
        return self._position


def _position_behind(data: bytes, position: int, count: int) -> int:
    """Where the record begins that lies behind so many others."""
    for _ in range(count):
        number = data[position]
        if number < _ONE_BYTE:
            position += 1 + (number >> 1)
        elif data[position + 1] < _ONE_BYTE:
            position += 2 + ((number & 0x7F | data[position + 1] << 7) >> 1)
        else:
            size_bytes, position = read_varint(data, position)
            if size_bytes < 0:
                raise InvalidRecord(f"a record of {size_bytes} bytes")
            position += size_bytes
    return position


def _read_size(data: bytes, position: int) -> tuple[int, int]:
    """As `read_varint`, sooner for what is usual."""
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
        raise InvalidRecord(f"{count} headers where {end - at} bytes remain")
    headers: Headers = []
    for _ in range(count):
        size_bytes, at = read_varint(data, at)
        if size_bytes < 0:
            raise InvalidRecord("a header without a name")
        name, at = data[at : at + size_bytes].decode("utf-8", "surrogateescape"), at + size_bytes
        size_bytes, at = read_varint(data, at)
        content = None
        if size_bytes >= 0:
            content, at = data[at : at + size_bytes], at + size_bytes
        headers.append((name, content))
    if at != end:
        raise InvalidRecord("a record's parts do not add up to its size")
    return headers
