"""Requests to stop: who waits for something that may never come is told, and waits no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class ClientStopped(Exception):
    """The client was asked to stop while this was waited for."""


class StopSignal:
    def __init__(self) -> None:
        self.is_requested = False
        self._waiting: set[asyncio.Timeout] = set()

    def request_stop(self) -> None:
        """On the loop's thread."""
        self.is_requested = True
        for scope in self._waiting:
            scope.reschedule(0.0)
        self._waiting.clear()

    async def wait_unless_stopped(self, wanted: Callable[[], Awaitable[T]]) -> T:
        """What is waited for; raises `ClientStopped` if a stop is requested first."""
        if self.is_requested:
            raise ClientStopped
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waiting.add(scope)
                return await wanted()
        except TimeoutError:
            if scope.expired():
                raise ClientStopped from None
            raise
        finally:
            self._waiting.discard(scope)
