"""Yield to the event loop from a long computation, so that the loop's other work does not wait for all of it."""

from __future__ import annotations

import asyncio

from headrace.runtime.clock import Clock

_TURN_SECONDS = 0.005


class CooperativeYield:
    """Await it between any two steps. It yields only when the computation has run for a whole turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    async def __call__(self) -> None:
        if self._clock.monotonic() - self._since > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = self._clock.monotonic()
