"""An event loop in a thread of its own, and the way in for other threads.

The loop goes on whatever the other threads do, so that leases are extended and groups hear from their members while an
application blocks, computes, or waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BlockingPortal:
    """Lets other threads run coroutines on a loop and wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = True
        self._loop = loop

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises. If the waiting is broken off (Ctrl-C), the coroutine is cancelled."""
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
        """Call it on the loop; what it returns or raises."""

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
        """Call it on the loop, and do not wait; also from a signal handler."""
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
            _end_tasks(self._loop)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """What is left has been left behind by somebody; let it clean up."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
