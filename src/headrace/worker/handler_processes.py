"""Run handlers in processes of their own, for work that needs a core, or that must be ended at its time limit.

- A process runs one call at a time. It imports the module of the handler once, and decodes the value itself.
- The time limit counts from the moment when a free process has imported the module.
- Cancelling a call kills its process; the next call starts a new one. A process that dies fails its call only.
- A process ends when the worker ends, however that happens (`headrace.runtime.worker_process`).
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module
from typing import Any

from headrace.runtime.worker_process import WorkerProcess
from headrace.sdk.incoming import Payload, RawHeaders
from headrace.sdk.messages import AsyncMessage
from headrace.worker.app import Handler, TimeLimitExceeded
from headrace.worker.arguments import Arguments

_NORMAL_PRIORITY = 0
_NO_PACE = float("inf")


class HandlerFailed(Exception):
    """A handler in another process raised an error that cannot be sent between processes; the text describes it."""


class HandlerProcesses:
    """At most `size` processes, started when they are needed and stopped when they are idle."""

    def __init__(self, size: int) -> None:
        self._idle = [WorkerProcess(niceness=_NORMAL_PRIORITY) for _ in range(size)]
        self._all = tuple(self._idle)
        self._free = asyncio.Semaphore(size)

    async def call(self, handler: Handler, message: AsyncMessage) -> Any:
        function = handler.function
        async with self._free:
            process = self._idle.pop()  # the last one that was used: the others may become idle and end
            try:
                name = (function.__module__, function.__qualname__)
                await process.run(_prepare, name, _NO_PACE)
                async with time_limit(handler.time_limit_seconds):
                    return await process.run(_call, (*name, message.value, message.raw_headers), _NO_PACE)
            finally:
                self._idle.append(process)

    def close(self) -> None:
        """Kill the processes."""
        for process in self._all:
            process.close()


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[None]:
    """Cancel the block after this time, and raise `TimeLimitExceeded`; a TimeoutError of the block is not affected."""
    try:
        async with asyncio.timeout(seconds) as scope:
            yield
    except TimeoutError as error:
        if scope.expired():
            raise TimeLimitExceeded(f"the handler ran longer than {seconds:g} s") from error
        raise


# In the process


def _prepare(_pace: object, module: str, qualname: str) -> None:
    _resolve(module, qualname)


def _call(_pace: object, module: str, qualname: str, value: bytes | None, headers: RawHeaders) -> Any:
    function, arguments = _resolve(module, qualname)
    try:
        return function(**arguments.decode(Payload(value, headers)))
    except Exception as error:
        raise _portable(error) from None


@cache
def _resolve(module: str, qualname: str) -> tuple[Callable[..., Any], Arguments]:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    function: Any = import_module(module)
    for name in qualname.split("."):
        function = getattr(function, name)
    return function, Arguments.of(function, in_process=True)


def _portable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else a description of it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling runs arbitrary methods of the application's class
        return HandlerFailed(f"{type(error).__name__}: {error}")
    return error
