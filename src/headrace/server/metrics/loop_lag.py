"""Measure the lag of the event loop, which adds to the latency of every request."""

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
        """Run until cancelled."""
        while True:
            due = self._clock.monotonic() + _PULSE_SECONDS
            await asyncio.sleep(_PULSE_SECONDS)
            self.seconds.observe(max(self._clock.monotonic() - due, 0.0))
