"""Delete messages of topics with retention.mode=acked when all subscriptions of their partition have settled them.

- A partition without subscriptions keeps all messages; retention.ms and retention.bytes apply as usual.
- The leader advances the log start to the lowest ack floor, and its followers adopt the log start.
- Each replica frees the space of settled messages above the floor by itself: see `storage/log/acked_retention.py`.
- Each replica reads its own committed copy of the acks log. A subscription that is created meanwhile gets the messages
  that are left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import HeadraceError
from headrace.model.names import ACKS_PREFIX
from headrace.model.topic_configs import ACKED
from headrace.storage.compaction.compaction import DamagedSegment
from headrace.storage.store.log_store import LogStore

if TYPE_CHECKING:
    from headrace.storage.log.acked_retention import RetentionSweep

log = logging.getLogger(__name__)


class AckedRetention:
    def __init__(self, catalogue: Catalogue, store: LogStore) -> None:
        self._catalogue = catalogue
        self._store = store
        self._sweeps: dict[Partition, RetentionSweep] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._catalogue.config.log_cleaner_backoff_ms / 1000)
            await self.sweep()

    async def sweep(self) -> None:
        replicas = dict(self._replicas())
        self._sweeps = {partition: sweep for partition, sweep in self._sweeps.items() if partition in replicas}
        for partition, acks in replicas.items():
            try:
                await self._sweep(partition, acks)
            except (HeadraceError, FileNotFoundError, DamagedSegment) as error:
                # Expected if the acks log was trimmed or truncated meanwhile; the next sweep retries.
                log.warning(
                    "deleting settled messages failed partition=%s-%d error=%s", partition.topic, partition.index, error
                )

    def _replicas(self) -> Iterator[tuple[Partition, Partition]]:
        for topic in self._catalogue:
            if topic.config.retention_mode != ACKED:
                continue
            colocated_topic = self._catalogue.colocated_topics.find(topic.name, ACKS_PREFIX)
            for index, partition in topic.replicas.items():
                acks = None if colocated_topic is None else colocated_topic.replicas.get(index)
                if acks is not None:
                    yield partition, acks

    async def _sweep(self, partition: Partition, acks: Partition) -> None:
        from headrace.storage.log.acked_retention import RetentionSweep  # imported on first use: keeps startup fast

        sweep = self._sweeps.get(partition)
        if sweep is None or sweep.acks is not acks.log:
            sweep = self._sweeps[partition] = RetentionSweep(partition.log, acks.log)
        has_advanced = await sweep.run(
            self._store.cleaner,
            acks.high_watermark,
            leads=lambda: partition.is_leader,
            rewrites=self._catalogue.config.log_cleaner_enable,
        )
        if has_advanced:
            partition.notify_followers()
