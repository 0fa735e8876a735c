"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.house import House
from tests.unit.broker.members import GROUP, Member, commit, commit_request, committed, delete_group, listed

from headrace.broker.coordinator import Coordinator
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)


@pytest.mark.parametrize("version", range(2, 10))
async def test_what_is_committed_is_found_in_every_version(house: House, version: int) -> None:
    await house.make_topic("t")
    assert await commit(house, 42, metadata="mine", version=version) == 0
    for asked in range(2, 8):
        assert await committed(house, version=asked) == (42, "mine")


async def test_a_group_without_members_shows_up_when_it_commits(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1)
    assert await listed(house) == {GROUP: "Empty"}
    assert await delete_group(house) == 0
    assert await committed(house) == (-1, "")
    assert await listed(house) == {}


async def test_a_commit_that_names_nothing_leaves_no_group_behind(house: House) -> None:
    assert await commit(house, 1, "missing") == 3
    assert await listed(house) == {}


async def test_nothing_committed_is_minus_one(house: House) -> None:
    await house.broker.offsets_log.ensure()
    await house.make_topic("t")
    assert await committed(house) == (-1, "")
    assert await committed(house, "missing") == (-1, "")


async def test_partitions_of_a_commit_stand_for_themselves(house: House) -> None:
    await house.make_topic("t")
    request = commit_request(5)
    request.topics[0].partitions.append(OffsetCommitRequestPartition(partition_index=7, committed_offset=5))
    long = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="x" * 5000)
    request.topics.append(OffsetCommitRequestTopic(name="missing", partitions=[long]))
    request.topics.append(OffsetCommitRequestTopic(name="t", partitions=[long]))
    response = await house.ask(request, 8)
    assert [[one.error_code for one in topic.partitions] for topic in response.topics] == [[0, 3], [3], [12]]


async def test_members_commit_in_their_generation_only(house: House) -> None:
    await house.make_topic("t")
    member = Member(house)
    await member.enter()
    assert await member.commit(5) == 0
    assert await commit(house, 6) == 25, "the group has members"
    assert await commit(house, 6, "t", GROUP, member.generation, "stranger") == 25
    assert await commit(house, 6, "t", GROUP, member.generation + 1, member.id) == 22
    assert await commit(house, 6, "t", "other", 3, "x") == 22
    assert await commit(house, 6, "t", "other", 3, "x", version=9) == 69
    assert await committed(house) == (5, "")
    await member.leave()
    assert await member.commit(7) != 0
    assert await commit(house, 8) == 0


async def test_a_commit_while_the_group_rebalances_is_refused_or_kept(house: House) -> None:
    await house.make_topic("t")
    member, other = Member(house), Member(house)
    await member.enter()
    joining = other.begin_join(3)
    await house.pass_time(0.1)
    assert await member.heartbeat() == 27
    assert await member.commit(5) == 0, "what was read before the rebalance may still be committed"
    assert (await member.join()).error_code == 0
    await joining
    assert await member.commit(6) == 27
    assert await committed(house) == (5, "")


async def test_version_10_names_topics_by_id(house: House) -> None:
    await house.make_topic("t")
    topic_id = house.broker.catalogue.topic("t").id
    asked = [OffsetCommitRequestPartition(partition_index=0, committed_offset=3)]
    topics = [
        OffsetCommitRequestTopic(topic_id=topic_id, partitions=asked),
        OffsetCommitRequestTopic(topic_id=UUID(int=4), partitions=asked),
    ]
    response = await house.ask(OffsetCommitRequest(group_id=GROUP, topics=topics), 10)
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in response.topics] == [
        (topic_id, 0),
        (UUID(int=4), 100),
    ]
    wanted = [
        OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0]),
        OffsetFetchRequestTopics(topic_id=UUID(int=4), partition_indexes=[0]),
    ]
    for group in (
        OffsetFetchRequestGroup(group_id=GROUP, topics=wanted),
        OffsetFetchRequestGroup(group_id=GROUP, topics=None),
    ):
        (answer,) = (await house.ask(OffsetFetchRequest(groups=[group]), 10)).groups
        found = {topic.topic_id: topic.partitions[0] for topic in answer.topics}
        assert found[topic_id].committed_offset == 3
        if group.topics is not None:
            assert (found[UUID(int=4)].committed_offset, found[UUID(int=4)].error_code) == (-1, 100)


