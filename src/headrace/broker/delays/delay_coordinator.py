"""The delay coordinator: the delayed messages of all partitions that this broker leads.

Delayed messages are stored in the co-located topic `__delayed.T` of their topic. There is one `DelayShard` per
partition of the co-located topic and leadership. It releases messages if this broker also leads the partition of T, so
it is woken when such a leadership begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.coordination.shards import ShardedCoordinator
from headrace.broker.partition import Partition
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import NotLeader
from headrace.model.names import DELAYED_PREFIX, delayed_topic
from headrace.runtime.clock import Clock
from headrace.storage.store.log_store import LogStore

if TYPE_CHECKING:
    from headrace.broker.delays.delay_shard import DelayCounts, DelayShard
    from headrace.broker.delays.delayed_log import DelayedLogSweep

_SWEEP_SECONDS = 60.0


class DelayCoordinator(ShardedCoordinator[tuple[str, int], "DelayShard"]):
    """Iterates over all shards, also while they are loaded. `counts` are the counters per topic, over all leaderships
    of this broker."""

    def __init__(
        self,
        catalogue: Catalogue,
        next_producer_id: Callable[[], Awaitable[int]],
        store: LogStore,
        clock: Clock,
    ) -> None:
        super().__init__(clock)
        self.counts: dict[str, DelayCounts] = {}
        self._catalogue = catalogue
        self._next_producer_id = next_producer_id
        self._store = store

    def __iter__(self) -> Iterator[DelayShard]:
        return iter(self._shards.values())

    def of(self, topic: str, index: int) -> DelayShard:
        """Return the delayed messages of a partition; raise unless requests for them can be served now."""
        name = delayed_topic(topic)
        shard = self._shards.get((name, index))
        if shard is None or self._is_stopped.is_set():
            self._catalogue.partition(name, index)
            raise NotLeader(f"this broker is not the leader of {name}-{index}; refresh the metadata")
        shard.ensure_serving()
        return shard

    def begin(self, partition: Partition) -> None:
        super().begin(partition)
        waiting = self._shards.get((delayed_topic(partition.topic), partition.index))
        if waiting is not None:
            waiting.wake()

    async def run(self) -> None:
        """Load and release the messages of current and future leaderships until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            sweeping = tasks.create_task(self._sweep())
            await super().run()
            sweeping.cancel()

    def _key_of(self, partition: Partition) -> tuple[str, int] | None:
        return (partition.topic, partition.index) if partition.topic.startswith(DELAYED_PREFIX) else None

    def _create_shard(self, partition: Partition) -> DelayShard:
        # Imported on first use: keeps startup fast.
        from headrace.broker.delays.delay_shard import DelayCounts, DelayShard

        target = partial(self._target, partition)
        counts = self.counts.setdefault(partition.topic.removeprefix(DELAYED_PREFIX), DelayCounts())
        return DelayShard(partition, target, self._next_producer_id, self._store.space.ensure, counts, self._clock)

    async def _sweep(self) -> None:
        """Clean up all local replicas, leaders and followers."""
        sweeps: dict[Partition, DelayedLogSweep] = {}
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            replicas = [
                partition
                for topic in self._catalogue
                if topic.name.startswith(DELAYED_PREFIX)
                for partition in topic.replicas.values()
            ]
            if replicas and self._catalogue.config.log_cleaner_enable:
                from headrace.broker.delays.delayed_log import DelayedLogSweep, check_all

                sweeps = {partition: sweeps.get(partition) or DelayedLogSweep(partition.log) for partition in replicas}
                await check_all(sweeps, self._store.cleaner)

    def _target(self, partition: Partition) -> Partition | None:
        """Return the partition of T with the same index, if this broker leads it. T is the owner by id: a recreated
        topic of the same name is a different one."""
        colocated_topic = self._catalogue.find(partition.topic)
        owner = None if colocated_topic is None else self._catalogue.colocated_topics.owner(colocated_topic)
        return None if owner is None else owner.led.get(partition.index)
