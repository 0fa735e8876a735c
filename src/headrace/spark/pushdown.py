"""Filters of a batch query, as far as they tell which offsets need not be read.

Spark checks every filter again on the rows, so a range may be too wide and never too narrow. The brokers tell the first
offset whose timestamp is not before a time: all before it are older, whatever order the timestamps are in. They cannot
tell in the same way where the last one is, so a filter that only says "before" narrows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.client.metadata import TopicPartition
from headrace.spark.offsets import OffsetRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PushedFilters(msgspec.Struct, frozen=True):
    """What a row must be like; None: no matter."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_min: int | None = None
    partition_max: int | None = None
    offset_min: int | None = None
    offset_max: int | None = None
    time_ms_min: int | None = None

    def takes(self, target: TopicPartition) -> bool:
        return (
            (self.topics is None or target.topic in self.topics)
            and (self.partitions is None or target.partition in self.partitions)
            and (self.partition_min is None or target.partition >= self.partition_min)
            and (self.partition_max is None or target.partition <= self.partition_max)
        )

    def narrowed(self, whole: OffsetRange) -> OffsetRange | None:
        """What may hold such rows, by their offsets."""
        if not self.takes(whole.target):
            return None
        start = whole.start if self.offset_min is None else max(whole.start, self.offset_min)
        end = whole.end if self.offset_max is None else min(whole.end, self.offset_max + 1)
        return msgspec.structs.replace(whole, start=start, end=end) if start < end else None


def pushed_filters(filters: Iterable[Filter]) -> PushedFilters:
    """What the filters say together about topic, partition, offset and timestamp."""
    said = PushedFilters()
    for one in filters:
        column = ".".join(one.attribute) if hasattr(one, "attribute") else ""
        low, high = _value_range(one)
        match column:
            case "topic" if isinstance(one, EqualTo | EqualNullSafe | In):
                said = msgspec.structs.replace(said, topics=_common(said.topics, _values(one)))
            case "partition" if isinstance(one, EqualTo | EqualNullSafe | In):
                said = msgspec.structs.replace(said, partitions=_common(said.partitions, _values(one)))
            case "partition":
                said = msgspec.structs.replace(
                    said, partition_min=_higher(said.partition_min, low), partition_max=_lower(said.partition_max, high)
                )
            case "offset":
                said = msgspec.structs.replace(
                    said, offset_min=_higher(said.offset_min, low), offset_max=_lower(said.offset_max, high)
                )
            case "timestamp":
                said = msgspec.structs.replace(said, time_ms_min=_higher(said.time_ms_min, low))
    return said


def after_time(
    ranges: Sequence[OffsetRange],
    time_ms: int,
    log_starts: Callable[[TopicPartition], int],
    offsets_at: Callable[[dict[TopicPartition, int]], dict[TopicPartition, int | None]],
) -> Iterator[OffsetRange]:
    """The ranges without what is in the log and older; of what the archive has the brokers know nothing, so it stays.

    `offsets_at` must be asked after the ends of the ranges were: no record in them can then be new to it.
    """
    firsts = offsets_at({one.target: max(0, time_ms) for one in ranges})  # below 0 are other questions
    for one in ranges:
        first, log_start = firsts[one.target], log_starts(one.target)
        if one.start < log_start:
            yield msgspec.structs.replace(one, end=min(one.end, log_start))
        start = max(one.start, log_start, one.end if first is None else first)
        if start < one.end:
            yield msgspec.structs.replace(one, start=start)


def _values(one: Any) -> Iterable[Any]:
    return one.value if isinstance(one, In) else (one.value,)


def _value_range(one: Filter) -> tuple[int | None, int | None]:
    """The smallest and the largest whole number (milliseconds for times) that the filter may take."""
    match one:
        case EqualTo() | EqualNullSafe():
            number = _number(one.value)
            return number, number
        case In():
            numbers = [_number(value) for value in one.value if value is not None]
            if not numbers or None in numbers:
                return None, None
            return min(numbers), max(numbers)  # type: ignore[type-var]
        case GreaterThan() | GreaterThanOrEqual():
            number = _number(one.value)
            return (number + 1 if number is not None and _is_exact(one) else number), None
        case LessThan() | LessThanOrEqual():
            number = _number(one.value)
            return None, (number - 1 if number is not None and _is_exact(one) else number)
    return None, None


def _is_exact(one: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) -> bool:
    return isinstance(one, GreaterThan | LessThan) and isinstance(one.value, int)


def _number(value: Any) -> int | None:
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(milliseconds=1) if value.tzinfo is not None else None
    return value if isinstance(value, int) else None


def _common(before: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    found = frozenset(values)
    return found if before is None else before & found


def _higher(before: int | None, low: int | None) -> int | None:
    return before if low is None else low if before is None else max(before, low)


def _lower(before: int | None, high: int | None) -> int | None:
    return before if high is None else high if before is None else min(before, high)
