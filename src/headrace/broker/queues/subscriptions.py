"""The subscriptions of all partitions that this broker leads.

The broker that leads both a partition and the co-located partition of the acks topic serves its subscriptions. `begin`
and `end` are called at the start and the end of each leadership; in between there is one `SubscriptionShard` per acks
partition. Until it is loaded, requests fail with `CoordinatorLoading`. The acks topic is created together with the
first subscription of a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakValueDictionary

from headrace.broker.partition import Partition
from headrace.broker.queues.start_position import FindNames, InheritedSubscriptions
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import (
    CoordinatorLoading,
    GroupIdNotFound,
    HeadraceError,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.model.names import ACKS_PREFIX
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.runtime.clock import AnchoredClock, Clock
from headrace.runtime.entropy import Entropy
from headrace.runtime.inline_start import switch_to_task

if TYPE_CHECKING:
    from headrace.broker.queues.dead_letters import CopyDeadLetter
    from headrace.broker.queues.lease_reader import Served
    from headrace.broker.queues.subscription_shard import SubscriptionDependencies, SubscriptionShard
    from headrace.machines.queues.subscription_stats import SubscriptionStats

_LOADING_SECONDS = 5.0  # how long a request waits for a load before it fails with a retriable error
_TRIM_SECONDS = 60.0
_RELOAD_SECONDS = 1.0  # pause after a failed write; nothing is leased meanwhile, because it would be redelivered


class SubscriptionCoordinator:
    """Iterates over the loaded `SubscriptionShard`."""

    def __init__(
        self,
        catalogue: Catalogue,
        config_of: Callable[[UUID, str], SubscriptionConfig],
        dead_letter: CopyDeadLetter,
        clock: Clock,
        entropy: Entropy,
        session_valid: Callable[[], bool],
        find_names: FindNames,
    ) -> None:
        self._catalogue = catalogue
        self._session_valid = session_valid
        self._config_of = config_of
        self._dead_letter = dead_letter
        self._clock = clock
        self._entropy = entropy
        self.now_ms = AnchoredClock(clock).now_ms  # so that a jump of the wall clock does not end all leases
        self._trimmed = clock.monotonic()
        self._shards: dict[tuple[str, int], SubscriptionShard] = {}  # by topic and partition of the messages
        self._served: Served = {}
        self._inherited = InheritedSubscriptions(find_names)
        self._stats: WeakValueDictionary[tuple[str, str], SubscriptionStats] = WeakValueDictionary()
        self._tasks: asyncio.TaskGroup | None = None
        self._is_stopped = asyncio.Event()

    def __iter__(self) -> Iterator[SubscriptionShard]:
        return (shard for shard in self._shards.values() if shard.loaded.is_set())

    # Lookup

    def find(self, topic: str, index: int) -> SubscriptionShard | None:
        """Return the subscriptions of a partition, or None if its topic never had one. Raise unless they are loaded and
        served here; call it again after every await. Operations of the shard look up the partition with the messages,
        and raise unless this broker leads it as well."""
        shard = self._shards.get((topic, index))
        if shard is not None:
            shard.ensure_open()
            return shard
        self._catalogue.partition(topic, index)
        if self._catalogue.colocated_topics.find(topic, ACKS_PREFIX) is None:
            return None
        raise NotLeader(f"this broker does not serve the subscriptions of {topic}-{index}; refresh the metadata")

    def of(self, topic: str, index: int) -> SubscriptionShard:
        """Like `find_setting`, but raise if the topic has no subscriptions."""
        shard = self.find(topic, index)
        if shard is None:
            raise GroupIdNotFound(f"topic {topic} has no subscriptions")
        return shard

    async def when_loaded(self, topic: str, index: int) -> SubscriptionShard | None:
        """Like `find_setting`, but wait for a load in progress."""
        shard = self._shards.get((topic, index))
        if shard is not None and not shard.loaded.is_set():
            await switch_to_task()
            try:
                async with asyncio.timeout(_LOADING_SECONDS):
                    await shard.loaded.wait()
            except TimeoutError:
                raise CoordinatorLoading(
                    f"the subscriptions of {topic}-{index} are still being loaded; retry"
                ) from None
        return self.find(topic, index)

    async def ensure(self, topic: str, index: int) -> SubscriptionShard:
        """Like `of`, but create the acks topic if it does not exist yet. Returns without suspending if possible."""
        if (topic, index) not in self._shards:
            self._ensure_running()
            self._catalogue.partition(topic, index)
            await switch_to_task()
            await self._catalogue.ensure_colocated_topic(topic, ACKS_PREFIX)
        shard = await self.when_loaded(topic, index)
        if shard is None:
            raise NotLeader(f"{topic}-{index} is being recreated; retry")
        return shard

    # Leaderships

    def begin(self, partition: Partition) -> None:
        """A leadership of this broker for the partition begins."""
        shard = self._shards.get((partition.topic, partition.index))
        if shard is not None:
            shard.reconcile()
        if not partition.topic.startswith(ACKS_PREFIX) or self._is_stopped.is_set():
            return
        topic = self._catalogue.topic(partition.topic)
        owner_id = topic.record.owner
        if owner_id is not None:
            self._lead(partition, owner_id)

    def end(self, partition: Partition) -> None:
        """The leadership has ended, or another one begins in a later epoch."""
        shard = self._shards.get(_partition_key(partition))
        if shard is not None and shard.partition is partition:
            del self._shards[_partition_key(partition)]
            shard.close(NotLeader(f"this broker no longer leads {partition.topic}-{partition.index}"))

    async def load(self) -> None:
        """Load the subscriptions of current and future leaderships until stopped."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for shard in self._shards.values():
                self._start_to_load(shard)
            await self._is_stopped.wait()

    def _lead(self, partition: Partition, owner_id: UUID, pause_seconds: float = 0.0) -> None:
        # Imported with the first leadership of an acks partition: keeps startup fast without queues.
        from headrace.broker.queues.lease_reader import LeaseSource
        from headrace.broker.queues.subscription_shard import SubscriptionShard

        topic, index = _partition_key(partition)
        source = LeaseSource(self._catalogue, topic, index, owner_id, self._served)
        acks = self._catalogue.find(partition.topic)
        older = 0 if acks is None else acks.record.partitions_before(index)
        shard = SubscriptionShard(
            partition, source, self._surroundings(owner_id), partial(self._on_lost, owner_id), older
        )
        self._shards[topic, index] = shard
        self._start_to_load(shard, pause_seconds)

    def _surroundings(self, owner_id: UUID) -> SubscriptionDependencies:
        from headrace.broker.queues.subscription_shard import SubscriptionDependencies

        return SubscriptionDependencies(
            clock=self._clock,
            now_ms=self.now_ms,
            chance=partial(self._entropy.uniform, 0.0, 1.0),
            config_of=partial(self._config_of, owner_id),
            stats_of=self._stats_of,
            dead_letter=self._dead_letter,
            start=self._start,
            session_valid=self._session_valid,
            inherited=self._inherited,
        )

    def _stats_of(self, topic: str, subscription: str) -> SubscriptionStats:
        """Return the counters that all partitions of the topic on this broker share."""
        from headrace.machines.queues.subscription_stats import SubscriptionStats

        return self._stats.setdefault((topic, subscription), SubscriptionStats())

    def _on_lost(self, owner_id: UUID, shard: SubscriptionShard, error: HeadraceError) -> None:
        """Load the state again after acknowledgements could not be written."""
        partition = shard.partition
        if self._shards.get(_partition_key(partition)) is shard:
            del self._shards[_partition_key(partition)]
            shard.close(error)
            if partition.is_leader and not self._is_stopped.is_set():
                self._lead(partition, owner_id, _RELOAD_SECONDS)

    def _start_to_load(self, shard: SubscriptionShard, pause_seconds: float = 0.0) -> None:
        if not shard.loaded.is_set() and self._tasks is not None:
            self._tasks.create_task(_load_shard(shard, pause_seconds))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    # Maintenance

    def reconfigure(self, subscription: str) -> None:
        """Apply the changed configuration of a subscription."""
        for shard in self:
            shard.reconfigure(subscription)

    def tick(self) -> None:
        """Delete history that is older than its retention."""
        now = self._clock.monotonic()
        if now - self._trimmed >= _TRIM_SECONDS and not self._is_stopped.is_set():
            self._trimmed = now
            for shard in self:
                shard.trim()

    def stop(self) -> None:
        """Answer all waiting requests, because the broker is shutting down."""
        self._is_stopped.set()
        for shard in self._shards.values():
            shard.close(NotLeader("the broker is shutting down"))

    def _ensure_running(self) -> None:
        if self._is_stopped.is_set():
            raise NotLeader("the broker is shutting down")


def _partition_key(acks: Partition) -> tuple[str, int]:
    return acks.topic.removeprefix(ACKS_PREFIX), acks.index


async def _load_shard(shard: SubscriptionShard, pause_seconds: float) -> None:
    if pause_seconds:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_seconds):
                await shard.loaded.wait()  # it is closed before
    with suppress(NotLeader, UnknownTopicOrPartition):  # the new leader loads the partition itself
        await shard.load()
