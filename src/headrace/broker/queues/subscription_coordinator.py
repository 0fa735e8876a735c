"""The subscription coordinator: the subscriptions of all partitions that this broker leads.

- The broker that leads both a partition and the co-located partition of the acks topic serves its subscriptions. There
  is one `SubscriptionShard` per leadership of an acks partition; `coordination/shards.py` explains its life cycle.
- The acks topic is created together with the first subscription of a topic.
- After acknowledgements could not be written, the shard is loaded again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID
from weakref import WeakValueDictionary

from headrace.broker.coordination.shards import ShardedCoordinator
from headrace.broker.partition import Partition
from headrace.broker.queues.start_position import FindNames, InheritedSubscriptions
from headrace.broker.topic_catalogue import Catalogue
from headrace.model.errors import GroupIdNotFound, NotLeader
from headrace.model.names import ACKS_PREFIX
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy
from headrace.runtime.inline_start import switch_to_task

if TYPE_CHECKING:
    from headrace.broker.queues.dead_letters import CopyDeadLetter
    from headrace.broker.queues.lease_reader import Served
    from headrace.broker.queues.subscription_shard import SubscriptionShard
    from headrace.machines.queues.subscription_stats import SubscriptionStats

_TRIM_SECONDS = 60.0
_RELOAD_SECONDS = 1.0  # pause after a failed write; nothing is leased meanwhile, because it would be redelivered


class SubscriptionCoordinator(ShardedCoordinator[tuple[str, int], "SubscriptionShard"]):
    """The shards by topic and partition of the messages."""

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
        super().__init__(clock, _TRIM_SECONDS)
        self._catalogue = catalogue
        self._session_valid = session_valid
        self._config_of = config_of
        self._dead_letter = dead_letter
        self._entropy = entropy
        self._served: Served = {}
        self._inherited = InheritedSubscriptions(find_names)
        self._stats: WeakValueDictionary[tuple[str, str], SubscriptionStats] = WeakValueDictionary()

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
        """Like `find`, but raise if the topic has no subscriptions."""
        shard = self.find(topic, index)
        if shard is None:
            raise GroupIdNotFound(f"topic {topic} has no subscriptions")
        return shard

    async def when_loaded(self, topic: str, index: int) -> SubscriptionShard | None:
        """Like `find`, but wait for a load in progress."""
        await self._when_loaded((topic, index))
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
        served = self._shards.get((partition.topic, partition.index))
        if served is not None:
            served.reconcile()
        super().begin(partition)

    def _key_of(self, partition: Partition) -> tuple[str, int] | None:
        if not partition.topic.startswith(ACKS_PREFIX):
            return None
        return partition.topic.removeprefix(ACKS_PREFIX), partition.index

    def _create_shard(self, partition: Partition) -> SubscriptionShard | None:
        acks = self._catalogue.find(partition.topic)
        if acks is None or acks.led.get(partition.index) is not partition or acks.record.owner is None:
            return None  # the topic was deleted, and perhaps created again, before a reload
        # Imported with the first leadership of an acks partition: keeps startup fast without queues.
        from headrace.broker.queues.lease_reader import LeaseSource
        from headrace.broker.queues.subscription_shard import SubscriptionDependencies, SubscriptionShard

        topic, index = partition.topic.removeprefix(ACKS_PREFIX), partition.index
        source = LeaseSource(self._catalogue, topic, index, acks.record.owner, self._served)
        dependencies = SubscriptionDependencies(
            clock=self._clock,
            now_ms=self.now_ms,
            chance=partial(self._entropy.uniform, 0.0, 1.0),
            config_of=partial(self._config_of, acks.record.owner),
            stats_of=self._stats_of,
            dead_letter=self._dead_letter,
            start=self._start_task,
            session_valid=self._session_valid,
            inherited=self._inherited,
        )
        on_lost = partial(self._reload, pause_seconds=_RELOAD_SECONDS)
        return SubscriptionShard(partition, source, dependencies, on_lost, acks.record.partitions_before(index))

    def _stats_of(self, topic: str, subscription: str) -> SubscriptionStats:
        """Return the counters that all partitions of the topic on this broker share."""
        from headrace.machines.queues.subscription_stats import SubscriptionStats

        return self._stats.setdefault((topic, subscription), SubscriptionStats())

    def reconfigure(self, subscription: str) -> None:
        for shard in self:
            shard.reconfigure(subscription)
