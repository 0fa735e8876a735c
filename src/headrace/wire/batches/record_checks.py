"""Are the records of a batch what its header says? Asked of every produced batch, before it is acknowledged.

    length | attributes i8 | timestamp delta | offset delta | key | value | header count | headers
    lengths, deltas and counts are zigzag varints; a part is its length, -1 for null, and its bytes

A batch passes when it holds exactly as many records as declared, each of them adds up to its length, their
offsets count up from zero, and nothing is left over. To look at one record costs Python half a microsecond.
But neighbours of one size mostly have their lengths in the same places, so such a run is compared place by
place, for all its records at once, by strided slices: that costs some ten nanoseconds per record.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from headrace.model.errors import InvalidRecord, MalformedFrame
from headrace.wire.batches.batch import RECORDS_START, BatchHeader
from headrace.wire.batches.compression import NONE, decompress_pieces
from headrace.wire.codec.primitives import ONE_BYTE, read_varint, varint

# No record is smaller; and where so much is left, a length can be read without looking for the end.
_RECORD_BYTES_MIN: Final = 7
# How many records a run is tried with first. It grows while all of them fit.
_RUN_MIN: Final = 256
_RUN_GROWTH: Final = 16
# Where runs are short, so many records are looked at one by one before the next is tried.
_SHORT_RECORDS_MIN: Final = 4
_SHORT_RECORDS_MAX: Final = 64
# Turns a byte with the high bit into one without it, and the other way round.
_FLIP: Final = bytes(byte ^ 0x80 for byte in range(256))
# The first byte of an offset delta's varint counts in twos, the second steps with every 64th delta; either with
# or without the flag of a byte that is not the last.
_DELTA_PERIODS: Final = {
    (nth, flag): b"".join(ONE_BYTE[step | flag] * repeat for step in range(0, 128, 2 - nth))
    for nth, repeat in ((0, 1), (1, 64))
    for flag in (0, 0x80)
}


def check_records(sealed: bytes, header: BatchHeader, *, keys_required: bool = False, size_bytes_max: int) -> None:
    """Raise `InvalidRecord` unless the batch keeps its word; unpacks at most `size_bytes_max` bytes.

    `sealed` is what `check_crc` has returned.
    """
    checker = _RecordChecker(header.record_count, keys_required)
    if header.compression == NONE:
        rest = checker.check(sealed, RECORDS_START)
    else:
        packed = memoryview(sealed)[RECORDS_START:]
        rest = _check_pieces(checker, decompress_pieces(header.compression, packed, size_bytes_max))
    if rest or checker.index != header.record_count:
        raise InvalidRecord(
            f"{header.record_count} records declared; found are {checker.index}, and {rest} bytes behind them"
        )


def _check_pieces(checker: _RecordChecker, steps: Iterable[bytes]) -> int:
    """Walk over pieces as they are unpacked, so that only a record that is not complete is kept."""
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
    """The way through the records of one batch, which may come in pieces."""

    def __init__(self, count: int, keys_required: bool) -> None:
        self.count = count
        self.index = 0  # of the record that comes next
        self.size_bytes_needed = 0  # going on makes no sense before so many bytes are there
        self._keys_required = keys_required
        self._run = _RUN_MIN
        self._skip_short_records = 0 if count > _SHORT_RECORDS_MIN else _SHORT_RECORDS_MIN

    def check(self, data: bytes, position: int = 0) -> int:
        """Check all records that are complete in these bytes; return how many bytes are left."""
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
        """Check one record fully."""
        try:
            layout = _RecordLayout.of(data, position, start, start + length)
        except (IndexError, MalformedFrame):
            raise InvalidRecord(f"record {self.index} does not add up to its length") from None
        if layout.end != start + length:
            raise InvalidRecord(f"record {self.index} does not add up to its length")
        if layout.offset_delta != self.index:
            raise InvalidRecord(f"record {self.index} has offset delta {layout.offset_delta}")
        if self._keys_required and not layout.has_key:
            raise InvalidRecord(f"record {self.index} has no key, which a compacted topic needs")
        return layout

    def _check_run(self, data: bytes, position: int, layout: _RecordLayout) -> int:
        """Pass over the next records as far as they surely have the same shape; return how many."""
        stride = layout.end - position
        # A longer offset delta would be another shape.
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
    """Where a record has its lengths and deltas."""

    lengths: list[int]  # the places of all bytes that make up lengths and the header count
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
        raise InvalidRecord("a record without a length")
    return length, start


def _skip_part(data: bytes, position: int, lengths: list[int]) -> tuple[int, int]:
    size_bytes, at = read_varint(data, position)
    if size_bytes < -1:
        raise MalformedFrame(f"a part of {size_bytes} bytes")
    lengths += range(position, at)
    return size_bytes, at + max(size_bytes, 0)


def _skip_headers(data: bytes, position: int, limit: int, lengths: list[int]) -> int:
    count, at = read_varint(data, position)
    lengths += range(position, at)
    if not 0 <= count <= limit - at:
        raise MalformedFrame(f"{count} headers where {limit - at} bytes remain")
    for _ in range(count):
        name_size, at = _skip_part(data, at, lengths)
        if name_size < 0:
            raise MalformedFrame("a header without a name")
        _, at = _skip_part(data, at, lengths)
    return at


def _delta_bytes(index: int, count: int, nth: int, is_last: bool) -> bytes:
    """The nth bytes of the varints of the offset deltas `index` and following."""
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
    """Walk over records with short lengths; stop before the first that is not as expected.

    This is the inner loop for records of mixed sizes. It refuses nothing: that is left to `_Shape`.
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
            # Without headers the value fills what is left, so its length is known before it is read.
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
    """The first offset deltas; and, by the size of a part with its length, the length of up to two bytes."""
    varints = [varint(value) for value in range(1 << 14)]
    return varints, {value + len(data): data for value, data in enumerate(varints) if len(data) <= 2}
