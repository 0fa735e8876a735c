"""Run an event loop in a thread, and call coroutines on it from other threads.

- The loop keeps running while an application blocks, computes or waits, so that leases are extended and group members
  send their heartbeats.
- `blocking` and `blocking_open` turn a method of an async class into a method of its synchronous counterpart: the
  parameters and the docstring are those of the async method, for type checkers and at run time.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Opened = TypeVar("Opened")


class BlockingPortal:
    """Lets other threads run coroutines on a loop and wait for their results."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = True
        self._loop = loop

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return or raise what the coroutine does. If the wait is interrupted (Ctrl-C), the coroutine is cancelled."""
        try:
            is_inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_inside = False
        if is_inside or not self.is_open:
            coroutine.close()
            why = "would wait for itself: on the client's own loop, use the async methods"
            raise RuntimeError(f"this {why if is_inside else 'client is closed'}")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def run(self, function: Callable[[], T]) -> T:
        """Call the function on the loop, and return or raise what it does."""

        async def run() -> T:
            return function()

        return self.call(run())


class LoopThread(BlockingPortal):
    """Runs from `__init__` to `stop`; its thread does not keep the process alive."""

    def __init__(self, name: str) -> None:
        super().__init__(asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, callback: Callable[[], object]) -> None:
        """Call it on the loop without waiting; allowed in a signal handler."""
        self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        self.is_open = False
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            _cancel_tasks(self._loop)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))


class _SyncObject(Protocol):
    """An object of a synchronous class: `_inner` is its async counterpart, `_portal` leads to the loop of that."""

    @property
    def _inner(self) -> Any: ...
    @property
    def _portal(self) -> BlockingPortal: ...


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The synchronous form of an async method: run it on the loop, and wait for its result."""

    @wraps(method)
    def call(self: _SyncObject, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(method(self._inner, *args, **kwargs))

    call.__qualname__ = method.__qualname__.removeprefix("Async")
    return call


def blocking_open(
    method: Callable[Concatenate[Any, P], T], opened: Callable[[T, BlockingPortal], Opened]
) -> Callable[Concatenate[Any, P], Opened]:
    """The synchronous form of a method that opens an async object: call it on the loop, and wrap what it returns."""

    @wraps(method)
    def call(self: _SyncObject, /, *args: P.args, **kwargs: P.kwargs) -> Opened:
        portal = self._portal
        return opened(portal.run(partial(method, self._inner, *args, **kwargs)), portal)

    returned: Any = opened
    call.__qualname__ = method.__qualname__.removeprefix("Async")
    call.__annotations__ = method.__annotations__ | {"return": returned}  # a class: its name is not known in `method`
    vars(call)["__signature__"] = inspect.signature(method).replace(return_annotation=returned.__name__)
    return call
