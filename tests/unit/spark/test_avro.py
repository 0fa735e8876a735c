from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidConfig
from headrace.spark.avro import avro_type, decode
from headrace.spark.decoding import decode_column, decoder

PERSON = {
    "type": "record",
    "name": "Person",
    "namespace": "org.example",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "scores", "type": {"type": "map", "values": "double"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
    ],
}


def long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    return long(len(text.encode())) + text.encode()


def person(number: int) -> bytes:
    tags = long(1) + string("x") + long(-1) + long(2) + string("y") + long(0)
    return long(number) + long(1) + string("ada") + tags + long(0) + long(0) + long(1)


def read(schema: Any, data: bytes) -> Any:
    return decode(avro_type(json.dumps(schema)), data)


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_round_trip(number: int) -> None:
    assert read("long", long(number)) == number


def test_a_record_is_decoded() -> None:
    assert read(PERSON, person(5)) == {
        "id": 5,
        "name": "ada",
        "tags": ["x", "y"],
        "scores": [],
        "kind": "A",
        "other": "B",
    }


def test_a_schema_has_a_spark_type() -> None:
    assert avro_type(json.dumps(PERSON)).ddl == (
        "STRUCT<`id`: BIGINT, `name`: STRING, `tags`: ARRAY<STRING>, `scores`: MAP<STRING, DOUBLE>, "
        "`kind`: STRING, `other`: STRING>"
    )
    assert avro_type("string").ddl == "STRING"
    assert avro_type('{"type": "int", "logicalType": "date"}').ddl == "DATE"
    assert avro_type('{"type": "long", "logicalType": "local-timestamp-micros"}').ddl == "TIMESTAMP_NTZ"
    assert avro_type('{"type": "int", "logicalType": "of-another-age"}').ddl == "INT"


def test_logical_types_are_decoded() -> None:
    assert read({"type": "long", "logicalType": "timestamp-millis"}, long(5)) == 5000
    price = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    assert read(price, long(2) + b"\xff\x00") == Decimal("-2.56")
    fixed = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5, "scale": 2}
    assert read(fixed, b"\x01\x00") == Decimal("2.56")
    with pytest.raises(ValueError, match="more than 5 digits"):
        read(price, long(3) + b"\x7f\xff\xff")


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("long", b""),
        ("long", b"\x80" * 5),
        ("long", b"\xff" * 10 + b"\x01"),
        ("long", b"\x02\x02"),
        ("int", long(2**40)),
        ("string", long(5) + b"abc"),
        ("string", long(-1)),
        ("string", long(1) + b"\xff"),
        ("boolean", b"\x02"),
        ("double", b"\x00" * 7),
        (["null", "long"], long(2)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, long(1)),
        ({"type": "fixed", "name": "F", "size": 4}, b"\x00" * 3),
        ({"type": "array", "items": "long"}, long(2**60) + long(1)),
    ],
)
def test_invalid_bytes_are_rejected(schema: Any, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(schema, data)


@given(st.binary(max_size=64))
def test_random_bytes_raise_only_value_errors(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(PERSON, data)


@pytest.mark.parametrize(
    "schema",
    [
        "nonsense",
        5,
        {"type": "record", "name": "R", "fields": []},
        {"type": "record", "fields": [{"name": "x", "type": "int"}]},
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
        ["int", "string"],
        ["null"],
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "bytes", "logicalType": "decimal", "precision": 50},
    ],
)
def test_a_schema_without_spark_type_is_rejected(schema: Any) -> None:
    with pytest.raises(InvalidConfig, match="valueSchema"):
        avro_type(json.dumps(schema))


def test_avro_becomes_a_column_and_bad_values_null() -> None:
    kind = pa.struct([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    values = pa.array([long(1) + long(1000), None, b"", long(2) + long(0)])
    found = decode_column(values, decoder("avro", schema, kind), kind).to_pylist()
    assert [one and one["id"] for one in found] == [1, None, None, 2]
    assert found[0]["at"].timestamp() == 1.0
