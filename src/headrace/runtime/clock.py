"""The clock door: how time comes in.

`monotonic` never goes back and measures durations; `now_ms` is the wall clock, may jump, and only stamps
records.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an unknown start."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970, as the host believes."""
        ...


class SystemClock:
    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
