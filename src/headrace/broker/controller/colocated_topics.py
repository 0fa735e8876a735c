"""Co-located topics: they belong to an owner topic, with the same number of partitions on the same brokers.

- A co-located topic is created on first use and deleted with its owner.
- It refers to its owner by id, because names can be reused: the co-located topic of a deleted topic must not be used
  for a later topic of the same name.
- The commit that creates it checks its owner, and it is deleted after its owner, so it cannot reappear. If the deleting
  broker dies in between, the controller completes the deletion.
- The controller keeps its partitions on the brokers of the owner's partitions.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from headrace.broker.cluster.cluster_metadata import ClusterMetadata
from headrace.broker.topic import Topic
from headrace.machines.controller.colocated_topics import colocated_record
from headrace.model.configs import DAY_MS
from headrace.model.errors import (
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.names import ACKS_PREFIX, COLOCATED_PREFIXES, is_internal, owner_of
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.interface import BadVersion, Check, NoKey
from headrace.registry.mirror import RegistryMirror
from headrace.registry.topics import TopicRecords, partition_key, topic_key
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy

_MIN_INSYNC = "min.insync.replicas"

_SEGMENT_BYTES = 64 * 2**20
_LOST_RACE = (BadVersion, NoKey, InvalidPartitions, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition)
"""Errors after a concurrent change of the owner or the co-located topic by another broker."""


class ColocatedTopics:
    def __init__(
        self, directory: ClusterMetadata, mirror: RegistryMirror, records: TopicRecords, clock: Clock, entropy: Entropy
    ) -> None:
        self._directory = directory
        self._mirror = mirror
        self._records = records
        self._clock = clock
        self._entropy = entropy

    def find(self, topic: str, prefix: str) -> Topic | None:
        owner = self._directory.find(topic)
        found = () if owner is None else self.of(owner, prefix)
        return next(iter(found), None)

    def of(self, owner: Topic, *prefixes: str) -> list[Topic]:
        """Return the co-located topics of a topic with these prefixes, by default all of them."""
        found = (self._directory.find(prefix + owner.name) for prefix in prefixes or COLOCATED_PREFIXES)
        return [topic for topic in found if topic is not None and _is_colocated_with(topic, owner)]

    def owner(self, colocated_topic: Topic) -> Topic | None:
        """Return the owner, or None if it was deleted; the co-located topic must then be deleted as well."""
        owner = self._directory.find(owner_of(colocated_topic.name) or "")
        return owner if owner is not None and _is_colocated_with(colocated_topic, owner) else None

    async def ensure(self, topic: str, prefix: str) -> Topic:
        """Return the co-located topic, and create or extend it if necessary. Raise `UnknownTopicOrPartition` if the
        owner does not exist."""
        if is_internal(topic):
            raise InvalidTopic(f"{topic} is internal and cannot have co-located topics")
        name = prefix + topic
        while True:
            owner = self._directory.topic(topic)
            colocated_topic = self._directory.find(name)
            try:
                if colocated_topic is None:
                    await self._create(owner, prefix)
                elif not _is_colocated_with(colocated_topic, owner):
                    await self.remove(topic)
                    await self._mirror.read([topic_key(topic)])
                elif colocated_topic.partition_count < owner.partition_count:
                    await self._grow(colocated_topic, owner)
                else:
                    return colocated_topic
            except _LOST_RACE:
                await self.read_changes(topic, owner.id, range(owner.partition_count))
                await self._mirror.read([topic_key(name)])

    async def grow(self, owner: Topic) -> list[Topic]:
        """Extend the co-located topics of a topic with new partitions, and return them."""
        return [await self.ensure(owner.name, _prefix_of(colocated_topic)) for colocated_topic in self.of(owner)]

    async def match_configs(self, owner: Topic) -> None:
        """Copy the replication configs of the owner: acknowledgements must be as durable as the messages."""
        wanted = _shared_configs(owner)
        for colocated_topic in self.of(owner):
            if _shared_configs(colocated_topic) != wanted:
                await self._records.change_configs(
                    colocated_topic.name,
                    colocated_topic.id,
                    lambda configs: {name: value for name, value in configs.items() if name != _MIN_INSYNC} | wanted,
                )
                await self._mirror.read([topic_key(colocated_topic.name)])

    async def remove(self, topic: str) -> list[UUID]:
        """Delete the co-located topics of a deleted topic, or of an earlier topic of that name; return their ids."""
        await self._mirror.read([topic_key(prefix + topic) for prefix in COLOCATED_PREFIXES])
        removed = []
        for colocated_topic in [self._directory.find(prefix + topic) for prefix in COLOCATED_PREFIXES]:
            # Read the registry rather than the mirror, because the deletion is final.
            if colocated_topic is not None and not await self._records.exists(topic, colocated_topic.record.owner):
                await self._delete(colocated_topic)
                removed.append(colocated_topic.id)
        return removed

    async def _delete(self, colocated_topic: Topic) -> None:
        with suppress(UnknownTopicId, UnknownTopicOrPartition):  # another broker has already deleted it
            await self._records.delete(colocated_topic.name, colocated_topic.id, self._clock.now_ms())
        await self._mirror.read([topic_key(colocated_topic.name)])

    async def repair_all(self) -> None:
        """Complete interrupted changes: delete co-located topics without an owner, and extend those that are too
        small."""
        for colocated_topic in [topic for topic in self._directory if topic.is_colocated]:
            owner = self.owner(colocated_topic)
            if owner is None:
                await self.remove(colocated_topic.name.removeprefix(_prefix_of(colocated_topic)))
            elif colocated_topic.partition_count < owner.partition_count:
                with suppress(UnknownTopicOrPartition):  # it was deleted meanwhile
                    await self.ensure(owner.name, _prefix_of(colocated_topic))

    async def _create(self, owner: Topic, prefix: str) -> None:
        entry = self._mirror.get(topic_key(owner.name))
        if entry is None:
            raise UnknownTopicOrPartition(f"topic {owner.name} does not exist")
        record = TopicRecord(
            name=prefix + owner.name,
            id=self._entropy.uuid(),
            partitions=owner.partition_count,
            configs=_colocated_configs(owner, prefix),
            created_ms=self._clock.now_ms(),
            owner=owner.id,
        )
        records = self._new_records(owner, 0)
        await self._records.create(record, records, together_with=Check(entry.key, entry.version))
        await self.read_changes(record.name, record.id, range(record.partitions))

    async def _grow(self, colocated_topic: Topic, owner: Topic) -> None:
        count, total = colocated_topic.partition_count, owner.partition_count
        await self._records.add_partitions(
            colocated_topic.name, colocated_topic.id, total, self._new_records(owner, count)
        )
        await self.read_changes(colocated_topic.name, colocated_topic.id, range(count, total))

    def _new_records(self, owner: Topic, first: int) -> list[PartitionRecord]:
        return [
            colocated_record(self._directory.partition_record(owner.name, index), self._directory.nodes)
            for index in range(first, owner.partition_count)
        ]

    async def read_changes(self, name: str, topic_id: UUID, indexes: range) -> None:
        """Update the mirror with a change of this broker, without waiting for the watch."""
        await self._mirror.read([*(partition_key(topic_id, index) for index in indexes), topic_key(name)])


def _is_colocated_with(colocated_topic: Topic, owner: Topic) -> bool:
    return colocated_topic.record.owner == owner.id


def _prefix_of(colocated_topic: Topic) -> str:
    return next(prefix for prefix in COLOCATED_PREFIXES if colocated_topic.name.startswith(prefix))


def _colocated_configs(owner: Topic, prefix: str) -> dict[str, str]:
    """Return the configs of a co-located topic: acks are kept for a day, delayed messages until they are due."""
    configs = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "flush.messages": "1",
        "retention.bytes": "-1",
        "retention.ms": str(DAY_MS if prefix == ACKS_PREFIX else -1),
        "segment.bytes": str(_SEGMENT_BYTES),
    }
    return configs | _shared_configs(owner)


def _shared_configs(topic: Topic) -> dict[str, str]:
    return {name: value for name, value in topic.record.configs.items() if name == _MIN_INSYNC}
