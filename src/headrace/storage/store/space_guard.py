"""The guard of the disk's last reserve: produce is refused while it is touched, and taken again by itself.

Between the two limits the answer stays what it was, so that it does not flutter.
"""

from __future__ import annotations

import logging

from headrace.model.errors import DiskNearlyFull
from headrace.runtime.disk import Disk
from headrace.storage.config import GIB

logger = logging.getLogger(__name__)

RESUME_PART = 0.25  # of the reserve must be free on top of it before produce is taken again


class SpaceGuard:
    def __init__(self, disk: Disk, path: str, reserve_bytes: int | None) -> None:
        self._disk = disk
        self._path = path
        if reserve_bytes is None:
            reserve_bytes = min(GIB, disk.total_bytes(path) // 20)
        self.reserve_bytes = reserve_bytes
        self.free_bytes = disk.free_bytes(path)
        self.refuses = False
        self._update_state()

    def ensure(self) -> None:
        if self.refuses:
            raise DiskNearlyFull(
                f"{self.free_bytes} bytes are free, {self.reserve_bytes} must be: delete topics or add disk"
            )

    async def measure(self) -> None:
        self.free_bytes = await self._disk.run(self._disk.free_bytes, self._path)
        self._update_state()

    def _update_state(self) -> None:
        limit = self.reserve_bytes * (1 + RESUME_PART if self.refuses else 1)
        refuses = self.free_bytes < limit
        if refuses != self.refuses:
            self.refuses = refuses
            logger.warning(
                "disk of %s: %d bytes free, produce is %s",
                self._path,
                self.free_bytes,
                "refused" if refuses else "taken again",
            )
