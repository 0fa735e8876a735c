"""The conversion of rows to record columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from headrace.columns.schema import HEADERS_TYPE, SPARK_DDL
from headrace.spark.sink_columns import InvalidColumns, InvalidRow, RecordColumnsBuilder, SinkColumns, columns_of

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


KINDS: dict[str, DataType] = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "LONG": LongType(),
    "DOUBLE": DoubleType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampType(),
    "DECIMAL": DecimalType(4, 1),
    "INTERVAL DAY TO SECOND": DayTimeIntervalType(),
    "INTERVAL MINUTE": DayTimeIntervalType(2, 2),
    "INTERVAL MONTH": YearMonthIntervalType(1, 1),
    "MAP<STRING>": MapType(StringType(), StringType()),
    "ARRAY<STRUCT<key: STRING": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}


def schema(ddl: str) -> StructType:
    """A DDL parser for these tests: only the JVM parses all of DDL."""
    split = [column.split(" ", 1) for column in ddl.split(", ") if not column.startswith("value: BINARY>>")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in split])


def found(ddl: str, topic: str | None = "out", keep_timestamp: bool = False) -> SinkColumns:
    return columns_of(schema(ddl), topic=topic, keep_timestamp=keep_timestamp)


def shaped(to: str | None = "out", **columns: pa.Array) -> list[dict[str, Any]]:
    """The record columns of rows with these columns."""
    positions = {name: position for position, name in enumerate(columns)}
    builder = RecordColumnsBuilder(SinkColumns(**positions), to)
    rows: list[dict[str, Any]] = builder.build(pa.RecordBatch.from_pydict(columns)).to_pylist()
    return rows


def headers_of(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(header["key"], header["value"]) for header in row["headers"] or ()]


VALUES = pa.array([b"a", b"b", None])


# The schema


def test_columns_are_found_by_name_in_any_order_and_others_are_ignored() -> None:
    columns = found("offset BIGINT, KEY STRING, value BINARY, note DATE, deliverat TIMESTAMP, priority INT")
    assert columns == SinkColumns(key=1, value=2, deliver_at=4, priority=5)


def test_rows_of_the_source_can_be_written_unchanged() -> None:
    assert found(SPARK_DDL, topic=None) == SinkColumns(key=0, value=1, topic=2, partition=3, headers=7)
    assert found(SPARK_DDL, keep_timestamp=True) == SinkColumns(key=0, value=1, partition=3, timestamp=5, headers=7)


@pytest.mark.parametrize(
    "kind", ["STRING", "INT", "BIGINT", "DOUBLE", "DECIMAL", "INTERVAL DAY TO SECOND", "INTERVAL MINUTE"]
)
def test_a_delay_is_text_a_number_or_an_interval(kind: str) -> None:
    assert found(f"value STRING, delay {kind}").delay == 1


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("key STRING", r"there is no column 'value' among \['key'\]"),
        ("value INT", "column 'value' must be binary or string, not int"),
        ("value STRING, key DOUBLE", "column 'key' must be binary or string, not double"),
        ("value STRING, headers MAP<STRING>", "column 'headers' must be array<.*>, not map<string,string>"),
        ("value STRING, partition BIGINT", "column 'partition' must be int, not bigint"),
        ("value STRING, priority STRING", "column 'priority' must be tinyint, smallint, int or bigint, not string"),
        ("value STRING, delay INTERVAL MONTH", "column 'delay' must be .*, not interval month"),
        ("value STRING, deliverAt STRING", "column 'deliverAt' must be timestamp, not string"),
        ("value STRING, Value BINARY", "two columns 'value'"),
    ],
)
def test_an_incompatible_schema_is_rejected_with_column_and_type(ddl: str, sentence: str) -> None:
    with pytest.raises(InvalidColumns, match=sentence):
        found(ddl)


def test_a_topic_is_required_and_keep_timestamp_needs_a_timestamp() -> None:
    with pytest.raises(InvalidColumns, match="set the option 'topic'"):
        found("value STRING", topic=None)
    with pytest.raises(InvalidColumns, match="needs a column 'timestamp'"):
        found("value STRING", keep_timestamp=True)


def test_an_unused_column_may_have_any_type() -> None:
    assert found("value STRING, topic INT, timestamp STRING") == SinkColumns(value=0)


# Rows


def test_text_becomes_bytes_and_missing_columns_are_null() -> None:
    assert shaped(value=pa.array(["ä", None])) == [
        {"key": None, "value": "ä".encode(), "headers": None, "topic": "out"},
        {"key": None, "value": None, "headers": None, "topic": "out"},
    ]
    (row,) = shaped(value=pa.array([b"v"], pa.large_binary()), key=pa.array(["k"], pa.large_string()))
    assert (row["key"], row["value"]) == (b"k", b"v")


def test_priority_becomes_a_header_behind_those_of_the_row() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [{"key": "c", "value": b"3"}]], HEADERS_TYPE
    )
    rows = shaped(value=VALUES, headers=headers, priority=pa.array([7, 0, None], pa.int32()))
    assert [headers_of(row) for row in rows] == [
        [("a", b"1"), ("b", None), ("headrace-priority", b"7")],
        [("headrace-priority", b"0")],
        [("c", b"3")],
    ]


def test_headers_of_a_slice_of_rows_are_their_own() -> None:
    headers = pa.array([[{"key": str(number), "value": b"x"}] * number for number in range(6)], HEADERS_TYPE)
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array(["v"] * 6), "headers": headers, "priority": pa.array(range(6), pa.int32())}
    )
    builder = RecordColumnsBuilder(SinkColumns(value=0, headers=1, priority=2), "out")
    whole, part = builder.build(rows).to_pylist(), builder.build(rows.slice(2, 3)).to_pylist()
    assert part == whole[2:5]
    assert headers_of(whole[2]) == [("2", b"x"), ("2", b"x"), ("headrace-priority", b"2")]


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        (pa.array(["1h30m"]), b"1h30m"),
        (pa.array([90], pa.int32()), b"90000ms"),
        (pa.array([1.5]), b"1500ms"),
        (pa.array([Decimal("0.25")]), b"250ms"),
        (pa.array([timedelta(minutes=2)], pa.duration("us")), b"120000ms"),
    ],
)
def test_a_row_with_a_delay_goes_to_the_delayed_topic_with_a_header(delay: pa.Array, text: bytes) -> None:
    (row,) = shaped(value=pa.array([b"v"]), delay=delay)
    assert row["topic"] == "__delayed.out"
    assert headers_of(row) == [("headrace-delay", text)]


def test_only_delayed_rows_go_to_the_delayed_topic() -> None:
    rows = shaped(
        to=None,
        value=pa.array([b"1", b"2", b"3", b"4"]),
        topic=pa.array(["a", "b", "a", "b"]),
        delay=pa.array([None, "5s", None, "5s"]),
        deliver_at=pa.array([None, None, NOON, NOON], pa.timestamp("us", "UTC")),
    )
    assert [row["topic"] for row in rows] == ["a", "__delayed.b", "__delayed.a", "__delayed.b"]
    at = ("headrace-deliver-at", b"%d" % (NOON.timestamp() * 1000))
    assert [headers_of(row) for row in rows] == [[], [("headrace-delay", b"5s")], [at], [at, ("headrace-delay", b"5s")]]


def test_timestamp_and_partition_are_kept_if_configured() -> None:
    (row,) = shaped(
        value=pa.array([b"v"]),
        partition=pa.array([3], pa.int32()),
        timestamp=pa.array([NOON], pa.timestamp("us", "UTC")),
    )
    assert (row["partition"], row["timestamp"]) == (3, NOON)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"priority": pa.array([4, 12, None], pa.int32())}, "'priority' must lie from 0 to 9; a row has 12"),
        ({"delay": pa.array(["1s", "soon", None])}, "in column 'delay', 'soon' is not a duration"),
        ({"delay": pa.array([1.0, -2.0, None])}, "'delay' must lie from 0 to a thousand years; a row has -2000"),
        (
            {"deliver_at": pa.array([NOON, NOON - timedelta(days=40000), None], pa.timestamp("us", "UTC"))},
            "'deliverAt'",
        ),
        ({"headers": pa.array([None, None, [{"key": None, "value": b""}]], HEADERS_TYPE)}, "a header has no name"),
        ({"timestamp": pa.array([NOON, None, NOON], pa.timestamp("us", "UTC"))}, "a row has no 'timestamp'"),
    ],
)
def test_an_invalid_row_is_rejected(columns: dict[str, pa.Array], sentence: str) -> None:
    with pytest.raises(InvalidRow, match=sentence):
        shaped(value=VALUES, **columns)


def test_a_row_without_a_topic_is_rejected() -> None:
    with pytest.raises(InvalidRow, match="a row has no topic"):
        shaped(to=None, value=VALUES, topic=pa.array(["a", None, "b"]))


def test_no_rows_give_no_rows() -> None:
    assert shaped(value=VALUES.slice(0, 0), priority=pa.array([], pa.int32()), delay=pa.array([], pa.string())) == []
