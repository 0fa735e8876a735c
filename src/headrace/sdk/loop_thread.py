"""Run an event loop in a thread, and call coroutines on it from other threads.

- The loop keeps running while an application blocks, computes or waits, so that leases are extended and group members
  send their heartbeats.
- `blocking` and `blocking_open` turn a method of an async class into a method of its synchronous counterpart: the
  parameters and the docstring are those of the async method, for type checkers and at run time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from headrace.sdk.errors import ClientClosed
from headrace.sdk.stopping import Interruption

P = ParamSpec("P")
T = TypeVar("T")
Opened = TypeVar("Opened")


log = logging.getLogger("headrace")

_QUIET_SECONDS = 0.5  # before the program says what it waits for


class BlockingPortal:
    """Lets other threads run coroutines on a loop and wait for their results."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = True
        self._loop = loop
        # What is scheduled while the portal is open runs before the loop stops. Reentrant, for signal handlers.
        self._scheduling = threading.RLock()

    def call(self, coroutine: Coroutine[Any, Any, T], interruption: Interruption | None = None) -> T:
        """Return or raise what the coroutine does. If the wait is interrupted (Ctrl-C), the coroutine is cancelled;
        with an `interruption`, it may end by itself first, and a second Ctrl-C cancels it."""
        future = self._schedule(coroutine)
        try:
            return future.result()
        except futures.CancelledError:
            if self.is_open:
                raise
            raise ClientClosed from None
        except KeyboardInterrupt:
            if interruption is not None:
                self.post(interruption.request)
                if futures.wait([future], _QUIET_SECONDS).not_done:
                    log.warning("interrupted, waiting for running handlers; interrupt again to end at once")
                    futures.wait([future])
            raise
        finally:
            future.cancel()

    def post(self, callback: Callable[[], object]) -> None:
        """Call it on the loop without waiting; allowed in a signal handler."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Later calls raise `ClientClosed`."""
        with self._scheduling:
            self.is_open = False

    def _schedule(self, coroutine: Coroutine[Any, Any, T]) -> futures.Future[T]:
        try:
            is_inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_inside = False
        if is_inside:
            coroutine.close()
            raise RuntimeError("this would wait for itself: on the client's own loop, use the async methods")
        with self._scheduling:
            if self.is_open:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise ClientClosed

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

    def stop(self) -> None:
        self.close()
        self.post(self._loop.stop)
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


def blocking_until_stopped(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The synchronous form of an async method that runs handlers. Ctrl-C stops it: the handlers that run end, and their
    messages are settled, before KeyboardInterrupt is raised. A second Ctrl-C does not wait for them."""

    @wraps(method)
    def call(self: _SyncObject, /, *args: P.args, **kwargs: P.kwargs) -> T:
        interruption = Interruption()

        async def run() -> T:
            with interruption:
                return await method(self._inner, *args, **kwargs)

        return self._portal.call(run(), interruption)

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
