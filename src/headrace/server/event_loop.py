"""Monitor the event loop: measure its lag, and terminate the process if it hangs.

A separate thread keeps the registry session alive, so other brokers would consider a broker alive although its event
loop serves no requests. A gateway has no session, but its supervisor restarts it only after it has exited. The watchdog
thread monitors a heartbeat of the event loop. When the heartbeat stops for too long, the thread terminates the process,
which also ends the session. This loses nothing: acknowledged data is on disk.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable

from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock

HEARTBEAT_SECONDS = 0.5
_LAG_SAMPLE_SECONDS = 0.1
HANG_SECONDS = 20.0
"""How long the event loop of a broker or a gateway may be blocked."""
EXIT_CODE = 70  # EX_SOFTWARE


class LoopWatchdog:
    def __init__(self, clock: Clock, seconds: float, terminate: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._terminate = terminate or _exit
        self._heartbeat = clock.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    async def run(self) -> None:
        """Update the heartbeat until cancelled."""
        self._thread.start()
        try:
            while True:
                self._heartbeat = self._clock.monotonic()
                await asyncio.sleep(HEARTBEAT_SECONDS)
        finally:
            self._stopped.set()

    def _watch(self) -> None:
        last_check = self._clock.monotonic()
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            now = self._clock.monotonic()
            # If this thread did not run either, the whole process was paused: let the event loop run before judging it.
            was_paused = now - last_check > 2 * HEARTBEAT_SECONDS
            last_check = now
            if not was_paused and now - self._heartbeat > self._seconds:
                self._terminate()
                return


def _exit() -> None:
    sys.stderr.write("error: the event loop hangs; exiting so that other processes take over\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class LoopLag:
    """Measures the lag of the event loop, which adds to the latency of every request."""

    def __init__(self, clock: Clock) -> None:
        self.seconds = Histogram()
        self._clock = clock

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            due = self._clock.monotonic() + _LAG_SAMPLE_SECONDS
            await asyncio.sleep(_LAG_SAMPLE_SECONDS)
            self.seconds.observe(max(self._clock.monotonic() - due, 0.0))
