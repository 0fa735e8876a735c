"""The source of batch queries, and the schema of batch and streaming queries.

Spark creates several readers for one query, in different processes, and pickles them to the workers: a reader holds
only its options and schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.columns.offsets import offsets_at
from headrace.columns.schema import ARROW_SCHEMA, SPARK_DDL
from headrace.model.errors import InvalidConfig
from headrace.spark.decoding import decoder, value_ddl
from headrace.spark.offsets import PlannedRange, split_ranges
from headrace.spark.options import RAW_VALUE, SourceOptions, parse, parse_columns
from headrace.spark.planning import describe_log, resolve_offsets
from headrace.spark.pushdown import PushedFilters, after_time, pushed_filters
from headrace.spark.reading import fit_to_log, rows

_DDL = {column.split(" ", 1)[0]: column for column in SPARK_DDL.split(", ", len(ARROW_SCHEMA) - 1)}


def ddl(options: Mapping[str, str]) -> str:
    columns, value_format, value_schema = parse_columns(options)
    known = _DDL | {RAW_VALUE: f"{RAW_VALUE} BINARY"}
    if value_format is not None:
        known["value"] = f"value {value_ddl(value_format, value_schema)}"
    return ", ".join(known[column] for column in columns)


def checked_schema(options: SourceOptions, schema: StructType) -> pa.Schema:
    """The Arrow schema of the rows. A schema of the user may omit columns."""
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
        self._filters = PushedFilters()
        # Not a method: Spark rejects a reader with this method if the session does not push filters down.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def apply_filters(self, filters: list[Filter]) -> list[Filter]:
        self._filters = pushed_filters(filters)
        return filters  # all of them: Spark applies them again

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(one) for one in self._ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's placeholder for no partitions
            return iter(())
        return rows(self._options, partition.value, self._schema)

    def _ranges(self) -> list[PlannedRange]:
        options = self._options
        view = describe_log(options)
        view.check_complete()
        starts = resolve_offsets(options.starting, view, options, name="startingOffsets")
        ends = resolve_offsets(options.ending, view, options, name="endingOffsets")
        ranges = []
        for target in sorted(filter(self._filters.matches, view.bounds)):
            whole = PlannedRange(*target, starts[target], ends[target], view.ids.get(target.topic, ""))
            narrowed = self._filters.narrowed(whole) if whole.size else whole
            fit = None if narrowed is None else fit_to_log(options, narrowed, view.bounds[target])
            if fit is not None:
                ranges.append(fit)
        if self._filters.time_ms_min is not None and ranges:
            find_offsets = partial(offsets_at, options.brokers)
            ranges = list(
                after_time(ranges, self._filters.time_ms_min, lambda t: view.bounds[t].earliest, find_offsets)
            )
        return split_ranges(ranges, pieces_min=options.partitions_min, records_max=options.records_per_partition_max)


class _PushFilters:
    """`pushFilters` of a reader, disguised by `__func__` as the inherited method."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.apply_filters(filters)
