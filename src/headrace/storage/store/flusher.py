"""Group commit for a data folder: one round of syncs in flight, everything marked meanwhile joins the next.

A sync that fails is never retried: its log has failed for good, the others go on.
"""

from __future__ import annotations

import asyncio

from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.storage.log.flush import PendingFlush
from headrace.storage.log.log import Log

SYNCS_AT_ONCE = 4
CANCELLED_CHECK_SECONDS = 0.001


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
        over = self._round_over = asyncio.get_running_loop().create_future()
        began = self._clock.monotonic()
        try:
            await self._sync(flushes)
        except asyncio.CancelledError:
            # The threads go on, and a failure is reported only once: it must not be missed.
            await _wait_for(flushes)
            raise
        finally:
            self.rounds += 1
            self.sync_seconds.observe(self._clock.monotonic() - began)
            for flush in flushes:
                flush.log.complete_flush(flush)
            self._round_over = None
            over.set_result(None)

    async def _sync(self, flushes: list[PendingFlush]) -> None:
        """Side by side, because the file system lets syncs share the commit of its journal."""
        if len(flushes) == 1:
            await self._disk.run(flushes[0].sync)
            return
        shares = (flushes[first::SYNCS_AT_ONCE] for first in range(min(SYNCS_AT_ONCE, len(flushes))))
        for under_way in [self._disk.run(_sync_each, share) for share in shares]:
            await under_way


async def _wait_for(flushes: list[PendingFlush]) -> None:
    pending = flushes
    while pending:
        await asyncio.sleep(CANCELLED_CHECK_SECONDS)
        pending = [flush for flush in pending if not flush.over]


def _sync_each(flushes: list[PendingFlush]) -> None:
    for flush in flushes:
        flush.sync()
