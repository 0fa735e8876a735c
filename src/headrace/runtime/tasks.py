"""Tasks of the event loop: supervision, run to completion, waits with a timeout, locks by key, cooperative yielding.

- `Supervisor`: a background task that ends with an exception is a failure of the whole broker. It is logged, and
  `Supervisor.failure` raises, so that the composition root stops the process. The supervisor holds strong references to
  its tasks; asyncio holds only weak ones.
- `runs_to_completion`: disk threads continue when their caller is cancelled. The caller waits for the end of the work
  first; otherwise the next caller would work on the same files concurrently, and a failure would go unnoticed.
- `wait_until_set`: wait for an event, but not longer than a given time.
- `KeyedLock`: operations on the same key run one at a time; operations on different keys run concurrently.
- `CooperativeYield`: yield to the event loop from a long computation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundTaskDied(Exception):
    """A background task ended with an exception, which is the cause of this one."""


class Supervisor:
    """The background tasks of one broker. Call `spawn` on its event loop only."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict keeps the order in which tasks were spawned
        self._first_failure: BackgroundTaskDied | None = None
        self._stopping = False
        self._waiters: list[asyncio.Future[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine in the background until it ends or `stop` is called."""
        if self._stopping:
            coroutine.close()
            raise RuntimeError(f"cannot spawn {name}: the supervisor has been stopped")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def failure(self) -> None:
        """Raise `BackgroundTaskDied` when a task dies; return when the supervisor is stopped."""
        if self._first_failure is None and not self._stopping:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._first_failure is not None:
            raise self._first_failure

    async def stop(self) -> None:
        """Cancel every task, the newest first, and wait until all have ended."""
        self._stopping = True
        for task in reversed(list(self._tasks)):
            task.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
            await asyncio.sleep(0)  # let the done callbacks run
        self._wake()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if task.cancelled() or (cause := task.exception()) is None:
            return
        log.critical("background task failed task=%s", task.get_name(), exc_info=cause)
        if self._first_failure is None:
            self._first_failure = BackgroundTaskDied(task.get_name())
            self._first_failure.__cause__ = cause
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


def runs_to_completion(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let each call of a coroutine function run to its end, even if its caller is cancelled meanwhile; the cancellation
    takes effect afterwards."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.get_running_loop().create_task(function(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    return call


async def wait_until_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event; return whether it was set in time. None: without a timeout."""
    if seconds is None:
        return await event.wait()
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


_TURN_SECONDS = 0.005


class CooperativeYield:
    """Await it between steps of a long computation. It yields only after the computation has run for a few ms."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    async def __call__(self) -> None:
        if self._clock.monotonic() - self._since > _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = self._clock.monotonic()


K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    def __init__(self) -> None:
        self._taken: dict[K, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def take(self, keys: Iterable[K]) -> AsyncIterator[None]:
        """Hold the locks of these keys. Enters without an `await` if all of them are free."""
        wanted = list(dict.fromkeys(keys))
        while taken := [self._taken[key] for key in wanted if key in self._taken]:
            await asyncio.shield(taken[0])
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taken.update(dict.fromkeys(wanted, over))
        try:
            yield
        finally:
            for key in wanted:
                del self._taken[key]
            over.set_result(None)
