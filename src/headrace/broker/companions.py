"""Companions: topics that belong to another topic, and have as many partitions in the same places.

A companion is made by whoever needs it first and goes with its owner. It names its owner by id, because names are given
again: the companion of a topic that was deleted is never taken for that of its namesake. It is made by a commit that
checks its owner, and removed after its owner, so it cannot come back; if the remover dies in between, the controller
finds what is left. That its partitions stay with the owner's is the controller's work, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

from headrace.broker.directory import Directory
from headrace.broker.topic import Topic
from headrace.machines.companions import beside
from headrace.model.errors import (
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.names import ACKS_PREFIX, COMPANION_PREFIXES, is_internal, owner_of
from headrace.model.partition_record import PartitionRecord
from headrace.model.topic_configs import DAY_MS
from headrace.registry.interface import BadVersion, Check, NoKey
from headrace.registry.mirror import Mirror
from headrace.registry.partitions import partition_key
from headrace.registry.topics import TopicRecord, Topics, topic_key
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy

_MIN_INSYNC = "min.insync.replicas"

_SEGMENT_BYTES = 64 * 2**20
_OUTRUN = (BadVersion, NoKey, InvalidPartitions, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition)
"""Another broker has changed the owner or the companion meanwhile."""


class Companions:
    def __init__(self, directory: Directory, mirror: Mirror, records: Topics, clock: Clock, entropy: Entropy) -> None:
        self._directory = directory
        self._mirror = mirror
        self._records = records
        self._clock = clock
        self._entropy = entropy

    def find(self, topic: str, prefix: str) -> Topic | None:
        owner, companion = self._directory.find(topic), self._directory.find(prefix + topic)
        return companion if owner is not None and companion is not None and _belongs(companion, owner) else None

    def of(self, owner: Topic) -> list[Topic]:
        found = (self._directory.find(prefix + owner.name) for prefix in COMPANION_PREFIXES)
        return [companion for companion in found if companion is not None and _belongs(companion, owner)]

    def owner(self, companion: Topic) -> Topic | None:
        """None if it is gone: so should be the companion."""
        owner = self._directory.find(owner_of(companion.name) or "")
        return owner if owner is not None and _belongs(companion, owner) else None

    async def ensure(self, topic: str, prefix: str) -> Topic:
        """The companion, made or grown as far as is needed. Raises `UnknownTopicOrPartition` if there is no owner."""
        if is_internal(topic):
            raise InvalidTopic(f"{topic} is internal and cannot have co-located topics")
        name = prefix + topic
        while True:
            owner = self._directory.topic(topic)
            companion = self._directory.find(name)
            try:
                if companion is None:
                    await self._make(owner, prefix)
                elif not _belongs(companion, owner):
                    await self.remove(topic)
                    await self._mirror.read([topic_key(topic)])
                elif companion.partition_count < owner.partition_count:
                    await self._grow(companion, owner)
                else:
                    return companion
            except _OUTRUN:
                places = [partition_key(owner.id, index) for index in range(owner.partition_count)]
                await self._mirror.read([*places, topic_key(topic), topic_key(name)])

    async def grow(self, owner: Topic) -> list[Topic]:
        """All of a topic that has grown; returns them."""
        return [await self.ensure(owner.name, _prefix(companion)) for companion in self.of(owner)]

    async def match_configs(self, owner: Topic) -> None:
        """As many replicas must have what is settled as must have the messages."""
        wanted = _shared_configs(owner)
        for companion in self.of(owner):
            if _shared_configs(companion) != wanted:
                await self._records.change_configs(companion.name, companion.id, partial(_with_shared, shared=wanted))
                await self._mirror.read([topic_key(companion.name)])

    async def remove(self, topic: str) -> list[UUID]:
        """Those of a topic that was deleted, or of one that had its name before; returns their ids."""
        await self._mirror.read([topic_key(prefix + topic) for prefix in COMPANION_PREFIXES])
        removed = []
        for companion in [self._directory.find(prefix + topic) for prefix in COMPANION_PREFIXES]:
            # Asked of the registry itself: what goes now is gone for good.
            if companion is not None and not await self._records.exists(topic, companion.record.owner):
                await self._forget(companion)
                removed.append(companion.id)
        return removed

    async def _forget(self, companion: Topic) -> None:
        with suppress(UnknownTopicId, UnknownTopicOrPartition):  # another broker was faster
            await self._records.delete(companion.name, companion.id, self._clock.now_ms())
        await self._mirror.read([topic_key(companion.name)])

    async def tend(self) -> None:
        """What others have left half done: companions whose owner is gone go, those that are too small grow."""
        for companion in [topic for topic in self._directory if topic.is_companion]:
            owner = self.owner(companion)
            if owner is None:
                await self.remove(companion.name.removeprefix(_prefix(companion)))
            elif companion.partition_count < owner.partition_count:
                with suppress(UnknownTopicOrPartition):  # it was deleted meanwhile
                    await self.ensure(owner.name, _prefix(companion))

    async def _make(self, owner: Topic, prefix: str) -> None:
        entry = self._mirror.get(topic_key(owner.name))
        if entry is None:
            raise UnknownTopicOrPartition(f"topic {owner.name} does not exist")
        record = TopicRecord(
            name=prefix + owner.name,
            id=self._entropy.uuid(),
            partitions=owner.partition_count,
            configs=_configs(owner, prefix),
            created_ms=self._clock.now_ms(),
            owner=owner.id,
        )
        places = self._places(owner, 0)
        await self._records.create(record, places, together_with=Check(entry.key, entry.version))
        await self._see(record.name, record.id, range(record.partitions))

    async def _grow(self, companion: Topic, owner: Topic) -> None:
        count, total = companion.partition_count, owner.partition_count
        await self._records.add_partitions(companion.name, companion.id, total, self._places(owner, count))
        await self._see(companion.name, companion.id, range(count, total))

    def _places(self, owner: Topic, first: int) -> list[PartitionRecord]:
        indexes = range(first, owner.partition_count)
        missing = next((index for index in indexes if index not in owner.places), None)
        if missing is not None:
            raise UnknownTopicOrPartition(f"partition {owner.name}-{missing} does not exist")
        return [beside(owner.places[index], self._directory.nodes) for index in indexes]

    async def _see(self, name: str, topic_id: UUID, indexes: range) -> None:
        """Take in what was just written, without waiting for the watch."""
        await self._mirror.read([*(partition_key(topic_id, index) for index in indexes), topic_key(name)])


def _belongs(companion: Topic, owner: Topic) -> bool:
    return companion.record.owner == owner.id


def _prefix(companion: Topic) -> str:
    return next(prefix for prefix in COMPANION_PREFIXES if companion.name.startswith(prefix))


def _configs(owner: Topic, prefix: str) -> dict[str, str]:
    """What is settled is kept for those who read it as a topic; what is delayed is kept until it is due."""
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


def _with_shared(configs: Mapping[str, str], shared: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in configs.items() if name != _MIN_INSYNC} | dict(shared)
