"""Counters in the registry, and the producer ids that are allocated from one of them.

    /producer-ids            in the registry: every allocated producer id is lower
    <data>/producer-ids      in the data folder: every producer id that this folder has seen is lower (the floor)

- A number is never allocated twice. Otherwise two producers would be taken for one, and records dropped as duplicates.
- Producer ids are allocated in blocks, so that thousands of producers cost one commit. The rest of a block is lost when
  the broker stops.
- A broker allocates a block for its first producer, and the next one when half a block is left (`keep_reserve`), so
  that later producers do not depend on the registry being available.
- The floor detects a registry that was rolled back to an older copy: only then is the registry's counter lower. The
  floor covers a block before any of its ids is used, and never decreases.
- The floor does not help if another broker starts first on the older copy. Therefore the first block of each start of a
  broker leaves a gap before it, whose size depends on the start (`gap_of_start`): blocks that were allocated before and
  after the rollback do not overlap.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque

from headrace.model.errors import HeadraceError, StorageFailure
from headrace.registry.brokers import advance_operation, decode_number
from headrace.registry.interface import BadVersion, KeyExists, NoKey, Registry
from headrace.runtime.disk import Disk

log = logging.getLogger(__name__)

PRODUCER_IDS_KEY = "/producer-ids"
BLOCK_SIZE = 10_000
_RETRY_SECONDS = 5.0
_FLOOR_FILE_NAME = "producer-ids"


async def advance_counter(registry: Registry, key: str, step: int = 1, at_least: int = 0) -> int:
    """Add `step` to the counter and return its value before, or `at_least` if that is higher. A counter begins at 0.

    The new value is durable before this returns. A crash in between leaves a gap, never a repetition.
    """
    while True:
        entry = await registry.get(key)
        before = max(at_least, decode_number(entry))
        try:
            await registry.commit([advance_operation(key, entry, before + step)])
        except (BadVersion, KeyExists, NoKey):
            continue
        return before


class ProducerIdFloor:
    """The floor of this data folder. `value` is initially that of `read_producer_id_floor`."""

    def __init__(self, disk: Disk, folder: str, value: int) -> None:
        self.value = value
        self._disk = disk
        self._folder = folder

    async def raise_to(self, value: int) -> None:
        """Raise the floor durably. A lower value changes nothing."""
        if value > self.value:
            await self._disk.run(raise_producer_id_floor, self._disk, self._folder, value)
            self.value = max(self.value, value)


def read_producer_id_floor(disk: Disk, folder: str) -> int:
    """Blocks."""
    path = f"{folder}/{_FLOOR_FILE_NAME}"
    content = disk.read(path) if disk.exists(path) else b"0"
    if not content.isdigit():
        raise StorageFailure(
            f"{path} is damaged; remove it, and run `headrace registry rebuild --from-logs --data {folder} --yes`: "
            "it raises the registry's producer ids"
        )
    return int(content)


def raise_producer_id_floor(disk: Disk, folder: str, value: int) -> None:
    """Blocks."""
    if value > read_producer_id_floor(disk, folder):
        disk.write_atomically(f"{folder}/{_FLOOR_FILE_NAME}", str(value).encode())


class ProducerIds:
    def __init__(self, registry: Registry, floor: ProducerIdFloor | None = None, *, first_gap: int = 0) -> None:
        """`floor` is None for tools without a data folder. `first_gap` is the number of ids to skip before the first
        block."""
        self._registry = registry
        self._gap = first_gap
        self._floor = floor
        self._free: deque[range] = deque()
        self._half_used = asyncio.Event()
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        while not self._free:
            await self._refill(0)
        block = self._free.popleft()
        if len(block) > 1:
            self._free.appendleft(block[1:])
        if self._count() <= BLOCK_SIZE // 2:
            self._half_used.set()
        return block[0]

    async def keep_reserve(self) -> None:
        """After the first block, allocate another one whenever half a block or less is left. Run this in the
        background."""
        while True:
            await self._half_used.wait()
            try:
                await self._refill(BLOCK_SIZE // 2)
                self._half_used.clear()
            except (HeadraceError, OSError) as error:
                log.warning("reserving producer ids failed error=%s left=%d", error, self._count())
                await asyncio.sleep(_RETRY_SECONDS)

    async def _refill(self, minimum: int) -> None:
        """Allocate a block, unless more than `minimum` ids are left."""
        async with self._allocating:
            if self._count() > minimum:
                return
            at_least = 0 if self._floor is None else self._floor.value
            before = await advance_counter(self._registry, PRODUCER_IDS_KEY, self._gap + BLOCK_SIZE, at_least=at_least)
            first, self._gap = before + self._gap, 0
            if self._floor is not None:
                await self._floor.raise_to(first + BLOCK_SIZE)
            self._free.append(range(first, first + BLOCK_SIZE))

    def _count(self) -> int:
        return sum(map(len, self._free))


def gap_of_start(cluster_id: str, node_id: int, broker_epoch: int) -> int:
    """Return a pseudorandom number below 2**36, a different one for each start of a broker. Half a million starts use
    2**54 of the 2**63 ids."""
    return zlib.crc32(f"{cluster_id} {node_id} {broker_epoch}".encode()) << 4
