"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.broker_requests import batch, produce, produce_request, read_all
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    NotLeader,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.registry.brokers import drain
from headrace.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def create(
    simulated_broker: SimulatedBroker, *topics: CreatableTopic, version: int = 7, dry_run: bool = False
) -> dict[str, Any]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=dry_run)
    return {result.name: result for result in (await simulated_broker.send(request, version)).topics}


def codes(results: dict[str, Any]) -> dict[str, int]:
    return {name: result.error_code for name, result in results.items()}


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_in_every_version(simulated_broker: SimulatedBroker, version: int) -> None:
    result = (await create(simulated_broker, topic("t", 3, retention_ms="1000"), version=version))["t"]
    assert (result.error_code, result.error_message) == (0, None)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {config.name: config for config in result.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert configs["segment.bytes"].config_source == 5
    if version >= 7:
        assert result.topic_id == simulated_broker.broker.catalogue.topic("t").id
    assert await produce(simulated_broker, "t", b"a", partition=2) == 0


async def test_topics_of_one_request_succeed_or_fail_independently(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("taken")
    results = await create(
        simulated_broker,
        topic("good"),
        topic("taken"),
        topic("bad/name"),
        topic("none", 0),
        topic("replicated", 1, 3),
        topic("configured", retention_ms="soon"),
        topic("__consumer_offsets"),
    )
    assert codes(results) == {
        "good": 0,
        "taken": TopicAlreadyExists.code,
        "bad/name": InvalidTopic.code,
        "none": InvalidPartitions.code,
        "replicated": InvalidReplicationFactor.code,
        "configured": InvalidConfig.code,
        "__consumer_offsets": InvalidTopic.code,
    }
    assert results["taken"].error_message == "Topic 'taken' already exists."
    assert results["taken"].configs is not None, "Java cannot live with null here"


async def test_a_topic_named_twice_is_rejected_once(simulated_broker: SimulatedBroker) -> None:
    request = CreateTopicsRequest(topics=[topic("t"), topic("t", 2), topic("u")])
    response = await simulated_broker.send(request, 7)
    assert [(result.name, result.error_code) for result in response.topics] == [("t", InvalidRequest.code), ("u", 0)]


@pytest.mark.parametrize("version", range(2, 8))
async def test_defaults_are_the_brokers_in_every_version(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.restart(num_partitions="5")
    assert codes(await create(simulated_broker, topic("t", -1, -1), version=version)) == {"t": 0}
    assert simulated_broker.broker.catalogue.topic("t").partition_count == 5


async def test_a_dry_run_creates_nothing(simulated_broker: SimulatedBroker) -> None:
    assert codes(await create(simulated_broker, topic("t"), topic("bad/name"), dry_run=True)) == {
        "t": 0,
        "bad/name": InvalidTopic.code,
    }
    assert len(simulated_broker.broker.catalogue) == 0


async def test_assignments_must_be_complete_and_name_existing_brokers(simulated_broker: SimulatedBroker) -> None:
    def assigned(*brokers: list[int], first: int = 0) -> CreatableTopic:
        requested = topic("t", -1, -1)
        requested.assignments = [
            CreatableReplicaAssignment(partition_index=first + at, broker_ids=ids) for at, ids in enumerate(brokers)
        ]
        return requested

    assert codes(await create(simulated_broker, assigned([2]))) == {"t": InvalidReplicaAssignment.code}
    assert codes(await create(simulated_broker, assigned([1, 2]))) == {"t": InvalidReplicaAssignment.code}
    assert codes(await create(simulated_broker, assigned([1], first=1))) == {"t": InvalidReplicaAssignment.code}
    both = assigned([1])
    both.num_partitions = 1
    assert codes(await create(simulated_broker, both)) == {"t": InvalidRequest.code}
    assert (await create(simulated_broker, assigned([1], [1])))["t"].num_partitions == 2


async def delete(simulated_broker: SimulatedBroker, *names: str, version: int = 5) -> list[tuple[str | None, int]]:
    response = await simulated_broker.send(DeleteTopicsRequest(topic_names=list(names), timeout_ms=1000), version)
    return [(result.name, result.error_code) for result in response.responses]


async def test_topics_are_deleted_by_name(simulated_broker: SimulatedBroker) -> None:
    for name in ("a", "b"):
        await simulated_broker.create_topic(name)
    await simulated_broker.broker.offsets_log.ensure()
    assert await delete(simulated_broker, "a", "missing", "__consumer_offsets") == [
        ("a", 0),
        ("missing", UnknownTopicOrPartition.code),
        ("__consumer_offsets", InvalidTopic.code),
    ]
    assert {one.name for one in simulated_broker.broker.catalogue} == {"b", "__consumer_offsets"}


async def test_topics_are_deleted_by_id(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    states = [DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=UUID(int=3)), DeleteTopicState()]
    response = await simulated_broker.send(DeleteTopicsRequest(topics=states), 6)
    assert [(result.name, result.topic_id, result.error_code) for result in response.responses] == [
        ("t", topic_id, 0),
        (None, UUID(int=3), UnknownTopicId.code),
        (None, UUID(int=0), InvalidRequest.code),
    ]


async def test_topic_deletion_can_be_disabled(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(delete_topic_enable="false")
    await simulated_broker.create_topic("t")
    ((_, code),) = await delete(simulated_broker, "t")
    assert code == TopicDeletionDisabled.code
    assert simulated_broker.broker.catalogue.find("t") is not None


async def test_deleting_a_topic_ends_waiting_requests(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    pending = simulated_broker.begin_send(produce_request({("t", 0): batch(b"a")}), 9)
    await simulated_broker.run_ready_tasks()
    deleting = simulated_broker.begin_send(DeleteTopicsRequest(topic_names=["t"]), 5)
    response = await pending
    assert response.responses[0].partition_responses[0].error_code == UnknownTopicOrPartition.code
    assert (await deleting).responses[0].error_code == 0


async def grow(
    simulated_broker: SimulatedBroker, name: str, count: int, *brokers: list[int], dry_run: bool = False
) -> int:
    assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in brokers] if brokers else None
    requested = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    response = await simulated_broker.send(CreatePartitionsRequest(topics=[requested], validate_only=dry_run), 3)
    (result,) = response.results
    assert result.name == name
    return int(result.error_code)


async def test_partitions_are_added(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    await simulated_broker.broker.offsets_log.ensure()
    assert await grow(simulated_broker, "t", 3, dry_run=True) == 0
    assert len(simulated_broker.broker.catalogue.topic("t").led) == 2
    for count in (2, 1, 0, -1):
        assert await grow(simulated_broker, "t", count) == InvalidPartitions.code
    assert await grow(simulated_broker, "missing", 3) == UnknownTopicOrPartition.code
    assert await grow(simulated_broker, "__consumer_offsets", 30) == InvalidTopic.code
    assert await grow(simulated_broker, "t", 3, [2]) == InvalidReplicaAssignment.code
    assert await grow(simulated_broker, "t", 4, [1]) == InvalidReplicaAssignment.code
    assert await grow(simulated_broker, "t", 3, [1]) == 0
    assert await produce(simulated_broker, "t", b"a", partition=2) == 0


async def test_a_topic_named_twice_for_new_partitions_is_rejected_once(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    requested = [CreatePartitionsTopic(name="t", count=2), CreatePartitionsTopic(name="t", count=3)]
    response = await simulated_broker.send(CreatePartitionsRequest(topics=requested), 3)
    assert [(result.name, result.error_code) for result in response.results] == [("t", InvalidRequest.code)]


async def cut(
    simulated_broker: SimulatedBroker, offset: int, *, topic: str = "t", partition: int = 0
) -> tuple[int, int]:
    """Error and low watermark."""
    requested = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[requested])], timeout_ms=1000)
    ((result,),) = [found.partitions for found in (await simulated_broker.send(request, 2)).topics]
    return result.error_code, result.low_watermark


async def test_records_are_deleted_up_to_an_offset(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    for value in (b"a", b"b", b"c"):
        await produce(simulated_broker, "t", value)
    assert await cut(simulated_broker, 2) == (0, 2)
    assert await read_all(simulated_broker, "t", offset=2) == [b"c"]
    assert await cut(simulated_broker, 1) == (0, 2), "it never goes back"
    assert await cut(simulated_broker, 4) == (OffsetOutOfRange.code, -1)
    assert await cut(simulated_broker, -2) == (OffsetOutOfRange.code, -1)
    assert await cut(simulated_broker, -1) == (0, 3)
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    assert simulated_broker.partition("t").log.start_offset == 3
    assert await produce(simulated_broker, "t", b"d") == 3


async def test_records_of_some_topics_cannot_be_deleted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("compacted", cleanup_policy="compact")
    await simulated_broker.create_topic("both", cleanup_policy="compact,delete")
    await simulated_broker.broker.offsets_log.ensure()
    assert await cut(simulated_broker, 0, topic="missing") == (UnknownTopicOrPartition.code, -1)
    assert (await cut(simulated_broker, 0, topic="compacted"))[0] == PolicyViolation.code
    assert (await cut(simulated_broker, 0, topic="__consumer_offsets"))[0] == PolicyViolation.code
    assert await cut(simulated_broker, 0, topic="both") == (0, 0)


async def test_records_that_are_not_on_disk_yet_are_deleted_too(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", flush_messages="1000")
    await produce(simulated_broker, "t", b"a", b"b")
    assert simulated_broker.partition("t").log.flushed_offset == 0
    assert await cut(simulated_broker, -1) == (0, 2)


def placed(name: str, *replicas: list[int]) -> CreatableTopic:
    assignments = [CreatableReplicaAssignment(index, ids) for index, ids in enumerate(replicas)]
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)


@in_simulated_cluster()
async def test_a_topic_has_the_requested_number_of_replicas(simulated_cluster: SimulatedCluster) -> None:
    results = await create(
        simulated_cluster[2], topic("one", 3), topic("two", 3, 2), topic("default", 2, -1), topic("many", 1, 4)
    )
    assert codes(results) == {"one": 0, "two": 0, "default": 0, "many": InvalidReplicationFactor.code}
    assert [results[name].replication_factor for name in ("one", "two", "default")] == [1, 2, 3]
    assert sorted(simulated_cluster.record("one", index).leader for index in range(3)) == [1, 2, 3]
    assert {len(simulated_cluster.record("two", index).replicas) for index in range(3)} == {2}
    for index in range(3):
        leader = simulated_cluster.leader("two", index)
        assert await produce(leader, "two", b"a", partition=index) == 0


@in_simulated_cluster()
async def test_replicas_are_placed_as_requested(simulated_cluster: SimulatedCluster) -> None:
    results = await create(
        simulated_cluster[1],
        placed("t", [3, 1], [2, 3]),
        placed("twice", [3, 3]),
        placed("uneven", [1, 2], [3]),
        placed("unknown", [1, 4]),
        placed("none", []),
    )
    assert codes(results) == {
        "t": 0,
        "twice": InvalidReplicaAssignment.code,
        "uneven": InvalidReplicaAssignment.code,
        "unknown": InvalidReplicaAssignment.code,
        "none": InvalidReplicaAssignment.code,
    }
    assert [simulated_cluster.record("t", index).replicas for index in (0, 1)] == [(3, 1), (2, 3)]
    assert [simulated_cluster.record("t", index).leader for index in (0, 1)] == [3, 2]
    assert await grow(simulated_cluster[2], "t", 3, [2, 4]) == InvalidReplicaAssignment.code
    assert await grow(simulated_cluster[2], "t", 3, [2, 1]) == 0
    assert simulated_cluster.record("t", 2).replicas == (2, 1)
    assert await produce(simulated_cluster[2], "t", b"a", partition=2) == 0


@in_simulated_cluster()
async def test_brokers_that_are_down_or_drained_get_no_replicas(simulated_cluster: SimulatedCluster) -> None:
    simulated_cluster[1].kill()
    await simulated_cluster.wait_until(lambda: 1 not in simulated_cluster[2].broker.catalogue.nodes)
    await drain(simulated_cluster[2].registry, 3, is_drained=True)
    await simulated_cluster.wait_until(lambda: 3 in simulated_cluster[2].broker.catalogue.drained)
    assert codes(await create(simulated_cluster[2], topic("t", 4, 1), topic("u", 1, 2))) == {
        "t": 0,
        "u": InvalidReplicationFactor.code,
    }
    assert {simulated_cluster.record("t", index).replicas for index in range(4)} == {(2,)}


@in_simulated_cluster()
async def test_new_partitions_have_as_many_replicas_as_the_others(simulated_cluster: SimulatedCluster) -> None:
    await create(simulated_cluster[1], topic("t", 1, 2))
    assert await grow(simulated_cluster[3], "t", 3) == 0
    assert {len(simulated_cluster.record("t", index).replicas) for index in range(3)} == {2}


@in_simulated_cluster()
async def test_delete_records_responds_when_all_replicas_have_deleted(simulated_cluster: SimulatedCluster) -> None:
    """Else the next leader could bring them back."""
    await simulated_cluster.create_topic("t")
    for value in (b"a", b"b", b"c"):
        await produce(simulated_cluster[1], "t", value)
    await simulated_cluster.wait_until_identical("t")
    assert await cut(simulated_cluster[2], 2) == (NotLeader.code, -1), "only the leader can"
    assert await cut(simulated_cluster[1], 2) == (0, 2)
    assert {simulated_cluster.replica(node_id, "t").log.start_offset for node_id in (1, 2, 3)} == {2}


@in_simulated_cluster()
async def test_a_follower_that_cannot_be_reached_is_waited_for_in_vain(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(3)
    assert (await cut(simulated_cluster[1], 1))[0] == RequestTimedOut.code
    simulated_cluster.heal()
    assert await cut(simulated_cluster[1], 1) == (0, 1), "it was started nevertheless"
    simulated_cluster[3].kill()
    await simulated_cluster.wait_until(lambda: 3 not in simulated_cluster[1].broker.catalogue.nodes)
    await produce(simulated_cluster[1], "t", b"b")
    assert await cut(simulated_cluster[1], 2) == (0, 2), "one that is down is not waited for"


@in_simulated_cluster()
async def test_a_lost_leadership_ends_the_wait_of_delete_records(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t")
    await produce(simulated_cluster[1], "t", b"a")
    await simulated_cluster.wait_until_identical("t")
    simulated_cluster.isolate(1)
    pending = asyncio.ensure_future(cut(simulated_cluster[1], 1))
    await asyncio.sleep(0.2)
    await simulated_cluster.move_leadership("t", 2)
    assert (await pending)[0] == NotLeader.code
