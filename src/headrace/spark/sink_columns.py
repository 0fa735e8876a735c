"""Convert the rows of a query to the columns of records.

    value, key, headers, topic, partition     as in Spark's Kafka sink
    delay, deliverAt, priority                become headers; a row with delay or deliverAt is a delayed message
    timestamp                                 kept if the options say so
    any other column                          ignored, as in Spark's Kafka sink

- The driver checks the schema before any task runs. Errors in rows (a null topic, a priority of 12) fail the task.
- Columns are processed as a whole: Python code handles no single row, only each distinct delay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.schema import ARROW_SCHEMA, HEADERS_TYPE
from headrace.model.durations import DURATION_MS_MAX, TIME_MS_MAX, InvalidDuration, parse_duration
from headrace.model.errors import InvalidRequest
from headrace.model.message_headers import DELAY, DELIVER_AT, PRIORITY
from headrace.model.names import delayed_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TIMESTAMP: Final = ARROW_SCHEMA.field("timestamp").type
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_COLUMN_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "delay": ("string", *_WHOLE, "float", "double", "decimal", "interval day to second"),
    "deliverAt": ("timestamp",),
    "priority": _WHOLE,
    "timestamp": ("timestamp",),
}


class InvalidColumns(InvalidRequest):
    """The rows cannot be written as records: a column is missing or has an unsupported type."""


class InvalidRow(InvalidRequest):
    """A row cannot be written as a record."""


class SinkColumns(msgspec.Struct, frozen=True):
    """The positions of the sink's columns in the rows; None: missing."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    delay: int | None = None
    deliver_at: int | None = None
    priority: int | None = None
    timestamp: int | None = None


def columns_of(schema: StructType, *, topic: str | None, keep_timestamp: bool) -> SinkColumns:
    """Find the columns; raises InvalidColumns. The option `topic` has precedence over the column."""
    found: dict[str, int] = {}
    names = {name.lower(): name for name in _COLUMN_TYPES}
    for position, field in enumerate(schema.fields):
        name = names.get(field.name.lower())
        if name is None or (name == "timestamp" and not keep_timestamp) or (name == "topic" and topic is not None):
            continue
        if name in found:
            raise InvalidColumns(f"there are two columns {name!r}; drop one of them")
        kind = field.dataType.simpleString()
        if not _is_one_of(kind, _COLUMN_TYPES[name]):
            raise InvalidColumns(f"column {field.name!r} must be {_or(_COLUMN_TYPES[name])}, not {kind}")
        found[name] = position
    if "value" not in found:
        raise InvalidColumns(f"there is no column 'value' among {schema.fieldNames()}; every record needs one")
    if topic is None and "topic" not in found:
        raise InvalidColumns("there is no target topic: set the option 'topic', or add a column 'topic'")
    if keep_timestamp and "timestamp" not in found:
        raise InvalidColumns("keepTimestamp=true needs a column 'timestamp'")
    return SinkColumns(deliver_at=found.pop("deliverAt", None), **found)


