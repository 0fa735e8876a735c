"""Interrupt waits of a client when it is stopped, and running handlers when the program is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Self, TypeVar

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


class Interruption:
    """A request to end early, for the code that runs within `with`. All calls belong on the loop's thread."""

    def __init__(self) -> None:
        self._is_requested = False
        self._callbacks: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        self._token = _interruption.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _interruption.reset(self._token)

    def request(self) -> None:
        self._is_requested = True
        for callback in self._callbacks:
            callback()

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call it when the end is requested; at once if it is already."""
        self._callbacks.append(callback)
        if self._is_requested:
            callback()


_interruption: ContextVar[Interruption | None] = ContextVar("interruption", default=None)


def on_interruption(callback: Callable[[], object]) -> None:
    """Call it when the program interrupts the call that runs here."""
    interruption = _interruption.get()
    if interruption is not None:
        interruption.add_callback(callback)
