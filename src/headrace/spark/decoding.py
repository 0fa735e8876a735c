"""Decode record values to columns: JSON and Avro, by the schema of the query.

Arrow parses JSON, many records at once. Each value is wrapped in an object, and all objects are parsed as one text. A
value that is not JSON makes the parser fail or yields more objects than values, but never shifts the values behind it.
A batch that fails is halved until the bad records are isolated.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.avro import avro_type, decode
from headrace.spark.json_schema import check_json_schema

Decode = Callable[[pa.Array], pa.Array]
"""Converts values to a column; raises ValueError (the base of Arrow's errors) if a value is bad."""

_TEXT_BYTES_MAX = 1 << 30  # of the values that are parsed as one text: Arrow uses 32-bit offsets


class BadValue(HeadraceError):
    """A record's value is not valid in the format of the query."""


def value_ddl(value_format: str, value_schema: str) -> str:
    """The Spark type of the decoded value; raises InvalidConfig if the schema is invalid."""
    if value_format == "avro":
        return avro_type(value_schema).ddl
    check_json_schema(value_schema)
    return f"STRUCT<{value_schema}>"


def decoder(value_format: str, value_schema: str, column: pa.DataType) -> Decode:
    """`column`: the Arrow type of the Spark type that `value_ddl` returns."""
    if value_format == "avro":
        kind = avro_type(value_schema)

        def decode_avro(values: pa.Array) -> pa.Array:
            return pa.array([None if raw is None else decode(kind, raw) for raw in values.to_pylist()], column)

        return decode_avro
    parsed = _parsed_type(column)

    def decode_json(values: pa.Array) -> pa.Array:
        return _parse(values, parsed).cast(column)

    return decode_json


def decode_column(
    values: pa.Array, decode_values: Decode, column: pa.DataType, where: Callable[[int], str] | None = None
) -> pa.Array:
    """The decoded column. A bad value is null or, with `where`, which describes a record, raises BadValue."""

    def instead(index: int, error: ValueError) -> pa.Array:
        if where is None:
            return pa.nulls(1, column)
        hint = "set onBadValue=null to read it as null"
        raise BadValue(f"the value of {where(index)} cannot be decoded: {error}; {hint}") from None

    return _decode(values, decode_values, 0, instead, column)


def _decode(
    values: pa.Array,
    decode_values: Decode,
    first: int,
    instead: Callable[[int, ValueError], pa.Array],
    column: pa.DataType,
) -> pa.Array:
    if not len(values):
        return pa.nulls(0, column)
    try:
        if len(values) == 1 or values.nbytes < _TEXT_BYTES_MAX:
            return decode_values(values)
    except ValueError as error:
        if len(values) == 1:
            return instead(first, error)
    half = len(values) // 2
    left = _decode(values[:half], decode_values, first, instead, column)
    right = _decode(values[half:], decode_values, first + half, instead, column)
    return pa.concat_arrays([left, right])


def _parse(values: pa.Array, kind: pa.DataType) -> pa.Array:
    filled = values.fill_null(b"null")
    together = pa.ListArray.from_arrays(pa.array([0, len(filled)], pa.int32()), filled)
    text = b'{"v":' + pc.binary_join(together, b'}\n{"v":')[0].as_py() + b"}"
    table = pj.read_json(
        pa.BufferReader(text),
        pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pj.ParseOptions(explicit_schema=pa.schema([("v", kind)]), unexpected_field_behavior="ignore"),
    )
    found = table.column("v").combine_chunks()
    if len(found) != len(values):
        raise ValueError("there is more than one value")
    found.validate(full=True)  # the parser accepts text that is not UTF-8
    return found


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """The type for Arrow's parser: it reads dates only from numbers, so they are parsed as text first."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_parsed_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_parsed_type(kind.value_type)))
    if pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        raise InvalidConfig(f"valueSchema has a type that JSON does not have: {kind}")
    return kind
