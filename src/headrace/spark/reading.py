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
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.columns.offsets import OffsetBounds, topic_id_of
from headrace.columns.scan import RangeOutOfLog, scan
from headrace.model.errors import HeadraceError
from headrace.spark.decoding import Decode, decode_column, decoder
from headrace.spark.offsets import PlannedRange
from headrace.spark.options import RAW_VALUE, SourceOptions

if TYPE_CHECKING:
    from headrace.archive.catalogue import ArchiveCatalogue

_TRIMMED = "retention (retention.ms, retention.bytes) or DeleteRecords removed them before they were read"
_TRUNCATED = "the topic was deleted and created again, or the log lost its end"
_WAY_OUT = "set onDataLoss=skip to continue without them, or onDataLoss=archive to read trimmed records from an archive"

log = logging.getLogger(__name__)


class DataLost(HeadraceError):
    """Records that the query has not read yet are no longer in the log."""


def fit_to_log(options: SourceOptions, wanted: PlannedRange, found: OffsetBounds) -> PlannedRange | None:
    """The part of the range to read, given the current bounds of the log: all of it, or less if missing records may be
    skipped. Raises DataLost otherwise. Offsets that the archive must provide stay in the range."""
    start, end = wanted.start, wanted.end
    if start > found.latest or end > found.latest:
        missing = _part(wanted, max(found.latest, min(start, end)), max(start, end))
        report_data_loss(options, missing, f"the log ends at offset {found.latest}: {_TRUNCATED}")
        start, end = min(start, found.latest), min(end, found.latest)
    if start < min(found.earliest, end):
        missing = _part(wanted, start, min(found.earliest, end))
        if options.on_data_loss == "archive":
            check_archived(options, missing, found.earliest)
        else:
            report_data_loss(options, missing, f"the log starts at offset {found.earliest}: {_TRIMMED}")
            start = min(found.earliest, end)
    return _part(wanted, start, end) if start < end else None


def report_data_loss(options: SourceOptions, missing: PlannedRange, why: str) -> None:
    """Raise DataLost, or log the loss if missing records may be skipped."""
    if options.on_data_loss != "skip":
        raise DataLost(f"{missing} are lost: {why}; {_WAY_OUT}")
    log.warning("skipped lost records range=%r reason=%r", str(missing), why)


def check_archived(options: SourceOptions, missing: PlannedRange, log_start: int) -> ArchiveCatalogue:
    """The catalogue of the archive if it covers everything that is missing in the log; raises DataLost otherwise."""
    from headrace.archive.catalogue import Archive  # imports Parquet, which few tasks need

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
    options: SourceOptions, missing: PlannedRange, log_start: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    catalogue = check_archived(options, missing, log_start)
    return catalogue.read(missing.partition, missing.start, missing.end, columns)


def _part(whole: PlannedRange, start: int, end: int) -> PlannedRange:
    return msgspec.structs.replace(whole, start=start, end=end)


def rows(options: SourceOptions, wanted: PlannedRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows, with exactly the columns of the schema."""
    converter = _RowConverter.of(options, schema)
    if _is_planned_topic(options, wanted):
        for batch in _scanned_rows(options, wanted, converter.read):
            yield converter.convert(batch, wanted)
        _is_planned_topic(options, wanted)


def _is_planned_topic(options: SourceOptions, wanted: PlannedRange) -> bool:
    """Whether the topic still has the planned id. Raises `DataLost` otherwise, unless lost records may be skipped."""
    if not wanted.topic_id:
        return True
    found = topic_id_of(options.brokers, wanted.target)
    if found in (wanted.topic_id, ""):
        return True
    what = "deleted" if found is None else "deleted and created again"
    report_data_loss(options, wanted, f"the topic {wanted.topic} was {what}")
    return False


def _scanned_rows(options: SourceOptions, wanted: PlannedRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    left: PlannedRange | None = wanted
    while left is not None:
        position = left.start
        where = options.brokers, left.topic, left.partition, left.start, left.end
        try:
            for batch in scan(*where, columns=columns, read_committed=options.read_committed):
                position = batch.column("offset")[-1].as_py() + 1
                yield batch
            return
        except RangeOutOfLog as error:
            found = OffsetBounds(error.log_start, max(error.log_start, error.log_end))
        left = fit_to_log(options, _part(left, position, left.end), found)
        # The archive has offsets below the log start: otherwise `fit_to_log` raises.
        if left is not None and left.start < found.earliest:
            end = min(found.earliest, left.end)
            yield from read_archived(options, _part(left, left.start, end), found.earliest, columns)
            left = _part(left, end, left.end) if end < left.end else None


class _RowConverter(msgspec.Struct, frozen=True):
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

    def convert(self, batch: pa.RecordBatch, wanted: PlannedRange) -> pa.RecordBatch:
        if self.decode is None and RAW_VALUE not in self.schema.names:
            return batch.select(self.schema.names)
        arrays = [self._array(name, batch, wanted) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, name: str, batch: pa.RecordBatch, wanted: PlannedRange) -> pa.Array:
        if name == RAW_VALUE:
            return batch.column("value")
        if name != "value" or self.decode is None:
            return batch.column(name)
        where = None if self.bad_is_null else partial(_described, batch, wanted)
        return decode_column(batch.column("value"), self.decode, self.schema.field("value").type, where)


def _described(batch: pa.RecordBatch, wanted: PlannedRange, index: int) -> str:
    return f"{wanted.target} at offset {batch.column('offset')[index].as_py()}"
