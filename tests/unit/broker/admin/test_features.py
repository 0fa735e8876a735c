"""The finalized features in ApiVersions, UpdateFeatures, and DescribeQuorum, as Kafka's tools use them."""

from __future__ import annotations

import pytest
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import InvalidUpdateVersion, UnknownTopicOrPartition
from headrace.wire.messages.metadata import (
    ApiVersionsRequest,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    FeatureUpdate,
    UpdateFeaturesRequest,
)


async def test_the_metadata_version_is_that_of_the_kafka_release_whose_apis_are_served(
    simulated_broker: SimulatedBroker,
) -> None:
    response = await simulated_broker.send(ApiVersionsRequest(), 4)
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}
    assert finalized["metadata.version"] == 30
    assert supported["metadata.version"] == (7, 30)
    assert all(low <= finalized[name] <= high for name, (low, high) in supported.items())
    assert finalized.keys() == supported.keys()


async def test_clients_that_reject_a_minimum_of_0_are_not_sent_one(simulated_broker: SimulatedBroker) -> None:
    response = await simulated_broker.send(ApiVersionsRequest(), 3)
    assert [feature.name for feature in response.supported_features] == ["metadata.version"]


@pytest.mark.parametrize("version", range(3))
async def test_an_update_to_the_level_in_force_succeeds(simulated_broker: SimulatedBroker, version: int) -> None:
    updates = [FeatureUpdate(feature="metadata.version", max_version_level=30)]
    response = await simulated_broker.send(UpdateFeaturesRequest(feature_updates=updates), version)
    assert response.error_code == 0
    assert [result.error_code for result in response.results] == ([0] if version < 2 else [])


@pytest.mark.parametrize(("feature", "level"), [("group.version", 0), ("group.version", 9), ("kraft.version", 1)])
async def test_an_update_to_another_level_is_rejected_and_names_the_feature(
    simulated_broker: SimulatedBroker, feature: str, level: int
) -> None:
    updates = [
        FeatureUpdate(feature="share.version", max_version_level=1),
        FeatureUpdate(feature=feature, max_version_level=level),
    ]
    response = await simulated_broker.send(UpdateFeaturesRequest(feature_updates=updates), 2)
    assert response.error_code == InvalidUpdateVersion.code
    assert f"{level} for feature {feature}" in response.error_message


def quorum(topic: str = "__cluster_metadata", partition: int = 0) -> DescribeQuorumRequest:
    partitions = [DescribeQuorumRequestPartition(partition_index=partition)]
    return DescribeQuorumRequest(topics=[DescribeQuorumRequestTopic(topic_name=topic, partitions=partitions)])


@pytest.mark.parametrize("version", range(3))
async def test_a_single_broker_is_the_leader_and_the_only_voter_of_the_quorum(
    simulated_broker: SimulatedBroker, version: int
) -> None:
    response = await simulated_broker.send(quorum(), version)
    (partition,) = response.topics[0].partitions
    assert (response.error_code, partition.error_code, partition.leader_id) == (0, 0, 1)
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, partition.high_watermark)
    assert partition.leader_epoch >= 0
    assert len(response.nodes) == (1 if version >= 2 else 0)


@in_simulated_cluster()
async def test_the_controller_leads_the_quorum_and_every_broker_is_a_voter(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.wait_until(
        lambda: len(simulated_cluster[2].broker.catalogue.nodes) == len(simulated_cluster.simulated_brokers)
    )
    controller = simulated_cluster[2].broker.catalogue.controller
    assert controller is not None
    (partition,) = (await simulated_cluster[2].send(quorum(), 2)).topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch) == (controller.node_id, controller.epoch)
    assert {voter.replica_id for voter in partition.current_voters} == set(simulated_cluster.simulated_brokers)


async def test_there_is_no_quorum_of_another_topic(simulated_broker: SimulatedBroker) -> None:
    for request in (quorum("orders"), quorum(partition=1)):
        (partition,) = (await simulated_broker.send(request, 2)).topics[0].partitions
        assert partition.error_code == UnknownTopicOrPartition.code
