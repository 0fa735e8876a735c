"""The rows of one range of offsets: what a task does. It runs in a worker of Spark's, which it may share with others.

The log may be trimmed between planning and reading, and while it is read. So the position is known at every moment
(the offsets are read along, wanted or not), and what is missing is treated as in planning.

The topic may also be deleted and created again. Its id is compared with the planned one before and after the scan: ids
do not return, so the rows in between are those of the planned topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import pyarrow as pa

from headrace.columns.offsets import OffsetBounds, topic_id_of
from headrace.columns.scan import RangeOutOfLog, scan
from headrace.spark.decoding import Decode, decode_column, decode_column_or_null, decoder
from headrace.spark.loss import fit_to_log, read_archived, report_data_loss
from headrace.spark.offsets import OffsetRange
from headrace.spark.options import RAW_VALUE, SourceOptions


def rows(options: SourceOptions, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows with exactly these columns."""
    shape = _RowConverter.of(options, schema)
    for batch in _raw_rows(options, wanted, shape.read):
        yield shape.shaped(batch, wanted)


def _raw_rows(options: SourceOptions, wanted: OffsetRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    if _is_planned_topic(options, wanted):
        yield from _scanned_rows(options, wanted, columns)
        _is_planned_topic(options, wanted)


def _is_planned_topic(options: SourceOptions, wanted: OffsetRange) -> bool:
    """Raises `DataLost` if it is not, unless that may be skipped."""
    if not wanted.topic_id:
        return True
    found = topic_id_of(options.brokers, wanted.target)
    if found in (wanted.topic_id, ""):
        return True
    report_data_loss(
        options, wanted, f"the topic {wanted.topic} was deleted{'' if found is None else ' and created again'}"
    )
    return False


def _scanned_rows(options: SourceOptions, wanted: OffsetRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    left: OffsetRange | None = wanted
    while left is not None:
        position = left.start
        try:
            for batch in scan(
                options.brokers,
                left.topic,
                left.partition,
                left.start,
                left.end,
                columns=columns,
                read_committed=options.read_committed,
            ):
                position = _last_offset(batch) + 1
                yield batch
            return
        except RangeOutOfLog as error:
            found = OffsetBounds(error.log_start, max(error.log_start, error.log_end))
        left = fit_to_log(options, msgspec.structs.replace(left, start=position), found)
        if left is not None and left.start < found.earliest:  # the archive has it, or there had been an error
            end = min(found.earliest, left.end)
            missing = msgspec.structs.replace(left, end=end)
            yield from read_archived(options, missing, found.earliest, columns)
            left = msgspec.structs.replace(left, start=end) if end < left.end else None


def _last_offset(batch: pa.RecordBatch) -> int:
    offset: int = batch.column(batch.schema.get_field_index("offset"))[-1].as_py()
    return offset


class _RowConverter(msgspec.Struct, frozen=True):
    """How rows as they are read become rows as they were asked for."""

    read: tuple[str, ...]
    schema: pa.Schema
    decode: Decode | None
    bad_is_null: bool

    @classmethod
    def of(cls, options: SourceOptions, schema: pa.Schema) -> _RowConverter:
        names = ["value" if name == RAW_VALUE else name for name in schema.names]
        read = tuple(dict.fromkeys((*names, "offset")))
        decode = None
        if options.value_format is not None and "value" in schema.names:
            decode = decoder(options.value_format, options.value_schema, schema.field("value").type)
        return cls(read, schema, decode, options.on_bad_value == "null")

    def shaped(self, batch: pa.RecordBatch, wanted: OffsetRange) -> pa.RecordBatch:
        if self.decode is None and RAW_VALUE not in self.schema.names:
            return batch.select(self.schema.names)
        arrays = [self._array(name, batch, wanted) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, name: str, batch: pa.RecordBatch, wanted: OffsetRange) -> pa.Array:
        if name == RAW_VALUE:
            return batch.column("value")
        if name != "value" or self.decode is None:
            return batch.column(name)
        kind = self.schema.field("value").type
        if self.bad_is_null:
            return decode_column_or_null(batch.column("value"), self.decode, kind)
        return decode_column(batch.column("value"), self.decode, kind, partial(_described, batch, wanted))


def _described(batch: pa.RecordBatch, wanted: OffsetRange, index: int) -> str:
    return f"{wanted.target} at offset {batch.column('offset')[index].as_py()}"
