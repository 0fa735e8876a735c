"""The topics of the cluster, the partitions that this broker leads, and creation, change and deletion of topics.

The registry is authoritative, and any broker may change it. The partitions of a topic are written before the topic
itself, with their leaders, so that a topic that exists can be led immediately; when `create` returns, all partitions
accept writes. Changes by this broker are visible here when the call returns; other brokers follow by their mirrors.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from headrace.broker.cluster.cluster_metadata import MIRRORED_KEYS, ClusterMetadata
from headrace.broker.controller.colocated_topics import ColocatedTopics
from headrace.broker.partition import Partition
from headrace.broker.topic import Topic
from headrace.machines.controller.leadership import new_partition
from headrace.machines.controller.placement import place_replicas
from headrace.model.broker_configs import BrokerConfig
from headrace.model.errors import (
    HeadraceError,
    InvalidPartitions,
    InvalidTopic,
    NotLeader,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.names import COLOCATED_PREFIXES, check_topic_name
from headrace.model.registry_records import BrokerRecord, Nodes, PartitionRecord, TopicRecord
from headrace.model.topic_configs import TopicConfig
from headrace.registry.brokers import LIVE_KEY
from headrace.registry.interface import BadVersion, NoKey, Registry, Set
from headrace.registry.mirror import RegistryMirror
from headrace.registry.topics import TopicRecords, decode_topic, topic_key
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy

PARTITIONS_MAX = 100_000  # per topic, so that a typing error does not fill the disk with folders


class Catalogue(ClusterMetadata):
    def __init__(self, registry: Registry, config: BrokerConfig, clock: Clock, entropy: Entropy) -> None:
        super().__init__(config)
        self.mirror = RegistryMirror(registry, MIRRORED_KEYS, self.apply)
        self.on_leadership_gained: list[Callable[[Partition], None]] = []
        """Called when this broker becomes the leader of a partition."""
        self.on_leadership_lost: list[Callable[[Partition], None]] = []
        self.settled: Callable[[UUID], Awaitable[None]] = _at_once
        """Waits until the local replicas match the records; raises the error that prevents it."""
        self.wait_for_leaders: Callable[[Topic], Awaitable[None]] = _at_once
        """Waits until the leaders of a new topic accept writes."""
        self._records = TopicRecords(registry)
        self.colocated_topics = ColocatedTopics(self, self.mirror, self._records, clock, entropy)
        self._clock = clock
        self._entropy = entropy
        self._changing = asyncio.Lock()

    # Lookup

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker leads."""
        try:
            return self._by_name[topic].led[index]
        except KeyError:
            raise self._not_leader_error(self._by_name.get(topic), topic, index) from None

    def partition_by_id(self, topic_id: UUID, index: int) -> Partition:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"topic id {topic_id} does not exist")
        partition = topic.led.get(index)
        if partition is None:
            raise self._not_leader_error(topic, topic.name, index)
        return partition

    def _not_leader_error(self, topic: Topic | None, name: str, index: int) -> HeadraceError:
        if topic is None or not 0 <= index < topic.partition_count:
            return UnknownTopicOrPartition(f"partition {name}-{index} does not exist")
        return NotLeader(f"this broker is not the leader of {name}-{index}; refresh the metadata")

    # Changes

    async def create(
        self,
        name: str,
        partitions: int,
        configs: dict[str, str],
        *,
        replication: int | None = None,
        assignment: Sequence[Nodes] = (),
        dead_letters_of: Topic | None = None,
        dry_run: bool = False,
    ) -> Topic:
        """Create a topic that accepts writes when this returns. Its replicas are placed according to `assignment`, or
        balanced over the brokers. With `dead_letters_of` it is deleted together with that topic; raise `UnknownTopicId`
        if that topic no longer exists."""
        check_topic_name(name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"a topic must have 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        config = TopicConfig.build(configs, self.config.topic_defaults)
        async with self._changing:
            self._reject_existing(name)
            if not assignment and (replication or 0) > len(self.usable_brokers()):
                await self.mirror.read([LIVE_KEY])  # the mirror may not contain a broker that has just joined
            if replication is None:
                replication = min(self.config.default_replication_factor, len(self.usable_brokers()))
            places = self._places(assignment or self._place_replicas(partitions, replication))
            record = TopicRecord(
                name=name,
                id=self._entropy.uuid(),
                partitions=partitions,
                configs=configs,
                created_ms=self._clock.now_ms(),
                dead_letters_of=None if dead_letters_of is None else dead_letters_of.id,
            )
            topic = Topic(record, config)
            topic.partition_records = dict(enumerate(places))
            if dry_run:
                return topic
            if any(self.find(prefix + name) for prefix in COLOCATED_PREFIXES):
                await self.colocated_topics.remove(name)  # left over from a deleted topic of this name
            await self._create_record(record, places, dead_letters_of)
            await self.colocated_topics.read_changes(name, topic.id, range(partitions))
            try:
                await self.settled(record.id)
            except HeadraceError:
                # A topic without logs would make all later attempts to create it fail.
                await self._delete(name, record.id)
                raise
        topic = self.topic(name)
        await self.wait_for_leaders(topic)
        return topic

    async def ensure_colocated_topic(self, topic: str, prefix: str) -> Topic:
        """Return the co-located topic `__acks.T` or `__delayed.T`, and create it if it is missing, with the same number
        of partitions on the same brokers. If it was created here, its partitions accept writes. Raise
        `UnknownTopicOrPartition` if T does not exist."""
        found = self.colocated_topics.find(topic, prefix)
        if found is not None and found.partition_count >= self.topic(topic).partition_count:
            return found
        async with self._changing:
            colocated_topic = await self.colocated_topics.ensure(topic, prefix)
            await self.settled(colocated_topic.id)
        await self.wait_for_leaders(colocated_topic)
        return colocated_topic

    async def delete(self, name: str) -> list[TopicRecord]:
        """Delete a topic, its co-located topics, and the dead-letter topic that was created for it; return the records
        of the topic and the dead-letter topic."""
        async with self._changing:
            deleted = await self._delete(name, self.topic(name).id)
            for record in deleted:
                for gone in (record.id, *await self.colocated_topics.remove(record.name)):
                    await self.settled(gone)
        return deleted

    async def add_partitions(
        self, name: str, total: int, *, assignment: Sequence[Nodes] = (), dry_run: bool = False
    ) -> None:
        async with self._changing:
            topic = self.topic(name)
            count = topic.partition_count
            if total <= count:
                raise InvalidPartitions(f"topic {name} already has {count} partitions; {total} is not an increase")
            if total > PARTITIONS_MAX:
                raise InvalidPartitions(f"a topic can have at most {PARTITIONS_MAX} partitions, not {total}")
            places = self._places(assignment or self._place_replicas(total - count, topic.replication))
            if dry_run:
                return
            await self._records.add_partitions(name, topic.id, total, places)
            await self.colocated_topics.read_changes(name, topic.id, range(count, total))
            grown = [topic, *await self.colocated_topics.grow(topic)]
            for one in grown:
                await self.settled(one.id)
        for one in grown:
            await self.wait_for_leaders(one)

    async def change_configs(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, dry_run: bool = False
    ) -> None:
        """Replace the topic's overrides by the result of `change`, which raises if they are invalid."""
        async with self._changing:
            topic = self.topic(name)
            TopicConfig.build(change(topic.record.configs), self.config.topic_defaults)
            if not dry_run:
                await self._records.change_configs(name, topic.id, change)
                await self.mirror.read([topic_key(name)])
                await self.colocated_topics.match_configs(topic)

    def check_defaults(self, config: BrokerConfig) -> None:
        """Raise `InvalidConfig` if the overrides of a topic conflict with these defaults."""
        for topic in self._by_name.values():
            TopicConfig.build(topic.record.configs, config.topic_defaults)

    def expire(self) -> None:
        """Time out waiting produce requests, and remove the state of expired producers."""
        now = self._clock.monotonic()
        for topic in self._by_name.values():
            for partition in topic.replicas.values():
                partition.expire(now)
                partition.state.expire(partition.log.start_offset, now, self.config.producer_id_expiration_ms)

    def _reject_existing(self, name: str) -> None:
        if name in self._by_name:
            raise TopicAlreadyExists(f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            # As in Kafka: metric names replace dots by underscores, so two such topics would collide there.
            alike = name.replace(".", "_")
            for other, topic in self._by_name.items():
                if other.replace(".", "_") == alike and not topic.is_colocated:
                    raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")

    async def _create_record(
        self, record: TopicRecord, records: Sequence[PartitionRecord], dead_letters_of: Topic | None
    ) -> None:
        """Write the record of a topic. The commit for a dead-letter topic also writes the key of its source topic, so
        that a concurrent deletion of the source conflicts, is retried, and finds the dead-letter topic."""
        source: Set | None = None
        while True:
            if dead_letters_of is not None:
                key = topic_key(dead_letters_of.name)
                entry = self.mirror.get(key)
                if entry is None or decode_topic(entry).id != dead_letters_of.id:
                    raise UnknownTopicId(f"topic {dead_letters_of.name} was deleted or recreated")
                source = Set(key, entry.value, entry.version)
            try:
                await self._records.create(record, records, together_with=source)
            except (BadVersion, NoKey):
                if source is None:
                    raise
                await self.mirror.read([source.key])
            else:
                return

    async def _delete(self, name: str, topic_id: UUID) -> list[TopicRecord]:
        deleted = await self._records.delete(name, topic_id, self._clock.now_ms())
        await self.mirror.read([topic_key(record.name) for record in deleted])
        return deleted

    # Placement

    def usable_brokers(self) -> dict[int, BrokerRecord]:
        """Return the brokers that may get replicas."""
        return {
            node_id: node
            for node_id, node in self.nodes.items()
            if node_id not in self.drained and not node.is_draining
        }

    def _place_replicas(self, partitions: int, replication: int) -> list[Nodes]:
        load, leaders = Counter[int](), Counter[int]()
        for topic in self._by_name.values():
            # Skip co-located topics, which follow their owners: a topic counts the same with or without subscriptions.
            for record in () if topic.is_colocated else topic.partition_records.values():
                load.update(record.replicas)
                leaders[record.replicas[0]] += 1
        return place_replicas(partitions, replication, self.usable_brokers(), load, leaders)

    def _places(self, assignment: Sequence[Nodes]) -> list[PartitionRecord]:
        return [new_partition(tuple(replicas), self.nodes) for replicas in assignment]


async def _at_once(_changed: object) -> None:
    return
