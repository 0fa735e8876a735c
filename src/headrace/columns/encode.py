"""Encode Arrow rows to record batches that are ready to be produced, and compute the partitions of their keys.

A row provides the key, value, headers and timestamp of a record; null keys, values and header values stay null. Indexes
select the rows of a list of batches, so that rows need not be sorted or copied by partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.produce.batch_writer import ReadyBatch
from headrace.client.produce.partitioner import partition_for_key
from headrace.columns.native import CLibrary, ColumnStruct, EncodedStruct, SourceStruct, address_of, library
from headrace.columns.schema import HEADERS_TYPE
from headrace.model.errors import InvalidRecord
from headrace.wire.batches.batch import CRC_START, HEADER, HEADER_SIZE, MAGIC, TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.batches.compression import NONE, compress

BATCH_BYTES_MAX: Final = 1_000_000
_LENGTH_END: Final = 12
_SEQUENCES: Final = 0x7FFFFFFF  # the last sequence number before they wrap
_RECORD_BYTES: Final = 40  # at least the size of the numbers of a record
_HEADER_BYTES: Final = 10


class BatchOptions(msgspec.Struct, frozen=True):
    compression: int
    producer_id: int
    producer_epoch: int
    attributes: int


def partitions_of(keys: pa.Array, count: int, *, keyless: int) -> pa.Array:
    """The partition of each key, out of `count`, as in all Kafka clients; null keys go to `keyless`."""
    assert 0 <= keyless < count
    native = library()
    keys = keys.cast(pa.binary())
    if native is None:
        partitions = [keyless if key is None else partition_for_key(key, count) for key in keys.to_pylist()]
        return pa.array(partitions, pa.int32())
    out = pa.allocate_buffer(4 * len(keys))
    native.partitions(byref(_column(keys)), len(keys), count, keyless, out.address)
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, out], null_count=0)


def encode_batches(
    rows: pa.RecordBatch,
    indexes: pa.Array | None = None,
    *,
    now_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    compression: int = NONE,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> list[ReadyBatch]:
    """The rows at these indexes (None: all), in this order, as batches of up to `batch_bytes_max` before compression.

    `rows` has `value`, and may have `key`, `headers` and `timestamp`; a row without a timestamp gets `now_ms`. A record
    larger than the limit gets a batch of its own. Sequence numbers count up from `base_sequence`.
    """
    selected = _SelectedRows(rows, indexes, now_ms)
    attributes = compression | (TRANSACTIONAL if is_transactional else 0)
    options = BatchOptions(compression, producer_id, producer_epoch, attributes)
    native = library()
    if native is None:
        return list(_encode_in_python(selected, options, base_sequence, batch_bytes_max - HEADER_SIZE))
    return list(_encode_natively(native, selected, options, base_sequence, batch_bytes_max - HEADER_SIZE))


class _SelectedRows:
    """The columns of the rows, cast to the types of records, and the indexes of the selected rows."""

    def __init__(self, rows: pa.RecordBatch, indexes: pa.Array | None, now_ms: int) -> None:
        self.value = rows.column("value").cast(pa.binary())
        self.key = rows.column("key").cast(pa.binary()) if "key" in rows.schema.names else None
        self.headers: pa.ListArray | None = None
        self.timestamps: pa.Array | None = None
        self.now_ms = now_ms
        if "headers" in rows.schema.names:
            self.headers = rows.column("headers").cast(HEADERS_TYPE)
            pairs = self.headers.flatten()
            if pairs.null_count or pairs.field(0).null_count:
                raise InvalidRecord("a header without a name")
        if "timestamp" in rows.schema.names:
            self.timestamps = rows.column("timestamp").cast(pa.timestamp("us", tz="UTC"), safe=False)
        self.indexes = None if indexes is None else indexes.cast(pa.int64())
        self.count = rows.num_rows if indexes is None else len(indexes)
        if self.indexes is not None and self.count:
            ends = pc.min_max(self.indexes).as_py()
            assert self.indexes.null_count == 0
            assert 0 <= ends["min"] <= ends["max"] < rows.num_rows

    def source(self) -> SourceStruct:
        source = SourceStruct(key=_column(self.key), value=_column(self.value), headers=_column(self.headers))
        source.now_ms = self.now_ms
        if self.headers is not None:
            pairs = self.headers.values
            source.name, source.content = _column(pairs.field(0)), _column(pairs.field(1))
        if self.timestamps is not None:
            validity, data = self.timestamps.buffers()
            source.timestamps, source.timestamp_validity = _address(data), _address(validity)
            source.timestamp_offset = self.timestamps.offset
        if self.indexes is not None:
            source.indexes = self.indexes.buffers()[1].address + 8 * self.indexes.offset
        return source

    def records(self) -> Iterator[BatchRecord]:
        rows = range(self.count) if self.indexes is None else self.indexes.to_pylist()
        for row in rows:
            key = None if self.key is None else self.key[row].as_py()
            pairs = None if self.headers is None else self.headers[row].as_py()
            headers = [(pair["key"], pair["value"]) for pair in pairs or ()]
            timestamp_us = None if self.timestamps is None else self.timestamps[row].value
            timestamp_ms = self.now_ms if timestamp_us is None else timestamp_us // 1000
            yield BatchRecord(key, self.value[row].as_py(), headers, timestamp_ms)


def _encode_natively(
    native: CLibrary, selected: _SelectedRows, options: BatchOptions, sequence: int, payload_bytes_max: int
) -> Iterator[ReadyBatch]:
    source, done, first = selected.source(), EncodedStruct(), 0
    room = pa.allocate_buffer(payload_bytes_max)
    while first < selected.count:
        native.encode(byref(source), first, selected.count, room.address, room.size, byref(done))
        if done.records == 0:
            room = pa.allocate_buffer(done.size_needed)
            continue
        payload = memoryview(room)[: done.size]
        yield ReadyBatch(_finish_batch(native, payload, options, sequence, done), done.records)
        sequence = _sequence_after(sequence, done.records)
        first += done.records


def _finish_batch(
    native: CLibrary, payload: memoryview, options: BatchOptions, sequence: int, done: EncodedStruct
) -> bytearray:
    """The batch with these encoded records; the same result as `wire.batches.batch.build_batch`."""
    batch = bytearray(HEADER_SIZE)
    batch += compress(options.compression, bytes(payload)) if options.compression else payload
    fields = (
        options.attributes,
        done.records - 1,
        done.base_timestamp,
        done.max_timestamp,
        options.producer_id,
        options.producer_epoch,
        sequence,
        done.records,
    )
    HEADER.pack_into(batch, 0, 0, len(batch) - _LENGTH_END, -1, MAGIC, 0, *fields)
    crc = native.crc32c(memoryview(batch)[CRC_START:], address_of(batch) + CRC_START)
    HEADER.pack_into(batch, 0, 0, len(batch) - _LENGTH_END, -1, MAGIC, crc, *fields)
    return batch


def _encode_in_python(
    selected: _SelectedRows, options: BatchOptions, sequence: int, payload_bytes_max: int
) -> Iterator[ReadyBatch]:
    records: list[BatchRecord] = []
    size_bytes = 0
    for record in selected.records():
        size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
        size += sum(len(name.encode()) + len(content or b"") + _HEADER_BYTES for name, content in record.headers)
        if records and size_bytes + size > payload_bytes_max:
            yield _build_in_python(records, options, sequence)
            sequence = _sequence_after(sequence, len(records))
            records, size_bytes = [], 0
        records.append(record)
        size_bytes += size
    if records:
        yield _build_in_python(records, options, sequence)


def _build_in_python(records: list[BatchRecord], options: BatchOptions, sequence: int) -> ReadyBatch:
    batch = build_batch(records, base_sequence=sequence, **msgspec.structs.asdict(options))
    return ReadyBatch(batch, len(records))


def _sequence_after(sequence: int, records: int) -> int:
    return sequence if sequence < 0 else (sequence + records) & _SEQUENCES


def _column(array: pa.Array | None) -> ColumnStruct:
    """The addresses of a column's buffers; valid while the array is referenced."""
    if array is None:
        return ColumnStruct()
    validity, ends = array.buffers()[:2]
    data = None if isinstance(array, pa.ListArray) else array.buffers()[2]
    return ColumnStruct(_address(ends), _address(data), _address(validity), array.offset)


def _address(buffer: pa.Buffer | None) -> int | None:
    return None if buffer is None else buffer.address
