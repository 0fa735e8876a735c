"""Companions: made once, where their owner is, and gone when it is gone, whoever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.asking import produce
from tests.unit.broker.house import House
from tests.unit.broker.places import Places
from tests.unit.broker.town import Town, in_town
from tests.unit.broker.trio import ClusterHouse

from headrace.broker.catalogue import Topic
from headrace.machines.leadership import elected
from headrace.machines.reassignment import begin
from headrace.model.errors import InvalidTopic, UnknownTopicOrPartition
from headrace.model.names import ACKS_PREFIX, DELAYED_PREFIX, TOPIC_NAME_LENGTH_MAX
from headrace.model.partition_record import PartitionRecord
from headrace.registry.brokers import drain
from headrace.registry.interface import Create, Delete, Operation, RegistryUnavailable
from headrace.registry.topics import Topics, topic_key
from headrace.testkit.registry import SimRegistry
from headrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

ACKS, DELAYED = "__acks.t", "__delayed.t"


def ensuring(house: House, topic: str = "t", prefix: str = ACKS_PREFIX) -> asyncio.Task[Topic]:
    return house.host.start(house.broker.catalogue.ensure_companion(topic, prefix), "ensure a companion")


def topics(house: House) -> set[str]:
    return {topic.name for topic in house.broker.catalogue}


def place(record: PartitionRecord) -> tuple[tuple[int, ...], int]:
    return record.replicas, record.leader


async def until_together(town: Town, index: int = 0) -> None:
    await town.until(lambda: place(town.record(ACKS, index)) == place(town.record("t", index)))


async def metadata(house: House, *names: str) -> dict[str, int]:
    asked = [MetadataRequestTopic(name=name) for name in names]
    response = await house.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 13)
    return {topic.name: topic.error_code for topic in response.topics}


# Making


async def test_it_takes_writes_when_it_is_made_and_is_made_once(house: House) -> None:
    await house.make_topic("t", 3, min_insync_replicas="2")
    made = await ensuring(house)
    assert (made.name, made.partition_count, len(made.led)) == (ACKS, 3, 3)
    assert made.is_companion
    assert made.is_internal
    assert await ensuring(house) is made
    assert made.config.retention_ms == 24 * 3_600_000
    assert (made.config.min_insync_replicas, made.config.flush_messages, made.config.segment_bytes) == (2, 1, 2**26)
    delayed = await ensuring(house, prefix=DELAYED_PREFIX)
    assert (delayed.name, delayed.config.retention_ms) == (DELAYED, -1)
    assert house.broker.catalogue.companions.of(house.broker.catalogue.topic("t")) == [made, delayed]
    await house.restart()
    assert len(house.broker.catalogue.topic(ACKS).led) == 3


async def test_only_topics_of_users_have_companions(house: House) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await ensuring(house)
    await house.make_topic("t")
    await ensuring(house)
    with pytest.raises(InvalidTopic):
        await ensuring(house, ACKS)


async def test_it_may_be_longer_than_a_topic_and_look_like_another(house: House) -> None:
    longest = "x" * TOPIC_NAME_LENGTH_MAX
    for name in (longest, "a.b"):
        await house.make_topic(name)
        await ensuring(house, name)
    assert await metadata(house, ACKS_PREFIX + longest) == {ACKS_PREFIX + longest: 0}
    await house.make_topic("__acks_a.b")  # as metrics see it, the companion's name


async def test_at_least_as_many_replicas_are_wanted_as_for_its_owner_also_later(house: House) -> None:
    await house.make_topic("t")
    made = await ensuring(house)
    for configs, wanted in (({"min.insync.replicas": "3"}, 3), ({}, 1)):
        await house.broker.catalogue.change_configs("t", lambda _, configs=configs: configs)  # type: ignore[misc]
        assert made.config.min_insync_replicas == wanted
    assert made.config.retention_ms == 24 * 3_600_000, "the rest is its own"


async def test_a_client_has_the_delayed_one_made_by_asking_for_it(house: House) -> None:
    await house.make_topic("t", 2)
    assert await metadata(house, DELAYED, ACKS, "__delayed.none", "__delayed.") == {
        DELAYED: 0,
        ACKS: 3,
        "__delayed.none": 3,
        "__delayed.": 3,
    }
    assert topics(house) == {"t", DELAYED}


async def test_clients_neither_make_nor_change_nor_delete_it(house: House) -> None:
    await house.make_topic("t")
    creating = CreateTopicsRequest(topics=[CreatableTopic(name=ACKS, num_partitions=1, replication_factor=1)])
    assert (await house.ask(creating, 7)).topics[0].error_code == InvalidTopic.code
    await ensuring(house)
    growing = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=ACKS, count=5)])
    assert (await house.ask(growing, 3)).results[0].error_code == InvalidTopic.code
    deleting = DeleteTopicsRequest(topics=[DeleteTopicState(name=ACKS)])
    assert (await house.ask(deleting, 6)).responses[0].error_code == InvalidTopic.code
    assert topics(house) == {"t", ACKS}


@in_town()
async def test_many_who_need_it_at_once_get_the_same_one(town: Town) -> None:
    await town.make_topic("t", (1, 2), (2, 3), (3, 1))
    await town.until(lambda: all("t" in topics(house) for house in town.up))
    made = [await task for task in [ensuring(house) for house in town.up]]
    assert len({topic.id for topic in made}) == 1
    for index in range(3):
        assert place(town.record(ACKS, index)) == place(town.record("t", index))
        await town.until_led(ACKS, index=index)


@in_town()
async def test_one_that_is_made_while_its_owner_grows_is_not_too_small(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await town.until(lambda: all("t" in topics(house) for house in town.up))
    for house in town.up:
        tasks: list[asyncio.Task[Any]] = [
            ensuring(house, prefix=ACKS_PREFIX),
            ensuring(house, prefix=DELAYED_PREFIX),
        ]
        count = town[1].broker.catalogue.topic("t").partition_count
        tasks.append(town[1].host.start(town[1].broker.catalogue.add_partitions("t", count + 2), "grow"))
        await asyncio.wait(tasks)
        for name in (ACKS, DELAYED):
            await town.until(lambda name=name, count=count: _count(town, name) == count + 2)  # type: ignore[misc]


def _count(town: Town, name: str) -> int:
    return len(next(town.up).broker.catalogue.topic(name).places)


@in_town()
async def test_it_grows_with_its_owner_and_is_led_where_that_is(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await ensuring(town[1])
    await town[3].host.start(town[3].broker.catalogue.add_partitions("t", 4), "grow")
    assert town[3].broker.catalogue.topic(ACKS).partition_count == 4
    for index in range(4):
        assert place(town.record(ACKS, index)) == place(town.record("t", index))


@in_town()
async def test_one_whose_growth_was_cut_off_is_grown_by_the_controller(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await ensuring(town[1])
    topic = town[1].broker.catalogue.topic("t")
    await Topics(town[1].registry).add_partitions("t", topic.id, 2, [town.record("t")])
    await town.until(lambda: _count(town, ACKS) == 2)
    await town.until_led(ACKS, 1, index=1)


# Going


async def test_it_goes_with_its_owner(house: House) -> None:
    await house.make_topic("t", 2)
    await ensuring(house)
    await ensuring(house, prefix=DELAYED_PREFIX)
    await house.delete_topic("t")
    assert topics(house) == set()
    assert house.host.disk.list("/data/logs") == []


async def test_a_namesake_of_its_owner_begins_with_nothing(house: House) -> None:
    await house.make_topic("t")
    old = await ensuring(house)
    await house.delete_topic("t")
    await house.make_topic("t")
    assert house.broker.catalogue.companions.find("t", ACKS_PREFIX) is None
    assert (await ensuring(house)).id != old.id


class CutOff:
    """The broker dies in the midst of a delete: its owner is gone, the companions are not."""

    def __init__(self, house: ClusterHouse) -> None:
        self._house = house
        self._commit = house.registry.commit
        house.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[Operation]) -> None:
        if any(isinstance(one, Delete) and one.key in (topic_key(ACKS), topic_key(DELAYED)) for one in operations):
            raise RegistryUnavailable("it is dying")
        await self._commit(operations)


@in_town()
async def test_one_that_is_left_over_is_removed_by_the_controller(town: Town) -> None:
    await town.make_topic("t", by=1)
    await ensuring(town[1])
    cut_off = [CutOff(house) for house in town.up]
    with pytest.raises(RegistryUnavailable):
        await town[1].delete_topic("t")
    assert ACKS in topics(town[1])
    town[1].kill()
    for house, one in zip(town.houses.values(), cut_off, strict=True):
        house.registry.commit = one._commit  # type: ignore[method-assign]
    await town.until(lambda: all(topics(house) == set() for house in town.up))
    await town.until(lambda: all(house.host.disk.list("/data/logs") == [] for house in town.up))
    await town.open(1)
    await town.until(lambda: topics(town[1]) == set())


@in_town()
async def test_one_that_is_left_over_is_not_taken_for_that_of_a_namesake(town: Town) -> None:
    await town.make_topic("t", by=1)
    old = await ensuring(town[1])
    for house in town.up:
        CutOff(house)
    with pytest.raises(RegistryUnavailable):
        await town[1].delete_topic("t")
    record = town[1].broker.catalogue.topic(ACKS).record
    with pytest.raises(RegistryUnavailable):
        await town.make_topic("t", by=2)  # which first removes what is left of the old
    assert record.id == old.id
    assert town[1].broker.catalogue.companions.find("t", ACKS_PREFIX) is None
    with pytest.raises(UnknownTopicOrPartition):
        await ensuring(town[1])


class Overtaken:
    """Just before this broker makes a companion, another deletes its owner."""

    def __init__(self, town: Town, house: ClusterHouse) -> None:
        self._town = town
        self._owner_id = house.broker.catalogue.topic("t").id
        self._commit = house.registry.commit
        house.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[Operation]) -> None:
        if any(isinstance(one, Create) and one.key == topic_key(ACKS) for one in operations):
            await Topics(SimRegistry(self._town.truth)).delete("t", self._owner_id, 0)
        await self._commit(operations)


@in_town()
async def test_none_is_made_for_an_owner_that_has_just_gone(town: Town) -> None:
    await town.make_topic("t", by=1)
    Overtaken(town, town[1])
    with pytest.raises(UnknownTopicOrPartition):
        await ensuring(town[1])
    assert topic_key(ACKS) not in town.truth.entries


async def test_one_of_a_namesake_is_replaced_by_whoever_needs_its_own() -> None:
    places = Places(1)
    alone = PartitionRecord(replicas=(1,), isr=(1,), leader=1, leader_broker_epoch=1)
    await places.add("t", alone)
    await places.add(ACKS, alone, owner=UUID(int=99))
    old = places.catalogue.topic(ACKS)
    made = await places.catalogue.ensure_companion("t", ACKS_PREFIX)
    assert made.id != old.id
    assert made.record.owner == places.catalogue.topic("t").id


# Staying with its owner


@in_town(4, leader_imbalance_check_interval_seconds="5")
async def test_it_follows_its_owners_leader(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3))
    await ensuring(town[1])
    await town.until_in_sync(ACKS)
    town[1].kill()
    leader = await town.until_led("t")
    await town.until_led(ACKS, leader.node_id)
    await town.open(1)
    await town.until_led("t", 1)
    await town.until_led(ACKS, 1)
    await town.change(ACKS, lambda record: elected(record, town[1].broker.catalogue.nodes[3]))
    await town.until_led(ACKS, 1)


@in_town(4)
async def test_it_moves_with_its_owner(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await ensuring(town[1])
    await produce(town[1], "t", b"a")
    town.isolate(4)
    await town.change("t", lambda record: begin(record, (3, 4)))
    await town.until(lambda: 3 in town.record("t").isr and 3 in town.record(ACKS).isr)
    await asyncio.sleep(3)
    assert place(town.record(ACKS)) == place(town.record("t")) == ((3, 4, 1, 2), 1)
    town.heal()
    for name in ("t", ACKS):
        await town.until(lambda name=name: place(town.record(name)) == ((3, 4), 3))  # type: ignore[misc]
    await town.until(lambda: town[1].host.disk.list("/data/logs") == [])


@in_town(4)
async def test_it_leaves_a_drained_broker_with_its_owner(town: Town) -> None:
    await town.make_topic("t", (1, 2), (2, 1), (1, 3))
    await ensuring(town[1])
    await drain(SimRegistry(town.truth), 1, is_drained=True)
    await town.until(lambda: not any(1 in town.record(ACKS, index).replicas for index in range(3)))
    for index in range(3):
        await until_together(town, index)
    await town.until(lambda: town[1].host.disk.list("/data/logs") == [])


@in_town()
async def test_a_topic_with_companions_weighs_as_much_as_one_without(town: Town) -> None:
    await town.make_topic("heavy", (1,))
    for prefix in (ACKS_PREFIX, DELAYED_PREFIX):
        await ensuring(town[1], "heavy", prefix)
    await town.make_topic("light", (2,), (2,), (3,), (3,))
    made = await town[1].host.start(town[1].broker.catalogue.create("t", 1, {}, replication=1), "create")
    assert made.places[0].leader == 1
