"""Bindings of the C library's functions that decode record batches to columns and encode columns to records.

They release the interpreter lock. Without the library (see `native.library`), `pure` does the same in Python. The
structs match those of columns.h, field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from ctypes import POINTER, Structure, byref, c_int, c_int32, c_int64, c_uint32, c_void_p, sizeof
from functools import cache
from typing import Any, Final

import pyarrow as pa

from headrace.columns.schema import ARROW_SCHEMA, HEADERS_TYPE
from headrace.model.errors import CorruptMessage, InvalidRecord
from headrace.native.library import Library
from headrace.native.library import library as loaded_library
from headrace.wire.batches.batch import CRC_START, HEADER_SIZE, BatchHeader, crc32c
from headrace.wire.batches.compression import NONE, decompress

# The same values as in the C files.
_WANTED: Final = {"key": 1, "value": 2, "offset": 4, "timestamp": 8, "timestampType": 16, "headers": 32}
_NO_MEMORY: Final = 1
_FAULTS: Final = {
    2: "a record ends too early",
    3: "a record's parts do not add up to its size",
    4: "a part of a record is longer than the record",
    5: "a record's headers are not what it says",
    6: "a record's offset is not one of its batch",
    7: "there are bytes behind the last record",
}


class BytesStruct(Structure):
    _fields_ = [("data", c_void_p), ("size", c_int64), ("capacity", c_int64)]


class PartsStruct(Structure):
    _fields_ = [*((name, BytesStruct) for name in ("ends", "data", "validity")), ("rows", c_int64), ("nulls", c_int64)]


class RowsStruct(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("data_bytes", c_int64),
        ("wanted", c_int32),
        ("names_are_ascii", c_int32),
        *((name, PartsStruct) for name in ("key", "value", "name", "content")),
        *((name, BytesStruct) for name in ("header_ends", "offsets", "timestamps", "timestamp_types")),
    ]


class BatchStruct(Structure):
    _fields_ = [
        ("payload", c_void_p),
        *((name, c_int64) for name in ("size", "base_offset", "base_timestamp", "append_timestamp", "first", "end")),
        *((name, c_int32) for name in ("count", "last_delta", "is_append_time")),
    ]


class ColumnStruct(Structure):
    _fields_ = [("ends", c_void_p), ("data", c_void_p), ("validity", c_void_p), ("offset", c_int64)]


class SourceStruct(Structure):
    _fields_ = [
        *((name, ColumnStruct) for name in ("key", "value", "headers", "name", "content")),
        ("timestamps", c_void_p),
        ("timestamp_validity", c_void_p),
        ("timestamp_offset", c_int64),
        ("now_ms", c_int64),
        ("indexes", c_void_p),
    ]


class EncodedStruct(Structure):
    _fields_ = [(name, c_int64) for name in ("records", "size", "base_timestamp", "max_timestamp", "size_needed")]


_LAYOUT: Final = sizeof(RowsStruct) << 32 | sizeof(BatchStruct) << 16 | sizeof(SourceStruct)


class CLibrary:
    """The functions of the library, with their types."""

    def __init__(self, loaded: Library) -> None:
        typed = loaded.function
        self.decode: Callable[..., int] = typed("headrace_decode", c_int, POINTER(RowsStruct), POINTER(BatchStruct))
        self.decode_plain: Callable[..., int] = typed(
            "headrace_decode_plain", c_int, POINTER(RowsStruct), c_void_p, *[c_int64] * 5, POINTER(c_int64)
        )
        self.free: Callable[..., None] = typed("headrace_free", None, c_void_p)
        self.encode: Callable[..., None] = typed(
            "headrace_encode", None, POINTER(SourceStruct), c_int64, c_int64, c_void_p, c_int64, POINTER(EncodedStruct)
        )
        self.partitions: Callable[..., None] = typed(
            "headrace_partitions", None, POINTER(ColumnStruct), c_int64, c_int32, c_int32, c_void_p
        )
        self.layout = int(typed("headrace_layout", c_int64)())
        self.has_crc32c = loaded.has_crc32c
        self._crc32c: Callable[..., int] = typed("headrace_crc32c", c_uint32, c_void_p, c_int64)
        self._whole: Callable[..., int] = typed("headrace_whole", c_int64, c_void_p, c_int64, POINTER(c_int64))

    def crc32c(self, data: memoryview, address: int) -> int:
        return self._crc32c(address, len(data)) if self.has_crc32c else crc32c(data)

    def whole(self, batches: memoryview) -> tuple[int, int] | None:
        """The size of the whole batches, and the offset after the last (-1 if there is none); None if unknown."""
        next_offset = c_int64(-1)
        size = self._whole(address_of(batches), len(batches), byref(next_offset))
        return None if size < 0 else (size, next_offset.value)


@cache
def library() -> CLibrary | None:
    """The library; None if there is none with matching structs."""
    loaded = loaded_library()
    if loaded is None:
        return None
    found = CLibrary(loaded)
    if found.layout != _LAYOUT:
        loaded.warn_of_version()
        return None
    return found


def address_of(data: memoryview | bytes | bytearray) -> int:
    """The address of the bytes; valid while they are referenced."""
    address: int = pa.py_buffer(data).address
    return address


class NativeRows:
    """Collects the wanted columns of batches in memory of the C library, which the Arrow arrays take over.

    After an error it must not be used."""

    def __init__(self, native: CLibrary, columns: Collection[str]) -> None:
        self._native = native
        self._columns = [name for name in columns if name in _WANTED]
        self._rows = RowsStruct()
        self._batch = BatchStruct()
        self._reset()

    def __del__(self) -> None:
        """Free what no array has taken over. Uses no globals, because the interpreter may be shutting down."""
        rows, free = self._rows, self._native.free
        for held in (rows.header_ends, rows.offsets, rows.timestamps, rows.timestamp_types):
            free(held.data)
        for parts in (rows.key, rows.value, rows.name, rows.content):
            for held in (parts.ends, parts.data, parts.validity):
                free(held.data)

    @property
    def rows(self) -> int:
        return int(self._rows.rows)

    @property
    def data_bytes(self) -> int:
        return int(self._rows.data_bytes)

    def add(self, batch: memoryview, header: BatchHeader, first: int, end: int, size_bytes_max: int) -> None:
        """Add the records of a batch within [first, end). Raises if the batch is damaged or malformed."""
        address = address_of(batch)
        crc = self._native.crc32c(batch[CRC_START:], address + CRC_START)
        if crc != header.crc:
            raise CorruptMessage(f"the batch at offset {header.base_offset} has crc {crc:#x}, not {header.crc:#x}")
        if header.compression == NONE:
            payload, size = address + HEADER_SIZE, len(batch) - HEADER_SIZE
        else:
            unpacked = decompress(header.compression, batch[HEADER_SIZE:], size_bytes_max)
            payload, size = address_of(unpacked), len(unpacked)
        self._batch.__init__(  # type: ignore[misc]  # refilling a struct is cheaper than creating one
            payload,
            size,
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp,
            first,
            end,
            header.record_count,
            header.last_offset_delta,
            header.is_log_append_time,
        )
        self._raise_for(self._native.decode(byref(self._rows), byref(self._batch)))

    def add_uncompressed(
        self, batches: memoryview, at: int, first: int, end: int, rows_max: int, bytes_max: int
    ) -> int:
        """Add batches up to a bound or to a damaged, compressed or transactional one. Returns where the next begins."""
        if not self._native.has_crc32c:
            return at
        next_position = c_int64(at)
        fault = self._native.decode_plain(
            byref(self._rows), address_of(batches), len(batches), first, end, rows_max, bytes_max, byref(next_position)
        )
        self._raise_for(fault)
        return next_position.value

    def _raise_for(self, fault: int) -> None:
        if fault == _NO_MEMORY:
            raise MemoryError
        if fault:
            raise InvalidRecord(_FAULTS[fault])

    def _reset(self) -> None:
        self._rows.rows = self._rows.data_bytes = 0
        self._rows.wanted = sum(_WANTED[name] for name in self._columns)
        self._rows.names_are_ascii = 1

    def take(self) -> Mapping[str, pa.Array]:
        """Return the collected columns and start over."""
        rows, count = self._rows, int(self._rows.rows)
        numbers = {"offset": rows.offsets, "timestamp": rows.timestamps, "timestampType": rows.timestamp_types}
        arrays: dict[str, pa.Array] = {}
        for name in self._columns:
            kind = ARROW_SCHEMA.field(name).type
            if name in numbers:
                arrays[name] = pa.Array.from_buffers(kind, count, [None, self._buffer(numbers[name])], null_count=0)
            elif name == "headers":
                arrays[name] = self._headers(count)
            else:
                arrays[name] = self._parts(kind, getattr(rows, name))
        self._reset()
        return arrays

    def _headers(self, count: int) -> pa.Array:
        rows = self._rows
        total = int(rows.name.rows)
        names, contents = self._parts(pa.string(), rows.name), self._parts(pa.binary(), rows.content)
        if not rows.names_are_ascii:
            names = _as_text(names)
        pairs = pa.Array.from_buffers(HEADERS_TYPE.value_type, total, [None], null_count=0, children=[names, contents])
        return pa.Array.from_buffers(
            HEADERS_TYPE, count, [None, self._buffer(rows.header_ends)], null_count=0, children=[pairs]
        )

    def _parts(self, kind: pa.DataType, parts: Any) -> pa.Array:
        count, nulls = int(parts.rows), int(parts.nulls)
        parts.rows = parts.nulls = 0
        buffers = [self._buffer(parts.validity), self._buffer(parts.ends), self._buffer(parts.data)]
        if nulls == 0:
            buffers[0] = None
        return pa.Array.from_buffers(kind, count, buffers, null_count=nulls)

    def _buffer(self, held: Any) -> pa.Buffer | None:
        """Transfer the bytes to an Arrow buffer, which now owns them."""
        address, size = held.data, held.size
        if address is None:
            return pa.py_buffer(b"")
        held.data, held.size, held.capacity = None, 0, 0
        return pa.foreign_buffer(address, size, _Memory(address, self._native.free))


class _Memory:
    """Memory allocated by the library, freed when it is no longer referenced."""

    __slots__ = ("_address", "_free")

    def __init__(self, address: int, free: Callable[..., None]) -> None:
        self._address = address
        self._free = free

    def __del__(self) -> None:
        self._free(self._address)


def _as_text(names: pa.Array) -> pa.Array:
    """Replace invalid UTF-8, which a log may contain but a string column may not."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.cast(pa.binary()).to_pylist()], pa.string())
    return names
