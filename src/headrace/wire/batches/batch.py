"""Record batches, format 2: the bytes that producers send, the log stores and consumers receive unchanged.

     0 base_offset i64        23 last_offset_delta i32
     8 batch_length i32       27 base_timestamp i64
    12 leader_epoch i32       35 max_timestamp i64
    16 magic i8 = 2           43 producer_id i64
    17 crc u32                51 producer_epoch i16
    21 attributes i16         53 base_sequence i32
                              57 record_count i32
                              61 records

- The CRC-32C covers the bytes from 21 to the end, so a leader can set the offset and the epoch of a batch without
  computing it again.
- Records store their differences from the offset and timestamp of the header.
- A control batch is the marker that ends a transaction in a partition; only brokers write it. It has one record: the
  key is the outcome (0 abort, 1 commit), the value is the epoch of the coordinator. The header has the producer id and
  epoch. Consumers skip markers, but each one has an offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from headrace.model.errors import CorruptMessage, HeadraceError, InvalidRecord, MalformedFrame
from headrace.wire.batches.compression import NONE, compress, decompress
from headrace.wire.codec.primitives import read_varint, varint

HEADER_SIZE: Final = 61
MAGIC: Final = 2
CRC_START: Final = 21
RECORDS_START: Final = HEADER_SIZE - CRC_START  # within the bytes that the CRC covers

COMPRESSION_MASK: Final = 0b111
LOG_APPEND_TIME: Final = 1 << 3
TRANSACTIONAL: Final = 1 << 4
CONTROL: Final = 1 << 5

HEADER: Final = Struct(">qiibIhiqqqhii")
_OFFSET: Final = Struct(">q")
_INT32: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
# Bytes before the part that batch_length counts.
_LENGTH_END: Final = 12
_NULL: Final = varint(-1)
_NO_HEADERS: Final = varint(0)
_CRC_STEP_BYTES: Final = 1 << 16
_KEPT_VARINTS: Final = 1 << 14  # those of up to two bytes


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    size_bytes: int  # of the whole batch, including the twelve bytes that batch_length excludes
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Return the sequence number of the last record; sequence numbers wrap around after 2**31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0


def parse_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Parse the 61 bytes. The caller checks whether the batch is complete and intact."""
    try:
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = HEADER.unpack_from(buffer, position)
    except struct_error:
        raise CorruptMessage(f"{len(buffer) - position} bytes are too short for a batch header") from None
    if length < HEADER_SIZE - _LENGTH_END:
        raise CorruptMessage(f"invalid batch length {length}")
    return BatchHeader(
        base_offset,
        length + _LENGTH_END,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )


def split_batches(data: bytes) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield the complete batches in these bytes."""
    view = memoryview(data)
    position = 0
    while position + HEADER_SIZE <= len(view):
        header = parse_header(view, position)
        yield view[position : position + header.size_bytes], header
        position += header.size_bytes


def check_crc(batch: memoryview, header: BatchHeader) -> bytes:
    """Raise `CorruptMessage` unless the length and the checksum of the batch are correct.

    Returns the bytes that the CRC covers. The CRC library does not accept views, so these had to be copied, and callers
    that read the records next need not copy them again.
    """
    if len(batch) != header.size_bytes:
        raise CorruptMessage(f"the batch is incomplete: {len(batch)} of {header.size_bytes} bytes")
    payload = bytes(batch[CRC_START:])
    crc = google_crc32c.value(payload)
    if crc != header.crc:
        raise CorruptMessage(f"the batch at offset {header.base_offset} has crc {crc:#x}, not {header.crc:#x}")
    return payload


def assign_offset_and_epoch(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set the two fields that the checksum does not cover."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _INT32.pack_into(batch, 12, leader_epoch)


def set_log_append_time(batch: memoryview, now_ms: int) -> None:
    """Set the broker's time for all records of the batch, and update the checksum."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, 21)
    _ATTRIBUTES.pack_into(batch, 21, attributes | LOG_APPEND_TIME)
    _OFFSET.pack_into(batch, 35, now_ms)
    set_crc(batch)


def set_crc(batch: memoryview) -> None:
    _CRC.pack_into(batch, 17, crc32c(batch[CRC_START:]))


def crc32c(data: memoryview) -> int:
    """The CRC library does not accept views, so the bytes are copied, in steps that fit into the CPU cache."""
    crc: int = google_crc32c.value(bytes(data[:_CRC_STEP_BYTES]))
    for position in range(_CRC_STEP_BYTES, len(data), _CRC_STEP_BYTES):
        crc = google_crc32c.extend(crc, bytes(data[position : position + _CRC_STEP_BYTES]))
    return crc


class _Varints(dict[int, bytes]):
    """A cache of varints: lengths and deltas recur, and a lookup takes a fifth of the time of encoding."""

    def __missing__(self, value: int) -> bytes:
        data = varint(value)
        if 0 <= value < _KEPT_VARINTS:
            self[value] = data
        return data


_VARINTS: Final = _Varints()


class _PlainHeads(dict[int, bytes]):
    """A cache by offset delta: the bytes before the value of a record without key and timestamp delta."""

    def __missing__(self, delta: int) -> bytes:
        data = b"\0\0" + _VARINTS[delta] + _NULL
        if 0 <= delta < _KEPT_VARINTS:
            self[delta] = data
        return data


_PLAIN_HEADS: Final = _PlainHeads()


