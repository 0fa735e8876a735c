"""Interrupt waits of a client when it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class StopSignal:
    def __init__(self) -> None:
        self.is_requested = False
        self._waiting: set[asyncio.Timeout] = set()

    def request_stop(self) -> None:
        """Must be called on the loop's thread."""
        self.is_requested = True
        for scope in self._waiting:
            scope.reschedule(0.0)
        self._waiting.clear()

    async def wait_unless_stopped(self, fetch: Callable[[], Awaitable[T]]) -> T | None:
        """The result of `fetch`; None if a stop is requested first."""
        if self.is_requested:
            return None
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting.add(scope)
                return await fetch()
        except TimeoutError:
            if scope.expired():
                return None
            raise
        finally:
            self._waiting.discard(scope)
