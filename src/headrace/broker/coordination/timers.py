"""Timers by name, at most one per group. Timers never fire late. A timer may fire spuriously; callers must re-check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        # Stored with its deadline: uvloop's handles have none for timers that are due immediately.
        self._timers: dict[str, tuple[float, asyncio.Handle]] = {}
        self._callbacks: dict[str, Callable[[], None]] = {}

    def set(self, name: str, deadline_ms: int, callback: Callable[[], None]) -> None:
        """Fire at the deadline, or earlier if an earlier timer is set; the callback sets the timer again."""
        self._callbacks[name] = callback
        when = self._loop.time() + max(deadline_ms - self._now_ms(), 0) / 1000
        timer = self._timers.get(name)
        if timer is not None:
            if timer[0] <= when:
                return
            timer[1].cancel()
        self._timers[name] = when, self._loop.call_at(when, self._fire_timer, name)

    def cancel(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name)[1].cancel()
            del self._callbacks[name]

    def stop(self) -> None:
        for name in list(self._timers):
            self.cancel(name)

    def _fire_timer(self, name: str) -> None:
        del self._timers[name]
        self._callbacks.pop(name)()