class BatchRecord(msgspec.Struct, gc=False):
    """One message. `offset` is -1 until the log assigns one."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0
    offset: int = -1


def build_batch(
    records: Sequence[BatchRecord],
    *,
    base_offset: int = 0,
    compression: int = NONE,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """Build a batch of at least one record. Records without an offset get the next one."""
    assert records
    base_timestamp = records[0].timestamp_ms
    max_timestamp = base_timestamp
    parts: list[bytes] = []
    delta = -1
    for record in records:
        delta = delta + 1 if record.offset < 0 else record.offset - base_offset
        timestamp_ms, value = record.timestamp_ms, record.value
        if value is not None and timestamp_ms == base_timestamp and record.key is None and not record.headers:
            # The fast path of `_add_record` for records that have only a value.
            head, value_size = _PLAIN_HEADS[delta], _VARINTS[len(value)]
            size_bytes = len(head) + len(value_size) + len(value) + 1
            parts += (_VARINTS[size_bytes], head, value_size, value, _NO_HEADERS)
        else:
            max_timestamp = max(max_timestamp, timestamp_ms)
            _add_record(parts, record, timestamp_ms - base_timestamp, delta)
    payload = b"".join(parts)
    if compression:
        payload = compress(compression, payload)
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_SIZE - _LENGTH_END + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes | compression,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += payload
    set_crc(memoryview(batch))
    return batch


def recompress(batch: memoryview, header: BatchHeader, compression: int, size_bytes_max: int) -> bytearray:
    """Return the batch with another compression; the rest of the header is unchanged."""
    payload: bytes | memoryview = batch[HEADER_SIZE:]
    if header.compression:
        payload = decompress(header.compression, batch[HEADER_SIZE:], size_bytes_max)
    if compression:
        payload = compress(compression, bytes(payload))
    again = bytearray(batch[:HEADER_SIZE]) + payload
    _INT32.pack_into(again, 8, len(again) - _LENGTH_END)
    _ATTRIBUTES.pack_into(again, CRC_START, header.attributes & ~COMPRESSION_MASK | compression)
    set_crc(memoryview(again))
    return again


def _add_record(parts: list[bytes], record: BatchRecord, timestamp_delta: int, offset_delta: int) -> None:
    """Append the pieces of the record; joining the pieces of a batch once is cheaper than joining each record."""
    key, value, headers = record.key, record.value, record.headers
    stamps = _VARINTS[timestamp_delta] + _VARINTS[offset_delta]
    if key is None:
        key, key_size = b"", _NULL
    else:
        key_size = _VARINTS[len(key)]
    if value is None:
        value, value_size = b"", _NULL
    else:
        value_size = _VARINTS[len(value)]
    tail = _headers(headers) if headers else _NO_HEADERS
    size_bytes = 1 + len(stamps) + len(key_size) + len(key) + len(value_size) + len(value) + len(tail)
    parts += (_VARINTS[size_bytes], b"\0", stamps, key_size, key, value_size, value, tail)


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [_VARINTS[len(headers)]]
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        parts += (_VARINTS[len(encoded)], encoded)
        parts += (_NULL,) if value is None else (_VARINTS[len(value)], value)
    return b"".join(parts)


def read_records(batch: memoryview, header: BatchHeader, size_bytes_max: int) -> Iterator[BatchRecord]:
    """Yield the records; raise `InvalidRecord` if they do not match the header."""
    data = decompress(header.compression, batch[HEADER_SIZE : header.size_bytes], size_bytes_max)
    position = 0
    try:
        for _ in range(header.record_count):
            size_bytes, position = read_varint(data, position)
            end = position + size_bytes
            if not position < end <= len(data):
                raise InvalidRecord(f"a record has {size_bytes} bytes, but only {len(data) - position} remain")
            yield _read_record(data, position + 1, end, header)
            position = end
    except (IndexError, MalformedFrame):
        raise InvalidRecord("a record ends too early") from None
    if position != len(data):
        raise InvalidRecord(f"{len(data) - position} bytes follow the last record")


def _read_record(data: bytes, position: int, end: int, header: BatchHeader) -> BatchRecord:
    timestamp_delta, position = read_varint(data, position)
    offset_delta, position = read_varint(data, position)
    key, position = _read_sized(data, position, end)
    value, position = _read_sized(data, position, end)
    header_count, position = read_varint(data, position)
    if not 0 <= header_count <= end - position:
        raise InvalidRecord(f"{header_count} headers declared, but only {end - position} bytes remain")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _read_sized(data, position, end)
        if name is None:
            raise InvalidRecord("a header has no name")
        content, position = _read_sized(data, position, end)
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if position != end:
        raise InvalidRecord("the parts of a record do not add up to its length")
    timestamp_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    return BatchRecord(key, value, headers, timestamp_ms, header.base_offset + offset_delta)


def _read_sized(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size_bytes, position = read_varint(data, position)
    if size_bytes == -1:
        return None, position
    stop = position + size_bytes
    if not position <= stop <= end:
        raise InvalidRecord(f"a part has {size_bytes} bytes, but only {end - position} remain")
    return data[position:stop], stop


# Control batches

_MARKER_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_MARKER_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1
_MARKER_BYTES_MAX: Final = 4096


class Marker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytearray:
    kind = _COMMIT if marker.is_commit else _ABORT
    record = BatchRecord(
        key=_MARKER_KEY.pack(_MARKER_VERSION, kind),
        value=_MARKER_VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )


def parse_marker(batch: memoryview, header: BatchHeader) -> Marker | None:
    """Return the marker of a control batch, or None if it is another kind of control record."""
    try:
        record = next(read_records(batch, header, _MARKER_BYTES_MAX), None)
        if record is None or record.key is None or record.value is None:
            return None
        _, kind = _MARKER_KEY.unpack_from(record.key)
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    except (HeadraceError, struct_error):
        return None
    return Marker(kind == _COMMIT, coordinator_epoch) if kind in (_ABORT, _COMMIT) else None
