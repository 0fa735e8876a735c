"""Topics and their partitions in the registry.

    /topics/<name>                     a topic
    /partitions/<topic id>/<index>     a partition; the version of the key is the partition epoch

- Every change is conditional on the version that it replaces, so of two concurrent decisions only one takes effect.
- A topic is identified by its id; a later topic may have the same name. Every change contains the id of its topic and
  fails for a later topic of the same name.
- The partitions of a topic are created before the topic itself, in several commits if necessary, and removed after it.
  Partition keys without a topic have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import msgspec

from headrace.model.configs import DAY_MS
from headrace.model.errors import InvalidPartitions, TopicAlreadyExists, UnknownTopicId, UnknownTopicOrPartition
from headrace.model.names import dead_letter_topic
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.brokers import decode_number
from headrace.registry.configs import remove_subscription_configs
from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    Delete,
    KeyExists,
    NoKey,
    OutcomeUnknown,
    Registry,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    Set,
    decode_json,
    remove_beneath,
)

PARTITIONS_KEY = "/partitions"
TOPICS_KEY = "/topics"

OPERATIONS_MAX = 500
"""The maximum number of operations per commit: ZooKeeper limits a transaction to one megabyte."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PartitionRecord)


async def change_partition(
    registry: Registry, topic_id: UUID, index: int, decide: Callable[[PartitionRecord], PartitionRecord | None]
) -> PartitionRecord | None:
    """Replace the record by what `decide` returns, and return it. After a concurrent change, `decide` is called again.
    Return None if `decide` returns None or the partition does not exist."""
    key = partition_key(topic_id, index)
    while True:
        entry = await registry.get(key)
        changed = None if entry is None else decide(decode_partition(entry))
        if entry is None or changed is None:
            return None
        try:
            await registry.commit([Set(key, encode_partition(changed), entry.version)])
        except (BadVersion, NoKey, OutcomeUnknown):
            continue
        return changed


async def remove_partitions(registry: Registry, topic_id: UUID) -> None:
    """Remove the partitions of a deleted topic. Several brokers may do this concurrently."""
    await remove_beneath(registry, f"{PARTITIONS_KEY}/{topic_id.hex}", keys_per_commit=OPERATIONS_MAX)


def partition_key(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS_KEY}/{topic_id.hex}/{index}"


def parse_partition_key(key: str) -> tuple[UUID, int]:
    try:
        _, _, topic_id, index = key.split("/")
        return UUID(hex=topic_id), int(index)
    except ValueError:
        raise RegistryDamaged(f"The registry's key {key} is not the key of a partition") from None


def encode_partition(record: PartitionRecord) -> bytes:
    return _encoder.encode(record)


def decode_partition(entry: RegistryEntry) -> PartitionRecord:
    try:
        return _decoder.decode(entry.value)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error


def create_operations(topic_id: UUID, first: int, records: Sequence[PartitionRecord]) -> list[RegistryOperation]:
    """Return the operations that create these partitions, numbered from `first`."""
    return [
        Create(partition_key(topic_id, index), encode_partition(record))
        for index, record in enumerate(records, start=first)
    ]


def split_into_commits(operations: Sequence[RegistryOperation]) -> Iterator[Sequence[RegistryOperation]]:
    for begin in range(0, len(operations), OPERATIONS_MAX):
        yield operations[begin : begin + OPERATIONS_MAX]


TOMBSTONES_KEY = "/deleted-topics"

TOMBSTONE_MS = 30 * DAY_MS
"""How long a tombstone is kept for brokers that were down during the deletion."""
TOMBSTONES_MAX = 10_000


