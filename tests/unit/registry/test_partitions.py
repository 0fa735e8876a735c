"""The partitions' keys: changed by compare-and-set, made before their topic, removed after it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import pytest
from msgspec.structs import replace

from headrace.model.errors import InvalidPartitions
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.interface import (
    BadVersion,
    Check,
    Create,
    NoKey,
    OutcomeUnknown,
    RegistryConflict,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    Set,
)
from headrace.registry.topics import (
    OPERATIONS_MAX,
    PARTITIONS_KEY,
    TopicRecords,
    change_partition,
    create_operations,
    decode_partition,
    encode_partition,
    parse_partition_key,
    partition_key,
    remove_partitions,
    split_into_commits,
    topic_key,
)
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World

ID = uuid.UUID(int=7)
RECORD = PartitionRecord(replicas=(1, 2), isr=(1,), elr=(2,), leader=1, leader_epoch=4, leader_broker_epoch=3)
MANY = 2 * OPERATIONS_MAX + 1


class BreakingRegistry(SimRegistry):
    """Its connection is lost under the commits with these numbers, before or after they are done."""

    def __init__(self, *, before: AbstractSet[int] = frozenset(), after: AbstractSet[int] = frozenset()) -> None:
        super().__init__()
        self.commits = 0
        self.before, self.after = before, after

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        self.commits += 1
        number = self.commits
        if number in self.before:
            raise OutcomeUnknown("The connection was lost under a commit")
        await super().commit(operations)
        if number in self.after:
            raise OutcomeUnknown("The connection was lost under a commit")


def topic(partitions: int) -> TopicRecord:
    return TopicRecord(name="t", id=ID, partitions=partitions, created_ms=0)


async def indexes(registry: SimRegistry) -> list[int]:
    return sorted(parse_partition_key(entry.key)[1] for entry in await registry.entries(f"{PARTITIONS_KEY}/{ID.hex}"))


def test_keys_and_records_come_back_as_they_were_written() -> None:
    key = partition_key(ID, 17)
    assert parse_partition_key(key) == (ID, 17)
    assert decode_partition(RegistryEntry(key, encode_partition(RECORD), 0)) == RECORD


@pytest.mark.parametrize("key", ["/partitions/x/0", f"/partitions/{ID.hex}", f"/partitions/{ID.hex}/x"])
def test_what_is_no_partition_is_named_as_damage(key: str) -> None:
    with pytest.raises(RegistryDamaged, match=key):
        parse_partition_key(key)
    with pytest.raises(RegistryDamaged, match=key):
        decode_partition(RegistryEntry(key, b"{}", 0))


def test_no_commit_is_larger_than_what_a_registry_takes() -> None:
    sizes = [len(chunk) for chunk in split_into_commits(create_operations(ID, 0, [RECORD] * MANY))]
    assert sizes == [OPERATIONS_MAX, OPERATIONS_MAX, 1]


async def test_a_change_is_decided_again_when_another_was_faster() -> None:
    registry = SimRegistry()
    key = partition_key(ID, 0)
    await registry.commit([Create(key, encode_partition(RECORD))])
    requested: list[PartitionRecord] = []

    def decide(record: PartitionRecord) -> PartitionRecord:
        requested.append(record)
        if len(requested) == 1:  # now another writes
            other = replace(RECORD, isr=(1, 2), elr=())
            registry.state.commit([Set(key, encode_partition(other), 0)], None)
        return replace(record, leader_epoch=record.leader_epoch + 1)

    changed = await change_partition(registry, ID, 0, decide)
    assert requested == [RECORD, replace(RECORD, isr=(1, 2), elr=())]
    assert changed == replace(RECORD, isr=(1, 2), elr=(), leader_epoch=5)


async def test_a_change_that_is_not_wanted_or_of_nothing_writes_nothing() -> None:
    registry = SimRegistry()
    assert await change_partition(registry, ID, 0, lambda record: record) is None
    await registry.commit([Create(partition_key(ID, 0), encode_partition(RECORD))])
    assert await change_partition(registry, ID, 0, lambda _: None) is None
    entry = await registry.get(partition_key(ID, 0))
    assert entry is not None
    assert entry.version == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_change_whose_outcome_is_unknown_is_made_once(when: str) -> None:
    registry = BreakingRegistry(**{when: {2}})
    await registry.commit([Create(partition_key(ID, 0), encode_partition(RECORD))])

    def strike(record: PartitionRecord) -> PartitionRecord | None:
        return None if not record.elr else replace(record, elr=(), leader_epoch=record.leader_epoch + 1)

    await change_partition(registry, ID, 0, strike)
    entry = await registry.get(partition_key(ID, 0))
    assert entry is not None
    assert (decode_partition(entry).leader_epoch, entry.version) == (5, 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_all_partitions_are_removed_also_when_the_connection_breaks_in_the_midst(when: str) -> None:
    registry = BreakingRegistry(**{when: {5}})
    for chunk in split_into_commits(create_operations(ID, 0, [RECORD] * MANY)):
        await registry.commit(chunk)
    other = uuid.UUID(int=8)
    await registry.commit(create_operations(other, 0, [RECORD]))
    await remove_partitions(registry, ID)
    assert await indexes(registry) == []
    assert await registry.get(partition_key(other, 0)) is not None


async def test_a_large_topic_is_seen_only_when_all_its_partitions_are_there() -> None:
    registry = BreakingRegistry(before={3})
    with pytest.raises(RegistryUnavailable):
        await TopicRecords(registry).create(topic(MANY), [RECORD] * MANY)
    assert await registry.get(topic_key("t")) is None
    assert len(await indexes(registry)) == 2 * OPERATIONS_MAX


async def test_a_topic_whose_partitions_were_cleared_away_meanwhile_does_not_come_to_be() -> None:
    class Clearing(SimRegistry):
        async def commit(self, operations: Sequence[RegistryOperation]) -> None:
            if any(isinstance(operation, Check) for operation in operations):
                await remove_partitions(SimRegistry(self.state), ID)
            await super().commit(operations)

    registry = Clearing()
    with pytest.raises(NoKey):
        await TopicRecords(registry).create(topic(MANY), [RECORD] * MANY)
    assert await registry.get(topic_key("t")) is None


async def test_orphaned_partitions_are_removed_and_those_of_a_topic_that_exists_are_not() -> None:
    registry = SimRegistry()
    await TopicRecords(registry).create(topic(2), [RECORD] * 2)
    orphan = uuid.UUID(int=8)
    await registry.commit(create_operations(orphan, 0, [RECORD]))
    await TopicRecords(registry).remove_orphaned_partitions([ID, orphan])
    assert await indexes(registry) == [0, 1]
    assert await registry.get(partition_key(orphan, 0)) is None


@pytest.mark.parametrize("seed", range(30))
def test_a_topic_that_is_created_while_orphans_are_removed_has_all_its_partitions_or_does_not_exist(seed: int) -> None:
    async def race() -> None:
        state = SimRegistryEnsemble(seed)
        state.delay_seconds = (0.001, 0.01)
        registry = SimRegistry(state)

        async def create() -> None:
            with suppress(RegistryConflict):
                await TopicRecords(SimRegistry(state)).create(topic(MANY), [RECORD] * MANY)

        async def remove() -> None:
            await asyncio.sleep(0.005 + 0.001 * seed)
            with suppress(RegistryConflict):
                await TopicRecords(SimRegistry(state)).remove_orphaned_partitions([ID])

        async with asyncio.TaskGroup() as group:
            group.create_task(create())
            group.create_task(remove())
        if await registry.get(topic_key("t")) is not None:
            assert len(await indexes(registry)) == MANY

    World(seed=seed).run(race())


async def test_what_a_growth_that_was_cut_off_left_behind_is_replaced() -> None:
    registry = BreakingRegistry(before={3})
    topics = TopicRecords(registry)
    await topics.create(topic(1), [RECORD])
    with pytest.raises(RegistryUnavailable):
        await topics.add_partitions("t", ID, MANY + 1, [RECORD] * MANY)
    assert len(await indexes(registry)) == OPERATIONS_MAX + 1
    elsewhere = replace(RECORD, replicas=(2, 3), isr=(2, 3), leader=2)
    await topics.add_partitions("t", ID, MANY, [elsewhere] * (MANY - 1))
    assert await indexes(registry) == list(range(MANY))
    (record,) = await topics.load()
    assert record.partitions == MANY
    entry = await registry.get(partition_key(ID, 1))
    assert entry is not None
    assert decode_partition(entry) == elsewhere


async def test_two_who_grow_a_topic_at_once_do_not_take_its_partitions_away() -> None:
    registry = SimRegistry()
    await TopicRecords(registry).create(topic(1), [RECORD])
    growing = [
        asyncio.create_task(TopicRecords(SimRegistry(registry.state)).add_partitions("t", ID, 3, [RECORD] * 2))
        for _ in range(2)
    ]
    await asyncio.wait(growing)
    assert [type(task.exception()) for task in growing] == [type(None), BadVersion]
    assert await indexes(registry) == [0, 1, 2]


async def test_partitions_are_added_behind_those_that_are_there() -> None:
    registry = SimRegistry()
    topics = TopicRecords(registry)
    await topics.create(topic(2), [RECORD] * 2)
    with pytest.raises(InvalidPartitions):
        await topics.add_partitions("t", ID, 4, [RECORD])
    await topics.add_partitions("t", ID, 3, [RECORD])
    assert await indexes(registry) == [0, 1, 2]
