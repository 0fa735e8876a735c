from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidConfig
from headrace.spark.decoding import BadValue, decode_column, decoder, value_ddl

PERSON = pa.struct([("id", pa.int64()), ("name", pa.string())])


def decoded(values: list[bytes | None], kind: pa.DataType = PERSON) -> list[Any]:
    column = decode_column(pa.array(values, pa.binary()), decoder("json", "", kind), kind)
    assert column.type == kind
    found: list[Any] = column.to_pylist()
    return found


def test_json_is_decoded() -> None:
    assert decoded([b'{"id": 1, "name": "ada"}', b'\n{ "name" : null,\n "more": [1] }']) == [
        {"id": 1, "name": "ada"},
        {"id": None, "name": None},
    ]


def test_no_value_and_null_are_null() -> None:
    assert decoded([None, b"null"]) == [None, None]
    assert decoded([]) == []


def test_types_are_read_from_their_json_form() -> None:
    kind = pa.struct(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("days", pa.list_(pa.field("element", pa.date32()))),
            ("price", pa.decimal128(10, 2)),
            ("inner", pa.struct([("flag", pa.bool_())])),
        ]
    )
    text = {
        "at": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "days": ["2026-01-03"],
        "price": 1.5,
        "inner": {"flag": True},
    }
    (found,) = decoded([json.dumps(text).encode()], kind)
    assert found["at"] == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert (found["day"], found["days"]) == (datetime.date(2026, 1, 2), [datetime.date(2026, 1, 3)])
    assert (str(found["price"]), found["inner"]) == ("1.50", {"flag": True})


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b" ",
        b"{",
        b"5",
        b"[]",
        b'{"id": 1}{"id": 2}',
        b'{"id": 1}\n{"id": 2}',
        b'{"id": 1}}\n{"v": {"id": 2}',
        b'{"id": "1"}',
        b'{"id": 1.5}',
        b'{"id": 99999999999999999999}',
        b'{"name": 1}',
        b'{"name": "\xff"}',
        b'{"name": "\\ud83d"}',
        b'{"id": 1, "id": 2}',
        b'{"id": 1},"v":{"id": 2}',
        b"\x00",
    ],
)
def test_a_bad_value_does_not_affect_others(bad: bytes) -> None:
    good = b'{"id": 7, "name": "x"}'
    assert decoded([good, bad, good, bad, good]) == [{"id": 7, "name": "x"}, None] * 2 + [{"id": 7, "name": "x"}]


def test_a_bad_value_is_reported_with_its_position() -> None:
    values = pa.array([b"{}", b"{}", b"x", b"{}"])
    with pytest.raises(BadValue, match=r"the value of row 2 cannot be decoded: .*onBadValue=null"):
        decode_column(values, decoder("json", "", PERSON), PERSON, lambda index: f"row {index}")


people = st.fixed_dictionaries({"id": st.none() | st.integers(-(2**63), 2**63 - 1), "name": st.none() | st.text()})


@given(st.lists(st.none() | people | st.binary(max_size=8)))
def test_each_value_is_at_the_position_of_its_record(values: list[Any]) -> None:
    raw = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    found = decoded(raw)
    assert len(found) == len(values)
    for value, column in zip(values, found, strict=True):
        if value is None or isinstance(value, dict):
            assert column == value


def test_types_that_json_lacks_are_rejected() -> None:
    for kind in (pa.map_(pa.string(), pa.int64()), pa.binary()):
        with pytest.raises(InvalidConfig, match="a type that JSON does not have"):
            decoder("json", "", pa.struct([("x", kind)]))


def test_the_column_has_a_spark_type() -> None:
    assert value_ddl("json", "id LONG, name STRING") == "STRUCT<id LONG, name STRING>"
    assert value_ddl("avro", '"long"') == "BIGINT"