class RecordColumnsBuilder:
    """Builds columns of records from rows: value, key, headers and timestamp, and topic and partition for routing."""

    def __init__(self, columns: SinkColumns, topic: str | None) -> None:
        self._columns = columns
        self._topic = topic

    def build(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Raises InvalidRow."""
        try:
            return self._build(rows)
        except pa.ArrowInvalid as error:  # a number that does not fit into its type
            raise InvalidRow(f"a row cannot be a record: {error}") from error

    def _build(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._columns
        extras = self._extras(rows)
        built = {
            "key": self._bytes(rows, columns.key),
            "value": self._bytes(rows, columns.value),
            "headers": append_headers(self._headers(rows), extras),
            "topic": self._topics(rows, [extras[name] for name in (DELAY, DELIVER_AT) if name in extras]),
        }
        if columns.timestamp is not None:
            built["timestamp"] = rows.column(columns.timestamp).cast(_TIMESTAMP)
            if built["timestamp"].null_count:
                raise InvalidRow("a row has no 'timestamp', which keepTimestamp=true asks for")
        if columns.partition is not None:
            built["partition"] = rows.column(columns.partition).cast(pa.int32())
        return pa.RecordBatch.from_pydict(built)

    def _bytes(self, rows: pa.RecordBatch, position: int | None) -> pa.Array:
        return pa.nulls(len(rows), pa.binary()) if position is None else rows.column(position).cast(pa.binary())

    def _headers(self, rows: pa.RecordBatch) -> pa.Array:
        position = self._columns.headers
        if position is None:
            return pa.nulls(len(rows), HEADERS_TYPE)
        headers = rows.column(position).cast(HEADERS_TYPE)
        if pc.list_flatten(headers).field("key").null_count:
            raise InvalidRow("a header has no name: its 'key' is null")
        return headers

    def _topics(self, rows: pa.RecordBatch, delays: list[pa.Array]) -> pa.Array:
        """The topic of each row; for delayed messages, the delayed topic."""
        if self._topic is not None:
            topics = pa.repeat(pa.scalar(self._topic), len(rows))
        else:
            assert self._columns.topic is not None
            topics = rows.column(self._columns.topic).cast(pa.string())
            if topics.null_count:
                raise InvalidRow("a row has no topic: the column 'topic' is null there, and no option 'topic' is set")
        if not delays:
            return topics
        is_delayed = pc.is_valid(pc.coalesce(*delays))
        return pc.if_else(is_delayed, pc.binary_join_element_wise(delayed_topic(""), topics, ""), topics)

    def _extras(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The headers that come from the columns delay, deliverAt and priority; null where a row has none."""
        columns = self._columns
        extras: dict[str, pa.Array] = {}
        if columns.deliver_at is not None:
            at_ms = _milliseconds(rows.column(columns.deliver_at))
            extras[DELIVER_AT] = _within(at_ms, TIME_MS_MAX, "deliverAt", "between the years 1970 and 9999")
        if columns.delay is not None:
            extras[DELAY] = _delays(rows.column(columns.delay))
        if columns.priority is not None:
            extras[PRIORITY] = _within(rows.column(columns.priority), 9, "priority", "from 0 to 9")
        return extras


def append_headers(headers: pa.Array, extras: dict[str, pa.Array]) -> pa.Array:
    """Append a header to each row whose value is not null: of two headers with the same name the last one counts."""
    if not extras:
        return headers
    flat = pc.list_flatten(headers)
    rows = [pc.list_parent_indices(headers).cast(pa.int64())]
    names, values = [flat.field("key")], [flat.field("value")]
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    for name, extra in extras.items():
        given = pc.is_valid(extra)
        which = pc.indices_nonzero(given).cast(pa.int64())
        rows.append(which)
        names.append(pa.repeat(pa.scalar(name), len(which)))
        values.append(pc.drop_null(extra).cast(pa.binary()))
        counts = pc.add(counts, given.cast(pa.int32()))
    order = pc.array_sort_indices(pa.concat_arrays(rows))  # stable: keeps the order of a row's headers
    ends = pc.cumulative_sum(counts).cast(pa.int32())
    entries = pa.StructArray.from_arrays(
        [pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order)],
        fields=list(HEADERS_TYPE.value_type),
    )
    return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), entries, type=HEADERS_TYPE)


def _delays(column: pa.Array) -> pa.Array:
    """Delays as header values. Numbers are seconds."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for text in pc.unique(pc.drop_null(column)).to_pylist():
            try:
                parse_duration(text)
            except InvalidDuration as error:
                raise InvalidRow(f"in column 'delay', {error.message}") from error
        return column.cast(pa.string())
    if pa.types.is_duration(column.type):
        ms = column.cast(pa.duration("ms"), safe=False).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        ms = pc.multiply_checked(column.cast(pa.int64()), 1000)
    else:
        ms = pc.floor(pc.multiply(column.cast(pa.float64()), 1000.0)).cast(pa.int64())
    texts = _within(ms, DURATION_MS_MAX, "delay", "from 0 to a thousand years")
    return pc.binary_join_element_wise(texts, "ms", "")


def _milliseconds(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _within(numbers: pa.Array, highest: int, column: str, range_: str) -> pa.Array:
    """Check the numbers, and return them as text."""
    ends = pc.min_max(numbers)
    for end in (ends["min"].as_py(), ends["max"].as_py()):
        if end is not None and not 0 <= end <= highest:
            raise InvalidRow(f"column {column!r} must lie {range_}; a row has {end}")
    return numbers.cast(pa.string())


def _is_one_of(kind: str, allowed: Iterable[str]) -> bool:
    family, _, rest = kind.partition(" ") if kind.startswith("interval ") else kind.partition("(")
    if family == "interval" and not {"year", "month"} & {*rest.split()}:
        kind = "interval day to second"  # or a part of it
    return kind in allowed or (family == "decimal" and family in allowed)


def _or(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
