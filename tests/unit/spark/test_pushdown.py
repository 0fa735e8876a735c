from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from headrace.client.metadata import TopicPartition
from headrace.spark.offsets import PlannedRange
from headrace.spark.pushdown import PushedFilters, after_time, pushed_filters

P0 = TopicPartition("orders", 0)


def test_all_filters_must_hold() -> None:
    said = pushed_filters(
        [GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 9), GreaterThanOrEqual(("offset",), 3)]
    )
    assert said == PushedFilters(offset_min=6, offset_max=9)
    assert said.narrowed(PlannedRange("orders", 0, 0, 100)) == PlannedRange("orders", 0, 6, 10)


def test_ranges_without_matching_rows_are_dropped() -> None:
    assert pushed_filters([LessThan(("offset",), 5)]).narrowed(PlannedRange("orders", 0, 5, 100)) is None
    assert pushed_filters([EqualTo(("partition",), 1)]).narrowed(PlannedRange("orders", 0, 5, 100)) is None
    assert pushed_filters([In(("topic",), ("a", "b"))]).narrowed(PlannedRange("orders", 0, 5, 100)) is None


def test_partitions_and_topics_are_selected_by_name_and_by_bounds() -> None:
    said = pushed_filters([In(("partition",), (0, 2, 7)), LessThan(("partition",), 5), EqualTo(("topic",), "orders")])
    assert [number for number in range(9) if said.matches(TopicPartition("orders", number))] == [0, 2]
    assert not said.matches(TopicPartition("bills", 0))


@pytest.mark.parametrize(
    "unused",
    [
        Not(EqualTo(("partition",), 0)),
        IsNotNull(("offset",)),
        StringStartsWith(("topic",), "o"),
        EqualTo(("key",), b"x"),
        LessThan(("timestamp",), datetime(2020, 1, 1, tzinfo=UTC)),
        GreaterThan(("headers", "offset"), 5),
    ],
)
def test_filters_without_offset_information_narrow_nothing(unused: Filter) -> None:
    assert pushed_filters([unused]) == PushedFilters()


def test_times_are_rounded_down() -> None:
    at = datetime(2020, 1, 1, 0, 0, 0, 1999, tzinfo=timezone(timedelta(hours=2)))
    exact = 1577829600001
    assert pushed_filters([GreaterThan(("timestamp",), at)]).time_ms_min == exact
    assert pushed_filters([EqualTo(("timestamp",), at)]).time_ms_min == exact
    before_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert pushed_filters([GreaterThanOrEqual(("timestamp",), before_1970)]).time_ms_min == -1


def ranges_after(one: PlannedRange, first: int | None, log_start: int = 0) -> list[tuple[int, int]]:
    found = after_time([one], 1000, lambda _target: log_start, lambda times: dict.fromkeys(times, first))
    return [(piece.start, piece.end) for piece in found]


def test_older_records_are_skipped() -> None:
    assert ranges_after(PlannedRange("orders", 0, 10, 50), 30) == [(30, 50)]
    assert ranges_after(PlannedRange("orders", 0, 10, 50), 3) == [(10, 50)]
    assert ranges_after(PlannedRange("orders", 0, 10, 50), None) == []
    assert ranges_after(PlannedRange("orders", 0, 10, 50), 70) == []


def test_records_that_only_the_archive_has_are_not_skipped() -> None:
    assert ranges_after(PlannedRange("orders", 0, 10, 50), 30, log_start=20) == [(10, 20), (30, 50)]
    assert ranges_after(PlannedRange("orders", 0, 10, 50), None, log_start=20) == [(10, 20)]
    assert ranges_after(PlannedRange("orders", 0, 10, 50), None, log_start=90) == [(10, 50)]


def test_a_time_before_1970_is_clamped() -> None:
    requested: list[dict[TopicPartition, int]] = []

    def offsets_at(times: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        requested.append(times)
        return dict.fromkeys(times, 0)

    list(after_time([PlannedRange("orders", 0, 0, 5)], -2, lambda _target: 0, offsets_at))
    assert requested == [{P0: 0}]
