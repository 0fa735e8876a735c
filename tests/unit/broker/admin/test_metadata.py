"""Metadata, DescribeTopicPartitions and DescribeCluster."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import (
    InvalidRequest,
    InvalidTopic,
    LeaderNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.model.ids import ZERO_ID
from headrace.model.registry_records import TopicRecord
from headrace.registry.brokers import live_key
from headrace.registry.interface import RegistryEntry
from headrace.registry.topics import topic_key
from headrace.wire.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)


async def request_metadata(
    simulated_broker: SimulatedBroker, *names: str, version: int = 13, create: bool = False
) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return await simulated_broker.send(MetadataRequest(topics=topics, allow_auto_topic_creation=create), version)


def codes(response: Any) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", range(14))
async def test_every_version_gets_a_response(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t", 2)
    response = await request_metadata(simulated_broker, "t", version=version)
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 9092)
    (topic,) = response.topics
    assert [
        (partition.partition_index, partition.leader_id, list(partition.replica_nodes), list(partition.isr_nodes))
        for partition in topic.partitions
    ] == [(0, 1, [1], [1]), (1, 1, [1], [1])]
    if version >= 10:
        assert topic.topic_id == simulated_broker.broker.catalogue.topic("t").id
    if version >= 7:
        assert topic.partitions[0].leader_epoch == 0
    if version >= 1:
        assert (response.controller_id, broker.rack) == (1, "rack-a")
    if version >= 2:
        assert response.cluster_id == simulated_broker.broker.identity.cluster_id


async def test_an_empty_list_means_all_topics_in_version_0_and_no_topic_in_later_versions(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("a")
    await simulated_broker.create_topic("b")
    assert codes(await simulated_broker.send(MetadataRequest(topics=[]), 0)) == {"a": 0, "b": 0}
    assert codes(await simulated_broker.send(MetadataRequest(topics=[]), 1)) == {}
    assert codes(await simulated_broker.send(MetadataRequest(topics=None), 1)) == {"a": 0, "b": 0}


async def test_a_missing_topic_is_created_if_client_and_broker_allow_it(simulated_broker: SimulatedBroker) -> None:
    assert codes(await request_metadata(simulated_broker, "t", create=False)) == {"t": UnknownTopicOrPartition.code}
    response = await request_metadata(simulated_broker, "t", create=True)
    assert codes(response) == {"t": 0}
    assert len(response.topics[0].partitions) == simulated_broker.broker.catalogue.config.num_partitions
    await simulated_broker.restart(auto_create_topics_enable="false")
    assert codes(await request_metadata(simulated_broker, "t", "u", create=True)) == {
        "t": 0,
        "u": UnknownTopicOrPartition.code,
    }


async def test_messages_can_be_delayed_without_automatic_topic_creation(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.restart(auto_create_topics_enable="false")
    await simulated_broker.create_topic("t")
    assert codes(await request_metadata(simulated_broker, "__delayed.t", create=False)) == {
        "__delayed.t": UnknownTopicOrPartition.code
    }
    assert codes(await request_metadata(simulated_broker, "__delayed.t", "__delayed.u", create=True)) == {
        "__delayed.t": 0,
        "__delayed.u": UnknownTopicOrPartition.code,
    }


async def test_before_version_4_the_client_cannot_forbid_it(simulated_broker: SimulatedBroker) -> None:
    assert codes(await request_metadata(simulated_broker, "t", version=3)) == {"t": 0}


async def test_two_concurrent_requests_for_the_same_missing_topic_both_get_it(
    simulated_broker: SimulatedBroker,
) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
    first, second = [simulated_broker.begin_send(request, 9) for _ in range(2)]
    assert codes(await first) == codes(await second) == {"t": 0}


async def test_describing_an_invalid_topic_name_returns_invalid_topic(simulated_broker: SimulatedBroker) -> None:
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsTopic(name="a/b"), DescribeTopicPartitionsTopic(name="missing")]
    )
    described = (await simulated_broker.send(request, 0)).topics
    assert {topic.name: topic.error_code for topic in described} == {
        "a/b": InvalidTopic.code,
        "missing": UnknownTopicOrPartition.code,
    }


async def test_names_that_no_topic_can_have(simulated_broker: SimulatedBroker) -> None:
    assert codes(await request_metadata(simulated_broker, "a/b", "", "x" * 300, create=True)) == {
        "a/b": InvalidTopic.code,
        "": InvalidTopic.code,
        "x" * 300: InvalidTopic.code,
    }


async def test_the_offsets_topic_is_created_with_the_coordinators_settings(simulated_broker: SimulatedBroker) -> None:
    assert codes(await request_metadata(simulated_broker, "__consumer_offsets")) == {
        "__consumer_offsets": UnknownTopicOrPartition.code
    }
    (topic,) = (await request_metadata(simulated_broker, "__consumer_offsets", create=True)).topics
    assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 2)
    assert simulated_broker.broker.catalogue.topic("__consumer_offsets").config.compacts
    assert codes(await request_metadata(simulated_broker, "__transaction_state", create=True)) == {
        "__transaction_state": UnknownTopicOrPartition.code
    }


async def test_topics_can_be_requested_by_id(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    requested = [
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=UUID(int=9), name=None),
    ]
    known, unknown = (await simulated_broker.send(MetadataRequest(topics=requested), 12)).topics
    assert (known.error_code, known.name, known.topic_id) == (0, "t", topic_id)
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (UnknownTopicId.code, None, UUID(int=9))
    nameless = [MetadataRequestTopic(name=None)]
    for version in (10, 11, 12):
        (topic,) = (await simulated_broker.send(MetadataRequest(topics=nameless), version)).topics
        assert (topic.error_code, topic.topic_id) == (InvalidTopic.code, ZERO_ID)


async def test_responses_reflect_every_change(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert len((await request_metadata(simulated_broker, "t")).topics[0].partitions) == 1
    await simulated_broker.broker.catalogue.add_partitions("t", 3)
    assert len((await request_metadata(simulated_broker, "t")).topics[0].partitions) == 3
    before = (await request_metadata(simulated_broker, "t")).topics[0].topic_id
    await simulated_broker.delete_topic("t")
    assert codes(await request_metadata(simulated_broker, "t")) == {"t": UnknownTopicOrPartition.code}
    await simulated_broker.create_topic("t")
    assert (await request_metadata(simulated_broker, "t")).topics[0].topic_id != before


async def describe(
    simulated_broker: SimulatedBroker, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> Any:
    topics = [DescribeTopicPartitionsTopic(name=name) for name in names]
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
    return await simulated_broker.send(request, 0)


def pages(response: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics]


async def test_topics_are_described_in_pages(simulated_broker: SimulatedBroker) -> None:
    for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
        await simulated_broker.create_topic(name, partitions)
    assert pages(await describe(simulated_broker)) == [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]
    seen, cursor, rounds = [], None, 0
    while rounds == 0 or cursor is not None:
        response = await describe(simulated_broker, limit=2, cursor=cursor)
        assert sum(len(indexes) for _, indexes in pages(response)) <= 2
        seen += [(name, index) for name, indexes in pages(response) for index in indexes]
        following = response.next_cursor
        cursor = following and Cursor(topic_name=following.topic_name, partition_index=following.partition_index)
        rounds += 1
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert rounds == 3


async def test_missing_topics_and_invalid_cursors_get_errors(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("a", 2)
    response = await describe(simulated_broker, "a", "missing")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a", 0),
        ("missing", UnknownTopicOrPartition.code),
    ]
    rejected = await describe(simulated_broker, "a", cursor=Cursor(topic_name="a", partition_index=-5))
    assert [(topic.name, topic.error_code) for topic in rejected.topics] == [("a", InvalidRequest.code)]
    assert pages(await describe(simulated_broker, "a", cursor=Cursor(topic_name="a", partition_index=9))) == [("a", [])]
    assert pages(await describe(simulated_broker, "a", cursor=Cursor(topic_name="z", partition_index=0))) == []
    assert pages(await describe(simulated_broker, "a", limit=-1)) == [("a", [0])]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_cluster(simulated_broker: SimulatedBroker, version: int) -> None:
    response = await simulated_broker.send(DescribeClusterRequest(endpoint_type=1), version)
    assert (response.error_code, response.controller_id) == (0, 1)
    assert response.cluster_id == simulated_broker.broker.identity.cluster_id
    (broker,) = response.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (1, "broker.example", 9092, "rack-a")
    if version >= 1:
        assert (
            await simulated_broker.send(DescribeClusterRequest(endpoint_type=2), version)
        ).error_code == InvalidRequest.code


async def test_a_broker_says_that_it_cannot_reach_the_registry(simulated_broker: SimulatedBroker) -> None:
    assert not (await simulated_broker.send(DescribeClusterRequest(), 2)).session_invalid
    simulated_broker.registry.disconnect()
    assert (await simulated_broker.send(DescribeClusterRequest(), 2)).session_invalid


async def test_the_cluster_keeps_its_id(simulated_broker: SimulatedBroker) -> None:
    before = simulated_broker.broker.identity.cluster_id
    await simulated_broker.restart()
    assert simulated_broker.broker.identity.cluster_id == before
    assert simulated_broker.broker.identity.epoch == 2


@in_simulated_cluster()
async def test_all_brokers_return_the_same_metadata(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), (3, 1))
    await simulated_cluster.wait_until(
        lambda: all(simulated_broker.broker.catalogue.find("t") for simulated_broker in simulated_cluster.up)
    )
    responses = [await request_metadata(simulated_broker, "t") for simulated_broker in simulated_cluster.up]
    assert [[broker.node_id for broker in response.brokers] for response in responses] == [[1, 2, 3]] * 3
    assert len({response.controller_id for response in responses}) == 1
    assert len({response.cluster_id for response in responses}) == 1
    for response in responses:
        found = [(one.leader_id, one.replica_nodes, one.isr_nodes) for one in response.topics[0].partitions]
        assert found == [(1, [1, 2], [1, 2]), (3, [3, 1], [3, 1])]


@in_simulated_cluster()
async def test_a_leader_that_is_down_is_not_named(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (3,), (3, 2))
    simulated_cluster[3].kill()
    await simulated_cluster.wait_until(lambda: 3 not in simulated_cluster[1].broker.catalogue.nodes)
    await simulated_cluster.wait_for_leader("t", 2, index=1)
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[1].broker.catalogue.partition_record("t", 1).leader == 2
    )
    first, second = (await request_metadata(simulated_cluster[1], "t")).topics[0].partitions
    assert (first.error_code, first.leader_id, first.offline_replicas) == (LeaderNotAvailable.code, -1, [3])
    assert (second.error_code, second.leader_id, second.leader_epoch) == (0, 2, 1)
    assert (second.offline_replicas, second.isr_nodes) == ([3], [2])
    described = await simulated_cluster[1].send(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic("t")]), 0
    )
    assert [one.error_code for one in described.topics[0].partitions] == [LeaderNotAvailable.code, 0]
    await simulated_cluster.open(3)
    await simulated_cluster.wait_for_leader("t", 3)
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[1].broker.catalogue.partition_record("t", 0).leader == 3
    )
    assert (await request_metadata(simulated_cluster[1], "t")).topics[0].partitions[0].leader_id == 3


@in_simulated_cluster()
async def test_a_dead_leader_is_not_returned_even_before_another_is_elected(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t", (3, 1))
    catalogue = simulated_cluster[1].broker.catalogue
    assert (await request_metadata(simulated_cluster[1], "t")).topics[0].partitions[0].leader_id == 3
    catalogue.apply(live_key(3), None)
    response = (await request_metadata(simulated_cluster[1], "t")).topics[0].partitions[0]
    assert (response.error_code, response.leader_id) == (LeaderNotAvailable.code, -1)


@in_simulated_cluster()
async def test_eligible_leader_replicas_are_returned(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", (1, 2), min_insync_replicas="2")
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until(lambda: simulated_cluster.record("t").elr == (2,))
    await simulated_cluster.wait_until(
        lambda: simulated_cluster[3].broker.catalogue.partition_record("t", 0).elr == (2,)
    )
    described = await simulated_cluster[3].send(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic("t")]), 0
    )
    (partition,) = described.topics[0].partitions
    assert (partition.isr_nodes, partition.eligible_leader_replicas) == ([1], [2])


@in_simulated_cluster()
async def test_a_topic_without_known_partition_records_has_no_leaders(simulated_cluster: SimulatedCluster) -> None:
    catalogue = simulated_cluster[1].broker.catalogue
    record = TopicRecord(name="t", id=UUID(int=1), partitions=2, created_ms=0)
    catalogue.apply(topic_key("t"), RegistryEntry(topic_key("t"), msgspec.json.encode(record), 0))
    (topic,) = (await request_metadata(simulated_cluster[1], "t")).topics
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [
        (0, LeaderNotAvailable.code),
        (1, LeaderNotAvailable.code),
    ]
    described = await simulated_cluster[1].send(
        DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsTopic("t")]), 0
    )
    assert described.topics[0].error_code == 0
    catalogue.apply(topic_key("t"), None)
