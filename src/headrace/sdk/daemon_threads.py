"""A thread pool whose threads do not keep the process alive.

The interpreter joins the threads of a `ThreadPoolExecutor` when it exits. A program that is interrupted twice must end
even if a handler is blocked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Starts threads as they are needed, at most `threads_max`; each runs one call after the other."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._thread_count = 0
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Must not be called by several threads at a time, nor after `shutdown`."""
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._thread_count < self._threads_max:
            self._thread_count += 1
            threading.Thread(target=self._run, name=f"{self._name}_{self._thread_count}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The threads end when their calls have. Neither waiting nor cancelling is supported."""
        assert not wait
        assert not cancel_futures
        for _ in range(self._thread_count):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # it refers to the message
            self._idle.release()
