"""Durations and times as applications write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from headrace.model.durations import InvalidDuration, InvalidTime
from headrace.sdk.times import Duration, duration_ms, time_ms, time_of


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [("5m", 300_000), ("1500ms", 1500), (2, 2000), (0.25, 250), (0, 0), (timedelta(hours=1), 3_600_000)],
)
def test_a_duration_is_text_or_seconds_or_a_timedelta(written: Duration, milliseconds: int) -> None:
    assert duration_ms(written) == milliseconds


@pytest.mark.parametrize("written", ["five minutes", -1, float("inf"), float("nan"), timedelta(seconds=-1)])
def test_invalid_durations_are_rejected(written: Duration) -> None:
    with pytest.raises(InvalidDuration):
        duration_ms(written)


def test_a_time_is_text_or_a_datetime() -> None:
    assert time_ms("1970-01-01T00:00:01Z") == 1000
    assert time_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1000
    assert time_ms(datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))) == 1000
    assert time_of(1500) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_a_datetime_without_utc_offset_is_rejected() -> None:
    with pytest.raises(InvalidTime, match="offset from UTC"):
        time_ms(datetime(2027, 1, 1))
