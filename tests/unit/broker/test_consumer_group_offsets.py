"""Offsets of groups of the newer protocol, as members of several epochs commit, fetch and delete them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.consumer_members import ConsumerMember, settle
from tests.unit.broker.house import House
from tests.unit.broker.members import GROUP, committed

from headrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics


async def fetch(house: House, **said: Any) -> tuple[int, list[int]]:
    """The error, and the offsets."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics, **said)])
    (group,) = (await house.ask(request, 9)).groups
    return group.error_code, [one.committed_offset for topic in group.topics for one in topic.partitions]


async def test_a_member_that_has_not_heard_of_its_new_epoch_commits_what_it_holds(house: House) -> None:
    await house.make_topic("t", 1)
    await house.make_topic("u", 1)
    member = ConsumerMember(house, "m1", "t", "u")
    await settle(member)
    await house.make_topic("v", 1)
    assert (await member.beat(subscribed_topic_names=["t", "u", "v"])).member_epoch == 2
    assert await member.commit(5, generation_id_or_member_epoch=1) == 0
    assert await committed(house) == (5, "")
    assert await member.commit(5, "v", generation_id_or_member_epoch=1) == 113
    assert await member.commit(5, "v") == 0
    assert await member.commit(5, "none", generation_id_or_member_epoch=1) == 113


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({}, (0, [7])),
        ({"member_id": "m1", "member_epoch": 1}, (0, [7])),
        ({"member_id": "m1", "member_epoch": 2}, (113, [])),
        ({"member_id": "m2", "member_epoch": 1}, (25, [])),
    ],
)
async def test_offsets_are_for_members_of_the_right_epoch_and_for_those_who_say_nothing(
    house: House, said: dict[str, Any], answer: tuple[int, list[int]]
) -> None:
    await house.make_topic("t", 1)
    member = ConsumerMember(house, "m1", "t")
    await settle(member)
    await member.commit(7)
    assert await fetch(house, **said) == answer


async def test_offsets_of_topics_that_nobody_subscribes_to_can_be_deleted(house: House) -> None:
    await house.make_topic("t", 1)
    await house.make_topic("u", 1)
    member = ConsumerMember(house, "m1", "t")
    await settle(member)
    await member.commit(7)
    await member.commit(8, "u")
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in ("t", "u")
    ]
    response = await house.ask(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    assert response.error_code == 0
    assert [topic.partitions[0].error_code for topic in response.topics] == [86, 0]
    assert await committed(house) == (7, "")
    assert await committed(house, "u") == (-1, "")
