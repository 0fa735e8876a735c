"""How late the event loop comes to what is due: what everybody who waits for it feels."""

from __future__ import annotations

import asyncio

from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock

_PULSE_SECONDS = 0.1


class LoopLag:
    def __init__(self, clock: Clock) -> None:
        self.seconds = Histogram()
        self._clock = clock

    async def run(self) -> None:
        """For ever."""
        while True:
            due = self._clock.monotonic() + _PULSE_SECONDS
            await asyncio.sleep(_PULSE_SECONDS)
            self.seconds.observe(max(self._clock.monotonic() - due, 0.0))
