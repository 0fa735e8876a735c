"""The partitions: one key each, `/partitions/<topic id>/<index>`. Its version is the partition's epoch.

Whoever changes one names the version that it replaces, so two that decide at the same time cannot both have their way.
The partitions of a topic are written before the topic itself, in as many commits as that takes, and removed after it:
keys of a topic that does not exist mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import msgspec

from headrace.model.partition_record import PartitionRecord
from headrace.registry.interface import (
    BadVersion,
    Create,
    Delete,
    NoKey,
    OutcomeUnknown,
    Registry,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    Set,
)

PARTITIONS_KEY = "/partitions"

OPERATIONS_MAX = 500
"""Of one commit: ZooKeeper takes a megabyte at most."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PartitionRecord)


class PartitionRecords:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def create_all(self, topic_id: UUID, first: int, records: Sequence[PartitionRecord]) -> None:
        """All but the last commit's worth: what is returned by `creations` for the rest goes with the topic's key."""
        operations = create_operations(topic_id, first, records)
        for chunk in split_into_commits(operations):
            await self._registry.commit(chunk)

    async def change(
        self, topic_id: UUID, index: int, decide: Callable[[PartitionRecord], PartitionRecord | None]
    ) -> PartitionRecord | None:
        """Replace the record by what `decide` makes of it; it is asked again when another was faster. None when it
        wants no change, or there is no such partition (any more)."""
        key = partition_key(topic_id, index)
        while True:
            entry = await self._registry.get(key)
            changed = None if entry is None else decide(decode_partition(entry))
            if entry is None or changed is None:
                return None
            try:
                await self._registry.commit([Set(key, encode_partition(changed), entry.version)])
            except (BadVersion, NoKey, OutcomeUnknown):
                continue
            return changed

    async def remove_all(self, topic_id: UUID) -> None:
        """The topic is gone. Whoever else removes them at the same time is welcome to."""
        while True:
            entries = await self._registry.entries(f"{PARTITIONS_KEY}/{topic_id.hex}")
            if not entries:
                return
            for chunk in split_into_commits([Delete(entry.key, entry.version) for entry in entries]):
                try:
                    await self._registry.commit(chunk)
                except (BadVersion, NoKey, OutcomeUnknown):
                    break


def partition_key(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS_KEY}/{topic_id.hex}/{index}"


def parse_partition_key(key: str) -> tuple[UUID, int]:
    try:
        _, _, topic_id, index = key.split("/")
        return UUID(hex=topic_id), int(index)
    except ValueError:
        raise RegistryDamaged(f"The registry's key {key} is not that of a partition") from None


def encode_partition(record: PartitionRecord) -> bytes:
    return _encoder.encode(record)


def decode_partition(entry: RegistryEntry) -> PartitionRecord:
    try:
        return _decoder.decode(entry.value)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error


def create_operations(topic_id: UUID, first: int, records: Sequence[PartitionRecord]) -> list[RegistryOperation]:
    """What creates these partitions, numbered from `first` on."""
    return [
        Create(partition_key(topic_id, index), encode_partition(record))
        for index, record in enumerate(records, start=first)
    ]


def split_into_commits(operations: Sequence[RegistryOperation]) -> Iterator[Sequence[RegistryOperation]]:
    for begin in range(0, len(operations), OPERATIONS_MAX):
        yield operations[begin : begin + OPERATIONS_MAX]
