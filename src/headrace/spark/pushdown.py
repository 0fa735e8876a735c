"""Use the filters of a batch query to skip offsets that cannot match.

- Spark applies every filter again, so a range may be too wide but never too narrow.
- Brokers return the first offset whose timestamp is at or after a time: all earlier records are older, in whatever
  order the timestamps are. There is no such query for the last offset before a time, so a filter with only an upper
  bound on the timestamp narrows nothing.
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
from headrace.spark.offsets import PlannedRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PushedFilters(msgspec.Struct):
    """Bounds that a matching row satisfies; None: unbounded."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_min: int | None = None
    partition_max: int | None = None
    offset_min: int | None = None
    offset_max: int | None = None
    time_ms_min: int | None = None

    def matches(self, target: TopicPartition) -> bool:
        return (
            (self.topics is None or target.topic in self.topics)
            and (self.partitions is None or target.partition in self.partitions)
            and (self.partition_min is None or target.partition >= self.partition_min)
            and (self.partition_max is None or target.partition <= self.partition_max)
        )

    def narrowed(self, whole: PlannedRange) -> PlannedRange | None:
        """The part of the range that may have matching rows."""
        if not self.matches(whole.target):
            return None
        start = whole.start if self.offset_min is None else max(whole.start, self.offset_min)
        end = whole.end if self.offset_max is None else min(whole.end, self.offset_max + 1)
        return msgspec.structs.replace(whole, start=start, end=end) if start < end else None


def pushed_filters(filters: Iterable[Filter]) -> PushedFilters:
    """The bounds that the filters together set on topic, partition, offset and timestamp."""
    bounds = PushedFilters()
    for one in filters:
        column = ".".join(one.attribute) if hasattr(one, "attribute") else ""
        low, high = _value_range(one)
        match column:
            case "topic" if isinstance(one, EqualTo | EqualNullSafe | In):
                bounds.topics = _common(bounds.topics, _values(one))
            case "partition" if isinstance(one, EqualTo | EqualNullSafe | In):
                bounds.partitions = _common(bounds.partitions, _values(one))
            case "partition":
                bounds.partition_min = _higher(bounds.partition_min, low)
                bounds.partition_max = _lower(bounds.partition_max, high)
            case "offset":
                bounds.offset_min = _higher(bounds.offset_min, low)
                bounds.offset_max = _lower(bounds.offset_max, high)
            case "timestamp":
                bounds.time_ms_min = _higher(bounds.time_ms_min, low)
    return bounds


def after_time(
    ranges: Sequence[PlannedRange],
    time_ms: int,
    log_starts: Callable[[TopicPartition], int],
    offsets_at: Callable[[dict[TopicPartition, int]], dict[TopicPartition, int | None]],
) -> Iterator[PlannedRange]:
    """Remove the older offsets that are in the log. Offsets that only the archive has stay: brokers do not know them.

    `offsets_at` must be queried after the ends of the ranges, so that it covers every record in them.
    """
    firsts = offsets_at({one.target: max(0, time_ms) for one in ranges})  # negative times have other meanings
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
    """The smallest and the largest whole number (milliseconds for times) that can match the filter."""
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
