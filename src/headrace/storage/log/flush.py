"""What one sync of a log covers. Made on the loop, synced in a disk thread, completed on the loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import File
from headrace.storage.segments.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log.log import Log


class UnsyncedFiles:
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

    def put_back(self, flush: PendingFlush, segments: list[Segment], active: Segment) -> None:
        """The log was cut meanwhile: what was synced is not what it holds now."""
        self.directory = self.directory or flush.directory
        synced = [segment for segment in segments if segment.file in flush.files]
        for segment in synced:
            segment.syncing = 0
        self.add(segment for segment in synced if segment is not active)


class PendingFlush:
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
            # A new segment's name must be durable before anything in it counts as flushed.
            if self.directory:
                self.log.disk.sync_directory(self.log.folder)
        except StorageFailure as failure:
            self.failure = failure
        except FileNotFoundError as error:  # the log was deleted meanwhile
            self.failure = StorageFailure(f"{self.log.folder} is gone: {error}")
        self.over = True
