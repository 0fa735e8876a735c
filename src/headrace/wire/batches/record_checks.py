"""Check that the records of a batch match its header. Every produced batch is checked before it is acknowledged.

    length | attributes i8 | timestamp delta | offset delta | key | value | header count | headers
    lengths, deltas and counts are zigzag varints; a part is its length, -1 for null, and its bytes

- A batch is valid if it has exactly the declared number of records, each record has exactly its declared length, the
  offset deltas count up from zero, and no bytes follow the last record.
- Checking one record takes half a microsecond in Python. Adjacent records of the same size usually have their lengths
  at the same positions, so a run of such records is compared position by position, for all its records at once, by
  strided slices. This takes about ten nanoseconds per record.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from headrace.model.errors import InvalidRecord, MalformedFrame
from headrace.wire.batches.batch import RECORDS_START, BatchHeader
from headrace.wire.batches.compression import NONE, decompress_pieces
from headrace.wire.codec.primitives import ONE_BYTE, read_varint, varint

# The minimum size of a record. A length can be read without a bounds check if this many bytes remain.
_RECORD_BYTES_MIN: Final = 7
# The number of records that a run is first compared with. It grows as long as all of them match.
_RUN_MIN: Final = 256
_RUN_GROWTH: Final = 16
# If runs are short, this many records are checked individually before the next run is tried.
_SHORT_RECORDS_MIN: Final = 4
_SHORT_RECORDS_MAX: Final = 64
# Toggles the high bit of a byte.
_FLIP: Final = bytes(byte ^ 0x80 for byte in range(256))
# The first byte of an offset delta's varint increases by two per delta, the second by one per 64 deltas; each with or
# without the continuation flag.
_DELTA_PERIODS: Final = {
    (nth, flag): b"".join(ONE_BYTE[step | flag] * repeat for step in range(0, 128, 2 - nth))
    for nth, repeat in ((0, 1), (1, 64))
    for flag in (0, 0x80)
}


def check_records(crc_payload: bytes, header: BatchHeader, *, keys_required: bool = False, size_bytes_max: int) -> None:
    """Raise `InvalidRecord` unless the batch is valid; decompresses at most `size_bytes_max` bytes. `crc_payload` is
    the result of `check_crc`."""
    checker = _RecordChecker(header.record_count, keys_required)
    if header.compression == NONE:
        rest = checker.check(crc_payload, RECORDS_START)
    else:
        packed = memoryview(crc_payload)[RECORDS_START:]
        rest = _check_pieces(checker, decompress_pieces(header.compression, packed, size_bytes_max))
    if rest or checker.index != header.record_count:
        raise InvalidRecord(
            f"the batch declares {header.record_count} records, but has {checker.index} and {rest} more bytes"
        )


def _check_pieces(checker: _RecordChecker, steps: Iterable[bytes]) -> int:
    """Check pieces as they are decompressed, so that only an incomplete record is kept in memory."""
    gathered: list[bytes] = []
    size_bytes = 0
    for step in steps:
        gathered.append(step)
        size_bytes += len(step)
        if size_bytes >= checker.size_bytes_needed:
            data = b"".join(gathered)
            size_bytes = checker.check(data)
            gathered = [data[len(data) - size_bytes :]]
            if size_bytes and checker.index == checker.count:
                break
    return size_bytes


class _RecordChecker:
    """Checks the records of one batch, which may arrive in pieces."""

    def __init__(self, count: int, keys_required: bool) -> None:
        self.count = count
        self.index = 0  # of the next record
        self.size_bytes_needed = 0  # the next check needs at least this many bytes
        self._keys_required = keys_required
        self._run = _RUN_MIN
        self._skip_short_records = 0 if count > _SHORT_RECORDS_MIN else _SHORT_RECORDS_MIN

    def check(self, data: bytes, position: int = 0) -> int:
        """Check all complete records in these bytes; return the number of remaining bytes."""
        self.size_bytes_needed = _RECORD_BYTES_MIN
        while True:
            if self._skip_short_records > 0:
                until = min(self.index + self._skip_short_records, self.count)
                position, self.index = _check_short_records(data, position, self.index, until, self._keys_required)
            if self.index >= self.count or len(data) - position < _RECORD_BYTES_MIN:
                break
            length, start = _read_length(data, position)
            if start + length > len(data):
                self.size_bytes_needed = start + length - position
                break
            layout = self._layout(data, position, start, length)
            self.index += 1
            position += (1 + self._check_run(data, position, layout)) * (layout.end - position)
        return len(data) - position

    def _layout(self, data: bytes, position: int, start: int, length: int) -> _RecordLayout:
        """Check one record individually; return its layout."""
        try:
            layout = _RecordLayout.of(data, position, start, start + length)
        except (IndexError, MalformedFrame):
            raise InvalidRecord(f"the parts of record {self.index} do not add up to its length") from None
        if layout.end != start + length:
            raise InvalidRecord(f"the parts of record {self.index} do not add up to its length")
        if layout.offset_delta != self.index:
            raise InvalidRecord(f"record {self.index} has offset delta {layout.offset_delta}")
        if self._keys_required and not layout.has_key:
            raise InvalidRecord(f"record {self.index} has no key, which a compacted topic requires")
        return layout

    def _check_run(self, data: bytes, position: int, layout: _RecordLayout) -> int:
        """Skip the following records that certainly have the same layout; return their number."""
        stride = layout.end - position
        # An offset delta with more bytes is a different layout.
        same_width = (1 << 7 * len(layout.offset) - 1) - self.index
        there = (len(data) - layout.end) // stride
        tried = found = max(min(self._run, there, self.count - self.index, same_width), 0)
        for place in layout.lengths:
            byte = data[place : place + 1]
            bytes_there = data[place + stride : place + stride * found + 1 : stride]
            if bytes_there != byte * found:
                found -= len(bytes_there.lstrip(byte))
        for place in layout.timestamp:
            bytes_there = data[place + stride : place + stride * found + 1 : stride]
            if place < layout.timestamp[-1]:
                bytes_there = bytes_there.translate(_FLIP)
            if not bytes_there.isascii():
                found = 0
        for nth, place in enumerate(layout.offset):
            bytes_there = data[place + stride : place + stride * found + 1 : stride]
            if bytes_there != _delta_bytes(self.index, found, nth, place == layout.offset[-1]):
                found = 0
        self.index += found
        self._run = self._run * _RUN_GROWTH if found == tried else _RUN_MIN
        self._skip_short_records = (
            0
            if found > _SHORT_RECORDS_MIN
            else min(max(self._skip_short_records * 2, _SHORT_RECORDS_MIN), _SHORT_RECORDS_MAX)
        )
        return found


class _RecordLayout(NamedTuple):
    """The positions of the lengths and deltas of a record."""

    lengths: list[int]  # the positions of all bytes of lengths and of the header count
    timestamp: range
    offset: range
    offset_delta: int
    has_key: bool
    end: int

    @classmethod
    def of(cls, data: bytes, position: int, start: int, limit: int) -> _RecordLayout:
        lengths = list(range(position, start))
        _, timestamp_end = read_varint(data, start + 1)
        offset_delta, at = read_varint(data, timestamp_end)
        offset = range(timestamp_end, at)
        key_size, at = _skip_part(data, at, lengths)
        _, at = _skip_part(data, at, lengths)
        end = _skip_headers(data, at, limit, lengths)
        return cls(lengths, range(start + 1, timestamp_end), offset, offset_delta, key_size >= 0, end)


def _read_length(data: bytes, position: int) -> tuple[int, int]:
    try:
        length, start = read_varint(data, position)
    except (IndexError, MalformedFrame):
        length = -1
    if length < 0 or start - position > 5:
        raise InvalidRecord("a record has no valid length")
    return length, start


def _skip_part(data: bytes, position: int, lengths: list[int]) -> tuple[int, int]:
    size_bytes, at = read_varint(data, position)
    if size_bytes < -1:
        raise MalformedFrame(f"invalid part length {size_bytes}")
    lengths += range(position, at)
    return size_bytes, at + max(size_bytes, 0)


def _skip_headers(data: bytes, position: int, limit: int, lengths: list[int]) -> int:
    count, at = read_varint(data, position)
    lengths += range(position, at)
    if not 0 <= count <= limit - at:
        raise MalformedFrame(f"{count} headers declared, but only {limit - at} bytes remain")
    for _ in range(count):
        name_size, at = _skip_part(data, at, lengths)
        if name_size < 0:
            raise MalformedFrame("a header has no name")
        _, at = _skip_part(data, at, lengths)
    return at


def _delta_bytes(index: int, count: int, nth: int, is_last: bool) -> bytes:
    """Return the nth byte of the varints of `count` offset deltas from `index` on."""
    flag = 0 if is_last else 0x80
    if nth < 2:
        period = _DELTA_PERIODS[nth, flag]
        start = index % len(period)
        return (period * ((start + count) // len(period) + 1))[start : start + count]
    shift = 7 * nth - 1
    end = index + count
    return b"".join(
        ONE_BYTE[step & 0x7F | flag] * (min(end, step + 1 << shift) - max(index, step << shift))
        for step in range(index >> shift, (end - 1 >> shift) + 1)
    )


def _check_short_records(data: bytes, position: int, index: int, until: int, keys_required: bool) -> tuple[int, int]:
    """Skip valid records with short lengths; stop before the first other one, which `_layout` then checks.

    This is the inner loop for records of different sizes.
    """
    last = len(data) - _RECORD_BYTES_MIN
    starts_with = data.startswith
    deltas, lengths = _plain_varints()
    try:
        while index < until and position <= last:
            length = data[position]
            at = position + 2
            if length > 127:
                length += (data[position + 1] << 7) - 128
                at += 1
            end = at - 1 + (length >> 1)
            timestamp_end_max = at + 9
            while data[at] > 127:
                at += 1
            delta = deltas[index]
            if length & 1 or length > 0x3FFF or at > timestamp_end_max or not starts_with(delta, at + 1):
                break
            at += 1 + len(delta)
            key = data[at]
            at += 1
            if key != 1:
                if key & 0x81:
                    break
                at += key >> 1
            elif keys_required:
                break
            # Without headers the value fills the rest of the record, so its length is known before it is read.
            value = lengths.get(end - 1 - at)
            plain = value is not None and data[end - 1] == 0 and starts_with(value, at)
            if not plain and not _value_and_headers_fill(data, at, end):
                break
            position = end
            index += 1
    except (IndexError, MalformedFrame):
        pass
    return position, index


def _value_and_headers_fill(data: bytes, position: int, end: int) -> bool:
    lengths: list[int] = []
    _, at = _skip_part(data, position, lengths)
    return at < end <= len(data) and _skip_headers(data, at, end, lengths) == end


@cache
def _plain_varints() -> tuple[list[bytes], dict[int, bytes]]:
    """Return the varints of the first offset deltas, and by the size of a part with its length, that length."""
    varints = [varint(value) for value in range(1 << 14)]
    return varints, {value + len(data): data for value, data in enumerate(varints) if len(data) <= 2}
