"""The system interface `Clock`.

`monotonic` never goes back and measures durations. `now_ms` is the wall clock: it may jump, and only stamps records.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since 1970, by the wall clock of the host."""
        ...


class SystemClock:
    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class AnchoredClock:
    """The wall time at construction, advanced by the monotonic clock.

    A jump of the wall clock therefore neither expires leases, sessions, transactions and dedup windows early nor keeps
    them forever.
    """

    __slots__ = ("_clock", "_started", "_started_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started = clock.monotonic()

    def now_ms(self) -> int:
        return self._started_ms + int((self._clock.monotonic() - self._started) * 1000)
