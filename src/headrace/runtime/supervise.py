"""Background tasks that may not die in silence.

A supervised task that ends with an exception is a failure of the whole broker: it is logged at once, and
`failure` raises, so that the composition root stops the process. The supervisor keeps its tasks alive:
asyncio itself holds them weakly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundTaskDied(Exception):
    """A task that should run for as long as the broker ended with the exception that is this one's cause."""


class Supervisor:
    """One per broker; spawn on its loop only."""

    def __init__(self) -> None:
        self._tasks: dict[
            asyncio.Task[Any], None
        ] = {}  # a dict, not a set: the order of stopping is the order of birth
        self._first_failure: BackgroundTaskDied | None = None
        self._stopping = False
        self._waiters: list[asyncio.Future[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run the coroutine in the background until it ends or `stop` is called."""
        if self._stopping:
            coroutine.close()
            raise RuntimeError(f"cannot spawn {name}: the supervisor has been stopped")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def failure(self) -> None:
        """Raise `BackgroundTaskDied` when a task dies; return when the supervisor is stopped before that."""
        if self._first_failure is None and not self._stopping:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._first_failure is not None:
            raise self._first_failure

    async def stop(self) -> None:
        """Cancel every task, the youngest first, and wait until all have ended."""
        self._stopping = True
        for task in reversed(list(self._tasks)):
            task.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
            await asyncio.sleep(0)  # the done callbacks run behind this wake-up
        self._wake()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if task.cancelled() or (cause := task.exception()) is None:
            return
        log.critical("background task %s died", task.get_name(), exc_info=cause)
        if self._first_failure is None:
            self._first_failure = BackgroundTaskDied(task.get_name())
            self._first_failure.__cause__ = cause
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
