"""Group commit for a data folder: one round of syncs in flight, everything marked meanwhile joins the next.

A sync that fails is never retried: its log has failed for good, the others go on.
"""

from __future__ import annotations

import asyncio

from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.storage.flush import Flush
from headrace.storage.log import Log


class Flusher:
    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._marked: dict[Log, None] = {}
        self._wake: asyncio.Future[None] | None = None
        self._round_over: asyncio.Future[None] | None = None
        self.rounds = 0
        self.sync_seconds = Histogram()

    def mark(self, log: Log) -> None:
        """Let the next round make this log durable."""
        self._marked[log] = None
        wake = self._wake
        if wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)

    async def run(self) -> None:
        """Flush what is marked, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if self._round_over is not None:  # somebody flushes by himself
                await asyncio.shield(self._round_over)
            elif self._marked:
                await self._round()
            else:
                self._wake = loop.create_future()
                await self._wake

    async def flush(self, log: Log) -> None:
        """Return when everything appended before this call is durable; raises the log's failure."""
        end_offset, generation = log.end_offset, log.generation
        while log.flushed_offset < end_offset and log.generation == generation:
            log.ensure_usable()
            self.mark(log)
            if self._round_over is not None:
                await asyncio.shield(self._round_over)
            else:
                await self._round()

    async def _round(self) -> None:
        assert self._round_over is None
        marked, self._marked = self._marked, {}
        flushes = [flush for log in marked if (flush := log.begin_flush()) is not None]
        if not flushes:
            return
        self._round_over = over = asyncio.get_running_loop().create_future()
        began = self._clock.monotonic()
        unfinished = len(flushes)

        def one_is_over() -> None:
            nonlocal unfinished
            unfinished -= 1
            if unfinished == 0:
                self._complete(flushes, began, over)

        for flush in flushes:
            flush.begin(one_is_over)
        try:
            await asyncio.shield(over)
        except asyncio.CancelledError:
            await asyncio.wait([over])  # it goes on, and whoever closes the logs next must know of its failures
            raise

    def _complete(self, flushes: list[Flush], began: float, over: asyncio.Future[None]) -> None:
        self.rounds += 1
        self.sync_seconds.observe(self._clock.monotonic() - began)
        error = None
        for flush in flushes:
            try:
                flush.log.complete_flush(flush)
            except BaseException as raised:  # a bug, which belongs to the one who waits
                error = raised
            error = error or flush.unexpected
        self._round_over = None
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)
