"""The due time of a delayed message, from its headers, and how it repeats. Pure.

- `headrace-deliver-at` has precedence over `headrace-delay`, which is relative to the message's own timestamp. Without
  both, a repeating message is due at the first time of its schedule.
- The due time follows from the record alone, so all brokers that read the log compute the same time.
- A message without these headers, or with invalid values, is due at once: it must not get stuck. It keeps the invalid
  headers, for its consumers to see.
- `every 10s` keeps its rhythm: it counts from the due time, not from the release. Repeats that were missed while the
  broker was down are released once.
- The schedule is text from clients that is parsed on the event loop, so its length is limited and schedules are cached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from headrace.machines.delays.cron import Cron, InvalidCron
from headrace.model.durations import TIME_MS_MAX, InvalidDuration, InvalidTime, parse_duration, parse_time
from headrace.model.errors import InvalidRequest
from headrace.model.message_headers import DELAY, DELIVER_AT, REPEAT, Headers
from headrace.model.safe_text import shortened
from headrace.wire.state_records.delayed_records import DELAYED_ID, WaitingMessage

T = TypeVar("T")

LENGTH_MAX = 256
EVERY_MS_MIN = 100  # a shorter interval is a typing error or an attack


class InvalidRepeat(InvalidRequest):
    """A repeat is `every 10s` or a cron expression with five fields."""


class Repeat(NamedTuple):
    """A parsed repeat: an interval in milliseconds, or a cron expression."""

    schedule: int | Cron

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        """Return the next due time after `due_ms` that is later than now, or None if there is none."""
        if isinstance(self.schedule, Cron):
            return self.schedule.next_ms(max(due_ms, now_ms))
        passed = max((now_ms - due_ms) // self.schedule, 0)
        found = due_ms + (passed + 1) * self.schedule
        return found if found <= TIME_MS_MAX else None


@lru_cache(maxsize=1024)
def parse_repeat(text: str) -> Repeat:
    if len(text) > LENGTH_MAX:
        raise InvalidRepeat(f"'{shortened(text)}' is not a valid repeat: it is longer than {LENGTH_MAX} characters")
    words = text.split()
    try:
        if len(words) == 2 and words[0].lower() in ("every", "@every"):
            interval_ms = parse_duration(words[1])
            if interval_ms < EVERY_MS_MIN:
                raise InvalidRepeat(f"'{shortened(text)}' is too frequent: the minimum interval is {EVERY_MS_MIN} ms")
            return Repeat(interval_ms)
        return Repeat(Cron(text))
    except (InvalidDuration, InvalidCron) as error:
        raise InvalidRepeat(f"'{shortened(text)}' is not a valid repeat: {error.message}") from None


def due_time_ms(message: WaitingMessage) -> int:
    _, timestamp_ms, deliver_at, delay, repeat = message
    if deliver_at is not None:
        at_ms = _parse_time(deliver_at)
        if at_ms is not None:
            return at_ms
    if delay is not None:
        delay_ms = _parsed(parse_duration, delay)
        if delay_ms is not None:
            return min(max(timestamp_ms, 0) + delay_ms, TIME_MS_MAX)
    if repeat is not None and deliver_at is None and delay is None:
        schedule = parse_repeat_header(repeat)
        found = None if schedule is None else schedule.next_ms(max(timestamp_ms, 0), max(timestamp_ms, 0))
        if found is not None:
            return found
    return 0  # due at once


def parse_repeat_header(value: bytes) -> Repeat | None:
    return _parsed(parse_repeat, value)


def released_headers(headers: Headers, delayed_id: str) -> list[tuple[str, bytes | None]]:
    """Return the headers of the released message in its topic."""
    kept = [(name, value) for name, value in headers if name != DELAYED_ID and not _is_understood(name, value)]
    return [*kept, (DELAYED_ID, delayed_id.encode())]


def _is_understood(name: str, value: bytes | None) -> bool:
    if name == DELIVER_AT:
        return _parse_time(value or b"") is not None
    if name == DELAY:
        return _parsed(parse_duration, value or b"") is not None
    return name == REPEAT and parse_repeat_header(value or b"") is not None


def _parse_time(value: bytes) -> int | None:
    if len(value) == 13 and value.isdigit():
        return int(value)  # milliseconds are the usual form, and a restart reads millions of them
    return _parsed(parse_time, value)


def _parsed(parse: Callable[[str], T], value: bytes) -> T | None:
    """Parse the value of a header; return None if it is invalid."""
    try:
        return parse(value.decode("utf-8", "replace"))
    except (InvalidDuration, InvalidRepeat, InvalidTime):
        return None
