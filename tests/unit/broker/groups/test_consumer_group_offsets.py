"""Offsets of consumer-protocol groups: commit, fetch and delete by members of several epochs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.groups.classic_members import GROUP, committed
from tests.unit.broker.groups.consumer_members import ConsumerMember, settle
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import GroupSubscribedToTopic, StaleMemberEpoch, UnknownMemberId
from headrace.wire.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)


async def fetch(simulated_broker: SimulatedBroker, **fields: Any) -> tuple[int, list[int]]:
    """The error, and the offsets."""
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics, **fields)])
    (group,) = (await simulated_broker.send(request, 9)).groups
    return group.error_code, [one.committed_offset for topic in group.topics for one in topic.partitions]


async def test_a_member_with_the_previous_epoch_commits_for_partitions_that_it_holds(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", 1)
    await simulated_broker.create_topic("u", 1)
    member = ConsumerMember(simulated_broker, "m1", "t", "u")
    await settle(member)
    await simulated_broker.create_topic("v", 1)
    assert (await member.beat(subscribed_topic_names=["t", "u", "v"])).member_epoch == 2
    assert await member.commit(5, generation_id_or_member_epoch=1) == 0
    assert await committed(simulated_broker) == (5, "")
    assert await member.commit(5, "v", generation_id_or_member_epoch=1) == StaleMemberEpoch.code
    assert await member.commit(5, "v") == 0
    assert await member.commit(5, "none", generation_id_or_member_epoch=1) == StaleMemberEpoch.code


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0, [7])),
        ({"member_id": "m1", "member_epoch": 1}, (0, [7])),
        ({"member_id": "m1", "member_epoch": 2}, (StaleMemberEpoch.code, [])),
        ({"member_id": "m2", "member_epoch": 1}, (UnknownMemberId.code, [])),
    ],
)
async def test_offsets_are_fetched_by_members_of_the_right_epoch_and_by_non_members(
    simulated_broker: SimulatedBroker, fields: dict[str, Any], expected: tuple[int, list[int]]
) -> None:
    await simulated_broker.create_topic("t", 1)
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    await member.commit(7)
    assert await fetch(simulated_broker, **fields) == expected


async def test_offsets_of_topics_without_subscribers_can_be_deleted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 1)
    await simulated_broker.create_topic("u", 1)
    member = ConsumerMember(simulated_broker, "m1", "t")
    await settle(member)
    await member.commit(7)
    await member.commit(8, "u")
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in ("t", "u")
    ]
    response = await simulated_broker.send(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    assert response.error_code == 0
    assert [topic.partitions[0].error_code for topic in response.topics] == [GroupSubscribedToTopic.code, 0]
    assert await committed(simulated_broker) == (7, "")
    assert await committed(simulated_broker, "u") == (-1, "")
