"""Headrace as a source of batch queries, and what both kinds of query have in common: their schema.

A reader is made several times for one query, in different processes, and is sent to the workers: it holds nothing but
what it was told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.metadata import TopicPartition
from headrace.columns.offsets import offsets_at
from headrace.columns.schema import ARROW_SCHEMA, SPARK_DDL
from headrace.model.errors import InvalidConfig
from headrace.spark.decoding import decoder, value_ddl
from headrace.spark.offsets import OffsetRange, split_ranges
from headrace.spark.options import RAW_VALUE, SourceOptions, parse, parse_columns
from headrace.spark.planning import describe_log, resolve_offsets
from headrace.spark.pushdown import PushedFilters, after_time, pushed_filters
from headrace.spark.reading import fit_to_log, rows

_DDL = {column.split(" ", 1)[0]: column for column in SPARK_DDL.split(", ", len(ARROW_SCHEMA) - 1)}


def ddl(options: Mapping[str, str]) -> str:
    """The schema that the options ask for."""
    columns, value_format, value_schema = parse_columns(options)
    known = _DDL | {RAW_VALUE: f"{RAW_VALUE} BINARY"}
    if value_format is not None:
        known["value"] = f"value {value_ddl(value_format, value_schema)}"
    return ", ".join(known[column] for column in columns)


def checked_schema(options: SourceOptions, schema: StructType) -> pa.Schema:
    """What Spark expects of every row, as Arrow says it; a schema that the user gave may leave out columns."""
    expected = to_arrow_schema(schema, timezone="UTC")
    for field in expected:
        if field.name == "value" and options.value_format is not None:
            decoder(options.value_format, options.value_schema, field.type)
            continue
        is_raw = field.name == RAW_VALUE and options.value_format is not None
        known = pa.field(RAW_VALUE, pa.binary()) if is_raw else _known(field.name)
        if known.type != field.type:
            raise InvalidConfig(f"the column {field.name} is of type {known.type}, not {field.type}")
    return expected


def _known(name: str) -> pa.Field:
    if name not in ARROW_SCHEMA.names:
        raise InvalidConfig(f"there is no column {name!r}; the columns are {', '.join(ARROW_SCHEMA.names)}")
    return ARROW_SCHEMA.field(name)


class BatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(options, streaming=False)
        self._schema = checked_schema(self._options, schema)
        self._wanted = PushedFilters()
        # Not a method: Spark refuses a reader that has one when the session does not push filters down.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def take(self, filters: list[Filter]) -> list[Filter]:
        self._wanted = pushed_filters(filters)
        return filters  # all of them: Spark checks them again

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(one) for one in self._ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # what Spark makes of no partitions
            return iter(())
        return rows(self._options, partition.value, self._schema)

    def _ranges(self) -> list[OffsetRange]:
        options = self._options
        view = describe_log(options)
        view.check_complete()
        starts = resolve_offsets(options.starting, view, options, name="startingOffsets")
        ends = resolve_offsets(options.ending, view, options, name="endingOffsets")
        ranges = []
        for target in sorted(filter(self._wanted.takes, view.bounds)):
            whole = OffsetRange(*target, starts[target], ends[target], view.ids.get(target.topic, ""))
            narrowed = self._wanted.narrowed(whole) if whole.size else whole
            fit = None if narrowed is None else fit_to_log(options, narrowed, view.bounds[target])
            if fit is not None:
                ranges.append(fit)
        if self._wanted.time_ms_min is not None and ranges:
            ranges = list(
                after_time(ranges, self._wanted.time_ms_min, lambda t: view.bounds[t].earliest, self._offsets_at)
            )
        return split_ranges(ranges, pieces_min=options.partitions_min, records_max=options.records_per_partition_max)

    def _offsets_at(self, times_ms: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return offsets_at(self._options.brokers, times_ms)


class _PushFilters:
    """`pushFilters` of a reader, which passes for the one that every reader inherits."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.take(filters)
