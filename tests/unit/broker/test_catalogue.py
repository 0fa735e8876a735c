"""The catalogue: registry and folders agree after every kind of end."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest
from tests.unit.broker.asking import batch, produce, read_all, send
from tests.unit.broker.house import House

from headrace.broker.catalogue import PARTITIONS_MAX
from headrace.model.errors import (
    HeadraceError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    StorageFailure,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.registry.interface import RegistryUnavailable
from headrace.registry.topics import TopicRecord, Topics
from headrace.runtime.disk import DiskFull


def folders(house: House) -> list[str]:
    return house.host.disk.list("/data/logs")


def described(house: House) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in house.broker.catalogue}


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
        assert (topic.id, topic.config.retention_ms, len(topic.partitions)) == (topic_id, 1234, 2)
        assert house.partition("t").leader_epoch == start
    await house.make_topic("young")
    assert house.partition("young").leader_epoch == 0
    house.kill()
    await house.open()
    assert (house.partition("t").leader_epoch, house.partition("young").leader_epoch) == (3, 1)


async def test_a_crash_between_registry_and_folders_is_mended_at_the_next_start(house: House) -> None:
    await house.make_topic("whole")
    record = TopicRecord(name="half", id=UUID(int=77), partitions=3, created_ms=0, created_epoch=1)
    await Topics(house.registry).create(record)
    house.kill(keep_page_cache=False)
    await house.open()
    assert described(house) == {"half": 3, "whole": 1}
    assert await produce(house, "half", b"a", partition=2) == 0


async def test_a_crash_between_the_registry_and_the_removal_of_folders_is_mended_too(house: House) -> None:
    await house.make_topic("t", 2)
    await house.make_topic("stays")
    await produce(house, "t", b"a")
    await Topics(house.registry).delete("t", house.broker.catalogue.topic("t").id)
    house.kill()
    await house.open()
    assert described(house) == {"stays": 1}
    assert len(folders(house)) == 1


async def test_partitions_that_were_added_before_a_crash_are_made_at_the_next_start(house: House) -> None:
    await house.make_topic("t")
    await Topics(house.registry).add_partitions("t", house.broker.catalogue.topic("t").id, 4)
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
    ages = {partition.log.config.segment_ms for partition in house.broker.catalogue.topic("t").partitions}
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


async def test_a_disk_that_refuses_new_partitions_can_be_asked_again(house: House) -> None:
    await house.make_topic("t")
    house.host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    with pytest.raises(HeadraceError):
        await house.broker.catalogue.add_partitions("t", 3)
    assert described(house) == {"t": 1}
    await house.broker.catalogue.add_partitions("t", 3)
    assert described(house) == {"t": 3}


async def test_defaults_of_the_broker_reach_the_topics_that_do_not_say_otherwise(house: House) -> None:
    await house.restart(log_retention_ms="5000")
    await house.make_topic("plain")
    await house.make_topic("own", retention_ms="7000")
    retentions = {topic.name: topic.config.retention_ms for topic in house.broker.catalogue}
    assert retentions == {"plain": 5000, "own": 7000}
