"""Share groups of a broker: members join and leave, a group id has one type, and members survive a restart."""

from __future__ import annotations

import pytest
from tests.unit.broker.groups.classic_members import ClassicMember, commit, committed, delete_group, describe, listed
from tests.unit.broker.groups.consumer_members import ConsumerMember, describe_consumers
from tests.unit.broker.leadership_changes import become_follower, become_leader, log_of
from tests.unit.broker.queues.queue_support import configure
from tests.unit.broker.share_groups.share_members import GROUP, TOPIC, ShareMember, coordinator, describe_share
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.coordination.state_log import KeyValue
from headrace.broker.share_groups.share_group_records import share_group_records
from headrace.machines.share_groups.share_group import ShareMemberMetadataSet
from headrace.model.errors import (
    CoordinatorLoading,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupNotEmpty,
    InconsistentGroupProtocol,
    InvalidRequest,
    NotCoordinator,
    UnknownMemberId,
)
from headrace.model.names import CONSUMER_OFFSETS


async def test_members_spread_over_partitions_and_share_them_if_there_are_more_members(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    members = [ShareMember(simulated_broker, f"m{number}") for number in range(4)]
    response = await members[0].beat()
    assert (response.error_code, response.heartbeat_interval_ms) == (0, 5000)
    assert members[0].reads == {TOPIC: [0, 1]}
    for member in members:
        await member.beat()
    for member in members:
        await member.beat()
    assert sorted(member.reads[TOPIC] for member in members) == [[0], [0], [1], [1]]
    for member in members[1:]:
        assert await member.leave() == 0
    await members[0].beat()
    assert members[0].reads == {TOPIC: [0, 1]}


async def test_a_group_is_described_and_listed(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    member = ShareMember(simulated_broker, "m1", TOPIC, "later")
    await member.beat(rack_id="r")
    described = await describe_share(simulated_broker)
    assert (described.error_code, described.group_state, described.assignor_name) == (0, "Stable", "simple")
    assert described.group_epoch == described.assignment_epoch == member.member_epoch
    (one,) = described.members
    assert (one.member_id, one.rack_id, one.member_epoch) == ("m1", "r", member.member_epoch)
    assert (one.client_id, one.client_host, one.subscribed_topic_names) == ("tester", "/10.0.0.1", [TOPIC, "later"])
    assert [(part.topic_name, part.partitions) for part in one.assignment.topic_partitions] == [(TOPIC, [0])]
    assert await listed(simulated_broker, types_filter=["share"]) == {GROUP: "Stable"}
    assert await listed(simulated_broker, types_filter=["consumer", "classic"]) == {}
    await member.leave()
    assert await listed(simulated_broker, states_filter=["empty"]) == {GROUP: "Empty"}
    assert (await describe_share(simulated_broker, "nobody")).error_code == GroupIdNotFound.code


async def test_invalid_members_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    member = ShareMember(simulated_broker)
    assert (await member.beat(member_epoch=3)).error_code in (NotCoordinator.code, GroupIdNotFound.code)
    assert (await member.beat(subscribed_topic_names=[])).error_code == InvalidRequest.code
    await member.beat()
    assert (await member.beat(member_epoch=7)).error_code == FencedMemberEpoch.code
    assert (await ShareMember(simulated_broker, "m2").beat(member_epoch=1)).error_code == UnknownMemberId.code
    assert await member.leave() == 0
    assert await member.leave() == UnknownMemberId.code


async def test_a_share_group_rejects_other_members_and_committed_offsets(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    member = ShareMember(simulated_broker)
    await member.beat()
    for _ in range(2):
        assert (
            await ConsumerMember(simulated_broker, "c", TOPIC, group=GROUP).beat()
        ).error_code == GroupIdNotFound.code
        assert (
            await ClassicMember(simulated_broker, TOPIC, group=GROUP).join()
        ).error_code == InconsistentGroupProtocol.code
        assert await commit(simulated_broker, 1, TOPIC, group=GROUP, version=9) == GroupIdNotFound.code
        assert (await describe(simulated_broker, GROUP)).error_message == f"Group {GROUP} is not a classic group."
        assert (await describe_consumers(simulated_broker, GROUP)).error_code == GroupIdNotFound.code
        await member.leave()  # an empty group neither


async def test_a_group_of_another_type_is_not_a_share_group(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    await ConsumerMember(simulated_broker, "c", TOPIC, group="consumers").beat()
    await commit(simulated_broker, 1, TOPIC, group="offsets")
    for group in ("consumers", "offsets"):
        rejected = await ShareMember(simulated_broker, group=group).beat()
        assert (rejected.error_code, rejected.error_message) == (
            GroupIdNotFound.code,
            f"Group {group} is not a share group.",
        )
        assert (await describe_share(simulated_broker, group)).error_message == f"Group {group} is not a share group."
    assert (await committed(simulated_broker, TOPIC, group="offsets"))[0] == 1


async def test_a_member_is_removed_when_its_session_expires(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    await configure(simulated_broker, GROUP, share_session_timeout_ms="10000", share_heartbeat_interval_ms="1000")
    one, two = ShareMember(simulated_broker, "m1"), ShareMember(simulated_broker, "m2")
    assert (await one.beat()).heartbeat_interval_ms == 1000
    await two.beat()
    for _ in range(4):
        await simulated_broker.pass_time(3)
        await one.beat()
    assert one.reads == {TOPIC: [0, 1]}
    assert (await two.beat()).error_code == UnknownMemberId.code
    await simulated_broker.pass_time(11)
    assert await listed(simulated_broker) == {GROUP: "Empty"}


@pytest.mark.parametrize("keep_page_cache", [True, False])
async def test_members_continue_after_a_crash_of_the_coordinator(
    simulated_broker: SimulatedBroker, keep_page_cache: bool
) -> None:
    await simulated_broker.create_topic(TOPIC, 2)
    one, two = ShareMember(simulated_broker, "m1"), ShareMember(simulated_broker, "m2")
    await one.beat()
    await two.beat()
    simulated_broker.kill(keep_page_cache=keep_page_cache)
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker, types_filter=["share"]) == {GROUP: "Stable"}
    assert await delete_group(simulated_broker, GROUP) == GroupNotEmpty.code
    for member in (one, two):
        assert (await member.beat()).error_code == 0
    assert sorted(one.reads[TOPIC] + two.reads[TOPIC]) == [0, 1]
    await simulated_broker.pass_time(46)
    assert await listed(simulated_broker) == {GROUP: "Empty"}
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {GROUP: "Empty"}


async def test_a_broker_serves_groups_only_while_it_is_their_coordinator(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    member = ShareMember(simulated_broker)
    await member.beat()
    partition = log_of(simulated_broker, GROUP)
    become_follower(simulated_broker, partition)
    assert (await member.beat()).error_code == NotCoordinator.code
    assert (await describe_share(simulated_broker)).error_code == NotCoordinator.code
    become_leader(simulated_broker, partition)
    await simulated_broker.pass_time(1)
    assert (await member.beat()).error_code == 0


async def test_a_group_with_only_member_tombstones_does_not_exist(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic(TOPIC)
    await ShareMember(simulated_broker, group="others").beat()
    tombstone = share_group_records(GROUP, [ShareMemberMetadataSet("m1", None)])
    await simulated_broker.host.start(_append(simulated_broker, GROUP, tombstone), "append")
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {"others": "Stable"}
    assert (await ConsumerMember(simulated_broker, "c", TOPIC, group=GROUP).beat()).error_code == 0


async def _append(simulated_broker: SimulatedBroker, group: str, records: list[KeyValue]) -> None:
    simulated_broker.broker.offsets_log.append(group, records)


async def test_only_an_empty_group_can_be_deleted_and_it_stays_deleted(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    member = ShareMember(simulated_broker)
    await member.beat()
    assert await delete_group(simulated_broker, GROUP) == GroupNotEmpty.code
    await member.leave()
    assert await delete_group(simulated_broker, GROUP) == 0
    assert await delete_group(simulated_broker, GROUP) == GroupIdNotFound.code
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {}
    assert (await ConsumerMember(simulated_broker, "c", TOPIC, group=GROUP).beat()).error_code == 0


@in_simulated_cluster(3, offsets_topic_replication_factor="3")
async def test_members_continue_at_the_next_coordinator(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic(TOPIC, (1, 2, 3), (2, 3, 1))
    one, two = ShareMember(simulated_cluster[1], "m1"), ShareMember(simulated_cluster[1], "m2")
    first = await coordinator(simulated_cluster, GROUP)
    for member in (one, two):
        assert (await member.beat(first)).error_code == 0
    for index in range(2):
        await simulated_cluster.wait_until_in_sync(CONSUMER_OFFSETS, index=index)
    first.kill()
    second = first
    while second is first:
        second = await coordinator(simulated_cluster, GROUP)
        await second.pass_time(0.5)
    one.simulated_broker = two.simulated_broker = second
    for member in (one, two):
        while (response := await member.beat()).error_code in (CoordinatorLoading.code, NotCoordinator.code):
            await second.pass_time(0.1)
        assert response.error_code == 0
    assert sorted(one.reads[TOPIC] + two.reads[TOPIC]) == [0, 1]
