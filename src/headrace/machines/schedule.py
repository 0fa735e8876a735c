"""How a message comes again and again: `every 10s`, or by cron.

`every` keeps its rhythm: it counts from when the message was due, not from when it was released, and what was missed in
between (the broker was down) is released once and not made up for.

The text comes from clients and is parsed on the event loop: its length is bounded, and schedules are cached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from headrace.machines.cron import Cron, InvalidCron
from headrace.model.durations import TIME_MS_MAX, InvalidDuration, parse_duration
from headrace.model.errors import InvalidRequest
from headrace.model.safe_text import shortened

LENGTH_MAX = 256
EVERY_MS_MIN = 100  # a message that comes more often than that is a typing error, or an attack


class InvalidRepeat(InvalidRequest):
    """A repetition is written `every 10s`, or as the five fields of cron."""


class Repeat(Protocol):
    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        """When it comes again after it was due at `due_ms`: later than now. None: never."""
        ...


class Every:
    __slots__ = ("_interval_ms",)

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        passed = max((now_ms - due_ms) // self._interval_ms, 0)
        found = due_ms + (passed + 1) * self._interval_ms
        return found if found <= TIME_MS_MAX else None


class ByCron:
    __slots__ = ("_cron",)

    def __init__(self, cron: Cron) -> None:
        self._cron = cron

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        return self._cron.next_ms(max(due_ms, now_ms))


@lru_cache(maxsize=1024)
def parse_repeat(text: str) -> Repeat:
    if len(text) > LENGTH_MAX:
        raise InvalidRepeat(f"'{shortened(text)}' is no repetition: it is longer than {LENGTH_MAX} characters")
    words = text.split()
    try:
        if len(words) == 2 and words[0].lower() in ("every", "@every"):
            interval_ms = parse_duration(words[1])
            if interval_ms < EVERY_MS_MIN:
                raise InvalidRepeat(f"'{shortened(text)}' is too often: once in {EVERY_MS_MIN} ms is the most")
            return Every(interval_ms)
        return ByCron(Cron(text))
    except (InvalidDuration, InvalidCron) as error:
        raise InvalidRepeat(f"'{shortened(text)}' is no repetition: {error.message}") from None
