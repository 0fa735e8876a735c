"""The catalogue: registry and folders agree after every kind of end."""

from __future__ import annotations

import asyncio
import errno
from uuid import UUID

import pytest
from tests.unit.broker.asking import batch, produce, read_all, send
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.broker.catalogue import PARTITIONS_MAX
from headrace.model.errors import (
    HeadraceError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    NotLeader,
    StorageFailure,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.partition_record import PartitionRecord
from headrace.registry.interface import RegistryConflict, RegistryUnavailable
from headrace.registry.topics import TopicRecord, Topics
from headrace.runtime.disk import DiskFull

ALONE = PartitionRecord(replicas=(1,), isr=(1,), leader=1, leader_broker_epoch=1)


def folders(house: House) -> list[str]:
    return house.host.disk.list("/data/logs")


def described(house: House) -> dict[str, int]:
    return {topic.name: len(topic.led) for topic in house.broker.catalogue}


async def test_a_topic_takes_writes_when_create_returns(house: House) -> None:
    await house.make_topic("t", 3)
    for index in range(3):
        assert await produce(house, "t", b"a", partition=index) == 0
    topic = house.broker.catalogue.topic("t")
    assert folders(house) == [f"{topic.id.hex}-{index}" for index in range(3)]


async def test_looking_up(house: House) -> None:
    await house.make_topic("t", 2)
    catalogue = house.broker.catalogue
    topic = catalogue.topic("t")
    assert catalogue.find("t") is catalogue.find_by_id(topic.id) is topic
    assert catalogue.partition("t", 1) is catalogue.partition_by_id(topic.id, 1)
    assert (catalogue.find("x"), catalogue.find_by_id(UUID(int=1)), len(catalogue)) == (None, None, 1)
    for name, index in (("t", 2), ("t", -1), ("x", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            catalogue.partition(name, index)
    for index in (2, -1):
        with pytest.raises(UnknownTopicOrPartition):
            catalogue.partition_by_id(topic.id, index)
    with pytest.raises(UnknownTopicId):
        catalogue.partition_by_id(UUID(int=1), 0)
    with pytest.raises(UnknownTopicOrPartition):
        catalogue.topic("x")


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "error"),
    [
        ("", 1, {}, InvalidTopic),
        ("a/b", 1, {}, InvalidTopic),
        ("..", 1, {}, InvalidTopic),
        ("x" * 250, 1, {}, InvalidTopic),
        ("t", 0, {}, InvalidPartitions),
        ("t", -1, {}, InvalidPartitions),
        ("t", PARTITIONS_MAX + 1, {}, InvalidPartitions),
        ("t", 1, {"no.such": "1"}, InvalidConfig),
        ("t", 1, {"retention.ms": "soon"}, InvalidConfig),
        ("taken", 1, {}, TopicAlreadyExists),
        ("under_score", 1, {}, InvalidTopic),
    ],
)
async def test_what_cannot_be_a_topic_leaves_no_trace(
    house: House, name: str, partitions: int, configs: dict[str, str], error: type[HeadraceError]
) -> None:
    await house.make_topic("taken")
    await house.make_topic("under.score")
    before = folders(house)
    with pytest.raises(error):
        await house.broker.catalogue.create(name, partitions, configs)
    assert folders(house) == before
    assert len(house.broker.catalogue) == 2


async def test_a_dry_run_changes_nothing(house: House) -> None:
    catalogue = house.broker.catalogue
    await catalogue.create("t", 1, {}, dry_run=True)
    assert described(house) == {}
    assert folders(house) == []
    await house.make_topic("t")
    version = catalogue.version
    await catalogue.add_partitions("t", 5, dry_run=True)
    await catalogue.change_configs("t", lambda _: {"retention.ms": "1"}, dry_run=True)
    assert (described(house), catalogue.version) == ({"t": 1}, version)


async def test_two_who_create_the_same_topic_at_once_do_not_both_succeed(house: House) -> None:
    catalogue = house.broker.catalogue
    tasks = [house.host.start(catalogue.create("t", 2, {}), "create") for _ in range(2)]
    assert (await tasks[0]).name == "t"
    with pytest.raises(TopicAlreadyExists):
        await tasks[1]
    assert len(folders(house)) == 2


async def test_everything_is_there_after_a_restart_and_the_epoch_has_grown(house: House) -> None:
    await house.make_topic("t", 2, retention_ms="1234")
    topic_id = house.broker.catalogue.topic("t").id
    assert house.partition("t").leader_epoch == 0
    for start in (1, 2):
        await house.restart()
        topic = house.broker.catalogue.topic("t")
        assert (topic.id, topic.config.retention_ms, topic.partition_count) == (topic_id, 1234, 2)
        assert house.partition("t").leader_epoch == start
    await house.make_topic("young")
    assert house.partition("young").leader_epoch == 0
    house.kill()
    await house.open()
    assert (house.partition("t").leader_epoch, house.partition("young").leader_epoch) == (3, 1)


async def test_a_crash_between_registry_and_folders_is_mended_at_the_next_start(house: House) -> None:
    await house.make_topic("whole")
    record = TopicRecord(name="half", id=UUID(int=77), partitions=3, created_ms=0)
    await Topics(house.registry).create(record, [ALONE] * 3)
    house.kill(keep_page_cache=False)
    await house.open()
    assert described(house) == {"half": 3, "whole": 1}
    assert await produce(house, "half", b"a", partition=2) == 0


async def test_a_crash_between_the_registry_and_the_removal_of_folders_is_mended_too(house: House) -> None:
    await house.make_topic("t", 2)
    await house.make_topic("stays")
    await produce(house, "t", b"a")
    await Topics(house.registry).delete("t", house.broker.catalogue.topic("t").id, 0)
    house.kill()
    await house.open()
    assert described(house) == {"stays": 1}
    assert len(folders(house)) == 1


async def test_partitions_that_were_added_before_a_crash_are_made_at_the_next_start(house: House) -> None:
    await house.make_topic("t")
    await Topics(house.registry).add_partitions("t", house.broker.catalogue.topic("t").id, 4, [ALONE] * 3)
    house.kill(keep_page_cache=False)
    await house.open()
    assert described(house) == {"t": 4}
    assert await produce(house, "t", b"a", partition=3) == 0


async def test_a_deleted_topic_is_gone_with_its_folders(house: House) -> None:
    await house.make_topic("t", 3)
    await house.make_topic("other")
    await house.delete_topic("t")
    assert described(house) == {"other": 1}
    assert len(folders(house)) == 1
    with pytest.raises(UnknownTopicOrPartition):
        await house.broker.catalogue.delete("t")
    await house.restart()
    assert described(house) == {"other": 1}


async def test_a_name_can_be_used_again_and_nothing_of_the_old_topic_shows(house: House) -> None:
    await house.make_topic("t", 2)
    old = house.broker.catalogue.topic("t")
    await produce(house, "t", b"old", producer_id=1, producer_epoch=0, base_sequence=0)
    await house.delete_topic("t")
    await house.make_topic("t")
    assert house.broker.catalogue.topic("t").id != old.id
    assert await read_all(house, "t") == []
    data = batch(b"new", producer_id=1, producer_epoch=0, base_sequence=0)
    assert (await send(house, "t", data)).base_offset == 0
    assert await read_all(house, "t") == [b"new"]


async def test_add_partitions(house: House) -> None:
    await house.make_topic("t", 2)
    catalogue = house.broker.catalogue
    await produce(house, "t", b"a")
    version = catalogue.version
    await catalogue.add_partitions("t", 4)
    assert catalogue.version > version
    assert await produce(house, "t", b"b", partition=3) == 0
    assert await read_all(house, "t") == [b"a"]
    for total in (4, 1, PARTITIONS_MAX + 1):
        with pytest.raises(InvalidPartitions):
            await catalogue.add_partitions("t", total)
    await house.restart()
    assert described(house) == {"t": 4}


async def test_configs_take_effect_at_once_and_stay(house: House) -> None:
    await house.make_topic("t", 2, retention_ms="1000")
    catalogue = house.broker.catalogue
    await catalogue.change_configs("t", lambda old: {**old, "segment.bytes": "5000", "max.message.bytes": "100"})
    partition = house.partition("t", 1)
    assert (partition.config.max_message_bytes, partition.log.config.segment_bytes) == (100, 5000)
    assert (await send(house, "t", batch(b"x" * 100))).error_code == 10
    await catalogue.change_configs("t", lambda _: {"cleanup.policy": "compact"})
    assert partition.log.config.retention_ms == -1, "what is compacted is not dropped by its age"
    with pytest.raises(InvalidConfig):
        await catalogue.change_configs("t", lambda _: {"retention.ms": "x"})
    await house.restart()
    assert dict(house.broker.catalogue.topic("t").record.configs) == {"cleanup.policy": "compact"}


async def test_segments_of_one_topic_need_not_end_at_the_same_time(house: House) -> None:
    await house.make_topic("t", 20, segment_ms="100000", segment_jitter_ms="50000")
    ages = {partition.log.config.segment_ms for partition in house.broker.catalogue.topic("t").led.values()}
    assert len(ages) > 1
    assert all(50_000 <= age <= 100_000 for age in ages)


async def test_a_registry_that_is_away_changes_nothing_and_can_be_tried_again(house: House) -> None:
    await house.make_topic("t")
    catalogue = house.broker.catalogue
    house.registry.unavailable = True
    for change in (
        catalogue.create("new", 1, {}),
        catalogue.delete("t"),
        catalogue.add_partitions("t", 2),
        catalogue.change_configs("t", lambda _: {"retention.ms": "1"}),
    ):
        with pytest.raises(RegistryUnavailable):
            await change
    assert described(house) == {"t": 1}
    assert await produce(house, "t", b"a") == 0
    house.registry.unavailable = False
    await house.make_topic("new")
    await catalogue.add_partitions("t", 2)
    assert described(house) == {"t": 2, "new": 1}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_refuses_a_folder_leaves_the_name_free(house: House, number: int) -> None:
    house.host.disk.fail_next("make", "/data/logs/*", number)
    with pytest.raises((StorageFailure, DiskFull)):
        await house.make_topic("t", 3)
    assert described(house) == {}
    await house.make_topic("t", 3)
    assert described(house) == {"t": 3}
    await house.restart()
    assert described(house) == {"t": 3}
    assert len(folders(house)) == 3


async def test_new_partitions_that_the_disk_refuses_are_tried_again(house: House) -> None:
    await house.make_topic("t")
    house.host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    with pytest.raises(HeadraceError):
        await house.broker.catalogue.add_partitions("t", 3)
    assert described(house) == {"t": 1}
    await house.pass_time(2)
    assert described(house) == {"t": 3}


async def test_defaults_of_the_broker_reach_the_topics_that_do_not_say_otherwise(house: House) -> None:
    await house.restart(log_retention_ms="5000")
    await house.make_topic("plain")
    await house.make_topic("own", retention_ms="7000")
    retentions = {topic.name: topic.config.retention_ms for topic in house.broker.catalogue}
    assert retentions == {"plain": 5000, "own": 7000}


@in_town()
async def test_what_another_broker_leads_is_told_apart_from_what_is_not_there(town: Town) -> None:
    await town.make_topic("t", (1, 2), by=1)
    catalogue = town[3].broker.catalogue
    await town.until(lambda: catalogue.find("t") is not None)
    topic_id = catalogue.topic("t").id
    for node_id in (2, 3):
        with pytest.raises(NotLeader):
            town[node_id].broker.catalogue.partition("t", 0)
    with pytest.raises(NotLeader):
        catalogue.partition_by_id(topic_id, 0)
    with pytest.raises(UnknownTopicOrPartition):
        catalogue.partition("t", 1)
    assert catalogue.leader_node("t", 0) == catalogue.nodes[1]


@in_town()
async def test_two_brokers_that_are_asked_for_the_same_topic_do_not_both_make_it(town: Town) -> None:
    tasks = [
        house.host.start(house.broker.catalogue.create("t", 2, {}), f"create at {house.node_id}") for house in town.up
    ]
    await asyncio.wait(tasks)
    refused = [task.exception() for task in tasks if task.exception() is not None]
    assert [type(error) for error in refused] == [TopicAlreadyExists] * 2
    for index in (0, 1):
        leader = await town.until_led("t", index=index)
        assert await produce(leader, "t", b"a", partition=index) == 0
    await town.until(lambda: all(len(folders(house)) == 2 for house in town.up))


@in_town()
async def test_what_is_changed_at_one_broker_is_seen_by_all(town: Town) -> None:
    await town.make_topic("t", (1, 2, 3))
    await town[2].host.start(
        town[2].broker.catalogue.change_configs("t", lambda _: {"retention.ms": "5"}), "change configs"
    )
    await town[3].host.start(town[3].broker.catalogue.add_partitions("t", 3), "add partitions")
    catalogues = [house.broker.catalogue for house in town.up]
    await town.until(lambda: all(one.topic("t").partition_count == 3 for one in catalogues))
    assert {one.topic("t").config.retention_ms for one in catalogues} == {5}
    await town[1].delete_topic("t")
    await town.until(lambda: not any(one.find("t") for one in catalogues))


@in_town()
async def test_a_growth_that_was_lost_to_another_broker_is_refused(town: Town) -> None:
    await town.make_topic("t")
    first, second = (
        town[node_id].host.start(town[node_id].broker.catalogue.add_partitions("t", 1 + node_id), "grow")
        for node_id in (2, 3)
    )
    await asyncio.wait([first, second])
    refused = [task.exception() for task in (first, second) if task.exception() is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], InvalidPartitions | RegistryConflict)


@in_town()
async def test_new_topics_go_where_the_least_is(town: Town) -> None:
    await town.make_topic("much", *[(1,)] * 6, *[(2,)] * 6)
    await town[2].host.start(town[2].broker.catalogue.create("t", 6, {}, replication=1), "create")
    assert {town.record("t", index).replicas for index in range(6)} == {(3,)}


@in_town()
async def test_a_broker_that_has_just_gone_holds_nothing_of_a_new_topic(town: Town) -> None:
    town[3].kill()
    await town.until(lambda: 3 not in town[1].broker.catalogue.nodes)
    await town[1].host.start(town[1].broker.catalogue.create("t", 3, {}), "create")
    assert {tuple(sorted(town.record("t", index).replicas)) for index in range(3)} == {(1, 2)}


@in_town()
async def test_a_replica_that_is_asked_for_on_a_broker_that_dies_meanwhile_is_not_in_sync(town: Town) -> None:
    town[3].kill()
    await town.make_topic("t", (1, 3), by=1)
    assert await produce(town[1], "t", b"a") == 0
    await town.until_in_sync("t", 1)
    await town.open(3)
    await town.until_in_sync("t")
