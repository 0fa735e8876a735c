"""AlterPartitionReassignments and ListPartitionReassignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.broker.registered_partitions import RegisteredPartitions, context
from tests.unit.client.admin.administered_cluster import led_partition

from headrace.model.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import PartitionRecord
from headrace.registry.topics import create_operations
from headrace.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)

OK = 0

MOVING = PartitionRecord(
    replicas=(3, 1, 2), isr=(1, 2), leader=1, leader_epoch=5, leader_broker_epoch=1, adding=(3,), removing=(2,)
)


async def alter(
    registered_partitions: RegisteredPartitions,
    wanted: Mapping[tuple[str, int], Sequence[int] | None],
    *,
    may_resize: bool = True,
    timeout_ms: int = 1000,
) -> dict[tuple[str, int], int]:
    topics = [
        ReassignableTopic(topic, [ReassignablePartition(index, None if nodes is None else list(nodes))])
        for (topic, index), nodes in wanted.items()
    ]
    request = AlterPartitionReassignmentsRequest(timeout_ms, may_resize, topics)
    response = await registered_partitions.requests.alter_reassignments(request, context(1))
    assert (response.error_code, response.allow_replication_factor_change) == (0, may_resize)
    return {
        (topic.name, result.partition_index): result.error_code
        for topic in response.responses
        for result in topic.partitions
    }


async def listed(
    registered_partitions: RegisteredPartitions, topics: Mapping[str, Sequence[int]] | None = None
) -> dict[tuple[str, int], Any]:
    requested = (
        None
        if topics is None
        else [ListPartitionReassignmentsTopics(name, list(indexes)) for name, indexes in topics.items()]
    )
    request = ListPartitionReassignmentsRequest(topics=requested)
    response = await registered_partitions.requests.list_reassignments(request, context(0))
    assert response.error_code == 0
    return {
        (topic.name, result.partition_index): (result.replicas, result.adding_replicas, result.removing_replicas)
        for topic in response.topics
        for result in topic.partitions
    }


async def test_a_reassignment_starts_with_old_and_new_replicas_and_is_listed() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3, 4)
    await registered_partitions.add("t", led_partition(1, 2), led_partition(2, 1))
    assert await alter(registered_partitions, {("t", 1): (3, 4)}) == {("t", 1): OK}
    record = await registered_partitions.record("t", 1)
    assert (record.replicas, record.adding, record.removing) == ((3, 4, 2, 1), (3, 4), (2, 1))
    assert (record.leader, record.leader_epoch, record.isr) == (2, 5, (2, 1))
    assert await listed(registered_partitions) == {("t", 1): ([3, 4, 2, 1], [3, 4], [2, 1])}


async def test_a_reassignment_can_be_cancelled() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", MOVING, led_partition(1, 2))
    assert await alter(registered_partitions, {("t", 0): None, ("t", 1): None}) == {
        ("t", 0): OK,
        ("t", 1): NoReassignmentInProgress.code,
    }
    record = await registered_partitions.record("t")
    assert (record.replicas, record.adding, record.removing) == ((1, 2), (), ())


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((), InvalidReplicaAssignment.code),
        ((1, 1), InvalidReplicaAssignment.code),
        ((1, 9), InvalidReplicaAssignment.code),
        ((1, -1), InvalidReplicaAssignment.code),
        ((1, 4), InvalidReplicaAssignment.code),  # it is about to go
        ((1, 5), InvalidReplicaAssignment.code),  # it is to hold nothing
        ((1, 3), OK),
        ((1, 2), OK),  # where it is already
        ((1,), OK),
    ],
)
async def test_invalid_target_replicas_are_rejected(target: tuple[int, ...], code: int) -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3, 5)
    registered_partitions.start(4, is_draining=True)
    await registered_partitions.drain(5)
    await registered_partitions.add("t", led_partition(1, 2))
    assert await alter(registered_partitions, {("t", 0): target}) == {("t", 0): code}


async def test_a_reassignment_to_the_current_replicas_writes_nothing() -> None:
    registered_partitions = RegisteredPartitions(1, 2)
    await registered_partitions.add("t", led_partition(1, 2))
    commits: list[str] = []
    registered_partitions.registry.watch("/partitions", commits.append)
    assert await alter(registered_partitions, {("t", 0): (1, 2)}) == {("t", 0): OK}
    await registered_partitions.refresh()
    assert commits == []


async def test_a_replica_may_stay_on_a_broker_that_is_down() -> None:
    registered_partitions = RegisteredPartitions(1, 3)
    await registered_partitions.add("t", replace(led_partition(1, 2), isr=(1,)))
    assert await alter(registered_partitions, {("t", 0): (1, 2, 3)}) == {("t", 0): OK}


async def test_the_number_of_replicas_changes_only_if_the_request_allows_it() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", led_partition(1, 2), MOVING)
    larger: Mapping[tuple[str, int], Sequence[int]] = {("t", 0): (1, 2, 3), ("t", 1): (1, 2, 3)}
    assert await alter(registered_partitions, larger, may_resize=False) == {
        ("t", 0): InvalidReplicationFactor.code,
        ("t", 1): InvalidReplicationFactor.code,
    }
    assert await alter(registered_partitions, {("t", 0): (3, 1), ("t", 1): (2, 3)}, may_resize=False) == {
        ("t", 0): OK,
        ("t", 1): OK,
    }
    assert await alter(registered_partitions, larger) == {("t", 0): OK, ("t", 1): OK}


async def test_unknown_partitions_get_their_own_errors() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", led_partition(1, 2))
    wanted = {("t", 0): (1, 3), ("t", 1): (1, 3), ("never", 0): (1, 3)}
    assert await alter(registered_partitions, wanted) == {
        ("t", 0): OK,
        ("t", 1): UnknownTopicOrPartition.code,
        ("never", 0): UnknownTopicOrPartition.code,
    }


async def test_partitions_that_are_just_being_added_are_not_there_yet() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", led_partition(1, 2))
    topic_id = registered_partitions.catalogue.topic("t").id
    await registered_partitions.registry.commit(create_operations(topic_id, 1, [led_partition(1, 2)]))
    assert await alter(registered_partitions, {("t", 1): (1, 3)}) == {("t", 1): UnknownTopicOrPartition.code}


async def test_partitions_not_changed_in_time_return_request_timed_out() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", led_partition(1, 2))
    assert await alter(registered_partitions, {("t", 0): (1, 3)}, timeout_ms=-1) == {("t", 0): RequestTimedOut.code}


async def test_only_the_requested_reassignments_are_listed() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("a", MOVING, led_partition(1, 2), MOVING)
    await registered_partitions.add("b", MOVING)
    moving = ([3, 1, 2], [3], [2])
    assert (await listed(registered_partitions)).keys() == {("a", 0), ("a", 2), ("b", 0)}
    assert await listed(registered_partitions, {"a": [1, 2, 9], "never": [0]}) == {("a", 2): moving}
    assert await listed(registered_partitions, {}) == {}


async def test_a_companion_is_not_moved_by_itself() -> None:
    registered_partitions = RegisteredPartitions(1, 2, 3)
    await registered_partitions.add("t", led_partition(1, 2))
    await registered_partitions.add(
        "__acks.t", led_partition(1, 2), owner=registered_partitions.catalogue.topic("t").id
    )
    assert await alter(registered_partitions, {("__acks.t", 0): (1, 3)}) == {
        ("__acks.t", 0): InvalidReplicaAssignment.code
    }
    assert await registered_partitions.record("__acks.t") == led_partition(1, 2)
