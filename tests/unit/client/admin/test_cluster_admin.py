"""Cluster administration covers all partitions, and reports errors per partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.unit.client.admin.administered_cluster import AdministeredCluster, led_partition
from tests.unit.client.scripted_cluster import ScriptedCluster, in_world

from headrace.client.admin.cluster_admin import BrokerView, ClusterAdmin, PartitionReplicas
from headrace.client.connections.address import Address
from headrace.client.metadata import TopicPartition
from headrace.model.errors import (
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    InvalidRequest,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.testkit.world import World
from headrace.wire import apis

T = TypeVar("T")
FIRST, SECOND, MISSING = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("orders", 9)


def administer(there: AdministeredCluster, work: Callable[[ClusterAdmin], Awaitable[T]]) -> T:
    async def scenario(world: World) -> T:
        scripted_cluster = ScriptedCluster(world)
        await there.join(scripted_cluster)
        async with scripted_cluster.cluster() as cluster:
            return await work(ClusterAdmin(cluster))

    return in_world(scenario)


def test_the_members_are_the_live_brokers() -> None:
    there = AdministeredCluster(2, 1)
    there.drain(2)
    members = administer(there, lambda admin: admin.members())
    assert (members.cluster_id, members.controller_id) == ("scripted", 1)
    assert list(members.brokers.values()) == [
        BrokerView(1, Address("broker1", 9092), "rack1", is_draining=False),
        BrokerView(2, Address("broker2", 9092), "rack2", is_draining=True),
    ]


@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
def test_partitions_are_listed_in_pages_with_ongoing_reassignments(page_size: int) -> None:
    there = AdministeredCluster(1, 2, 3)
    there.page_size = page_size
    there.records = {("orders", index): led_partition(1, 2) for index in range(3)}
    there.records["audit", 0] = replace(led_partition(1, 2, 3), isr=(1,), elr=(2,), adding=(3,), removing=(2,))
    places = administer(there, lambda admin: admin.places())
    assert [place.target for place in places] == [("audit", 0), ("orders", 0), ("orders", 1), ("orders", 2)]
    assert places[0] == PartitionReplicas(TopicPartition("audit", 0), 1, 5, (1, 2, 3), (1,), (2,), (3,), (2,))
    assert (places[0].is_moving, places[0].behind) == (True, (2,))
    assert (places[1].is_moving, places[1].behind, places[1].is_offline) == (False, (), False)
    assert len(administer(there, lambda admin: admin.places(["orders"]))) == 3


def test_the_error_names_the_missing_topic() -> None:
    there = AdministeredCluster(1)
    with pytest.raises(UnknownTopicOrPartition, match="'nope'"):
        administer(there, lambda admin: admin.places(["nope"]))


def test_min_insync_replicas_is_requested_for_many_topics_at_once() -> None:
    there = AdministeredCluster(1)
    there.min_insync = 2
    topics = [f"t{number}" for number in range(600)]
    assert administer(there, lambda admin: admin.min_insync([*topics, "t0"])) == dict.fromkeys(topics, 2)
    assert there.count(apis.DESCRIBE_CONFIGS) == 2


def test_reassignments_begin_and_are_cancelled_and_invalid_ones_are_rejected() -> None:
    there = AdministeredCluster(1, 2, 3)
    there.records = {("orders", index): led_partition(1, 2) for index in range(2)}
    rejected = administer(there, lambda admin: admin.move({FIRST: (2, 3), SECOND: (1, 1), MISSING: (1, 2)}))
    assert {target: type(error) for target, error in rejected.items()} == {
        SECOND: InvalidReplicaAssignment,
        MISSING: UnknownTopicOrPartition,
    }
    assert administer(there, lambda admin: admin.moves()) == {FIRST: ((3,), (1,))}
    rejected = administer(there, lambda admin: admin.move({FIRST: None, SECOND: None}))
    assert {target: type(error) for target, error in rejected.items()} == {SECOND: NoReassignmentInProgress}
    assert administer(there, lambda admin: admin.moves()) == {}


def test_only_partitions_with_retriable_errors_are_retried() -> None:
    there = AdministeredCluster(1, 2, 3)
    there.records = {("orders", index): led_partition(1, 2) for index in range(2)}
    there.busy = 1
    assert administer(there, lambda admin: admin.move({FIRST: (2, 3), SECOND: (2, 3)})) == {}
    assert all(record.adding == (3,) for record in there.records.values())
    requested = [
        request for b in there.brokers for key, _, request in b.requests if key == apis.ALTER_PARTITION_REASSIGNMENTS
    ]
    assert [len(request.topics[0].partitions) for request in requested] == [2, 1]


def test_retries_that_never_succeed_end_with_the_error() -> None:
    there = AdministeredCluster(1, 2, 3)
    there.records["orders", 0] = led_partition(1, 2)
    there.busy = 10_000
    with pytest.raises(RequestTimedOut):
        administer(there, lambda admin: admin.move({FIRST: (2, 3)}))


def test_a_large_plan_is_sent_in_several_requests() -> None:
    there = AdministeredCluster(1, 2, 3)
    there.records = {("orders", index): led_partition(1, 2) for index in range(250)}
    assert administer(there, lambda admin: admin.move({TopicPartition(*key): (3, 1) for key in there.records})) == {}
    assert there.count(apis.ALTER_PARTITION_REASSIGNMENTS) == 3
    assert all(record.adding == (3,) for record in there.records.values())


def test_an_election_returns_the_errors_of_partitions_at_once() -> None:
    there = AdministeredCluster(1, 2)
    there.records = {
        ("orders", 0): led_partition(2, 1, first=1),
        ("orders", 1): led_partition(1, 3, first=3),
        ("orders", 2): led_partition(1, 2),
    }
    targets = [TopicPartition("orders", index) for index in range(3)]
    rejected = administer(there, lambda admin: admin.prefer(targets))
    assert {target: type(error) for target, error in rejected.items()} == {
        targets[1]: PreferredLeaderNotAvailable,
        targets[2]: ElectionNotNeeded,
    }
    assert there.count(apis.ELECT_LEADERS) == 1
    assert there.records["orders", 0].leader == 1


def test_an_unclean_election_is_requested_as_unclean() -> None:
    there = AdministeredCluster(2)
    there.records["orders", 0] = replace(led_partition(1, 2), isr=(1,), leader=-1)
    assert administer(there, lambda admin: admin.elect_unclean([FIRST])) == {}
    assert there.records["orders", 0].unclean_epoch == there.records["orders", 0].leader_epoch


def test_a_drain_is_requested_and_cancelled() -> None:
    there = AdministeredCluster(1, 2)
    administer(there, lambda admin: admin.drain(2))
    administer(there, lambda admin: admin.drain(2, is_drained=False))
    with pytest.raises(InvalidRequest, match="no such broker"):
        administer(there, lambda admin: admin.drain(7))
    assert there.drains == [(2, True), (2, False), (7, True)]


def test_a_throttle_is_set_for_all_brokers_and_lifted() -> None:
    there = AdministeredCluster(1)
    administer(there, lambda admin: admin.throttle(5_000_000))
    administer(there, lambda admin: admin.throttle(None))
    name = "follower.replication.throttled.rate"
    assert there.throttles == [("", name, 0, "5000000"), ("", name, 1, None)]


def test_sizes_are_those_on_the_brokers_disk() -> None:
    there = AdministeredCluster(1, 2, 3)
    there.records = {("orders", 0): led_partition(1, 2), ("orders", 1): led_partition(2, 3)}
    for node_id, sizes in ((1, {FIRST: 100}), (2, {FIRST: 40, SECOND: 100}), (3, {SECOND: 40})):
        assert administer(there, lambda admin, node_id=node_id: admin.sizes(node_id, [FIRST, SECOND])) == sizes  # type: ignore[misc]
