"""The topics that exist: one key per topic, `/topics/<name>`, written after those of its partitions.

A topic is what its id says it is; a name can be given again after a delete. So every change names the id it
means, and a change that was meant for a predecessor of the same name is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.model.errors import (
    InvalidPartitions,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.partition_record import PartitionRecord
from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    Entry,
    KeyExists,
    NoKey,
    Operation,
    Registry,
    RegistryDamaged,
    Set,
)
from headrace.registry.partitions import PARTITIONS_KEY, chunks, creations, parse_partition_key, partition_key

TOPICS_KEY = "/topics"


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is kept. `configs` are overrides only, as text, under Kafka's names. `owner` is the id of the topic
    whose companion this one is: a namesake of that topic, made after it was deleted, has nothing to do with it."""

    name: str
    id: uuid.UUID
    partitions: int
    configs: dict[str, str] = {}
    created_ms: int
    owner: uuid.UUID | None = None


class Topics:
    """Creates, changes and deletes topics, each by one compare-and-set."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def load(self) -> list[TopicRecord]:
        """All topics, sorted by name."""
        return [decode_topic(entry) for entry in await self._registry.entries(TOPICS_KEY)]

    async def create(
        self, record: TopicRecord, partitions: Sequence[PartitionRecord], *, if_still: Check | None = None
    ) -> None:
        """The topic exists from the last commit on, with all its partitions; before that, nobody sees it."""
        topic = Create(topic_key(record.name), msgspec.json.encode(record))
        try:
            await self._write(record.id, 0, partitions, topic, if_still)
        except KeyExists:
            raise TopicAlreadyExists(f"Topic '{record.name}' already exists.") from None

    async def exists(self, name: str, topic_id: uuid.UUID | None) -> bool:
        """Whether there is this topic now, and not another of the same name."""
        entry = await self._registry.get(topic_key(name))
        return entry is not None and decode_topic(entry).id == topic_id

    async def delete(self, name: str, topic_id: uuid.UUID) -> None:
        while True:
            entry, _ = await self._find(name, topic_id)
            try:
                await self._registry.commit([Delete(entry.key, entry.version)])
            except (BadVersion, NoKey):
                continue
            return

    async def change_configs(
        self, name: str, topic_id: uuid.UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> TopicRecord:
        """Replace the overrides by what `change` makes of them; it is asked again when another was faster."""

        def with_configs(record: TopicRecord) -> TopicRecord:
            return msgspec.structs.replace(record, configs=dict(change(record.configs)))

        return await self._change(name, topic_id, with_configs)

    async def add_partitions(
        self, name: str, topic_id: uuid.UUID, total: int, partitions: Sequence[PartitionRecord]
    ) -> None:
        """Grow the topic to `total` partitions, these being the new ones; a topic never shrinks."""
        entry, record = await self._find(name, topic_id)
        first = total - len(partitions)
        if record.partitions != first:
            raise InvalidPartitions(
                f"The topic {name} currently has {record.partitions} partition(s); {total} would not be an increase."
            )
        grown = msgspec.structs.replace(record, partitions=total)
        topic = Set(entry.key, msgspec.json.encode(grown), entry.version)
        try:
            await self._write(topic_id, first, partitions, topic)
        except KeyExists:
            # Left behind by an attempt that was cut off, unless another has grown the topic meanwhile.
            await self._clear_away(topic_id, first, Check(entry.key, entry.version))
            await self._write(topic_id, first, partitions, topic)

    async def _clear_away(self, topic_id: uuid.UUID, first: int, not_grown: Check) -> None:
        """Remove partitions beyond the topic's number: as long as that stands they are not part of it."""
        entries = await self._registry.entries(f"{PARTITIONS_KEY}/{topic_id.hex}")
        beyond = [entry for entry in entries if parse_partition_key(entry.key)[1] >= first]
        for chunk in chunks([Delete(entry.key, entry.version) for entry in beyond]):
            await self._registry.commit([not_grown, *chunk])

    async def _write(
        self,
        topic_id: uuid.UUID,
        first: int,
        partitions: Sequence[PartitionRecord],
        topic: Operation,
        if_still: Check | None = None,
    ) -> None:
        """In as many commits as it takes, the topic's own key in the last one, unless the partitions were cleared away
        meanwhile as those of nobody."""
        *before, last = chunks(creations(topic_id, first, partitions))
        for chunk in before:
            await self._registry.commit(chunk)
        checks = [Check(partition_key(topic_id, first), 0)] if before else []
        if if_still is not None:
            checks.append(if_still)
        await self._registry.commit([*checks, *last, topic])

    async def _change(
        self, name: str, topic_id: uuid.UUID, change: Callable[[TopicRecord], TopicRecord]
    ) -> TopicRecord:
        while True:
            entry, record = await self._find(name, topic_id)
            changed = change(record)
            try:
                await self._registry.commit([Set(entry.key, msgspec.json.encode(changed), entry.version)])
            except (BadVersion, NoKey):
                continue
            return changed

    async def _find(self, name: str, topic_id: uuid.UUID) -> tuple[Entry, TopicRecord]:
        entry = await self._registry.get(topic_key(name))
        if entry is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'")
        record = decode_topic(entry)
        if record.id != topic_id:
            raise UnknownTopicId(f"Topic '{name}' has been deleted and created again meanwhile")
        return entry, record


def topic_key(name: str) -> str:
    return f"{TOPICS_KEY}/{name}"


def decode_topic(entry: Entry) -> TopicRecord:
    try:
        return msgspec.json.decode(entry.value, type=TopicRecord)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error
