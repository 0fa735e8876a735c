"""The topics that exist: one key per topic, `/topics/<name>`, written after those of its partitions.

A topic is what its id says it is; a name can be given again after a delete. So every change names the id it
means, and a change that was meant for a predecessor of the same name is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from headrace.model.errors import (
    InvalidPartitions,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.names import dead_letter_topic
from headrace.model.partition_record import PartitionRecord
from headrace.model.topic_configs import DAY_MS
from headrace.model.topic_record import TopicRecord
from headrace.registry.brokers import decode_number
from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    KeyExists,
    NoKey,
    Registry,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    Set,
)
from headrace.registry.partitions import (
    PARTITIONS_KEY,
    PartitionRecords,
    create_operations,
    parse_partition_key,
    partition_key,
    split_into_commits,
)
from headrace.registry.subscription_configs import remove_subscription_configs

__all__ = ["TOPICS_KEY", "TopicRecord", "TopicRecords", "decode_topic", "topic_key"]

TOPICS_KEY = "/topics"
TOMBSTONES_KEY = "/deleted-topics"

TOMBSTONE_MS = 30 * DAY_MS
"""How long a deletion is remembered for brokers that were down meanwhile."""
TOMBSTONES_MAX = 10_000


class TopicRecords:
    """Creates, changes and deletes topics, each by one compare-and-set."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def load(self) -> list[TopicRecord]:
        """All topics, sorted by name."""
        return [decode_topic(entry) for entry in await self._registry.entries(TOPICS_KEY)]

    async def create(
        self, record: TopicRecord, partitions: Sequence[PartitionRecord], *, together_with: Check | Set | None = None
    ) -> None:
        """The topic exists from the last commit on, with all its partitions; before that, nobody sees it.
        `together_with` is part of that commit, which fails if the key has another version."""
        topic = Create(topic_key(record.name), msgspec.json.encode(record))
        try:
            await self._write(record.id, 0, partitions, topic, together_with)
        except KeyExists:
            raise TopicAlreadyExists(f"Topic '{record.name}' already exists.") from None

    async def exists(self, name: str, topic_id: uuid.UUID | None) -> bool:
        """Whether there is this topic now, and not another of the same name."""
        entry = await self._registry.get(topic_key(name))
        return entry is not None and decode_topic(entry).id == topic_id

    async def delete(self, name: str, topic_id: uuid.UUID, now_ms: int) -> list[TopicRecord]:
        """Delete the topic and, in the same commit, the dead-letter topic that was created for it. Returns both.

        Each leaves a tombstone of its id: it tells a broker that was down that the topic's logs may be deleted. Logs of
        an id that has neither a topic nor a tombstone are kept (see storage/store/stray_logs.py)."""
        while True:
            deleted = [await self._find(name, topic_id)]
            # It cannot be created in between: that changes the version of the topic's key.
            entry = await self._registry.get(topic_key(dead_letter_topic(name)))
            if entry is not None and (record := decode_topic(entry)).dead_letters_of == topic_id:
                deleted.append((entry, record))
            operations: list[RegistryOperation] = []
            for entry, record in deleted:
                operations.append(Delete(entry.key, entry.version))
                operations.append(Create(tombstone_key(record.id), str(now_ms).encode()))
            try:
                await self._registry.commit(operations)
            except (BadVersion, NoKey):
                continue
            return [record for _, record in deleted]

    async def deleted(self, topic_ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
        """Those of these topics that were deleted by request."""
        return {topic_id for topic_id in topic_ids if await self._registry.get(tombstone_key(topic_id)) is not None}

    async def expire_tombstones(self, now_ms: int) -> None:
        """Forget deletions that are long ago, and the oldest if there are too many."""
        entries = sorted(await self._registry.entries(TOMBSTONES_KEY), key=decode_number, reverse=True)
        expired = [
            entry
            for number, entry in enumerate(entries)
            if number >= TOMBSTONES_MAX or now_ms - decode_number(entry) >= TOMBSTONE_MS
        ]
        for chunk in split_into_commits([Delete(entry.key, entry.version) for entry in expired]):
            await self._registry.commit(chunk)

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
        grown = msgspec.structs.replace(record, partitions=total, growths=(*record.growths, first))
        topic = Set(entry.key, msgspec.json.encode(grown), entry.version)
        try:
            await self._write(topic_id, first, partitions, topic)
        except KeyExists:
            # Left behind by an attempt that was cut off, unless another has grown the topic meanwhile.
            await self._remove_surplus_partitions(topic_id, first, Check(entry.key, entry.version))
            await self._write(topic_id, first, partitions, topic)

    async def remove_orphaned_partitions(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Remove the partitions and the configuration of subscriptions of these ids, except those of topics that exist.

        The caller's mirror may have read a topic's partitions and not yet the topic, so the registry itself is asked.
        A large topic is created in several commits; its creation is fenced before the topics are read, so a topic that
        is missing then cannot be completed while its partitions are removed.
        """
        orphans = set(topic_ids) - await self._existing_ids()
        for topic_id in orphans:
            await self._fence_creation(topic_id)
        for topic_id in orphans - await self._existing_ids():
            # The partitions last: as long as they are there, the next controller finds the topic again.
            await remove_subscription_configs(self._registry, topic_id)
            await PartitionRecords(self._registry).remove_all(topic_id)

    async def _fence_creation(self, topic_id: uuid.UUID) -> None:
        """Raise the version of partition 0: the last commit of a creation in several commits expects version 0."""
        entry = await self._registry.get(partition_key(topic_id, 0))
        if entry is not None:
            await self._registry.commit([Set(entry.key, entry.value, entry.version)])

    async def _existing_ids(self) -> set[uuid.UUID]:
        return {record.id for record in await self.load()}

    async def _remove_surplus_partitions(self, topic_id: uuid.UUID, first: int, not_grown: Check) -> None:
        """Remove partitions beyond the topic's number: as long as that stands they are not part of it."""
        entries = await self._registry.entries(f"{PARTITIONS_KEY}/{topic_id.hex}")
        beyond = [entry for entry in entries if parse_partition_key(entry.key)[1] >= first]
        for chunk in split_into_commits([Delete(entry.key, entry.version) for entry in beyond]):
            await self._registry.commit([not_grown, *chunk])

    async def _write(
        self,
        topic_id: uuid.UUID,
        first: int,
        partitions: Sequence[PartitionRecord],
        topic: RegistryOperation,
        together_with: Check | Set | None = None,
    ) -> None:
        """In as many commits as it takes, the topic's own key in the last one, unless the partitions were cleared away
        meanwhile as those of nobody."""
        *before, last = split_into_commits(create_operations(topic_id, first, partitions))
        for chunk in before:
            await self._registry.commit(chunk)
        more: list[RegistryOperation] = [Check(partition_key(topic_id, first), 0)] if before else []
        if together_with is not None:
            more.append(together_with)
        await self._registry.commit([*more, *last, topic])

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

    async def _find(self, name: str, topic_id: uuid.UUID) -> tuple[RegistryEntry, TopicRecord]:
        entry = await self._registry.get(topic_key(name))
        if entry is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'")
        record = decode_topic(entry)
        if record.id != topic_id:
            raise UnknownTopicId(f"Topic '{name}' has been deleted and created again meanwhile")
        return entry, record


def topic_key(name: str) -> str:
    return f"{TOPICS_KEY}/{name}"


def tombstone_key(topic_id: uuid.UUID) -> str:
    return f"{TOMBSTONES_KEY}/{topic_id.hex}"


def decode_topic(entry: RegistryEntry) -> TopicRecord:
    try:
        return msgspec.json.decode(entry.value, type=TopicRecord)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error