class TopicRecords:
    """Create, change and delete topics by compare-and-set."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def load(self) -> list[TopicRecord]:
        """Return all topics, sorted by name."""
        return [decode_topic(entry) for entry in await self._registry.entries(TOPICS_KEY)]

    async def create(
        self, record: TopicRecord, partitions: Sequence[PartitionRecord], *, together_with: Check | Set | None = None
    ) -> None:
        """Create a topic. It becomes visible with the last commit, when all partitions exist. `together_with` is part
        of that commit, which fails if the key has another version."""
        topic = Create(topic_key(record.name), msgspec.json.encode(record))
        try:
            await self._write(record.id, 0, partitions, topic, together_with)
        except KeyExists:
            raise TopicAlreadyExists(f"Topic '{record.name}' already exists.") from None

    async def exists(self, name: str, topic_id: UUID | None) -> bool:
        """Whether the topic exists, and not a later one of the same name."""
        entry = await self._registry.get(topic_key(name))
        return entry is not None and decode_topic(entry).id == topic_id

    async def delete(self, name: str, topic_id: UUID, now_ms: int) -> list[TopicRecord]:
        """Delete the topic and, in the same commit, the dead-letter topic that was created for it. Returns both.

        Each leaves a tombstone with its id, so that a broker that was down deletes the topic's logs. Logs with neither
        a topic nor a tombstone are kept (see storage/store/stray_logs.py)."""
        while True:
            deleted = [await self._find(name, topic_id)]
            # It cannot be created concurrently, because that changes the version of the topic's key.
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

    async def deleted(self, topic_ids: Iterable[UUID]) -> set[UUID]:
        """Return which of these topics were deleted by a request."""
        return {topic_id for topic_id in topic_ids if await self._registry.get(tombstone_key(topic_id)) is not None}

    async def expire_tombstones(self, now_ms: int) -> None:
        """Delete old tombstones, and the oldest ones if there are too many."""
        entries = sorted(await self._registry.entries(TOMBSTONES_KEY), key=decode_number, reverse=True)
        expired = [
            entry
            for number, entry in enumerate(entries)
            if number >= TOMBSTONES_MAX or now_ms - decode_number(entry) >= TOMBSTONE_MS
        ]
        for chunk in split_into_commits([Delete(entry.key, entry.version) for entry in expired]):
            await self._registry.commit(chunk)

    async def change_configs(
        self, name: str, topic_id: UUID, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> TopicRecord:
        """Replace the overrides by what `change` returns. After a concurrent change, `change` is called again."""
        while True:
            entry, record = await self._find(name, topic_id)
            changed = msgspec.structs.replace(record, configs=dict(change(record.configs)))
            try:
                await self._registry.commit([Set(entry.key, msgspec.json.encode(changed), entry.version)])
            except (BadVersion, NoKey):
                continue
            return changed

    async def add_partitions(
        self, name: str, topic_id: UUID, total: int, partitions: Sequence[PartitionRecord]
    ) -> None:
        """Extend the topic to `total` partitions by these new ones."""
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
            # Partitions of an interrupted attempt, unless the topic was extended concurrently.
            await self._remove_surplus_partitions(topic_id, first, Check(entry.key, entry.version))
            await self._write(topic_id, first, partitions, topic)

    async def remove_orphaned_partitions(self, topic_ids: Iterable[UUID]) -> None:
        """Remove the partitions and the configuration of subscriptions of these ids, except those of topics that exist.

        The caller's mirror may have read the partitions of a topic but not the topic yet, so this reads the registry. A
        large topic is created in several commits. Its creation is fenced before the topics are read: a topic that is
        missing then cannot be completed while its partitions are removed.
        """
        orphans = set(topic_ids) - await self._existing_ids()
        for topic_id in orphans:
            await self._fence_creation(topic_id)
        for topic_id in orphans - await self._existing_ids():
            # The partitions last: until they are removed, the next controller finds the topic again.
            await remove_subscription_configs(self._registry, topic_id)
            await remove_partitions(self._registry, topic_id)

    async def _fence_creation(self, topic_id: UUID) -> None:
        """Increment the version of partition 0, because the last commit of a creation expects version 0."""
        entry = await self._registry.get(partition_key(topic_id, 0))
        if entry is not None:
            await self._registry.commit([Set(entry.key, entry.value, entry.version)])

    async def _existing_ids(self) -> set[UUID]:
        return {record.id for record in await self.load()}

    async def _remove_surplus_partitions(self, topic_id: UUID, first: int, not_grown: Check) -> None:
        """Remove partitions above the partition count, if that has not changed."""
        entries = await self._registry.entries(f"{PARTITIONS_KEY}/{topic_id.hex}")
        beyond = [entry for entry in entries if parse_partition_key(entry.key)[1] >= first]
        for chunk in split_into_commits([Delete(entry.key, entry.version) for entry in beyond]):
            await self._registry.commit([not_grown, *chunk])

    async def _write(
        self,
        topic_id: UUID,
        first: int,
        partitions: Sequence[PartitionRecord],
        topic: RegistryOperation,
        together_with: Check | Set | None = None,
    ) -> None:
        """Write the partitions in several commits, the last one with the topic's key. It fails if the partitions were
        removed as orphans meanwhile."""
        *before, last = split_into_commits(create_operations(topic_id, first, partitions))
        for chunk in before:
            await self._registry.commit(chunk)
        more: list[RegistryOperation] = [Check(partition_key(topic_id, first), 0)] if before else []
        if together_with is not None:
            more.append(together_with)
        await self._registry.commit([*more, *last, topic])

    async def _find(self, name: str, topic_id: UUID) -> tuple[RegistryEntry, TopicRecord]:
        entry = await self._registry.get(topic_key(name))
        if entry is None:
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        record = decode_topic(entry)
        if record.id != topic_id:
            raise UnknownTopicId(f"topic {name} was deleted and created again")
        return entry, record


def topic_key(name: str) -> str:
    return f"{TOPICS_KEY}/{name}"


def tombstone_key(topic_id: UUID) -> str:
    return f"{TOMBSTONES_KEY}/{topic_id.hex}"


def decode_topic(entry: RegistryEntry) -> TopicRecord:
    return decode_json(entry, TopicRecord)
