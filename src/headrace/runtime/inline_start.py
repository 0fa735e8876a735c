"""Run a coroutine at once, and make a task of it only if it has to wait.

Most requests are answered without waiting, and then a task would cost more than the request. `start` drives
the coroutine to its first real wait; what is left, if anything, goes on in an ordinary task. `start_inline_coroutine`
spares the task, too, for as long as the coroutine waits for nothing but futures: each calls it back when it is done.

Call them from plain callbacks of the loop (a readable link), not from inside a task. Up to its first wait the
coroutine has no current task, and an errand has none at all, so it must not enter `asyncio.timeout` or a `TaskGroup`
before `await switch_to_task()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


def start_inline(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> tuple[T] | asyncio.Task[T]:
    """Return `(result,)` if the coroutine ended at once, else the task that goes on with it.

    What it raises before its first wait is raised here. Keep the task: asyncio holds tasks weakly.
    """
    try:
        waiting = coroutine.send(None)
    except StopIteration as done:
        return (done.value,)
    return loop.create_task(_ResumedCoroutine(coroutine, waiting))


def start_inline_coroutine(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> InlineCoroutine | None:
    """None if the coroutine ended at once, else what goes on with it.

    What it raises before its first wait is raised here, and later to the loop's exception handler.
    """
    errand = InlineCoroutine(coroutine, loop)
    return errand if errand.go_on() else None


async def switch_to_task() -> None:
    """Return inside a task: the caller may use `asyncio.timeout` and task groups from here on."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class InlineCoroutine:
    """A coroutine that nobody cancels and nobody waits for the result of, driven by the futures that it waits for.

    Half of a task's cost. When it waits for anything else, such as to be `switch_to_task`, a task goes on with it.
    """

    __slots__ = ("_callbacks", "_coroutine", "_loop", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._callbacks: list[Callable[[Any], object]] = []
        self._task: asyncio.Task[None] | None = None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call this with the errand when it is over."""
        self._callbacks.append(callback)

    def go_on(self) -> bool:
        """To its next wait; False if there is none."""
        try:
            waiting = self._coroutine.send(None)
        except StopIteration:
            return False
        if getattr(waiting, "_asyncio_future_blocking", None):
            waiting._asyncio_future_blocking = False  # noqa: SLF001 - by which a task says that it has understood
            waiting.add_done_callback(self._wake)
        else:
            self._task = self._loop.create_task(_ResumedCoroutine(self._coroutine, waiting))
            self._task.add_done_callback(self._end)
        return True

    def _wake(self, _: asyncio.Future[Any]) -> None:
        is_waiting = False
        try:
            is_waiting = self.go_on()
        finally:
            if not is_waiting:
                self._end()

    def _end(self, _: asyncio.Task[None] | None = None) -> None:
        for callback in self._callbacks:
            callback(self)


class _ResumedCoroutine(Coroutine[Any, Any, T]):
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
