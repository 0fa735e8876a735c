"""Topics with retention.mode=acked: a message goes when every subscription that its partition has has settled it.

Where no subscription is, everything stays; retention.ms and retention.bytes bound it as ever. The leader moves the
start of the log up to the lowest floor, and its followers learn of that as of any start. Space above the floor is made
by each replica for itself: see `storage/log/acked_retention.py`. What is settled is looked up where it is committed, in
the replica's own copy of the acks log; a subscription that is made while that is looked at finds what is left.
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
            await self.look()

    async def look(self) -> None:
        """Once at every replica here that it concerns."""
        concerned = dict(self._concerned())
        self._sweeps = {partition: sweep for partition, sweep in self._sweeps.items() if partition in concerned}
        for partition, acks in concerned.items():
            try:
                await self._look_at(partition, acks)
            except (HeadraceError, FileNotFoundError, DamagedSegment) as error:
                # The acks log may have been trimmed or cut meanwhile; all else is worth a word, too.
                log.warning(
                    "deleting settled messages failed partition=%s-%d error=%s", partition.topic, partition.index, error
                )

    def _concerned(self) -> Iterator[tuple[Partition, Partition]]:
        for topic in self._catalogue:
            if topic.config.retention_mode != ACKED:
                continue
            colocated_topic = self._catalogue.colocated_topics.find(topic.name, ACKS_PREFIX)
            for index, partition in topic.replicas.items():
                acks = None if colocated_topic is None else colocated_topic.local(index)
                if acks is not None:
                    yield partition, acks

    async def _look_at(self, partition: Partition, acks: Partition) -> None:
        from headrace.storage.log.acked_retention import RetentionSweep  # loaded with the first topic that wants it

        sweep = self._sweeps.get(partition)
        if sweep is None or sweep.acks is not acks.log:
            sweep = self._sweeps[partition] = RetentionSweep(partition.log, acks.log)
        has_moved = await sweep.run(
            self._store.cleaner,
            acks.high_watermark,
            leads=lambda: partition.is_leader,
            rewrites=self._catalogue.config.log_cleaner_enable,
        )
        if has_moved:
            partition.notify_followers()
