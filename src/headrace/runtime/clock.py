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


class AnchoredClock:
    """Wall time as of its construction, advanced by the monotonic clock. A jump of the wall clock does not move it, so
    it cannot end leases, sessions, transactions or dedup windows early, nor keep them for ever."""

    __slots__ = ("_clock", "_started", "_started_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started = clock.monotonic()

    def now_ms(self) -> int:
        return self._started_ms + int((self._clock.monotonic() - self._started) * 1000)
