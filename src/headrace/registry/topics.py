"""The topics that exist: one key per topic, `/topics/<name>`.

A topic is what its id says it is; a name can be given again after a delete. So every change names the id it
means, and a change that was meant for a predecessor of the same name is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

import msgspec

from headrace.model.errors import (
    InvalidPartitions,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.registry.interface import (
    BadVersion,
    Create,
    Delete,
    Entry,
    KeyExists,
    NoKey,
    Registry,
    RegistryDamaged,
    Set,
)

TOPICS_KEY = "/topics"


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is kept. `configs` are overrides only, as text, under Kafka's names."""

    name: str
    id: uuid.UUID
    partitions: int
    configs: dict[str, str] = {}
    created_ms: int
    created_epoch: int = 0
    """Epoch of the broker that made it; leader epochs count from there."""


class Topics:
    """Creates, changes and deletes topics, each by one compare-and-set."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def load(self) -> list[TopicRecord]:
        """All topics, sorted by name."""
        return [_decode(entry) for entry in await self._registry.entries(TOPICS_KEY)]

    async def create(self, record: TopicRecord) -> None:
        try:
            await self._registry.commit([Create(_key(record.name), msgspec.json.encode(record))])
        except KeyExists:
            raise TopicAlreadyExists(f"Topic '{record.name}' already exists.") from None

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

    async def add_partitions(self, name: str, topic_id: uuid.UUID, total: int) -> TopicRecord:
        """Grow the topic to `total` partitions; a topic never shrinks."""

        def with_partitions(record: TopicRecord) -> TopicRecord:
            if total <= record.partitions:
                raise InvalidPartitions(
                    f"The topic {name} currently has {record.partitions} partition(s); "
                    f"{total} would not be an increase."
                )
            return msgspec.structs.replace(record, partitions=total)

        return await self._change(name, topic_id, with_partitions)

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
        entry = await self._registry.get(_key(name))
        if entry is None:
            raise UnknownTopicOrPartition(f"There is no topic '{name}'")
        record = _decode(entry)
        if record.id != topic_id:
            raise UnknownTopicId(f"Topic '{name}' has been deleted and created again meanwhile")
        return entry, record


def _key(name: str) -> str:
    return f"{TOPICS_KEY}/{name}"


def _decode(entry: Entry) -> TopicRecord:
    try:
        return msgspec.json.decode(entry.value, type=TopicRecord)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error
