"""The Python implementation of `native`, used without the C library; about fifty times slower."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.columns.schema import ARROW_SCHEMA, HEADERS_TYPE
from headrace.model.errors import InvalidRecord
from headrace.wire.batches.batch import BatchHeader, BatchRecord, check_crc, read_records

_MILLISECONDS_MAX: Final = (2**63 - 1) // 1000
_HEADER_BYTES: Final = 8  # overhead of each header beside its name and value; empty headers take memory too


class PureRows:
    """Collects the wanted columns of batches in lists."""

    def __init__(self, columns: Collection[str]) -> None:
        self._columns = columns
        self._reset()

    def add(self, batch: memoryview, header: BatchHeader, first: int, end: int, size_bytes_max: int) -> None:
        """Add the records of a batch within [first, end). Raises if the batch is damaged or malformed."""
        check_crc(batch, header)
        for record in read_records(batch, header, size_bytes_max):
            if not header.base_offset <= record.offset <= header.last_offset:
                raise InvalidRecord(f"a record's offset is not one of its batch, at offset {header.base_offset}")
            if first <= record.offset < end:
                self._add(record, int(header.is_log_append_time))

    def take(self) -> Mapping[str, pa.Array]:
        arrays = {
            name: self._headers() if name == "headers" else pa.array(values, ARROW_SCHEMA.field(name).type)
            for name, values in self._values.items()
        }
        self._reset()
        return arrays

    def _reset(self) -> None:
        self.rows = 0
        self.data_bytes = 0
        wanted = ("key", "value", "offset", "timestamp", "timestampType", "headers")
        self._values: dict[str, list[bytes | int | None]] = {name: [] for name in wanted if name in self._columns}
        self._header_ends = [0]
        self._names: list[str] = []
        self._contents: list[bytes | None] = []

    def _add(self, record: BatchRecord, timestamp_type: int) -> None:
        self.rows += 1
        timestamp_ms = min(max(record.timestamp_ms, -_MILLISECONDS_MAX), _MILLISECONDS_MAX)
        fields: dict[str, bytes | int | None] = {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": timestamp_ms * 1000,
            "timestampType": timestamp_type,
        }
        for name, values in self._values.items():
            if name == "headers":
                self._add_headers(record.headers)
            else:
                value = fields[name]
                values.append(value)
                self.data_bytes += len(value) if isinstance(value, bytes) else 0

    def _add_headers(self, headers: Sequence[tuple[str, bytes | None]]) -> None:
        for name, content in headers:
            raw = name.encode("utf-8", "surrogateescape")
            self._names.append(raw.decode("utf-8", "replace"))
            self._contents.append(content)
            self.data_bytes += len(raw) + len(content or b"") + _HEADER_BYTES
        self._header_ends.append(len(self._names))

    def _headers(self) -> pa.Array:
        fields = list(HEADERS_TYPE.value_type)
        names, contents = pa.array(self._names, pa.string()), pa.array(self._contents, pa.binary())
        pairs = pa.StructArray.from_arrays([names, contents], fields=fields)
        return pa.ListArray.from_arrays(pa.array(self._header_ends, pa.int32()), pairs, type=HEADERS_TYPE)
