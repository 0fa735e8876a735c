"""Read the rows of one range of offsets in a Spark task, and handle records that the log no longer has.

- The log may be trimmed between planning and reading, and during the read. The reader therefore always fetches the
  offset column, so it knows its position, and treats missing records as planning does.
- Only offsets before the start of the log or at and above its end count as lost. Offsets in between without a record
  (compacted, control records, aborted transactions) do not.
- The topic may be deleted and created again. The reader compares its id with the planned one before and after the
  scan. Ids are never reused, so the rows in between are those of the planned topic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.columns.offsets import OffsetBounds
from headrace.spark.offsets import OffsetRange
from headrace.spark.options import SourceOptions

if TYPE_CHECKING:
    from headrace.archive.catalogue import ArchiveCatalogue
from functools import partial

from headrace.columns.offsets import topic_id_of
from headrace.columns.scan import RangeOutOfLog, scan
from headrace.model.errors import HeadraceError
from headrace.spark.decoding import Decode, decode_column, decode_column_or_null, decoder
from headrace.spark.options import RAW_VALUE

_TRIMMED = "retention (retention.ms, retention.bytes) or somebody removed them before they were read"
_CUT = "it was deleted and made anew, or has lost its end"
_WAY_OUT = "onDataLoss=skip goes on without them, onDataLoss=archive takes what was trimmed from an archive"

log = logging.getLogger(__name__)


class DataLost(HeadraceError):
    """Records that the query has not read yet are no longer in the log."""


def fit_to_log(options: SourceOptions, wanted: OffsetRange, found: OffsetBounds) -> OffsetRange | None:
    """What is to be read of the range now that the log is like this: all of it, less if the rest may be skipped, or
    DataLost. What the archive must give stays in the range."""
    start, end = wanted.start, wanted.end
    if start > found.latest or end > found.latest:
        missing = _part(wanted, max(found.latest, min(start, end)), max(start, end))
        report_data_loss(options, missing, f"the log ends at offset {found.latest}: {_CUT}")
        start, end = min(start, found.latest), min(end, found.latest)
    if start < min(found.earliest, end):
        missing = _part(wanted, start, min(found.earliest, end))
        if options.on_data_loss == "archive":
            check_archived(options, missing, found.earliest)
        else:
            report_data_loss(options, missing, f"the log starts at offset {found.earliest}: {_TRIMMED}")
            start = min(found.earliest, end)
    return _part(wanted, start, end) if start < end else None


def report_data_loss(options: SourceOptions, missing: OffsetRange, why: str) -> None:
    """Raise DataLost, unless it may be skipped: then say so in the log."""
    if options.on_data_loss != "skip":
        raise DataLost(f"{missing} are gone: {why}; {_WAY_OUT}")
    log.warning("%s are gone and skipped: %s", missing, why)


def check_archived(options: SourceOptions, missing: OffsetRange, log_start: int) -> ArchiveCatalogue:
    """The archive's catalogue, if it covers all that is missing in the log; else DataLost."""
    from headrace.archive.catalogue import Archive

    assert options.archive is not None
    catalogue = Archive(options.archive).open(missing.topic)
    if missing.topic_id:
        catalogue.check_topic_id(missing.topic_id)
    position = missing.start
    for file in catalogue.files(missing.partition, missing.start, missing.end):
        if file.first > position:
            break
        position = file.last + 1
    if position < missing.end:
        lost = _part(missing, position, missing.end)
        raise DataLost(
            f"{lost} are neither in the log, which starts at offset {log_start}, nor in the archive {options.archive}"
        )
    return catalogue


def read_archived(
    options: SourceOptions, missing: OffsetRange, log_start: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    catalogue = check_archived(options, missing, log_start)
    return catalogue.read(missing.partition, missing.start, missing.end, columns)


def _part(whole: OffsetRange, start: int, end: int) -> OffsetRange:
    return msgspec.structs.replace(whole, start=start, end=end)


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
