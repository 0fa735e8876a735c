"""The coordinator describes, alters and deletes offsets of share groups at the leaders of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit.broker.broker_requests import produce
from tests.unit.broker.groups.classic_members import delete_group, listed
from tests.unit.broker.groups.consumer_members import ConsumerMember
from tests.unit.broker.queues.queue_support import configure, describe
from tests.unit.broker.share_groups.share_members import ACCEPT, GROUP, TOPIC, ShareMember, coordinator, offsets
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupNotEmpty,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from headrace.model.ids import ZERO_ID
from headrace.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)


async def describe_offsets(
    simulated_broker: SimulatedBroker,
    topics: Mapping[str, list[int]] | None = None,
    group: str = GROUP,
    version: int = 1,
) -> Any:
    named = None if topics is None else [DescribeShareGroupOffsetsRequestTopic(*one) for one in topics.items()]
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, named)])
    (response,) = (await simulated_broker.send(request, version)).groups
    return response


async def standing(
    simulated_broker: SimulatedBroker, topics: Mapping[str, list[int]] | None = None, group: str = GROUP
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return start offset and lag by topic and partition."""
    response = await describe_offsets(simulated_broker, topics, group)
    assert response.error_code == 0, response
    return {
        (topic.topic_name, one.partition_index): (one.start_offset, one.lag)
        for topic in response.topics
        for one in topic.partitions
        if one.error_code == 0
    }


async def alter(simulated_broker: SimulatedBroker, offsets: Mapping[tuple[str, int], int], group: str = GROUP) -> Any:
    """Return the error code of each, or that of the response."""
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(AlterShareGroupOffsetsRequestPartition(index, offset))
    named = [AlterShareGroupOffsetsRequestTopic(*one) for one in topics.items()]
    response = await simulated_broker.send(AlterShareGroupOffsetsRequest(group, named), 0)
    if response.error_code:
        return response.error_code
    return {
        (topic.topic_name, one.partition_index): one.error_code
        for topic in response.responses
        for one in topic.partitions
    }


async def forget(simulated_broker: SimulatedBroker, *topics: str, group: str = GROUP) -> Any:
    named = [DeleteShareGroupOffsetsRequestTopic(topic) for topic in topics]
    response = await simulated_broker.send(DeleteShareGroupOffsetsRequest(group, named), 0)
    return response.error_code or {topic.topic_name: topic.error_code for topic in response.responses}


async def worked(
    simulated_broker: SimulatedBroker, partitions: Sequence[int] = (0,), *, leaves: bool = True
) -> ShareMember:
    """A member that has settled messages 0, 1 and 3 of five in each partition."""
    await configure(simulated_broker, GROUP, share_auto_offset_reset="earliest")
    for index in partitions:
        await produce(simulated_broker, TOPIC, *(b"%d" % number for number in range(5)), partition=index)
    member = ShareMember(simulated_broker)
    await member.beat()
    await member.take(*partitions)
    acks = {index: [(0, 1, ACCEPT), (3, 3, ACCEPT)] for index in partitions}
    await member.acknowledge(acks, epoch=-1)
    if leaves:
        await member.leave()
    return member


