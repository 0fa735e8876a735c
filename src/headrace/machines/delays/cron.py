"""Five-field cron expressions in UTC: `minute hour day-of-month month day-of-week`. Pure.

    */15 9-17 * * mon-fri     every quarter of an hour, in working time
    0 3 1,15 * *              at three, on the first and the fifteenth
    30 6 1 * sun              half past six, on the first of the month and on every Sunday
    @daily                    also @hourly, @weekly, @monthly, @yearly

A field is a list of `*`, numbers, names and ranges, each with an optional step. Sunday is 0 and 7. As in other
implementations, if both day fields are restricted, a day that matches either of them matches; a field that begins with
`*` is not restricted. UTC has no daylight saving time, so every day has every minute once.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Sequence
from datetime import MAXYEAR, date, timedelta
from typing import Final

from headrace.model.durations import TIME_MS_MAX
from headrace.model.errors import InvalidRequest
from headrace.model.safe_text import shortened

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAYS_OF_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_WEEKDAY_BITS: Final = 6 + 31  # a month of 31 days that begins on a Saturday, counted from its Sunday
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_ITEM: Final = re.compile(r"(\*|[a-z0-9]{1,9})(?:-([a-z0-9]{1,9}))?(?:/([0-9]{1,4}))?")


class InvalidCron(InvalidRequest):
    """A cron expression has five fields: minute, hour, day of month, month, day of week."""


class Cron:
    __slots__ = ("_days", "_either", "_hours", "_minutes", "_months", "_weekdays")

    def __init__(self, text: str) -> None:
        fields = _NICKNAMES.get(text.strip().lower(), text).lower().split()
        if len(fields) != 5:
            shown = shortened(text)
            raise InvalidCron(f"'{shown}' has {len(fields)} fields; cron has minute, hour, day, month and day of week")
        minute, hour, day, month, weekday = fields
        self._minutes = sorted(_values(minute, "minute", 0, 59))
        self._hours = sorted(_values(hour, "hour", 0, 23))
        self._months = sorted(_values(month, "month", 1, 12, _MONTHS))
        days = _values(day, "day of month", 1, 31)
        weekdays = {value % 7 for value in _values(weekday, "day of week", 0, 7, _WEEKDAYS)}
        self._either = not day.startswith("*") and not weekday.startswith("*")
        if not self._either and not any(value <= _DAYS_OF_MONTH[month - 1] for month in self._months for value in days):
            raise InvalidCron(f"'{shortened(text)}' never matches: none of these months has such a day")
        self._days = sum(1 << day for day in days)
        self._weekdays = sum(1 << day for day in range(_WEEKDAY_BITS) if day % 7 in weekdays)

    def next_ms(self, after_ms: int) -> int | None:
        """Return the first matching time after this one, or None if there is none before the year 10000."""
        minutes = after_ms // _MINUTE_MS + 1
        number, minute_of_day = divmod(minutes, 24 * 60)
        if not 0 <= minutes * _MINUTE_MS <= TIME_MS_MAX:
            return None
        day = _EPOCH + timedelta(days=number)
        minute = self._time_of_day(minute_of_day)
        found = self._first_day(day.year, day.month, day.day if minute is not None else day.day + 1)
        if found is None:
            return None
        if minute is None or found != day:
            minute = self._hours[0] * 60 + self._minutes[0]
        return (found - _EPOCH).days * _DAY_MS + minute * _MINUTE_MS

    def _time_of_day(self, earliest: int) -> int | None:
        """Return the first matching time of the day, in minutes, that is not earlier."""
        for hour in self._hours:
            if hour >= earliest // 60:
                for minute in self._minutes:
                    if hour * 60 + minute >= earliest:
                        return hour * 60 + minute
        return None

    def _first_day(self, from_year: int, from_month: int, from_day: int) -> date | None:
        """Return the first matching day that is not earlier. It takes one step per matching month: 29 February on a
        given weekday is at most 40 years away."""
        for year in range(from_year, MAXYEAR + 1):
            for month in self._months:
                if (year, month) < (from_year, from_month):
                    continue
                days = self._days_in(year, month)
                if (year, month) == (from_year, from_month):
                    days &= -1 << from_day
                if days:
                    return date(year, month, (days & -days).bit_length() - 1)
        return None

    def _days_in(self, year: int, month: int) -> int:
        """Return the matching days of a month as a bit set; bit 1 is the first."""
        length = _DAYS_OF_MONTH[month - 1] - (month == 2 and not isleap(year))
        by_weekday = self._weekdays >> date(year, month, 1).isoweekday() % 7 << 1
        days = self._days | by_weekday if self._either else self._days & by_weekday
        return days & (2 << length) - 1


def _values(text: str, field: str, lowest: int, highest: int, names: Sequence[str] = ()) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        parts = _ITEM.fullmatch(item)
        if parts is None:
            raise InvalidCron(f"'{shortened(item)}' is not a valid {field}; write *, a number, a range or */step")
        first, last, step = parts.groups()
        if first == "*":
            if last is not None:
                raise InvalidCron(f"'{item}' is not a valid {field}: a range begins with a number")
            start, end = lowest, highest
        else:
            start = _number(first, field, lowest, highest, names)
            end = _number(last, field, lowest, highest, names) if last else highest if step else start
        if start > end:
            raise InvalidCron(f"'{item}' is not a valid {field}: the range is reversed")
        if step is not None and int(step) == 0:
            raise InvalidCron(f"'{item}' is not a valid {field}: the step must not be 0")
        found.update(range(start, end + 1, int(step or 1)))
    return found


def _number(text: str, field: str, lowest: int, highest: int, names: Sequence[str]) -> int:
    if text in names:
        return names.index(text) + (highest == 12)
    if not text.isdecimal() or not text.isascii() or not lowest <= int(text) <= highest:
        raise InvalidCron(f"'{text}' is not a valid {field}; it must be {lowest} to {highest}")
    return int(text)
