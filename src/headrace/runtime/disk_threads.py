"""The threads that may block on the disk.

Leaner than the loop's executor: a queue, a future of the loop, and one wake-up per finished work.
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
    """A fixed number of threads, started with the first work."""

    def __init__(self, count: int, when_done: Callable[[], None]) -> None:
        """`when_done` is called on the loop after each piece of work."""
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
        """Finish what is queued, then end the threads; the next work would start new ones."""
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
            except BaseException as error:  # whatever it is, it belongs to the one who waits
                failure = error
            try:
                future.get_loop().call_soon_threadsafe(self._deliver, future, result, failure)
            except RuntimeError:
                # The loop was closed with work still under way: nobody waits any more.
                continue
            finally:
                del item, work, args, future, result, failure  # the queue may stay empty for long

    def _deliver(self, future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
        deliver(future, result, failure)
        self._when_done()


def deliver(future: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
    """Answer the one who waits for work, on its loop."""
    if future.done():
        return  # the waiter was cancelled
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
