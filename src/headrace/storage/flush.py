"""What one sync of a log covers, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import File
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log import Log


class Unsynced:
    """What the next sync of a log must cover besides its active segment."""

    __slots__ = ("directory", "rolled")

    def __init__(self) -> None:
        self.rolled: list[Segment] = []  # older than the active one
        self.directory = False

    def add(self, segments: Iterable[Segment]) -> None:
        """Nothing is appended to these any more; what they hold may not be durable yet."""
        self.rolled += [one for one in segments if one.syncing < one.size and one not in self.rolled]

    def take(self, active: Segment) -> list[File]:
        """The files to be synced; from here on they count as asked for, but for the directory."""
        segments, self.rolled = self.rolled, []
        if active.syncing < active.size:
            segments.append(active)
        files = []
        for segment in segments:
            files.append(segment.open())
            segment.syncing = segment.size
            gaps = segment.copied
            if gaps is not None and gaps.unsynced:
                files.append(gaps.file())
                gaps.unsynced = False
        return files

    def put_back(self, flush: Flush, segments: list[Segment], active: Segment) -> None:
        """The log was cut meanwhile: what was synced is not what it holds now."""
        self.directory = self.directory or flush.directory
        synced = [segment for segment in segments if segment.file in flush.files]
        for segment in synced:
            segment.syncing = 0
        self.add(segment for segment in synced if segment is not active)


class Flush:
    __slots__ = (
        "_unfinished",
        "_when_over",
        "directory",
        "end_offset",
        "failure",
        "files",
        "generation",
        "log",
        "position",
        "segment",
        "unexpected",
    )

    def __init__(self, log: Log, segment: Segment, files: list[File], directory: bool) -> None:
        self.log = log
        self.generation = log.generation
        self.end_offset = log.end_offset
        self.segment = segment
        self.position = segment.size
        self.files = files
        self.directory = directory
        self.failure: StorageFailure | None = None
        self.unexpected: BaseException | None = None  # what no disk should raise

    def begin(self, when_over: Callable[[], None]) -> None:
        """Begin all syncs; `when_over` is called when the last one has ended, whatever became of whoever waits."""
        disk = self.log.disk
        syncs = [disk.sync(file) for file in self.files]
        # A new segment's name must be durable before anything in it counts as flushed.
        if self.directory:
            syncs.append(disk.run(disk.sync_directory, self.log.folder))
        self._unfinished = len(syncs)
        self._when_over = when_over
        for sync in syncs:
            sync.add_done_callback(self._ended)

    def _ended(self, sync: asyncio.Future[None]) -> None:
        error = sync.exception()
        if isinstance(error, StorageFailure):
            self.failure = error
        elif isinstance(error, FileNotFoundError):  # the log was deleted meanwhile
            self.failure = StorageFailure(f"{self.log.folder} is gone: {error}")
        elif error is not None:
            self.failure, self.unexpected = StorageFailure("a sync was abandoned"), error
        self._unfinished -= 1
        if self._unfinished == 0:
            self._when_over()
