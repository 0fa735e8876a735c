"""Durations and points in time as applications write them: text, numbers, `timedelta` and `datetime`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.model.durations import InvalidDuration, InvalidTime, parse_duration, parse_time

Duration = str | float | timedelta
"""`"5m"`, a number of seconds, or a timedelta."""

Time = str | datetime
"""`"2027-01-01T09:00:00Z"`, or a datetime with a UTC offset."""

_START = datetime(1970, 1, 1, tzinfo=UTC)


def duration_ms(value: Duration) -> int:
    """Whole milliseconds. Raises `InvalidDuration`."""
    if isinstance(value, str):
        return parse_duration(value)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidDuration(f'{value!r} is not a duration; write "5m", a number of seconds from 0 on, or a timedelta')
    return int(seconds * 1000)


def duration_seconds(value: Duration) -> float:
    return duration_ms(value) / 1000


def time_ms(value: Time) -> int:
    """Milliseconds since 1970. Raises `InvalidTime`."""
    if isinstance(value, str):
        return parse_time(value)
    if not isinstance(value, datetime):
        raise InvalidTime(f'{value!r} is not a time; write "2027-01-01T09:00:00Z", or a datetime with tzinfo=UTC')
    if value.utcoffset() is None:
        raise InvalidTime(f"{value!r} does not say its offset from UTC; make it with tzinfo=UTC")
    return (value - _START) // timedelta(milliseconds=1)


def time_of(milliseconds: int) -> datetime:
    return _START + timedelta(milliseconds=milliseconds)
