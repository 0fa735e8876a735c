"""Start a coroutine at once, and create a task for it only if it has to wait.

- Most requests complete without waiting, and a task would cost more than the request. `start_inline` runs the coroutine
  up to its first wait and continues it in a task. `start_inline_coroutine` needs no task as long as the coroutine
  awaits only futures: each future resumes it when it is done.
- Call both from callbacks of the event loop (a readable stream), not from inside a task.
- Up to its first wait the coroutine has no current task, and an `InlineCoroutine` never has one. So the coroutine must
  `await switch_to_task()` before it uses `asyncio.timeout` or a `TaskGroup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


def start_inline(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> tuple[T] | asyncio.Task[T]:
    """Return `(result,)` if the coroutine completed at once, else the task that continues it.

    Raises what the coroutine raises before its first wait. Keep a reference to the task: asyncio holds only a weak one.
    """
    try:
        waiting = coroutine.send(None)
    except StopIteration as done:
        return (done.value,)
    return loop.create_task(_ResumedCoroutine(coroutine, waiting))


def start_inline_coroutine(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> InlineCoroutine | None:
    """Return None if the coroutine completed at once, else the object that continues it.

    Raises what the coroutine raises before its first wait. Later exceptions go to the loop's exception handler.
    """
    inline = InlineCoroutine(coroutine, loop)
    return inline if inline.resume() else None


async def switch_to_task() -> None:
    """Continue inside a task, so that the caller may use `asyncio.timeout` and task groups."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class InlineCoroutine:
    """A coroutine that is never cancelled and has no result, resumed by the futures that it awaits.

    It costs half as much as a task. When it awaits anything else, such as `switch_to_task`, a task continues it.
    """

    __slots__ = ("_callbacks", "_coroutine", "_loop", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._callbacks: list[Callable[[Any], object]] = []
        self._task: asyncio.Task[None] | None = None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this object when the coroutine has ended."""
        self._callbacks.append(callback)

    def resume(self) -> bool:
        """Run to the next wait. False if the coroutine has ended."""
        try:
            waiting = self._coroutine.send(None)
        except StopIteration:
            return False
        if getattr(waiting, "_asyncio_future_blocking", None):
            waiting._asyncio_future_blocking = False  # noqa: SLF001 - as a task does to accept the future
            waiting.add_done_callback(self._wake)
        else:
            self._task = self._loop.create_task(_ResumedCoroutine(self._coroutine, waiting))
            self._task.add_done_callback(self._end)
        return True

    def _wake(self, _: asyncio.Future[Any]) -> None:
        is_waiting = False
        try:
            is_waiting = self.resume()
        finally:
            if not is_waiting:
                self._end()

    def _end(self, _: asyncio.Task[None] | None = None) -> None:
        for callback in self._callbacks:
            callback(self)


class _ResumedCoroutine(Coroutine[Any, Any, T]):
    """A coroutine that was run to its first wait: yields that wait again to its task, then continues.

    It is a coroutine-like object and not a wrapping `async def`: a task that is cancelled before its first step throws
    into the object that it was given, and the original coroutine must receive the exception.
    """

    __slots__ = ("_coroutine", "_waiting", "_yielded")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waiting: Any) -> None:
        self._coroutine = coroutine
        self._waiting = waiting
        self._yielded = False

    def send(self, value: Any) -> Any:
        if self._yielded:
            return self._coroutine.send(value)
        self._yielded = True
        waiting, self._waiting = self._waiting, None
        return waiting

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        self._yielded = True
        if value is None and traceback is None:
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise TypeError("only a task drives this")
