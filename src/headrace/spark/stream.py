"""Headrace as a source of streaming queries.

The offsets of a stream are those of its checkpoint: given the same start and end, a batch is planned the same way
again. A partition that the start does not know is read from offset 0: it is new. `latestOffset` is asked when all
before `start` is done with, so there the progress is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.client.metadata import TopicPartition
from headrace.columns.offsets import OffsetBounds
from headrace.runtime.clock import Clock, SystemClock
from headrace.spark.offsets import OffsetMap, PlannedRange, StreamOffset, share_limit, split_ranges
from headrace.spark.options import parse
from headrace.spark.planning import GroupProgress, LogView, describe_log, resolve_offsets
from headrace.spark.reading import DataLost, fit_to_log, log, report_data_loss, rows
from headrace.spark.source import checked_schema

_EMPTY_BOUNDS = OffsetBounds(0, 0)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType, clock: Clock | None = None) -> None:
        self._options = parse(options, streaming=True)
        self._schema = checked_schema(self._options, schema)
        self._progress = GroupProgress(self._options.brokers, self._options.group)
        self._clock = clock or SystemClock()
        self._seen: LogView | None = None
        self._until: LogView | None = None
        self._triggered_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        view = describe_log(self._options)
        view.check_complete()
        offsets = resolve_offsets(self._options.starting, view, self._options, name="startingOffsets")
        return StreamOffset(offsets, view.ids).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = describe_log(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        began = StreamOffset.from_dict(start)
        view = self._seen = self._until or describe_log(self._options)
        self._progress.commit({target: at for target, at in began.offsets.items() if target in view.bounds})
        self._check_data_loss(began, view)
        begin, end = self._effective_starts(began, view), view.latest()
        if not isinstance(limit, ReadAllAvailable):
            if self._may_wait(sum(max(0, end[target] - begin[target]) for target in end)):
                return start
            if self._options.offsets_per_trigger_max is not None:
                end = share_limit(begin, end, self._options.offsets_per_trigger_max)
        self._triggered_at = self._clock.monotonic()
        return StreamOffset(end, view.ids).to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._seen is None else StreamOffset(self._seen.latest(), self._seen.ids).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        began, ended = StreamOffset.from_dict(start), StreamOffset.from_dict(end)
        # The first batch after a restart may be an earlier one, which Spark plans without calling `latestOffset`.
        view = self._seen or describe_log(self._options)
        ranges = []
        for target, at in ended.offsets.items():
            whole = PlannedRange(*target, _start_of(target, began, ended), at, ended.ids.get(target.topic, ""))
            if whole.size and _is_recreated(target, ended, view.ids):
                # These offsets belong to the deleted topic; the next batch reads the new topic from its start.
                report_data_loss(self._options, whole, f"the topic {target.topic} was deleted and created again")
                continue
            fit = fit_to_log(self._options, whole, view.bounds.get(target, _EMPTY_BOUNDS)) if whole.size else None
            if fit is not None:
                ranges.append(fit)
        pieces = split_ranges(
            ranges, pieces_min=self._options.partitions_min, records_max=self._options.records_per_partition_max
        )
        return [InputPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows(self._options, partition.value, self._schema)

    def _check_data_loss(self, began: StreamOffset, view: LogView) -> None:
        for target, at in sorted(began.offsets.items()):
            if target not in view.bounds:
                self._report_loss(f"{target}, read up to offset {at}, was deleted or is no longer subscribed to")
            elif _is_recreated(target, began, view.ids):
                self._report_loss(
                    f"topic {target.topic} was deleted and created again; {target} was read up to offset {at}"
                )
            elif view.bounds[target].latest < at:
                latest = view.bounds[target].latest
                self._report_loss(f"{target} was read up to offset {at}, and its log now ends at offset {latest}")

    def _report_loss(self, what: str) -> None:
        if self._options.on_data_loss != "skip":
            raise DataLost(f"{what}; records may be lost. Set onDataLoss=skip to continue with the current records")
        log.warning("records may be lost reason=%r", what)

    def _effective_starts(self, began: StreamOffset, view: LogView) -> OffsetMap:
        """The offsets where reading would start now: above trimmed records, unless the archive has them."""
        ended = StreamOffset(view.latest(), view.ids)
        starts = {target: _start_of(target, began, ended) for target in view.bounds}
        if self._options.on_data_loss == "archive":
            return starts
        return {target: max(at, view.bounds[target].earliest) for target, at in starts.items()}

    def _may_wait(self, records: int) -> bool:
        wanted = self._options.offsets_per_trigger_min
        if wanted is None or records >= wanted or self._until is not None or self._triggered_at is None:
            return False
        return self._clock.monotonic() - self._triggered_at < self._options.trigger_delay_seconds_max


def _is_recreated(target: TopicPartition, began: StreamOffset, ids: Mapping[str, str]) -> bool:
    before, now = began.ids.get(target.topic), ids.get(target.topic)
    return before is not None and now is not None and before != now


def _start_of(target: TopicPartition, began: StreamOffset, ended: StreamOffset) -> int:
    at = began.offsets.get(target)
    if at is None or _is_recreated(target, began, ended.ids):
        return 0
    if ended.offsets[target] < at:
        # It went back: with the same id the log has lost its end, else it is most likely another log.
        return ended.offsets[target] if target.topic in ended.ids else 0
    return at
