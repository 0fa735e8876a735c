"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.groups.classic_members import (
    GROUP,
    ClassicMember,
    commit,
    commit_request,
    committed,
    delete_group,
    listed,
)
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.model.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)


@pytest.mark.parametrize("version", range(2, 10))
async def test_committed_offsets_are_found_in_every_version(simulated_broker: SimulatedBroker, version: int) -> None:
    await simulated_broker.create_topic("t")
    assert await commit(simulated_broker, 42, metadata="mine", version=version) == 0
    for requested in range(2, 8):
        assert await committed(simulated_broker, version=requested) == (42, "mine")


async def test_a_commit_creates_a_group_without_members(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1)
    assert await listed(simulated_broker) == {GROUP: "Empty"}
    assert await delete_group(simulated_broker) == 0
    assert await committed(simulated_broker) == (-1, "")
    assert await listed(simulated_broker) == {}


async def test_an_empty_commit_creates_no_group(simulated_broker: SimulatedBroker) -> None:
    assert await commit(simulated_broker, 1, "missing") == UnknownTopicOrPartition.code
    assert await listed(simulated_broker) == {}


async def test_an_uncommitted_offset_is_returned_as_minus_one(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.broker.offsets_log.ensure()
    await simulated_broker.create_topic("t")
    assert await committed(simulated_broker) == (-1, "")
    assert await committed(simulated_broker, "missing") == (-1, "")


async def test_partitions_of_a_commit_fail_separately(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    request = commit_request(5)
    request.topics[0].partitions.append(OffsetCommitRequestPartition(partition_index=7, committed_offset=5))
    long = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="x" * 5000)
    request.topics.append(OffsetCommitRequestTopic(name="missing", partitions=[long]))
    request.topics.append(OffsetCommitRequestTopic(name="t", partitions=[long]))
    response = await simulated_broker.send(request, 8)
    assert [[one.error_code for one in topic.partitions] for topic in response.topics] == [
        [0, UnknownTopicOrPartition.code],
        [UnknownTopicOrPartition.code],
        [OffsetMetadataTooLarge.code],
    ]


async def test_members_commit_in_their_generation_only(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member = ClassicMember(simulated_broker)
    await member.enter()
    assert await member.commit(5) == 0
    assert await commit(simulated_broker, 6) == UnknownMemberId.code, "the group has members"
    assert await commit(simulated_broker, 6, "t", GROUP, member.generation, "stranger") == UnknownMemberId.code
    assert await commit(simulated_broker, 6, "t", GROUP, member.generation + 1, member.id) == IllegalGeneration.code
    assert await commit(simulated_broker, 6, "t", "other", 3, "x") == IllegalGeneration.code
    assert await commit(simulated_broker, 6, "t", "other", 3, "x", version=9) == GroupIdNotFound.code
    assert await committed(simulated_broker) == (5, "")
    await member.leave()
    assert await member.commit(7) != 0
    assert await commit(simulated_broker, 8) == 0


async def test_a_commit_during_a_rebalance_is_rejected_or_stored(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    member, other = ClassicMember(simulated_broker), ClassicMember(simulated_broker)
    await member.enter()
    joining = other.begin_join(3)
    await simulated_broker.pass_time(0.1)
    assert await member.heartbeat() == RebalanceInProgress.code
    assert await member.commit(5) == 0, "what was read before the rebalance may still be committed"
    assert (await member.join()).error_code == 0
    await joining
    assert await member.commit(6) == RebalanceInProgress.code
    assert await committed(simulated_broker) == (5, "")


async def test_version_10_names_topics_by_id(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    requested = [OffsetCommitRequestPartition(partition_index=0, committed_offset=3)]
    topics = [
        OffsetCommitRequestTopic(topic_id=topic_id, partitions=requested),
        OffsetCommitRequestTopic(topic_id=UUID(int=4), partitions=requested),
    ]
    response = await simulated_broker.send(OffsetCommitRequest(group_id=GROUP, topics=topics), 10)
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in response.topics] == [
        (topic_id, 0),
        (UUID(int=4), UnknownTopicId.code),
    ]
    wanted = [
        OffsetFetchRequestTopic(topic_id=topic_id, partition_indexes=[0]),
        OffsetFetchRequestTopic(topic_id=UUID(int=4), partition_indexes=[0]),
    ]
    for group in (
        OffsetFetchRequestGroup(group_id=GROUP, topics=wanted),
        OffsetFetchRequestGroup(group_id=GROUP, topics=None),
    ):
        (answer,) = (await simulated_broker.send(OffsetFetchRequest(groups=[group]), 10)).groups
        found = {topic.topic_id: topic.partitions[0] for topic in answer.topics}
        assert found[topic_id].committed_offset == 3
        if group.topics is not None:
            assert (found[UUID(int=4)].committed_offset, found[UUID(int=4)].error_code) == (-1, UnknownTopicId.code)


def found(answer: Any) -> dict[str, list[tuple[int, int]]]:
    return {
        topic.name: [(part.partition_index, part.committed_offset) for part in topic.partitions]
        for topic in answer.topics
    }


async def test_one_request_fetches_offsets_of_several_groups(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 1, "t", "a")
    await commit(simulated_broker, 2, "t", "b")
    wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 9])]
    groups = [
        OffsetFetchRequestGroup(group_id="a", topics=wanted),
        OffsetFetchRequestGroup(group_id="b", topics=None),
        OffsetFetchRequestGroup(group_id="nobody", topics=None),
    ]
    for version in (8, 9):
        response = await simulated_broker.send(OffsetFetchRequest(groups=groups), version)
        assert [found(answer) for answer in response.groups] == [{"t": [(0, 1), (9, -1)]}, {"t": [(0, 2)]}, {}]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_fetch_without_topics_returns_all_committed_offsets(
    simulated_broker: SimulatedBroker, version: int
) -> None:
    for name in ("t", "u"):
        await simulated_broker.create_topic(name)
        await commit(simulated_broker, 1, name)
    response = await simulated_broker.send(OffsetFetchRequest(group_id=GROUP, topics=None), version)
    assert found(response) == {"t": [(0, 1)], "u": [(0, 1)]}


