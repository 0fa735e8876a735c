"""Whether a log may still be used.

failed        the disk refused a write or a sync, which is never retried: takes nothing, serves what it has
quarantined   damage was found in what was promised: neither takes nor serves; its files stay as they are, and a note
              beside them tells the next start (see damage_note)
closed        closed or deleted
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from headrace.model.errors import HeadraceError, StorageFailure
from headrace.runtime.disk import Disk
from headrace.storage.errors import CorruptionReport, LogDeleted, LogQuarantined
from headrace.storage.log.checkpoint import write_damaged
from headrace.storage.segments.scan import BadBatch
from headrace.storage.segments.segment import Segment

logger = logging.getLogger(__name__)


class LogHealth:
    """The part of a log that says no."""

    __slots__ = ("_read_error", "_write_error", "disk", "failed", "folder", "on_failed", "quarantined")

    def __init__(self, disk: Disk, folder: str, quarantined: CorruptionReport | None) -> None:
        self.disk = disk
        self.folder = folder
        self.failed: StorageFailure | None = None
        self.quarantined = quarantined
        self.on_failed: Callable[[Any], None] | None = None  # called with the log when it fails or is quarantined
        self._write_error: Callable[[], HeadraceError] | None = None  # of every change
        self._read_error: Callable[[], HeadraceError] | None = None
        if quarantined is not None:
            self._write_error = self._read_error = self._quarantined_error

    @property
    def usable(self) -> bool:
        return self._write_error is None

    def ensure_usable(self) -> None:
        if self._write_error is not None:
            raise self._write_error()

    def ensure_readable(self) -> None:
        if self._read_error is not None:
            raise self._read_error()

    def fail(self, error: StorageFailure) -> None:
        """The disk refused a write or sync: this log takes nothing more until the broker is restarted."""
        if self._write_error is None:
            logger.error("log %s has failed: %s", self.folder, error)
            self.failed = error
            self._write_error = self._failed_error
            if self.on_failed is not None:
                self.on_failed(self)

    def quarantine(self, segment: Segment, bad: BadBatch, offset: int) -> CorruptionReport:
        """Damage was found, at or behind `offset`: this log neither takes nor serves anything more."""
        report = CorruptionReport(segment.path, bad.position, offset if bad.offset is None else bad.offset, bad.reason)
        if self.quarantined is None:
            logger.error("log %s is quarantined: %s", self.folder, report)
            self.quarantined = report
            self._write_error = self._read_error = self._quarantined_error
            try:
                write_damaged(self.disk, self.folder, segment.base_offset)
            except (StorageFailure, FileNotFoundError) as error:
                logger.warning(
                    "damage was not noted, the next start does not look for it log=%s %s", self.folder, error
                )
            if self.on_failed is not None:
                self.on_failed(self)
        return report

    def reject_all(self) -> None:
        """The log is closed."""
        self._write_error = self._read_error = self._closed_error

    def _failed_error(self) -> HeadraceError:
        return StorageFailure(f"this log has failed: {self.failed}")

    def _closed_error(self) -> HeadraceError:
        return LogDeleted(f"the log {self.folder} has been deleted or closed")

    def _quarantined_error(self) -> HeadraceError:
        return LogQuarantined(f"this log is quarantined: {self.quarantined}")
