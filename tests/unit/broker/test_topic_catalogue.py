"""The catalogue: registry and folders agree after every kind of shutdown and crash."""

from __future__ import annotations

import asyncio
import errno
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import batch, produce, read_all, send
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.topic_catalogue import PARTITIONS_MAX
from headrace.model.errors import (
    HeadraceError,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    MessageTooLarge,
    NotLeader,
    StorageFailure,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import PartitionRecord, TopicRecord
from headrace.registry.interface import RegistryConflict, RegistryUnavailable
from headrace.registry.topics import TopicRecords
from headrace.runtime.disk import DiskFull

ALONE = PartitionRecord(replicas=(1,), isr=(1,), leader=1, leader_broker_epoch=1)


def folders(simulated_broker: SimulatedBroker) -> list[str]:
    return simulated_broker.host.disk.list("/data/logs")


def described(simulated_broker: SimulatedBroker) -> dict[str, int]:
    return {topic.name: len(topic.led) for topic in simulated_broker.broker.catalogue}


async def test_a_topic_accepts_writes_when_create_returns(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 3)
    for index in range(3):
        assert await produce(simulated_broker, "t", b"a", partition=index) == 0
    topic = simulated_broker.broker.catalogue.topic("t")
    assert folders(simulated_broker) == [f"{topic.id.hex}-{index}" for index in range(3)]


async def test_topics_and_partitions_are_found_by_name_and_index(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    catalogue = simulated_broker.broker.catalogue
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
async def test_a_rejected_topic_leaves_no_trace(
    simulated_broker: SimulatedBroker, name: str, partitions: int, configs: dict[str, str], error: type[HeadraceError]
) -> None:
    await simulated_broker.create_topic("taken")
    await simulated_broker.create_topic("under.score")
    before = folders(simulated_broker)
    with pytest.raises(error):
        await simulated_broker.broker.catalogue.create(name, partitions, configs)
    assert folders(simulated_broker) == before
    assert len(simulated_broker.broker.catalogue) == 2


async def test_a_dry_run_changes_nothing(simulated_broker: SimulatedBroker) -> None:
    catalogue = simulated_broker.broker.catalogue
    await catalogue.create("t", 1, {}, dry_run=True)
    assert described(simulated_broker) == {}
    assert folders(simulated_broker) == []
    await simulated_broker.create_topic("t")
    version = catalogue.version
    await catalogue.add_partitions("t", 5, dry_run=True)
    await catalogue.change_configs("t", lambda _: {"retention.ms": "1"}, dry_run=True)
    assert (described(simulated_broker), catalogue.version) == ({"t": 1}, version)


async def test_of_two_concurrent_creations_of_a_topic_one_fails(simulated_broker: SimulatedBroker) -> None:
    catalogue = simulated_broker.broker.catalogue
    tasks = [simulated_broker.host.start(catalogue.create("t", 2, {}), "create") for _ in range(2)]
    assert (await tasks[0]).name == "t"
    with pytest.raises(TopicAlreadyExists):
        await tasks[1]
    assert len(folders(simulated_broker)) == 2


async def test_topics_survive_a_restart_with_a_higher_epoch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2, retention_ms="1234")
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    assert simulated_broker.partition("t").leader_epoch == 0
    for start in (1, 2):
        await simulated_broker.restart()
        topic = simulated_broker.broker.catalogue.topic("t")
        assert (topic.id, topic.config.retention_ms, topic.partition_count) == (topic_id, 1234, 2)
        assert simulated_broker.partition("t").leader_epoch == start
    await simulated_broker.create_topic("young")
    assert simulated_broker.partition("young").leader_epoch == 0
    simulated_broker.kill()
    await simulated_broker.open()
    assert (simulated_broker.partition("t").leader_epoch, simulated_broker.partition("young").leader_epoch) == (3, 1)


async def test_a_crash_between_registry_and_folders_is_mended_at_the_next_start(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("whole")
    record = TopicRecord(name="half", id=UUID(int=77), partitions=3, created_ms=0)
    await TopicRecords(simulated_broker.registry).create(record, [ALONE] * 3)
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert described(simulated_broker) == {"half": 3, "whole": 1}
    assert await produce(simulated_broker, "half", b"a", partition=2) == 0


async def test_a_crash_between_the_registry_and_the_removal_of_folders_is_mended_too(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 2)
    await simulated_broker.create_topic("stays")
    await produce(simulated_broker, "t", b"a")
    await TopicRecords(simulated_broker.registry).delete("t", simulated_broker.broker.catalogue.topic("t").id, 0)
    simulated_broker.kill()
    await simulated_broker.open()
    assert described(simulated_broker) == {"stays": 1}
    assert len(folders(simulated_broker)) == 1


async def test_partitions_added_before_a_crash_are_created_at_the_next_start(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await TopicRecords(simulated_broker.registry).add_partitions(
        "t", simulated_broker.broker.catalogue.topic("t").id, 4, [ALONE] * 3
    )
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert described(simulated_broker) == {"t": 4}
    assert await produce(simulated_broker, "t", b"a", partition=3) == 0


async def test_deleting_a_topic_removes_its_folders(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 3)
    await simulated_broker.create_topic("other")
    await simulated_broker.delete_topic("t")
    assert described(simulated_broker) == {"other": 1}
    assert len(folders(simulated_broker)) == 1
    with pytest.raises(UnknownTopicOrPartition):
        await simulated_broker.broker.catalogue.delete("t")
    await simulated_broker.restart()
    assert described(simulated_broker) == {"other": 1}


async def test_a_reused_name_shows_nothing_of_the_old_topic(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    old = simulated_broker.broker.catalogue.topic("t")
    await produce(simulated_broker, "t", b"old", producer_id=1, producer_epoch=0, base_sequence=0)
    await simulated_broker.delete_topic("t")
    await simulated_broker.create_topic("t")
    assert simulated_broker.broker.catalogue.topic("t").id != old.id
    assert await read_all(simulated_broker, "t") == []
    data = batch(b"new", producer_id=1, producer_epoch=0, base_sequence=0)
    assert (await send(simulated_broker, "t", data)).base_offset == 0
    assert await read_all(simulated_broker, "t") == [b"new"]


async def test_add_partitions(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    catalogue = simulated_broker.broker.catalogue
    await produce(simulated_broker, "t", b"a")
    version = catalogue.version
    await catalogue.add_partitions("t", 4)
    assert catalogue.version > version
    assert await produce(simulated_broker, "t", b"b", partition=3) == 0
    assert await read_all(simulated_broker, "t") == [b"a"]
    for total in (4, 1, PARTITIONS_MAX + 1):
        with pytest.raises(InvalidPartitions):
            await catalogue.add_partitions("t", total)
    await simulated_broker.restart()
    assert described(simulated_broker) == {"t": 4}


async def test_configs_take_effect_at_once_and_survive_a_restart(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2, retention_ms="1000")
    catalogue = simulated_broker.broker.catalogue
    await catalogue.change_configs("t", lambda old: {**old, "segment.bytes": "5000", "max.message.bytes": "100"})
    partition = simulated_broker.partition("t", 1)
    assert (partition.config.max_message_bytes, partition.log.config.segment_bytes) == (100, 5000)
    assert (await send(simulated_broker, "t", batch(b"x" * 100))).error_code == MessageTooLarge.code
    await catalogue.change_configs("t", lambda _: {"cleanup.policy": "compact"})
    assert partition.log.config.retention_ms == -1, "what is compacted is not dropped by its age"
    with pytest.raises(InvalidConfig):
        await catalogue.change_configs("t", lambda _: {"retention.ms": "x"})
    await simulated_broker.restart()
    assert dict(simulated_broker.broker.catalogue.topic("t").record.configs) == {"cleanup.policy": "compact"}


async def test_segments_of_one_topic_need_not_end_at_the_same_time(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 20, segment_ms="100000", segment_jitter_ms="50000")
    ages = {partition.log.config.segment_ms for partition in simulated_broker.broker.catalogue.topic("t").led.values()}
    assert len(ages) > 1
    assert all(50_000 <= age <= 100_000 for age in ages)


async def test_a_change_during_a_registry_outage_has_no_effect_and_can_be_retried(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    catalogue = simulated_broker.broker.catalogue
    simulated_broker.registry.unavailable = True
    for change in (
        catalogue.create("new", 1, {}),
        catalogue.delete("t"),
        catalogue.add_partitions("t", 2),
        catalogue.change_configs("t", lambda _: {"retention.ms": "1"}),
    ):
        with pytest.raises(RegistryUnavailable):
            await change
    assert described(simulated_broker) == {"t": 1}
    assert await produce(simulated_broker, "t", b"a") == 0
    simulated_broker.registry.unavailable = False
    await simulated_broker.create_topic("new")
    await catalogue.add_partitions("t", 2)
    assert described(simulated_broker) == {"t": 2, "new": 1}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_failed_folder_creation_leaves_the_name_free(simulated_broker: SimulatedBroker, number: int) -> None:
    simulated_broker.host.disk.fail_next("make", "/data/logs/*", number)
    with pytest.raises((StorageFailure, DiskFull)):
        await simulated_broker.create_topic("t", 3)
    assert described(simulated_broker) == {}
    await simulated_broker.create_topic("t", 3)
    assert described(simulated_broker) == {"t": 3}
    await simulated_broker.restart()
    assert described(simulated_broker) == {"t": 3}
    assert len(folders(simulated_broker)) == 3


async def test_new_partitions_that_fail_on_disk_are_retried(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    simulated_broker.host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    with pytest.raises(HeadraceError):
        await simulated_broker.broker.catalogue.add_partitions("t", 3)
    assert described(simulated_broker) == {"t": 1}
    await simulated_broker.pass_time(2)
    assert described(simulated_broker) == {"t": 3}


async def test_broker_defaults_apply_to_topics_without_their_own_value(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.restart(log_retention_ms="5000")
    await simulated_broker.create_topic("plain")
    await simulated_broker.create_topic("own", retention_ms="7000")
    retentions = {topic.name: topic.config.retention_ms for topic in simulated_broker.broker.catalogue}
    assert retentions == {"plain": 5000, "own": 7000}


@in_simulated_cluster()
async def test_a_partition_led_elsewhere_gives_another_error_than_a_missing_one(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2), by=1)
    catalogue = simulated_cluster[3].broker.catalogue
    await simulated_cluster.wait_until(lambda: catalogue.find("t") is not None)
    topic_id = catalogue.topic("t").id
    for node_id in (2, 3):
        with pytest.raises(NotLeader):
            simulated_cluster[node_id].broker.catalogue.partition("t", 0)
    with pytest.raises(NotLeader):
        catalogue.partition_by_id(topic_id, 0)
    with pytest.raises(UnknownTopicOrPartition):
        catalogue.partition("t", 1)
    assert catalogue.leader_node("t", 0) == catalogue.nodes[1]


@in_simulated_cluster()
async def test_two_brokers_do_not_both_create_the_same_topic(
    simulated_cluster: SimulatedCluster,
) -> None:
    tasks = [
        simulated_broker.host.start(
            simulated_broker.broker.catalogue.create("t", 2, {}), f"create at {simulated_broker.node_id}"
        )
        for simulated_broker in simulated_cluster.up
    ]
    await asyncio.wait(tasks)
    rejected = [task.exception() for task in tasks if task.exception() is not None]
    assert [type(error) for error in rejected] == [TopicAlreadyExists] * 2
    for index in (0, 1):
        leader = await simulated_cluster.wait_for_leader("t", index=index)
        assert await produce(leader, "t", b"a", partition=index) == 0
    await simulated_cluster.wait_until(
        lambda: all(len(folders(simulated_broker)) == 2 for simulated_broker in simulated_cluster.up)
    )


@in_simulated_cluster()
async def test_changes_at_one_broker_are_seen_by_all(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3))
    await simulated_cluster[2].host.start(
        simulated_cluster[2].broker.catalogue.change_configs("t", lambda _: {"retention.ms": "5"}), "change configs"
    )
    await simulated_cluster[3].host.start(
        simulated_cluster[3].broker.catalogue.add_partitions("t", 3), "add partitions"
    )
    catalogues = [simulated_broker.broker.catalogue for simulated_broker in simulated_cluster.up]
    await simulated_cluster.wait_until(lambda: all(one.topic("t").partition_count == 3 for one in catalogues))
    assert {one.topic("t").config.retention_ms for one in catalogues} == {5}
    await simulated_cluster[1].delete_topic("t")
    await simulated_cluster.wait_until(lambda: not any(one.find("t") for one in catalogues))


@in_simulated_cluster()
async def test_a_growth_that_another_broker_overtook_is_rejected(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    first, second = (
        simulated_cluster[node_id].host.start(
            simulated_cluster[node_id].broker.catalogue.add_partitions("t", 1 + node_id), "grow"
        )
        for node_id in (2, 3)
    )
    await asyncio.wait([first, second])
    rejected = [task.exception() for task in (first, second) if task.exception() is not None]
    assert len(rejected) == 1
    assert isinstance(rejected[0], InvalidPartitions | RegistryConflict)


@in_simulated_cluster()
async def test_new_topics_are_placed_on_the_least_loaded_brokers(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("much", *[(1,)] * 6, *[(2,)] * 6)
    await simulated_cluster[2].host.start(
        simulated_cluster[2].broker.catalogue.create("t", 6, {}, replication=1), "create"
    )
    assert {simulated_cluster.record("t", index).replicas for index in range(6)} == {(3,)}


@in_simulated_cluster()
async def test_a_broker_that_just_stopped_gets_no_replica_of_a_new_topic(simulated_cluster: SimulatedCluster) -> None:
    simulated_cluster[3].kill()
    await simulated_cluster.wait_until(lambda: 3 not in simulated_cluster[1].broker.catalogue.nodes)
    await simulated_cluster[1].host.start(simulated_cluster[1].broker.catalogue.create("t", 3, {}), "create")
    assert {tuple(sorted(simulated_cluster.record("t", index).replicas)) for index in range(3)} == {(1, 2)}


@in_simulated_cluster()
async def test_a_requested_replica_on_a_broker_that_dies_during_the_creation_is_not_in_sync(
    simulated_cluster: SimulatedCluster,
) -> None:
    simulated_cluster[3].kill()
    await simulated_cluster.create_topic("t", (1, 3), by=1)
    assert await produce(simulated_cluster[1], "t", b"a") == 0
    await simulated_cluster.wait_until_in_sync("t", 1)
    await simulated_cluster.open(3)
    await simulated_cluster.wait_until_in_sync("t")