def found(answer: Any) -> dict[str, list[tuple[int, int]]]:
    return {
        topic.name: [(part.partition_index, part.committed_offset) for part in topic.partitions]
        for topic in answer.topics
    }


async def test_many_groups_are_asked_for_at_once(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 1, "t", "a")
    await commit(house, 2, "t", "b")
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 9])]
    groups = [
        OffsetFetchRequestGroup(group_id="a", topics=wanted),
        OffsetFetchRequestGroup(group_id="b", topics=None),
        OffsetFetchRequestGroup(group_id="nobody", topics=None),
    ]
    for version in (8, 9):
        response = await house.ask(OffsetFetchRequest(groups=groups), version)
        assert [found(answer) for answer in response.groups] == [{"t": [(0, 1), (9, -1)]}, {"t": [(0, 2)]}, {}]


@pytest.mark.parametrize("version", range(2, 8))
async def test_without_topics_all_that_is_committed_is_found(house: House, version: int) -> None:
    for name in ("t", "u"):
        await house.make_topic(name)
        await commit(house, 1, name)
    response = await house.ask(OffsetFetchRequest(group_id=GROUP, topics=None), version)
    assert found(response) == {"t": [(0, 1)], "u": [(0, 1)]}


async def test_a_topic_made_again_does_not_find_the_offsets_of_its_predecessor(house: House) -> None:
    await house.make_topic("t")
    await commit(house, 99)
    await house.delete_topic("t")
    await house.make_topic("t")
    assert await committed(house) == (-1, "")
    await house.restart()
    await house.pass_time(1)
    assert await committed(house) == (-1, "")


async def test_not_even_when_the_broker_had_no_time_to_forget_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.make_topic("t")
    await commit(house, 99)
    monkeypatch.setattr(Coordinator, "forget_topic", lambda *_: None)
    await house.delete_topic("t")
    await house.make_topic("t")
    house.kill(keep_page_cache=False)
    await house.open()
    await house.pass_time(1)
    assert await committed(house) == (-1, "")
    for request, version in (
        (OffsetFetchRequest(group_id=GROUP, topics=None), 7),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)]), 8),
    ):
        response = await house.ask(request, version)
        assert found(response if version < 8 else response.groups[0]) == {}
    await commit(house, 3)
    assert await committed(house) == (3, "")


async def delete(house: House, *topics: str, group: str = GROUP) -> tuple[int, list[int]]:
    asked = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in topics
    ]
    response = await house.ask(OffsetDeleteRequest(group_id=group, topics=asked), 0)
    return response.error_code, [topic.partitions[0].error_code for topic in response.topics]


async def test_offsets_are_deleted_one_by_one(house: House) -> None:
    for name in ("t", "u"):
        await house.make_topic(name)
    member = Member(house, "t")
    await member.enter()
    await member.commit(1, "t")
    await member.commit(2, "u")
    assert await delete(house, "t", "u", "missing") == (0, [86, 0, 3])
    assert await committed(house, "t") == (1, "")
    assert await committed(house, "u") == (-1, "")
    assert await delete(house, "t", group="nobody") == (69, [])
    house.kill(keep_page_cache=False)
    await house.open()
    await house.pass_time(1)
    assert await committed(house, "u") == (-1, "")


async def test_an_old_client_is_told_of_an_error_where_it_looks_for_it(house: House) -> None:
    asked = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=GROUP, topics=asked)
    response = await house.ask(request, 1)
    assert [one.error_code for one in response.topics[0].partitions] == [16]
    assert (await house.ask(request, 2)).error_code == 16
