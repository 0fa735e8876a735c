"""Run a coroutine at once, and make a task of it only if it has to wait.

Most requests are answered without waiting, and then a task would cost more than the request. `start` drives
the coroutine to its first real wait; what is left, if anything, goes on in an ordinary task.

Call it from plain callbacks of the loop (a readable link), not from inside a task. Up to its first wait the
coroutine has no current task, so it must not enter `asyncio.timeout` or a `TaskGroup` before `await
in_task()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


def start(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> tuple[T] | asyncio.Task[T]:
    """Return `(result,)` if the coroutine ended at once, else the task that goes on with it.

    What it raises before its first wait is raised here. Keep the task: asyncio holds tasks weakly.
    """
    try:
        waiting = coroutine.send(None)
    except StopIteration as done:
        return (done.value,)
    return loop.create_task(_Resumed(coroutine, waiting))


async def in_task() -> None:
    """Return inside a task: the caller may use `asyncio.timeout` and task groups from here on."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class _Resumed(Coroutine[Any, Any, T]):
    """A coroutine that was driven to its first wait: says that wait again to its task, then goes on.

    A coroutine-like object and not an `async def` around it: a task that is cancelled before its first step
    throws into the coroutine that it was given, and the one that waits must hear of it.
    """

    __slots__ = ("_coroutine", "_said", "_waiting")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waiting: Any) -> None:
        self._coroutine = coroutine
        self._waiting = waiting
        self._said = False

    def send(self, value: Any) -> Any:
        if self._said:
            return self._coroutine.send(value)
        self._said = True
        waiting, self._waiting = self._waiting, None
        return waiting

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        self._said = True
        if value is None and traceback is None:
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise TypeError("only a task drives this")
