"""Producer ids: unique for ever, or two producers would be taken for one and records dropped as duplicates.

They are taken from the registry in blocks, so that a thousand producers cost one commit. What is left of a
block when the broker stops is never used. The data folder's floor covers a block before any id of it is handed out,
so that a registry that is replaced by an older copy does not hand it out again.

That does not help if another broker starts first on the older copy. So the first block of each start of a broker leaves
a gap before it, of a size that depends on the start (`gap_of_start`): after the registry was set back, blocks that were
taken before and after lie at different places.
"""

from __future__ import annotations

import asyncio
import zlib

from headrace.registry.counters import advance
from headrace.registry.interface import Registry
from headrace.registry.producer_id_floor import ProducerIdFloor

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
                before = await advance(self._registry, PRODUCER_IDS_KEY, self._gap + BLOCK_SIZE, at_least=at_least)
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
