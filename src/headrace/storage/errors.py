"""Errors of the storage layer, and the report of damage."""

from __future__ import annotations

import msgspec

from headrace.model.errors import CorruptMessage, StorageFailure, UnknownTopicOrPartition


class CorruptionReport(msgspec.Struct, frozen=True):
    """Where damage was found. The file is kept unchanged for inspection."""

    path: str
    position: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}, offset {self.offset}: {self.reason}"


class CorruptBatch(CorruptMessage):
    """A stored batch is damaged. It is not served, and its log is quarantined."""


class InvalidFollowerAppend(CorruptMessage):
    """The batches from a leader are damaged, or do not follow this replica's log. None of them was appended."""


class LogQuarantined(StorageFailure):
    """Damage was found below the flushed offset of this log. It neither accepts nor serves batches."""


class LogDeleted(UnknownTopicOrPartition):
    """This log has been deleted or closed."""
