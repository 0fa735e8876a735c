"""What one sync of a log covers. Made on the loop, synced in a disk thread, completed on the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import File
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log import Log


class Flush:
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
        self.over = True
