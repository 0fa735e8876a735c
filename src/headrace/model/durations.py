"""Parse durations and points in time that are written as text.

    1500ms  10s  5m  2h  1d  1h30m        units from ms to d with integer numbers
    PT0.5S  PT1H30M  P1DT12H  P2W         ISO 8601 without months and years, which have no fixed length
    level1 ... level16                    the delay levels of RocketMQ: 1s, 5s, 10s ... 1h, 2h
    1700000000000                         a point in time: milliseconds since 1970
    2027-01-01T09:00:00Z                  a point in time by RFC 3339; the UTC offset is mandatory

The results are integer milliseconds. The error for any other text says what was expected.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from headrace.model.errors import InvalidRequest
from headrace.model.safe_text import shortened

LEVELS: Final = (
    *("1s", "5s", "10s", "30s", "1m", "2m", "3m", "4m"),
    *("6m", "8m", "9m", "10m", "20m", "30m", "1h", "2h"),
)
DURATION_MS_MAX: Final = 366_000 * 86_400_000  # a thousand years: anything longer is a typing error
TIME_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of the year 9999

_LENGTH_MAX: Final = 128
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_PARTS: Final = re.compile(r"(?:[0-9]{1,15}(?:ms|s|m|h|d))+")
_LEVEL: Final = re.compile(r"level([0-9]{1,2})")
_NUMBER: Final = r"([0-9]{1,15}(?:[.,][0-9]{1,9})?)"
_ISO: Final = re.compile(
    f"P(?=[0-9T])(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?"
)
_ISO_UNITS_MS: Final = (7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000)
_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")


class InvalidDuration(InvalidRequest):
    """The duration is invalid; write for example 500ms, 90s, 15m, 2h, 7d, 1h30m, PT90S or level3."""


class InvalidTime(InvalidRequest):
    """The time is invalid; write milliseconds since 1970, or RFC 3339 as in 2027-01-01T09:00:00Z."""


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> int:
    """Return milliseconds."""
    if len(text) > _LENGTH_MAX:
        raise InvalidDuration(f"'{shortened(text)}' is not a duration: it is longer than {_LENGTH_MAX} characters")
    if _PARTS.fullmatch(text) is not None:
        found = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    elif (level := _LEVEL.fullmatch(text)) is not None:
        found = _level_ms(text, int(level[1]))
    elif (iso := _ISO.fullmatch(text)) is not None:
        found = sum(_scaled(number, unit) for number, unit in zip(iso.groups(), _ISO_UNITS_MS, strict=True) if number)
    else:
        raise InvalidDuration(
            f"'{shortened(text)}' is not a duration; write 500ms, 90s, 15m, 2h, 7d, 1h30m, PT90S or level3"
        )
    if found > DURATION_MS_MAX:
        raise InvalidDuration(f"'{shortened(text)}' is longer than the maximum duration of a thousand years")
    return found


def parse_time(text: str) -> int:
    """Return milliseconds since 1970."""
    found = int(text) if _MILLISECONDS.fullmatch(text) else _rfc3339_ms(text)
    if not 0 <= found <= TIME_MS_MAX:
        raise InvalidTime(f"'{shortened(text)}' is not between the years 1970 and 9999")
    return found


def _level_ms(text: str, number: int) -> int:
    if not 1 <= number <= len(LEVELS):
        raise InvalidDuration(f"delay level '{text}' does not exist; use level1 ({LEVELS[0]}) to level{len(LEVELS)}")
    return parse_duration(LEVELS[number - 1])


def _scaled(number: str, unit_ms: int) -> int:
    """Multiply exactly, and truncate to whole milliseconds."""
    whole, _, fraction = number.replace(",", ".").partition(".")
    return int(whole) * unit_ms + (int(fraction) * unit_ms // 10 ** len(fraction) if fraction else 0)


def _rfc3339_ms(text: str) -> int:
    # Imported only when a time is given as text: keeps startup fast.
    from datetime import UTC, datetime, timedelta

    try:
        found = datetime.fromisoformat(text)
        if found.utcoffset() is None:
            raise InvalidTime(f"'{shortened(text)}' has no UTC offset; append Z, or an offset such as +01:00")
        return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise InvalidTime(
            f"'{shortened(text)}' is not a time; write milliseconds since 1970, or RFC 3339 as in 2027-01-01T09:00:00Z"
        ) from None
