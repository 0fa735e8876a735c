"""Produce requests that wait until their batches are durable, ordered by offset."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.model.errors import HeadraceError, RequestTimedOut

_CommitWait = tuple[int, float, asyncio.Future[None]]


class CommitWaits:
    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: deque[_CommitWait] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, end_offset: int, deadline: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append((end_offset, deadline, future))
        return future

    def reach(self, offset: int) -> None:
        """Complete the waits for everything below `offset`, which is durable now."""
        waits = self._waits
        while waits and waits[0][0] <= offset:
            future = waits.popleft()[2]
            if not future.done():
                future.set_result(None)

    def expire(self, now: float) -> None:
        """Time out waits; the batches stay in the log and may still become durable."""
        if not any(deadline <= now for _, deadline, _ in self._waits):
            return
        kept = deque[_CommitWait]()
        for wait in self._waits:
            if wait[1] > now:
                kept.append(wait)
            else:
                fail_wait(wait[2], RequestTimedOut("the batch was not replicated within the timeout of the request"))
        self._waits = kept

    def end(self, error: HeadraceError) -> None:
        waits, self._waits = self._waits, deque()
        for _, _, future in waits:
            fail_wait(future, error)


def fail_wait(future: asyncio.Future[None], error: BaseException) -> None:
    """Fail a wait unless it is done. A request that was abandoned, for example because its connection closed, awaits it
    no longer, so asyncio must not report the error as never retrieved."""
    if not future.done():
        future.set_exception(error)
        future.exception()