async def test_a_recreated_topic_has_no_committed_offsets(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 99)
    await simulated_broker.delete_topic("t")
    await simulated_broker.create_topic("t")
    assert await committed(simulated_broker) == (-1, "")
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await committed(simulated_broker) == (-1, "")


async def test_a_recreated_topic_has_no_committed_offsets_after_a_crash(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulated_broker.create_topic("t")
    await commit(simulated_broker, 99)
    monkeypatch.setattr(GroupCoordinator, "forget_topic", lambda *_: None)
    await simulated_broker.delete_topic("t")
    await simulated_broker.create_topic("t")
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert await committed(simulated_broker) == (-1, "")
    for request, version in (
        (OffsetFetchRequest(group_id=GROUP, topics=None), 7),
        (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)]), 8),
    ):
        response = await simulated_broker.send(request, version)
        assert found(response if version < 8 else response.groups[0]) == {}
    await commit(simulated_broker, 3)
    assert await committed(simulated_broker) == (3, "")


async def delete(simulated_broker: SimulatedBroker, *topics: str, group: str = GROUP) -> tuple[int, list[int]]:
    requested = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in topics
    ]
    response = await simulated_broker.send(OffsetDeleteRequest(group_id=group, topics=requested), 0)
    return response.error_code, [topic.partitions[0].error_code for topic in response.topics]


async def test_offsets_are_deleted_one_by_one(simulated_broker: SimulatedBroker) -> None:
    for name in ("t", "u"):
        await simulated_broker.create_topic(name)
    member = ClassicMember(simulated_broker, "t")
    await member.enter()
    await member.commit(1, "t")
    await member.commit(2, "u")
    assert await delete(simulated_broker, "t", "u", "missing") == (
        0,
        [GroupSubscribedToTopic.code, 0, UnknownTopicOrPartition.code],
    )
    assert await committed(simulated_broker, "t") == (1, "")
    assert await committed(simulated_broker, "u") == (-1, "")
    assert await delete(simulated_broker, "t", group="nobody") == (GroupIdNotFound.code, [])
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert await committed(simulated_broker, "u") == (-1, "")


async def test_an_old_client_gets_the_error_in_each_partition(simulated_broker: SimulatedBroker) -> None:
    requested = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=GROUP, topics=requested)
    response = await simulated_broker.send(request, 1)
    assert [one.error_code for one in response.topics[0].partitions] == [NotCoordinator.code]
    assert (await simulated_broker.send(request, 2)).error_code == NotCoordinator.code
