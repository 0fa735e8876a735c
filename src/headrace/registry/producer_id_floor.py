"""The producer ids that a data folder has seen, kept outside of the registry.

    <data>/producer-ids      a number; every producer id that this folder has seen is lower

The registry's counter of producer ids is lower than this floor only if the registry was replaced by an older copy. The
file is durable before an id is handed out, and never lowered. The functions block; `ProducerIdFloor` does not.
"""

from __future__ import annotations

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import Disk

_NAME = "producer-ids"


class ProducerIdFloor:
    """`value` is what `read_floor` has found."""

    def __init__(self, disk: Disk, folder: str, value: int) -> None:
        self.value = value
        self._disk = disk
        self._folder = folder

    async def raise_to(self, value: int) -> None:
        """Durable on return; a lower value changes nothing."""
        if value > self.value:
            await self._disk.run(raise_floor, self._disk, self._folder, value)
            self.value = max(self.value, value)


def read_floor(disk: Disk, folder: str) -> int:
    path = f"{folder}/{_NAME}"
    content = disk.read(path) if disk.exists(path) else b"0"
    if not content.isdigit():
        raise StorageFailure(
            f"{path} is damaged; remove it, and run `headrace registry rebuild --from-logs --data {folder} --yes`: "
            "it raises the registry's producer ids"
        )
    return int(content)


def raise_floor(disk: Disk, folder: str, value: int) -> None:
    if value > read_floor(disk, folder):
        disk.write_atomically(f"{folder}/{_NAME}", str(value).encode())
