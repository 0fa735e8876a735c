"""A scrape of a large broker takes long; it stops for breath, so that the loop's other work does not wait for it."""

from __future__ import annotations

import asyncio

from headrace.runtime.clock import Clock

_TURN_SECONDS = 0.005


class Breath:
    """To be awaited between any two steps; it waits only when a turn has been long enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    async def __call__(self) -> None:
        if self._clock.monotonic() - self._since > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = self._clock.monotonic()
