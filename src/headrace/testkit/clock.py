"""A `Clock` in virtual time. `monotonic` is the time of the event loop; the wall clock can be wrong and can jump."""

from __future__ import annotations

import asyncio

START_MS = 1_700_000_000_000


class SimClock:
    def __init__(self, loop: asyncio.AbstractEventLoop, start_ms: int = START_MS) -> None:
        self._loop = loop
        self._offset_ms = self._start_ms = start_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def now_ms(self) -> int:
        return self._offset_ms + int(self._loop.time() * 1000)

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use another event loop, after a reboot."""
        self._loop = loop

    def jump(self, by_ms: int) -> None:
        """Move the wall clock forward or back, as an operator or a time server does."""
        self._offset_ms += by_ms

    def correct_wall_clock(self) -> None:
        """Undo all jumps, as a time server eventually does."""
        self._offset_ms = self._start_ms
