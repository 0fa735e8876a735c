"""The wish to stop, and those who wait for what may never come: when the wish is uttered, they wait no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The client was asked to stop while this was waited for."""


class Stopping:
    def __init__(self) -> None:
        self.is_wished = False
        self._waiting: set[asyncio.Timeout] = set()

    def wish(self) -> None:
        """On the loop's thread."""
        self.is_wished = True
        for scope in self._waiting:
            scope.reschedule(0.0)
        self._waiting.clear()

    async def unless_stopped(self, wanted: Callable[[], Awaitable[T]]) -> T:
        """What is waited for; raises `Stopped` when the wish comes first."""
        if self.is_wished:
            raise Stopped
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting.add(scope)
                return await wanted()
        except TimeoutError:
            if scope.expired():
                raise Stopped from None
            raise
        finally:
            self._waiting.discard(scope)
