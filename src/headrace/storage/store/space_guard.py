"""Reject produce requests while the free disk space is below the reserve.

Produce resumes by itself at a higher limit than the one at which it stopped, so that the state does not flap.
"""

from __future__ import annotations

import logging

from headrace.model.errors import DiskNearlyFull
from headrace.runtime.disk import Disk
from headrace.storage.config import GIB

logger = logging.getLogger(__name__)

RESUME_PART = 0.25  # produce resumes when this part of the reserve is free in addition to it


class SpaceGuard:
    def __init__(self, disk: Disk, path: str, reserve_bytes: int | None) -> None:
        self._disk = disk
        self._path = path
        if reserve_bytes is None:
            reserve_bytes = min(GIB, disk.total_bytes(path) // 20)
        self.reserve_bytes = reserve_bytes
        self.free_bytes = disk.free_bytes(path)
        self.exhausted = False
        self._update_state()

    def ensure(self) -> None:
        if self.exhausted:
            raise DiskNearlyFull(
                f"{self.free_bytes} bytes are free, {self.reserve_bytes} must be: delete topics or add disk"
            )

    async def measure(self) -> None:
        self.free_bytes = await self._disk.run(self._disk.free_bytes, self._path)
        self._update_state()

    def _update_state(self) -> None:
        limit = self.reserve_bytes * (1 + RESUME_PART if self.exhausted else 1)
        exhausted = self.free_bytes < limit
        if exhausted != self.exhausted:
            self.exhausted = exhausted
            event = (
                "disk nearly full, produce requests are rejected"
                if exhausted
                else "produce requests are accepted again"
            )
            logger.warning("%s path=%s free_bytes=%d", event, self._path, self.free_bytes)
