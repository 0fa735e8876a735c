"""Avro's binary format: convert a schema to a Spark type, and decode values to Python objects.

- Values have no file header and no schema registry id, as for Spark's `from_avro`.
- No type contains itself, so a value is not nested deeper than its schema. An array item takes at least one byte, so a
  decoded value is limited by the size of its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, NamedTuple

import msgspec

from headrace.model.errors import InvalidConfig

Read = Callable[[bytes, int], tuple[Any, int]]
"""Decodes the value at a position; returns it and the position behind it. Raises ValueError or IndexError."""


class AvroType(NamedTuple):
    ddl: str
    read: Read
    bytes_min: int


def avro_type(text: str) -> AvroType:
    """The type of a schema; raises InvalidConfig if the schema is invalid or has no Spark type."""
    try:
        schema = msgspec.json.decode(text)
    except msgspec.DecodeError:
        schema = text  # a bare `string` without quotes is accepted as a schema
    try:
        return _typed(schema, {}, "")
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a part is missing or of another type
        raise InvalidConfig(f"valueSchema is not a schema of Avro: {type(error).__name__}: {error}") from None


def decode(kind: AvroType, data: bytes) -> Any:
    """The value; raises ValueError if the bytes are not exactly one value of the type."""
    try:
        value, end = kind.read(data, 0)
    except (IndexError, struct.error):
        raise ValueError("the value is truncated") from None
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes follow the value")
    return value


def _typed(schema: Any, named: dict[str, AvroType | None], space: str) -> AvroType:
    if isinstance(schema, list):
        return _union(schema, named, space)
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or _known(schema, named, space)
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str | list | dict):
        raise InvalidConfig(f"valueSchema is not a schema of Avro: {schema!r} is no type")
    kind = schema["type"]
    if not isinstance(kind, str):
        return _typed(kind, named, space)
    if kind in {"record", "enum", "fixed"}:
        return _named(kind, schema, named, space)
    if kind == "array":
        return _array(_item(schema, "items", named, space))
    if kind == "map":
        return _map(_item(schema, "values", named, space))
    return _logical(schema, _typed(kind, named, space))


def _named(kind: str, schema: Mapping[str, Any], named: dict[str, AvroType | None], space: str) -> AvroType:
    space = schema.get("namespace", space)
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"valueSchema is not a schema of Avro: a {kind} has no name")
    full = name if "." in name or not space else f"{space}.{name}"
    named[full] = None
    if kind == "record":
        made = _record(schema, named, full.rpartition(".")[0])
    elif kind == "enum":
        made = _enum(tuple(schema.get("symbols", ())))
    else:
        made = _logical(schema, _fixed(int(schema.get("size", 0))))
    named[full] = made
    return made


def _known(name: str, named: Mapping[str, AvroType | None], space: str) -> AvroType:
    full = name if name in named or not space else f"{space}.{name}"
    if full not in named:
        raise InvalidConfig(f"valueSchema is not a schema of Avro: there is no type {name!r}")
    found = named[full]
    if found is None:
        raise InvalidConfig(f"valueSchema cannot be read by Spark: the type {name!r} contains itself")
    return found


def _item(schema: Mapping[str, Any], field: str, named: dict[str, AvroType | None], space: str) -> AvroType:
    item = _typed(schema.get(field), named, space)
    if field == "items" and not item.bytes_min:
        raise InvalidConfig("valueSchema cannot be used: it has an array of items without bytes")
    return item


def _record(schema: Mapping[str, Any], named: dict[str, AvroType | None], space: str) -> AvroType:
    fields = [(str(field["name"]), _typed(field["type"], named, space)) for field in schema.get("fields", ())]
    if not fields:
        raise InvalidConfig("valueSchema cannot be read by Spark: it has a record without fields")
    readers = [(name, kind.read) for name, kind in fields]

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, read_field in readers:
            values[name], at = read_field(data, at)
        return values, at

    inner = ", ".join(f"`{name.replace('`', '``')}`: {kind.ddl}" for name, kind in fields)
    return AvroType(f"STRUCT<{inner}>", read, sum(kind.bytes_min for _, kind in fields))


def _union(schemas: list[Any], named: dict[str, AvroType | None], space: str) -> AvroType:
    others = [one for one in schemas if one != "null"]
    if len(others) != 1:
        raise InvalidConfig("valueSchema has no Spark type: a union must be of null and one type")
    inner = _typed(others[0], named, space)
    null_at = schemas.index("null") if "null" in schemas else -1

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _long(data, at)
        if branch == null_at:
            return None, at
        if not 0 <= branch < len(schemas):
            raise ValueError(f"a union has no branch {branch}")
        return inner.read(data, at)

    return AvroType(inner.ddl, read, 1)


def _array(item: AvroType) -> AvroType:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, at = _count(data, at)
            if not count:
                return values, at
            for _ in range(count):
                value, at = item.read(data, at)
                values.append(value)

    return AvroType(f"ARRAY<{item.ddl}>", read, 1)


def _map(item: AvroType) -> AvroType:
    def read(data: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        values: dict[str, Any] = {}
        while True:
            count, at = _count(data, at)
            if not count:
                return list(values.items()), at
            for _ in range(count):
                key, at = _string(data, at)
                values[key], at = item.read(data, at)

    return AvroType(f"MAP<STRING, {item.ddl}>", read, 1)


def _enum(symbols: tuple[str, ...]) -> AvroType:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise ValueError(f"an enum has no symbol {index}")
        return symbols[index], at

    return AvroType("STRING", read, 1)


def _fixed(size: int) -> AvroType:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise IndexError
        return data[at:end], end

    return AvroType("BINARY", read, size)


def _logical(schema: Mapping[str, Any], plain: AvroType) -> AvroType:
    """Apply the logical type. Unknown logical types are ignored, as Avro specifies."""
    read = plain.read
    match schema.get("logicalType"), plain.ddl:
        case "date", "INT":
            return plain._replace(ddl="DATE")
        case ("timestamp-millis" | "local-timestamp-millis") as name, "BIGINT":
            ddl = "TIMESTAMP_NTZ" if name.startswith("local") else "TIMESTAMP"

            def read_micros(data: bytes, at: int) -> tuple[int, int]:
                value, at = read(data, at)
                return value * 1000, at

            return plain._replace(ddl=ddl, read=read_micros)
        case ("timestamp-micros" | "local-timestamp-micros") as name, "BIGINT":
            return plain._replace(ddl="TIMESTAMP_NTZ" if name.startswith("local") else "TIMESTAMP")
        case "decimal", "BINARY":
            precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
            if not 0 < precision <= 38 or not 0 <= scale <= precision:
                raise InvalidConfig(f"valueSchema cannot be read by Spark: decimal({precision}, {scale})")
            exact = Context(prec=precision)

            def read_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
                raw, at = read(data, at)
                unscaled = int.from_bytes(raw, "big", signed=True)
                if abs(unscaled) >= 10**precision:
                    raise ValueError(f"a decimal has more than {precision} digits")
                return Decimal(unscaled).scaleb(-scale, exact), at

            return plain._replace(ddl=f"DECIMAL({precision}, {scale})", read=read_decimal)
    return plain


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError("a number is too long")
    value = (value >> 1) ^ -(value & 1)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a number is too large")
    return value, at


def _int(data: bytes, at: int) -> tuple[int, int]:
    value, at = _long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError("an int is too large")
    return value, at


def _count(data: bytes, at: int) -> tuple[int, int]:
    """The number of items in a block; a negative count is followed by the size of the block."""
    count, at = _long(data, at)
    if count < 0:
        count = -count
        _, at = _long(data, at)
    return count, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise IndexError
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    raw, at = _bytes(data, at)
    return raw.decode(), at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return byte == 1, at + 1


def _float(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from("<f", data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from("<d", data, at)[0], at + 8


_PRIMITIVES = {
    "boolean": AvroType("BOOLEAN", _boolean, 1),
    "int": AvroType("INT", _int, 1),
    "long": AvroType("BIGINT", _long, 1),
    "float": AvroType("FLOAT", _float, 4),
    "double": AvroType("DOUBLE", _double, 8),
    "bytes": AvroType("BINARY", _bytes, 1),
    "string": AvroType("STRING", _string, 1),
}
