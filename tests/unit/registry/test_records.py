"""Topics, counters, producer ids and identities, on the simulated registry."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random

import pytest

from headrace.model.errors import (
    InvalidPartitions,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.brokers import cluster_id
from headrace.registry.configs import load_broker_configs, store_broker_configs
from headrace.registry.counters import BLOCK_SIZE, ProducerIds, advance_counter, gap_of_start
from headrace.registry.interface import (
    Create,
    RegistryDamaged,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    Set,
)
from headrace.registry.topics import TopicRecords
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble


class FixedEntropy:
    """Only `uuid` is asked of it here."""

    def __init__(self) -> None:
        self._random = Random(1)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def token(self, size: int) -> str:
        raise NotImplementedError

    def uniform(self, low: float, high: float) -> float:
        raise NotImplementedError

    def integer(self, low: int, high: int) -> int:
        raise NotImplementedError


def orders(**changes: object) -> TopicRecord:
    values = {"name": "orders", "id": uuid.UUID(int=7), "partitions": 4, "created_ms": 1_700_000_000_000}
    return TopicRecord(**{**values, **changes})  # type: ignore[arg-type]


def placed(count: int) -> list[PartitionRecord]:
    return [PartitionRecord(replicas=(1,), isr=(1,))] * count


async def test_a_created_topic_is_loaded_as_it_was_given() -> None:
    state = SimRegistryEnsemble()
    record = orders(configs={"retention.ms": "1000"})
    await TopicRecords(SimRegistry(state)).create(record, placed(4))
    assert await TopicRecords(SimRegistry(state)).load() == [record]


async def test_topics_are_loaded_sorted_by_name() -> None:
    topics = TopicRecords(SimRegistry())
    for name in ("b", "a.x", "a", "c-d"):
        await topics.create(orders(name=name, id=uuid.uuid5(uuid.NAMESPACE_DNS, name)), placed(4))
    assert [record.name for record in await topics.load()] == ["a", "a.x", "b", "c-d"]


async def test_a_name_that_exists_is_refused() -> None:
    topics = TopicRecords(SimRegistry())
    await topics.create(orders(), placed(4))
    with pytest.raises(TopicAlreadyExists, match="'orders' already exists"):
        await topics.create(orders(id=uuid.UUID(int=8)), placed(4))
    assert await topics.load() == [orders()]


async def test_a_deleted_topic_is_gone_and_its_name_free() -> None:
    topics = TopicRecords(SimRegistry())
    await topics.create(orders(), placed(4))
    await topics.delete("orders", uuid.UUID(int=7), 0)
    assert await topics.load() == []
    await topics.create(orders(id=uuid.UUID(int=8)), placed(4))


async def test_a_change_meant_for_a_predecessor_of_the_same_name_is_refused() -> None:
    topics = TopicRecords(SimRegistry())
    await topics.create(orders(), placed(4))
    with pytest.raises(UnknownTopicId):
        await topics.delete("orders", uuid.UUID(int=1), 0)
    with pytest.raises(UnknownTopicId):
        await topics.add_partitions("orders", uuid.UUID(int=1), 9, placed(5))
    assert await topics.load() == [orders()]


async def test_a_topic_that_does_not_exist_cannot_be_changed() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic orders does not exist"):
        await TopicRecords(SimRegistry()).delete("orders", uuid.UUID(int=7), 0)


async def test_a_topic_grows_and_never_shrinks() -> None:
    topics = TopicRecords(SimRegistry())
    await topics.create(orders(), placed(4))
    await topics.add_partitions("orders", uuid.UUID(int=7), 6, placed(2))
    for total in (6, 5):
        with pytest.raises(InvalidPartitions, match="would not be an increase"):
            await topics.add_partitions("orders", uuid.UUID(int=7), total, placed(2))
    assert await topics.load() == [orders(partitions=6, growths=(4,))]


async def test_changes_of_configs_at_the_same_time_are_all_kept() -> None:
    topics = TopicRecords(SimRegistry())
    await topics.create(orders(), placed(4))

    async def set_one(number: int) -> None:
        def change(configs: Mapping[str, str]) -> Mapping[str, str]:
            return {**configs, f"name.{number}": "x"}

        await topics.change_configs("orders", uuid.UUID(int=7), change)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(set_one(number))
    (record,) = await topics.load()
    assert len(record.configs) == 10


async def test_a_topic_record_that_cannot_be_read_is_named() -> None:
    registry = SimRegistry()
    await registry.commit([Create("/topics/orders", b"{nonsense")])
    with pytest.raises(RegistryDamaged, match="/topics/orders"):
        await TopicRecords(registry).load()


async def test_a_counter_never_gives_a_number_twice() -> None:
    registry = SimRegistry()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(advance_counter(registry, "/n")) for _ in range(30)]
    assert sorted(task.result() for task in tasks) == list(range(30))


async def test_producer_ids_are_never_handed_out_twice_not_even_after_a_crash() -> None:
    state = SimRegistryEnsemble()
    given: list[int] = []
    for _ in range(3):
        registry = SimRegistry(state)
        producer_ids = ProducerIds(registry)
        given += [await producer_ids.next() for _ in range(BLOCK_SIZE // 2 + 1)]
        registry.crash()
    assert len(set(given)) == len(given)
    assert given == sorted(given)


async def test_two_brokers_draw_their_producer_ids_from_different_blocks() -> None:
    state = SimRegistryEnsemble()
    one, other = ProducerIds(SimRegistry(state)), ProducerIds(SimRegistry(state))

    async def draw(producer_ids: ProducerIds) -> list[int]:
        return [await producer_ids.next() for _ in range(BLOCK_SIZE + 1)]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(draw(producer_ids)) for producer_ids in (one, other, one)]
    given = [producer_id for task in tasks for producer_id in task.result()]
    assert len(set(given)) == 3 * (BLOCK_SIZE + 1)


async def test_a_block_of_producer_ids_costs_one_commit() -> None:
    registry = SimRegistry()
    producer_ids = ProducerIds(registry)
    for _ in range(BLOCK_SIZE):
        await producer_ids.next()
    entry = await registry.get("/producer-ids")
    assert entry is not None
    assert entry.version == 0


async def test_thousands_of_producers_get_ids_while_the_registry_is_unavailable() -> None:
    registry = SimRegistry()
    producer_ids = ProducerIds(registry)
    reserving = asyncio.create_task(producer_ids.keep_reserve())
    given = [await producer_ids.next() for _ in range(BLOCK_SIZE - BLOCK_SIZE // 2)]
    await reached(registry, 2 * BLOCK_SIZE)
    registry.unavailable = True
    given += [await producer_ids.next() for _ in range(BLOCK_SIZE + BLOCK_SIZE // 2)]
    assert given == list(range(2 * BLOCK_SIZE))
    with pytest.raises(RegistryUnavailable):
        await producer_ids.next()
    reserving.cancel()


async def test_a_reservation_that_failed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.registry.counters._RETRY_SECONDS", 0)
    registry = SimRegistry()
    producer_ids = ProducerIds(registry)
    await producer_ids.next()
    registry.unavailable = True
    reserving = asyncio.create_task(producer_ids.keep_reserve())
    for _ in range(BLOCK_SIZE // 2):
        await producer_ids.next()
        await asyncio.sleep(0)
    assert not reserving.done()
    registry.unavailable = False
    await reached(registry, 2 * BLOCK_SIZE)
    reserving.cancel()


async def reached(registry: SimRegistry, allocated: int) -> None:
    """Return when so many producer ids have been allocated, and the task that allocated them has seen that."""
    while True:
        entry = await registry.get("/producer-ids")
        if entry is not None and int(entry.value) >= allocated:
            break
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_cluster_id_is_made_once() -> None:
    registry, entropy = SimRegistry(), FixedEntropy()
    first = await cluster_id(registry, entropy)
    assert uuid.UUID(bytes=base64.urlsafe_b64decode(first + "==")).version == 4
    assert await cluster_id(registry, entropy) == first


async def test_altered_broker_configs_are_kept() -> None:
    registry = SimRegistry()
    assert await load_broker_configs(registry) == {}
    await store_broker_configs(registry, {"log.retention.ms": "5"})
    await store_broker_configs(registry, {"log.retention.ms": "6"})
    assert await load_broker_configs(registry) == {"log.retention.ms": "6"}


async def test_a_dead_letter_topic_is_deleted_with_the_topic_it_was_created_for_and_with_no_other() -> None:
    registry = SimRegistry()
    topics = TopicRecords(registry)
    await topics.create(orders(), placed(4))
    letters = orders(name="orders.dlq", id=uuid.UUID(int=8), partitions=1, dead_letters_of=uuid.UUID(int=7))
    await topics.create(letters, placed(1))
    await topics.create(orders(name="other.dlq", id=uuid.UUID(int=9), partitions=1), placed(1))
    await topics.create(orders(name="other", id=uuid.UUID(int=10)), placed(4))
    assert [record.name for record in await topics.delete("orders", uuid.UUID(int=7), 0)] == ["orders", "orders.dlq"]
    assert [record.name for record in await topics.delete("other", uuid.UUID(int=10), 0)] == ["other"]
    assert [record.name for record in await topics.load()] == ["other.dlq"]
    ids = {uuid.UUID(int=number) for number in (7, 8, 9, 10)}
    assert await topics.deleted(ids) == ids - {uuid.UUID(int=9)}


async def test_a_dead_letter_topic_that_is_created_while_its_topic_is_deleted_does_not_stay() -> None:
    """Whichever commit comes first, at every point of the deletion at which the other may come."""
    letters = orders(name="orders.dlq", id=uuid.UUID(int=8), partitions=1, dead_letters_of=uuid.UUID(int=7))
    for calls_before in range(4):
        registry = SimRegistry()
        topics = TopicRecords(registry)
        await topics.create(orders(), placed(4))
        entry = await registry.get("/topics/orders")
        assert entry is not None
        touch = Set(entry.key, entry.value, entry.version)
        create = partial(topics.create, letters, placed(1), together_with=touch)
        interrupted = _Interrupted(registry, calls_before, create)
        await TopicRecords(interrupted).delete("orders", uuid.UUID(int=7), 0)  # type: ignore[arg-type]
        assert interrupted.calls >= calls_before
        assert await topics.load() == []


class _Interrupted:
    """A registry that runs a concurrent change before one of the calls."""

    def __init__(self, registry: SimRegistry, calls_before: int, wake_up: Callable[[], Awaitable[None]]) -> None:
        self._registry = registry
        self._calls_before = calls_before
        self._interrupt = wake_up
        self.calls = 0

    async def get(self, key: str) -> RegistryEntry | None:
        await self._count()
        return await self._registry.get(key)

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        await self._count()
        await self._registry.commit(operations)

    async def _count(self) -> None:
        if self.calls == self._calls_before:
            await self._interrupt()
        self.calls += 1


async def test_producer_ids_of_two_starts_on_the_same_older_registry_differ() -> None:
    """Each continues the same counter, and knows nothing of the other."""
    starts = [(node_id, epoch) for node_id in (1, 2, 3) for epoch in range(1, 40)]
    given = set[int]()
    for node_id, epoch in starts:
        ids = ProducerIds(SimRegistry(SimRegistryEnsemble()), first_gap=gap_of_start("cluster", node_id, epoch))
        given |= {await ids.next() for _ in range(1001)}
    assert len(given) == 1001 * len(starts)
