"""What storage refuses, and how it reports damage."""

from __future__ import annotations

import msgspec

from headrace.model.errors import CorruptMessage, StorageFailure, UnknownTopicOrPartition


class CorruptionReport(msgspec.Struct, frozen=True):
    """Where damage was found. The file is kept as it is, for whoever wants to look at it."""

    path: str
    position: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}, offset {self.offset}: {self.reason}"


class CorruptBatch(CorruptMessage):
    """A stored batch is damaged; it is not served and its log is quarantined."""


class InvalidFollowerAppend(CorruptMessage):
    """What a leader has sent is damaged, or does not follow what this replica holds; nothing of it was taken."""


class LogQuarantined(StorageFailure):
    """Damage was found below the flushed point of this log; it neither takes nor serves batches."""


class LogDeleted(UnknownTopicOrPartition):
    """This log has been deleted or closed."""