async def test_the_offsets_of_a_group_are_described(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    await simulated_broker.create_topic("other")
    await worked(simulated_broker)
    assert await standing(simulated_broker) == {(TOPIC, 0): (2, 2), (TOPIC, 1): (-1, -1)}
    requested = {TOPIC: [1, 0, 9], "other": [0], "nothing": [3]}
    response = await describe_offsets(simulated_broker, requested)
    assert [(topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in response.topics] == [
        (TOPIC, [1, 0, 9]),
        ("other", [0]),
        ("nothing", [3]),
    ]
    assert await standing(simulated_broker, requested) == {
        (TOPIC, 0): (2, 2),
        **dict.fromkeys([(TOPIC, 1), (TOPIC, 9), ("other", 0), ("nothing", 3)], (-1, -1)),
    }
    assert response.topics[0].topic_id == simulated_broker.broker.catalogue.topic(TOPIC).id
    assert response.topics[2].topic_id == ZERO_ID
    assert (await describe_offsets(simulated_broker, version=0)).topics[0].partitions[0].lag == -1


async def test_a_group_without_state_has_no_offsets(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    await worked(simulated_broker)
    assert await standing(simulated_broker, group="others") == {}
    await ConsumerMember(simulated_broker, "c", TOPIC, group="consumers").beat()
    assert (await describe_offsets(simulated_broker, group="consumers")).error_code == GroupIdNotFound.code


async def test_a_group_continues_at_altered_offsets(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    member = await worked(simulated_broker)
    assert await alter(simulated_broker, {(TOPIC, 0): 1, (TOPIC, 1): 0}) == {(TOPIC, 0): 0, (TOPIC, 1): 0}
    assert await standing(simulated_broker) == {(TOPIC, 0): (1, 4), (TOPIC, 1): (0, 0)}
    assert offsets(await member.take(0)) == [1, 2, 3, 4]
    assert await alter(simulated_broker, {(TOPIC, 0): 2, (TOPIC, 7): 0, ("nothing", 0): 0}) == {
        (TOPIC, 0): 0,
        (TOPIC, 7): UnknownTopicOrPartition.code,
        ("nothing", 0): UnknownTopicOrPartition.code,
    }
    assert await alter(simulated_broker, {(TOPIC, 0): 99}) == {(TOPIC, 0): OffsetOutOfRange.code}
    assert (await standing(simulated_broker))[TOPIC, 0] == (2, 3)


async def test_altering_offsets_creates_a_missing_group(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic(TOPIC)
    await produce(simulated_broker, TOPIC, b"a", b"b")
    assert await alter(simulated_broker, {(TOPIC, 0): 1}) == {(TOPIC, 0): 0}
    assert await listed(simulated_broker) == {GROUP: "Empty"}
    member = ShareMember(simulated_broker)
    assert (await member.beat()).error_code == 0
    assert offsets(await member.take(0)) == [1]


async def test_the_offsets_of_a_group_with_members_cannot_be_changed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    await worked(simulated_broker, leaves=False)
    assert await alter(simulated_broker, {(TOPIC, 0): 0}) == GroupNotEmpty.code
    assert await forget(simulated_broker, TOPIC) == GroupNotEmpty.code
    assert await standing(simulated_broker) == {(TOPIC, 0): (2, 2)}


async def test_a_group_of_another_type_has_no_share_offsets(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    await ConsumerMember(simulated_broker, "c", TOPIC, group="consumers").beat()
    assert await alter(simulated_broker, {(TOPIC, 0): 0}, "consumers") == GroupIdNotFound.code
    assert await forget(simulated_broker, TOPIC, group="consumers") == GroupIdNotFound.code
    assert await forget(simulated_broker, TOPIC, group="nobody") == GroupIdNotFound.code


async def test_after_deleting_offsets_a_topic_starts_again(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    member = await worked(simulated_broker)
    assert await forget(simulated_broker, TOPIC, "nothing") == {TOPIC: 0, "nothing": UnknownTopicOrPartition.code}
    assert await standing(simulated_broker) == {}
    assert await forget(simulated_broker, TOPIC) == {TOPIC: 0}
    assert offsets(await member.take(0)) == [0, 1, 2, 3, 4]


async def test_a_deleted_group_leaves_nothing_behind(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    await worked(simulated_broker, (0, 1))
    assert await delete_group(simulated_broker, GROUP) == 0
    assert await standing(simulated_broker) == {}
    assert [await describe(simulated_broker, partition=index) for index in (0, 1)] == [[], []]


async def test_a_deleted_group_with_a_long_name_leaves_nothing_behind(simulated_broker: SimulatedBroker) -> None:
    group = "g" * 300
    await simulated_broker.create_topic(TOPIC)
    await configure(simulated_broker, group, share_auto_offset_reset="earliest")
    await produce(simulated_broker, TOPIC, b"a", b"b")
    member = ShareMember(simulated_broker, group=group)
    await member.beat()
    await member.take(0)
    await member.acknowledge({0: [(0, 0, ACCEPT)]}, epoch=-1)
    await member.leave()
    assert await standing(simulated_broker, group=group) == {(TOPIC, 0): (1, 1)}
    assert await delete_group(simulated_broker, group) == 0
    assert await describe(simulated_broker, partition=0) == []


async def test_offsets_of_a_group_with_a_long_name_cannot_be_altered(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    assert await alter(simulated_broker, {(TOPIC, 0): 0}, "g" * 300) == {(TOPIC, 0): InvalidRequest.code}


@in_simulated_cluster(3)
async def test_an_error_of_another_broker_applies_to_all_its_partitions(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic(TOPIC, (1,), (2,), (3,))
    found = await coordinator(simulated_cluster, "g" * 300)
    partitions = [(TOPIC, index) for index in range(3)]
    assert await alter(found, dict.fromkeys(partitions, 0), "g" * 300) == dict.fromkeys(partitions, InvalidRequest.code)


async def spread_out(simulated_cluster: SimulatedCluster) -> SimulatedBroker:
    """Create a partition on each broker and a group with offsets in all of them; return its coordinator."""
    await simulated_cluster.create_topic(TOPIC, (1,), (2,), (3,))
    found = await coordinator(simulated_cluster)
    for index in range(3):
        simulated_broker = simulated_cluster[index + 1]
        await configure(simulated_broker, GROUP, share_auto_offset_reset="earliest")
        await produce(simulated_broker, TOPIC, b"a", b"b", b"c", partition=index)
        member = ShareMember(simulated_broker)
        assert (await member.beat(found)).error_code == 0
        assert offsets(await member.take(index)) == [0, 1, 2]
        await member.acknowledge({index: [(0, 0, ACCEPT)]}, epoch=-1)
    assert (await member.beat(found, member_epoch=-1)).error_code == 0
    return found


@in_simulated_cluster(3)
async def test_the_coordinator_requests_offsets_from_leaders_on_other_brokers(
    simulated_cluster: SimulatedCluster,
) -> None:
    simulated_broker = await spread_out(simulated_cluster)
    assert await standing(simulated_broker) == dict.fromkeys([(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)], (1, 2))
    assert await alter(simulated_broker, {(TOPIC, index): index for index in range(3)}) == dict.fromkeys(
        [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)], 0
    )
    assert await standing(simulated_broker) == {(TOPIC, index): (index, 3 - index) for index in range(3)}
    assert await forget(simulated_broker, TOPIC) == {TOPIC: 0}
    assert await standing(simulated_broker) == {}


@in_simulated_cluster(3)
async def test_a_group_is_deleted_only_if_all_leaders_respond(simulated_cluster: SimulatedCluster) -> None:
    simulated_broker = await spread_out(simulated_cluster)
    gone = next(other for other in simulated_cluster.up if other is not simulated_broker)
    gone.kill()
    assert await delete_group(simulated_broker, GROUP) == CoordinatorNotAvailable.code
    assert GROUP in await listed(simulated_broker)
    await gone.open()
    await simulated_cluster.wait_until(
        lambda: all(simulated_cluster.leads(index + 1, TOPIC, index) for index in range(3))
    )
    await simulated_broker.pass_time(1)
    assert await delete_group(simulated_broker, GROUP) == 0
    assert await standing(simulated_broker) == {}
