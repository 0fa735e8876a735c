"""Records that are gone before they were read: what the query was told to do about it.

Gone are only offsets before the start of the log or behind its end. Offsets in between that give no record (compacted
away, control records, aborted transactions) are none that were lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.columns.offsets import OffsetBounds
from headrace.spark.errors import DataLost
from headrace.spark.offsets import OffsetRange
from headrace.spark.options import SourceOptions

if TYPE_CHECKING:
    from headrace.archive.catalogue import ArchiveCatalogue

_TRIMMED = "retention (retention.ms, retention.bytes) or somebody removed them before they were read"
_CUT = "it was deleted and made anew, or has lost its end"
_WAY_OUT = "onDataLoss=skip goes on without them, onDataLoss=archive takes what was trimmed from an archive"

log = logging.getLogger(__name__)


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
