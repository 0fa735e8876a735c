"""Numbers that only grow: epochs, and blocks of producer ids. A number is never handed out twice.

A number that was handed out is never handed out again.
"""

from __future__ import annotations

import asyncio
import zlib

from headrace.model.errors import StorageFailure
from headrace.registry.interface import BadVersion, Create, KeyExists, NoKey, Registry, RegistryDamaged, Set
from headrace.runtime.disk import Disk


async def advance_counter(registry: Registry, key: str, step: int = 1, at_least: int = 0) -> int:
    """Add `step` to the counter and return what it was before; a counter begins at 0. One that is lower than
    `at_least` counts from there.

    The growth is durable before the number is used. A crash in between leaves a gap, never a repetition.
    """
    while True:
        entry = await registry.get(key)
        before = max(at_least, 0 if entry is None else _decode(key, entry.value))
        value = str(before + step).encode()
        try:
            await registry.commit([Set(key, value, entry.version) if entry else Create(key, value)])
        except (BadVersion, KeyExists, NoKey):
            continue
        return before


def _decode(key: str, value: bytes) -> int:
    if not value.isdigit():
        raise RegistryDamaged(f"The registry's key {key} is not a number: {value!r}")
    return int(value)


# The producer ids that a data folder has seen, kept outside of the registry.
#
#     <data>/producer-ids      a number; every producer id that this folder has seen is lower
#
# The registry's counter of producer ids is lower than this floor only if the registry was replaced by an older copy.
# The file is durable before an id is handed out, and never lowered. The functions block; `ProducerIdFloor` does not.


_NAME = "producer-ids"


class ProducerIdFloor:
    """`value` is what `read_producer_id_floor` has found."""

    def __init__(self, disk: Disk, folder: str, value: int) -> None:
        self.value = value
        self._disk = disk
        self._folder = folder

    async def raise_to(self, value: int) -> None:
        """Durable on return; a lower value changes nothing."""
        if value > self.value:
            await self._disk.run(raise_producer_id_floor, self._disk, self._folder, value)
            self.value = max(self.value, value)


def read_producer_id_floor(disk: Disk, folder: str) -> int:
    path = f"{folder}/{_NAME}"
    content = disk.read(path) if disk.exists(path) else b"0"
    if not content.isdigit():
        raise StorageFailure(
            f"{path} is damaged; remove it, and run `headrace registry rebuild --from-logs --data {folder} --yes`: "
            "it raises the registry's producer ids"
        )
    return int(content)


def raise_producer_id_floor(disk: Disk, folder: str, value: int) -> None:
    if value > read_producer_id_floor(disk, folder):
        disk.write_atomically(f"{folder}/{_NAME}", str(value).encode())


# Producer ids: unique for ever, or two producers would be taken for one and records dropped as duplicates.
#
# They are taken from the registry in blocks, so that a thousand producers cost one commit. What is left of a
# block when the broker stops is never used. The data folder's floor covers a block before any id of it is handed out,
# so that a registry that is replaced by an older copy does not hand it out again.
#
# That does not help if another broker starts first on the older copy. So the first block of each start of a broker
# leaves a gap before it, of a size that depends on the start (`gap_of_start`): after the registry was set back, blocks
# that were taken before and after lie at different places.


PRODUCER_IDS_KEY = "/producer-ids"
BLOCK_SIZE = 1000


class ProducerIds:
    def __init__(self, registry: Registry, floor: ProducerIdFloor | None = None, *, first_gap: int = 0) -> None:
        """Without a floor for tools that have no data folder. `first_gap`: ids that are left out before the first."""
        self._registry = registry
        self._gap = first_gap
        self._floor = floor
        self._block = range(0)
        self._taking_block = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that nobody had before."""
        async with self._taking_block:
            if not self._block:
                at_least = 0 if self._floor is None else self._floor.value
                before = await advance_counter(
                    self._registry, PRODUCER_IDS_KEY, self._gap + BLOCK_SIZE, at_least=at_least
                )
                first, self._gap = before + self._gap, 0
                if self._floor is not None:
                    await self._floor.raise_to(first + BLOCK_SIZE)
                self._block = range(first, first + BLOCK_SIZE)
            producer_id, self._block = self._block[0], self._block[1:]
            return producer_id


def gap_of_start(cluster_id: str, node_id: int, broker_epoch: int) -> int:
    """A number below 2**36, as good as random and another one for each start of a broker. Half a million starts take
    2**54 of the 2**63 ids."""
    return zlib.crc32(f"{cluster_id} {node_id} {broker_epoch}".encode()) << 4
