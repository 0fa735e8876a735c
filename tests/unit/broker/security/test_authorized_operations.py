"""Clients that request their authorized operations get all of them, as from Kafka 4.3 without an authorizer."""

from __future__ import annotations

from tests.unit.broker.groups.consumer_members import ConsumerMember
from tests.unit.broker.share_groups.share_members import ShareMember
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from headrace.wire.messages.groups import DescribeGroupsRequest
from headrace.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from headrace.wire.messages.share_groups import ShareGroupDescribeRequest

TOPIC, GROUP, CLUSTER, UNTOLD = 3576, 3400, 8096, -(1 << 31)


async def test_authorized_topic_operations_are_returned_on_request(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    topics = [MetadataRequestTopic(name=name) for name in ("t", "missing")]
    pending = MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    result = (await simulated_broker.send(pending, 12)).topics
    assert [topic.topic_authorized_operations for topic in result] == [TOPIC, UNTOLD]
    silent = await simulated_broker.send(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12)
    assert [topic.topic_authorized_operations for topic in silent.topics] == [UNTOLD, UNTOLD]
    everything = await simulated_broker.send(MetadataRequest(topics=None, include_topic_authorized_operations=True), 12)
    assert {topic.topic_authorized_operations for topic in everything.topics} == {TOPIC}
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsTopic(name="t"), DescribeTopicPartitionsTopic(name="missing")]
    )
    described = {
        topic.name: topic.topic_authorized_operations for topic in (await simulated_broker.send(request, 0)).topics
    }
    assert described == {"t": TOPIC, "missing": UNTOLD}


async def test_authorized_cluster_operations_are_returned_on_request(simulated_broker: SimulatedBroker) -> None:
    for asks, result in ((True, CLUSTER), (False, UNTOLD)):
        metadata = await simulated_broker.send(
            MetadataRequest(topics=[], include_cluster_authorized_operations=asks), 10
        )
        assert metadata.cluster_authorized_operations == result
        cluster = await simulated_broker.send(DescribeClusterRequest(include_cluster_authorized_operations=asks), 1)
        assert cluster.cluster_authorized_operations == result


async def test_authorized_group_operations_are_returned_on_request(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await ConsumerMember(simulated_broker, "c", "t", group="consumers").beat()
    await ShareMember(simulated_broker, "s", "t", group="sharers").beat()
    for asks, result in ((True, GROUP), (False, UNTOLD)):
        classic = DescribeGroupsRequest(groups=["classic"], include_authorized_operations=asks)
        assert [group.authorized_operations for group in (await simulated_broker.send(classic, 5)).groups] == [result]
        assert [group.authorized_operations for group in (await simulated_broker.send(classic, 6)).groups] == [
            UNTOLD
        ], "no such"
        consumers = ConsumerGroupDescribeRequest(group_ids=["consumers", "none"], include_authorized_operations=asks)
        assert [group.authorized_operations for group in (await simulated_broker.send(consumers, 1)).groups] == [
            result,
            UNTOLD,
        ]
        sharers = ShareGroupDescribeRequest(group_ids=["sharers", "none"], include_authorized_operations=asks)
        assert [group.authorized_operations for group in (await simulated_broker.send(sharers, 1)).groups] == [
            result,
            UNTOLD,
        ]
