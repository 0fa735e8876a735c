"""When a message is due, by its headers; and which headers it keeps when it is released.

`headrace-deliver-at` counts before `headrace-delay`, which runs from the message's own timestamp; with neither, one
that repeats comes at the first time of its schedule. All of it follows from the record alone, so that every broker that
reads the log finds the same time. A message without these headers, or with values that cannot be read, is due at once:
it must not get stuck. It then keeps what could not be read, for its readers to see.
"""

from __future__ import annotations

from headrace.machines.schedule import InvalidRepeat, Repeat, parse_repeat
from headrace.model.durations import TIME_MS_MAX, InvalidDuration, InvalidTime, parse_duration, parse_time
from headrace.model.message_headers import DELAY, DELIVER_AT, REPEAT, Headers
from headrace.wire.delayed_records import DELAYED_ID, Waiting

AT_ONCE_MS = 0


def due_ms(message: Waiting) -> int:
    _, timestamp_ms, deliver_at, delay, repeat = message
    if deliver_at is not None:
        at_ms = _time(deliver_at)
        if at_ms is not None:
            return at_ms
    if delay is not None:
        delay_ms = _duration(delay)
        if delay_ms is not None:
            return min(max(timestamp_ms, 0) + delay_ms, TIME_MS_MAX)
    if repeat is not None and deliver_at is None and delay is None:
        schedule = repeat_of(repeat)
        found = None if schedule is None else schedule.next_ms(max(timestamp_ms, 0), max(timestamp_ms, 0))
        if found is not None:
            return found
    return AT_ONCE_MS


def repeat_of(value: bytes) -> Repeat | None:
    """The schedule that a header says, None if it cannot be read."""
    try:
        return parse_repeat(value.decode("utf-8", "replace"))
    except InvalidRepeat:
        return None


def released_headers(headers: Headers, delayed_id: str) -> list[tuple[str, bytes | None]]:
    """The headers that a message has in its topic."""
    kept = [(name, value) for name, value in headers if name != DELAYED_ID and not _is_understood(name, value)]
    return [*kept, (DELAYED_ID, delayed_id.encode())]


def _is_understood(name: str, value: bytes | None) -> bool:
    if name == DELIVER_AT:
        return _time(value or b"") is not None
    if name == DELAY:
        return _duration(value or b"") is not None
    return name == REPEAT and repeat_of(value or b"") is not None


def _time(value: bytes) -> int | None:
    if len(value) == 13 and value.isdigit():
        return int(value)  # milliseconds, as nearly everybody writes them: a million are read at a restart
    try:
        return parse_time(value.decode("utf-8", "replace"))
    except InvalidTime:
        return None


def _duration(value: bytes) -> int | None:
    try:
        return parse_duration(value.decode("utf-8", "replace"))
    except InvalidDuration:
        return None
