"""What one sync of a log covers. Made on the loop, synced in a disk thread, completed on the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.disk import File
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from headrace.storage.log import Log


class Flush:
    __slots__ = ("directory", "end_offset", "files", "generation", "log", "position", "segment")

    def __init__(self, log: Log, segment: Segment, files: list[File], directory: bool) -> None:
        self.log = log
        self.generation = log.generation
        self.end_offset = log.end_offset
        self.segment = segment
        self.position = segment.size
        self.files = files
        self.directory = directory

    def sync(self) -> None:
        for file in self.files:
            file.sync()
        # A new segment's name must be durable before anything in it counts as flushed.
        if self.directory:
            self.log.disk.sync_directory(self.log.folder)
