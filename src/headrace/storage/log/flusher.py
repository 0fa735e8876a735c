"""Group commit: make many logs durable with few rounds of syncs.

- One round is in flight at a time. Logs that are marked meanwhile join the next round.
- What a round syncs of a log (`PendingFlush`) is fixed on the loop, synced in a disk thread and completed on the loop.
- A failed sync is never retried: its log has failed for good, the other logs go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.model.errors import StorageFailure
from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk, File
from headrace.storage.segments.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log.log import Log


class UnsyncedFiles:
    """What the next sync of a log must cover in addition to its active segment."""

    __slots__ = ("directory", "rolled")

    def __init__(self) -> None:
        self.rolled: list[Segment] = []  # older than the active one
        self.directory = False

    def add(self, segments: Iterable[Segment]) -> None:
        """Sync these segments too: nothing is appended to them any more, but they may not be durable yet."""
        self.rolled += [one for one in segments if one.sync_requested < one.size and one not in self.rolled]

    def take(self, active: Segment) -> list[File]:
        """The files to sync. They are no longer counted as unsynced; `directory` stays until the caller clears it."""
        segments, self.rolled = self.rolled, []
        if active.sync_requested < active.size:
            segments.append(active)
        files = []
        for segment in segments:
            files.append(segment.open())
            segment.sync_requested = segment.size
            gaps = segment.copied
            if gaps is not None and gaps.unsynced:
                files.append(gaps.open())
                gaps.unsynced = False
        return files

    def put_back(self, flush: PendingFlush, segments: list[Segment], active: Segment) -> None:
        """Sync the files of this flush again: the log was truncated meanwhile, so they have changed."""
        self.directory = self.directory or flush.directory
        synced = [segment for segment in segments if segment.file in flush.files]
        for segment in synced:
            segment.sync_requested = 0
        self.add(segment for segment in synced if segment is not active)


class PendingFlush:
    """What one sync makes durable: created on the loop, synced in a disk thread, completed on the loop."""

    __slots__ = ("directory", "end_offset", "failure", "files", "generation", "log", "over", "position", "segment")

    def __init__(self, log: Log, segment: Segment, files: list[File], directory: bool) -> None:
        self.log = log
        self.generation = log.generation
        self.end_offset = log.end_offset
        self.segment = segment
        self.position = segment.size
        self.files = files
        self.directory = directory
        self.failure: StorageFailure | None = None
        self.over = False

    def sync(self) -> None:
        """Blocks."""
        try:
            for file in self.files:
                file.sync()
            # The name of a new segment must be durable before its batches count as flushed.
            if self.directory:
                self.log.disk.sync_directory(self.log.folder)
        except StorageFailure as failure:
            self.failure = failure
        except FileNotFoundError as error:
            self.failure = StorageFailure(f"the log {self.log.folder} was deleted during a sync: {error}")
        self.over = True


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
        """Include this log in the next round."""
        self._marked[log] = None
        wake = self._wake
        if wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)

    async def run(self) -> None:
        """Flush marked logs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            if self._round_over is not None:  # a round that `flush` has begun
                await asyncio.shield(self._round_over)
            elif self._marked:
                await self._round()
            else:
                self._wake = loop.create_future()
                await self._wake

    async def flush(self, log: Log) -> None:
        """Return when everything appended before this call is durable. Raises the log's error if it has failed."""
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
            # The disk threads continue, and the kernel reports a failed sync only once, so wait for their results.
            pending = flushes
            while pending:
                await asyncio.sleep(CANCELLED_CHECK_SECONDS)
                pending = [flush for flush in pending if not flush.over]
            raise
        finally:
            self.rounds += 1
            self.sync_seconds.observe(self._clock.monotonic() - began)
            for flush in flushes:
                flush.log.complete_flush(flush)
            self._round_over = None
            over.set_result(None)

    async def _sync(self, flushes: list[PendingFlush]) -> None:
        """Sync concurrently: the file system lets concurrent syncs share one journal commit."""
        shares = (flushes[first::SYNCS_AT_ONCE] for first in range(min(SYNCS_AT_ONCE, len(flushes))))
        for under_way in [self._disk.run(_sync_each, share) for share in shares]:
            await under_way


def _sync_each(flushes: list[PendingFlush]) -> None:
    for flush in flushes:
        flush.sync()
