"""Times and durations. Durations are written 500ms, 90s, 15m, 2h, 7d, or in several parts such as 1h30m."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headrace.cli.options import ParsedType

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: str) -> int:
    """Return milliseconds, or raise ValueError with a message for the user."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write 500ms, 90s, 15m, 2h, 7d or 1h30m")
    return sum(int(part[1]) * _MILLISECONDS[part[2]] for part in parts)


DURATION = ParsedType("duration", parse_duration)
"""A duration, as milliseconds."""


def local_time(milliseconds: int) -> str | None:
    """Format a timestamp as local time; None for a negative one, which means "no timestamp"."""
    if milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{milliseconds} ms"  # out of range: producers may set any timestamp
