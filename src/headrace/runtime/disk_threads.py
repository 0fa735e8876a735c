"""The threads that may block on the disk.

They are cheaper than the event loop's executor: one queue, one future, and one wake-up per finished call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

DiskWork: TypeAlias = tuple[Callable[..., Any], tuple[object, ...], "asyncio.Future[Any]"]


class DiskThreads:
    """A fixed number of threads, started by the first call."""

    def __init__(self, count: int, when_done: Callable[[], None]) -> None:
        """`when_done` is called on the event loop after each call."""
        assert count > 0
        self._count = count
        self._when_done = when_done
        self._queue: SimpleQueue[DiskWork | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[..., T], args: tuple[object, ...]) -> asyncio.Future[T]:
        if not self._threads:
            self._start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((work, args, future))
        return future

    def close(self) -> None:
        """Finish the queued calls, then end the threads. A later call starts new ones."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        for number in range(self._count):
            thread = threading.Thread(target=self._serve, name=f"disk-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, args, future = item
            result, failure = None, None
            try:
                result = work(*args)
            except BaseException as error:  # the caller handles it, whatever it is
                failure = error
            try:
                future.get_loop().call_soon_threadsafe(self._deliver, future, result, failure)
            except RuntimeError:
                # The event loop was closed during the call, so no caller waits for the result.
                continue
            finally:
                del item, work, args, future, result, failure  # keep no references while the queue is empty

    def _deliver(self, future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
        deliver(future, result, failure)
        self._when_done()


def deliver(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    """Complete the future of a call, on its event loop."""
    if future.done():
        return  # the caller was cancelled
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
