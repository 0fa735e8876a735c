"""Co-located topics are created once, on the brokers of their owner, and deleted with it, also when brokers die."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.registered_partitions import RegisteredPartitions
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, SimulatedClusterBroker, in_simulated_cluster

from headrace.broker.topic import Topic
from headrace.machines.controller.leadership import with_leader
from headrace.machines.controller.reassignment import begin_reassignment
from headrace.model.errors import InvalidTopic, UnknownTopicOrPartition
from headrace.model.names import ACKS_PREFIX, DELAYED_PREFIX, TOPIC_NAME_LENGTH_MAX
from headrace.model.registry_records import PartitionRecord
from headrace.registry.brokers import drain
from headrace.registry.interface import Create, Delete, RegistryOperation, RegistryUnavailable
from headrace.registry.topics import TopicRecords, topic_key
from headrace.testkit.registry import SimRegistry
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

ACKS, DELAYED = "__acks.t", "__delayed.t"


def ensuring(simulated_broker: SimulatedBroker, topic: str = "t", prefix: str = ACKS_PREFIX) -> asyncio.Task[Topic]:
    return simulated_broker.host.start(
        simulated_broker.broker.catalogue.ensure_colocated_topic(topic, prefix), "ensure a companion"
    )


def topics(simulated_broker: SimulatedBroker) -> set[str]:
    return {topic.name for topic in simulated_broker.broker.catalogue}


def place(record: PartitionRecord) -> tuple[tuple[int, ...], int]:
    return record.replicas, record.leader


async def until_together(simulated_cluster: SimulatedCluster, index: int = 0) -> None:
    await simulated_cluster.wait_until(
        lambda: place(simulated_cluster.record(ACKS, index)) == place(simulated_cluster.record("t", index))
    )


async def metadata(simulated_broker: SimulatedBroker, *names: str) -> dict[str, int]:
    requested = [MetadataRequestTopic(name=name) for name in names]
    response = await simulated_broker.send(MetadataRequest(topics=requested, allow_auto_topic_creation=True), 13)
    return {topic.name: topic.error_code for topic in response.topics}


# Making


async def test_a_colocated_topic_accepts_writes_when_created_and_is_created_once(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 3, min_insync_replicas="2")
    made = await ensuring(simulated_broker)
    assert (made.name, made.partition_count, len(made.led)) == (ACKS, 3, 3)
    assert made.is_colocated
    assert made.is_internal
    assert await ensuring(simulated_broker) is made
    assert made.config.retention_ms == 24 * 3_600_000
    assert (made.config.min_insync_replicas, made.config.flush_messages, made.config.segment_bytes) == (2, 1, 2**26)
    delayed = await ensuring(simulated_broker, prefix=DELAYED_PREFIX)
    assert (delayed.name, delayed.config.retention_ms) == (DELAYED, -1)
    assert simulated_broker.broker.catalogue.colocated_topics.of(simulated_broker.broker.catalogue.topic("t")) == [
        made,
        delayed,
    ]
    await simulated_broker.restart()
    assert len(simulated_broker.broker.catalogue.topic(ACKS).led) == 3


async def test_only_topics_of_users_have_companions(simulated_broker: SimulatedBroker) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await ensuring(simulated_broker)
    await simulated_broker.create_topic("t")
    await ensuring(simulated_broker)
    with pytest.raises(InvalidTopic):
        await ensuring(simulated_broker, ACKS)


async def test_a_colocated_topic_name_may_exceed_the_length_of_topic_names(simulated_broker: SimulatedBroker) -> None:
    longest = "x" * TOPIC_NAME_LENGTH_MAX
    for name in (longest, "a.b"):
        await simulated_broker.create_topic(name)
        await ensuring(simulated_broker, name)
    assert await metadata(simulated_broker, ACKS_PREFIX + longest) == {ACKS_PREFIX + longest: 0}
    await simulated_broker.create_topic("__acks_a.b")  # as metrics see it, the companion's name


async def test_min_insync_replicas_follows_the_owner(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    made = await ensuring(simulated_broker)
    for configs, wanted in (({"min.insync.replicas": "3"}, 3), ({}, 1)):
        await simulated_broker.broker.catalogue.change_configs("t", lambda _, configs=configs: configs)  # type: ignore[misc]
        assert made.config.min_insync_replicas == wanted
    assert made.config.retention_ms == 24 * 3_600_000, "the rest is its own"


async def test_a_metadata_request_creates_the_delayed_topic(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    assert await metadata(simulated_broker, DELAYED, ACKS, "__delayed.none", "__delayed.") == {
        DELAYED: 0,
        ACKS: UnknownTopicOrPartition.code,
        "__delayed.none": UnknownTopicOrPartition.code,
        "__delayed.": UnknownTopicOrPartition.code,
    }
    assert topics(simulated_broker) == {"t", DELAYED}


async def test_clients_cannot_create_change_or_delete_a_colocated_topic(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    creating = CreateTopicsRequest(topics=[CreatableTopic(name=ACKS, num_partitions=1, replication_factor=1)])
    assert (await simulated_broker.send(creating, 7)).topics[0].error_code == InvalidTopic.code
    await ensuring(simulated_broker)
    growing = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=ACKS, count=5)])
    assert (await simulated_broker.send(growing, 3)).results[0].error_code == InvalidTopic.code
    deleting = DeleteTopicsRequest(topics=[DeleteTopicState(name=ACKS)])
    assert (await simulated_broker.send(deleting, 6)).responses[0].error_code == InvalidTopic.code
    assert topics(simulated_broker) == {"t", ACKS}


@in_simulated_cluster()
async def test_concurrent_requests_get_the_same_colocated_topic(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), (2, 3), (3, 1))
    await simulated_cluster.wait_until(
        lambda: all("t" in topics(simulated_broker) for simulated_broker in simulated_cluster.up)
    )
    made = [await task for task in [ensuring(simulated_broker) for simulated_broker in simulated_cluster.up]]
    assert len({topic.id for topic in made}) == 1
    for index in range(3):
        assert place(simulated_cluster.record(ACKS, index)) == place(simulated_cluster.record("t", index))
        await simulated_cluster.wait_for_leader(ACKS, index=index)


@in_simulated_cluster()
async def test_a_colocated_topic_created_while_its_owner_grows_has_all_partitions(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until(
        lambda: all("t" in topics(simulated_broker) for simulated_broker in simulated_cluster.up)
    )
    for simulated_broker in simulated_cluster.up:
        tasks: list[asyncio.Task[Any]] = [
            ensuring(simulated_broker, prefix=ACKS_PREFIX),
            ensuring(simulated_broker, prefix=DELAYED_PREFIX),
        ]
        count = simulated_cluster[1].broker.catalogue.topic("t").partition_count
        tasks.append(
            simulated_cluster[1].host.start(
                simulated_cluster[1].broker.catalogue.add_partitions("t", count + 2), "grow"
            )
        )
        await asyncio.wait(tasks)
        for name in (ACKS, DELAYED):
            await simulated_cluster.wait_until(
                lambda name=name, count=count: _count(simulated_cluster, name) == count + 2  # type: ignore[misc]
            )


def _count(simulated_cluster: SimulatedCluster, name: str) -> int:
    return len(next(simulated_cluster.up).broker.catalogue.topic(name).partition_records)


@in_simulated_cluster()
async def test_a_colocated_topic_grows_with_its_owner_and_has_the_same_leaders(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await ensuring(simulated_cluster[1])
    await simulated_cluster[3].host.start(simulated_cluster[3].broker.catalogue.add_partitions("t", 4), "grow")
    assert simulated_cluster[3].broker.catalogue.topic(ACKS).partition_count == 4
    for index in range(4):
        assert place(simulated_cluster.record(ACKS, index)) == place(simulated_cluster.record("t", index))


@in_simulated_cluster()
async def test_the_controller_completes_an_interrupted_growth(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await ensuring(simulated_cluster[1])
    topic = simulated_cluster[1].broker.catalogue.topic("t")
    await TopicRecords(simulated_cluster[1].registry).add_partitions("t", topic.id, 2, [simulated_cluster.record("t")])
    await simulated_cluster.wait_until(lambda: _count(simulated_cluster, ACKS) == 2)
    await simulated_cluster.wait_for_leader(ACKS, 1, index=1)


# Going


async def test_a_colocated_topic_is_deleted_with_its_owner(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    await ensuring(simulated_broker)
    await ensuring(simulated_broker, prefix=DELAYED_PREFIX)
    await simulated_broker.delete_topic("t")
    assert topics(simulated_broker) == set()
    assert simulated_broker.host.disk.list("/data/logs") == []


async def test_a_new_topic_of_the_owners_name_has_no_colocated_topic(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    old = await ensuring(simulated_broker)
    await simulated_broker.delete_topic("t")
    await simulated_broker.create_topic("t")
    assert simulated_broker.broker.catalogue.colocated_topics.find("t", ACKS_PREFIX) is None
    assert (await ensuring(simulated_broker)).id != old.id


class CutOff:
    """The broker dies in the midst of a delete: its owner is gone, the companions are not."""

    def __init__(self, simulated_broker: SimulatedClusterBroker) -> None:
        self._broker = simulated_broker
        self._commit = simulated_broker.registry.commit
        simulated_broker.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        if any(isinstance(one, Delete) and one.key in (topic_key(ACKS), topic_key(DELAYED)) for one in operations):
            raise RegistryUnavailable("it is dying")
        await self._commit(operations)


@in_simulated_cluster()
async def test_the_controller_removes_an_orphaned_colocated_topic(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", by=1)
    await ensuring(simulated_cluster[1])
    cut_off = [CutOff(simulated_broker) for simulated_broker in simulated_cluster.up]
    with pytest.raises(RegistryUnavailable):
        await simulated_cluster[1].delete_topic("t")
    assert ACKS in topics(simulated_cluster[1])
    simulated_cluster[1].kill()
    for simulated_broker, one in zip(simulated_cluster.simulated_brokers.values(), cut_off, strict=True):
        simulated_broker.registry.commit = one._commit  # type: ignore[method-assign]
    await simulated_cluster.wait_until(
        lambda: all(topics(simulated_broker) == set() for simulated_broker in simulated_cluster.up)
    )
    await simulated_cluster.wait_until(
        lambda: all(simulated_broker.host.disk.list("/data/logs") == [] for simulated_broker in simulated_cluster.up)
    )
    await simulated_cluster.open(1)
    await simulated_cluster.wait_until(lambda: topics(simulated_cluster[1]) == set())


@in_simulated_cluster()
async def test_an_orphaned_colocated_topic_is_not_used_for_a_new_owner(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", by=1)
    old = await ensuring(simulated_cluster[1])
    for simulated_broker in simulated_cluster.up:
        CutOff(simulated_broker)
    with pytest.raises(RegistryUnavailable):
        await simulated_cluster[1].delete_topic("t")
    record = simulated_cluster[1].broker.catalogue.topic(ACKS).record
    with pytest.raises(RegistryUnavailable):
        await simulated_cluster.create_topic("t", by=2)  # which first removes what is left of the old
    assert record.id == old.id
    assert simulated_cluster[1].broker.catalogue.colocated_topics.find("t", ACKS_PREFIX) is None
    with pytest.raises(UnknownTopicOrPartition):
        await ensuring(simulated_cluster[1])


class Overtaken:
    """Just before this broker makes a companion, another deletes its owner."""

    def __init__(self, simulated_cluster: SimulatedCluster, simulated_broker: SimulatedClusterBroker) -> None:
        self._simulated_cluster = simulated_cluster
        self._owner_id = simulated_broker.broker.catalogue.topic("t").id
        self._commit = simulated_broker.registry.commit
        simulated_broker.registry.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        if any(isinstance(one, Create) and one.key == topic_key(ACKS) for one in operations):
            await TopicRecords(SimRegistry(self._simulated_cluster.registry_ensemble)).delete("t", self._owner_id, 0)
        await self._commit(operations)


@in_simulated_cluster()
async def test_no_colocated_topic_is_created_for_a_deleted_owner(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", by=1)
    Overtaken(simulated_cluster, simulated_cluster[1])
    with pytest.raises(UnknownTopicOrPartition):
        await ensuring(simulated_cluster[1])
    assert topic_key(ACKS) not in simulated_cluster.registry_ensemble.entries


async def test_the_colocated_topic_of_an_earlier_topic_is_replaced() -> None:
    registered_partitions = RegisteredPartitions(1)
    alone = PartitionRecord(replicas=(1,), isr=(1,), leader=1, leader_broker_epoch=1)
    await registered_partitions.add("t", alone)
    await registered_partitions.add(ACKS, alone, owner=UUID(int=99))
    old = registered_partitions.catalogue.topic(ACKS)
    made = await registered_partitions.catalogue.ensure_colocated_topic("t", ACKS_PREFIX)
    assert made.id != old.id
    assert made.record.owner == registered_partitions.catalogue.topic("t").id


# Staying with its owner


@in_simulated_cluster(4, leader_imbalance_check_interval_seconds="5")
async def test_a_colocated_partition_follows_its_owners_leader(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2, 3))
    await ensuring(simulated_cluster[1])
    await simulated_cluster.wait_until_in_sync(ACKS)
    simulated_cluster[1].kill()
    leader = await simulated_cluster.wait_for_leader("t")
    await simulated_cluster.wait_for_leader(ACKS, leader.node_id)
    await simulated_cluster.open(1)
    await simulated_cluster.wait_for_leader("t", 1)
    await simulated_cluster.wait_for_leader(ACKS, 1)
    await simulated_cluster.change_partition(
        ACKS, lambda record: with_leader(record, simulated_cluster[1].broker.catalogue.nodes[3])
    )
    await simulated_cluster.wait_for_leader(ACKS, 1)


@in_simulated_cluster(4)
async def test_a_colocated_topic_is_reassigned_with_its_owner(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2))
    await ensuring(simulated_cluster[1])
    await produce(simulated_cluster[1], "t", b"a")
    simulated_cluster.isolate(4)
    await simulated_cluster.change_partition("t", lambda record: begin_reassignment(record, (3, 4)))
    await simulated_cluster.wait_until(
        lambda: 3 in simulated_cluster.record("t").isr and 3 in simulated_cluster.record(ACKS).isr
    )
    await asyncio.sleep(3)
    assert place(simulated_cluster.record(ACKS)) == place(simulated_cluster.record("t")) == ((3, 4, 1, 2), 1)
    simulated_cluster.heal()
    for name in ("t", ACKS):
        await simulated_cluster.wait_until(lambda name=name: place(simulated_cluster.record(name)) == ((3, 4), 3))  # type: ignore[misc]
    await simulated_cluster.wait_until(lambda: simulated_cluster[1].host.disk.list("/data/logs") == [])


@in_simulated_cluster(4)
async def test_a_colocated_topic_leaves_a_drained_broker_with_its_owner(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), (2, 1), (1, 3))
    await ensuring(simulated_cluster[1])
    await drain(SimRegistry(simulated_cluster.registry_ensemble), 1, is_drained=True)
    await simulated_cluster.wait_until(
        lambda: not any(1 in simulated_cluster.record(ACKS, index).replicas for index in range(3))
    )
    for index in range(3):
        await until_together(simulated_cluster, index)
    await simulated_cluster.wait_until(lambda: simulated_cluster[1].host.disk.list("/data/logs") == [])


@in_simulated_cluster()
async def test_colocated_topics_do_not_count_for_placement(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("heavy", (1,))
    for prefix in (ACKS_PREFIX, DELAYED_PREFIX):
        await ensuring(simulated_cluster[1], "heavy", prefix)
    await simulated_cluster.create_topic("light", (2,), (2,), (3,), (3,))
    made = await simulated_cluster[1].host.start(
        simulated_cluster[1].broker.catalogue.create("t", 1, {}, replication=1), "create"
    )
    assert made.partition_records[0].leader == 1
