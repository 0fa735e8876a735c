"""Group requests: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.groups.classic_members import GROUP, ClassicMember, delete_group, describe, listed
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupNotEmpty,
    IllegalGeneration,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.messages.groups import LeaveGroupRequest, ListGroupsRequest, MemberIdentity


async def a_pair(simulated_broker: SimulatedBroker) -> tuple[ClassicMember, ClassicMember]:
    """Two members of one stable generation, the leader first."""
    members = ClassicMember(simulated_broker), ClassicMember(simulated_broker)
    joins = [asyncio.get_running_loop().create_task(member.join()) for member in members]
    for join in joins:
        assert (await join).error_code == 0
    first, second = sorted(members, key=lambda member: not member.leads)
    waiting = second.begin_sync()
    assert (await first.sync({first.id: b"one", second.id: b"two"})).assignment == b"one"
    assert (await waiting).assignment == b"two"
    return first, second


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_syncs_and_stays_in_every_version(simulated_broker: SimulatedBroker, version: int) -> None:
    member = ClassicMember(simulated_broker)
    response = await member.join(version)
    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 1, "range")
    assert [one.member_id for one in response.members] == [member.id] == [response.leader]
    assert member.id.startswith("tester-")
    answer = await member.sync({member.id: b"all"}, min(version, 5))
    assert (answer.error_code, answer.assignment) == (0, b"all")
    assert await member.heartbeat(min(version, 4)) == 0
    described = await describe(simulated_broker)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (shown,) = described.members
    assert (shown.client_id, shown.client_host, shown.member_assignment) == ("tester", "/10.0.0.1", b"all")


async def test_from_version_4_on_a_new_member_gets_its_id_first(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    response = await member.begin_join(4)
    assert response.error_code == MemberIdRequired.code
    assert response.member_id
    assert (await listed(simulated_broker)).keys() <= {GROUP}


async def test_members_share_a_generation(simulated_broker: SimulatedBroker) -> None:
    first, second = await a_pair(simulated_broker)
    assert first.generation == second.generation
    assert first.leads
    assert not second.leads
    assert await first.heartbeat() == await second.heartbeat() == 0


async def test_a_leaving_member_makes_the_others_rejoin(simulated_broker: SimulatedBroker) -> None:
    first, second = await a_pair(simulated_broker)
    assert await first.leave() == 0
    assert await second.heartbeat() == RebalanceInProgress.code
    assert (await second.join()).leader == second.id
    assert (await second.sync({second.id: b"all"})).assignment == b"all"
    assert await first.heartbeat() == UnknownMemberId.code


async def test_a_silent_member_is_removed(simulated_broker: SimulatedBroker) -> None:
    first, second = await a_pair(simulated_broker)
    for _ in range(4):
        await simulated_broker.pass_time(3)
        code = await first.heartbeat()
    assert code == RebalanceInProgress.code
    assert (await first.join()).members[0].member_id == first.id
    assert await second.heartbeat() == UnknownMemberId.code


async def test_a_jump_of_the_wall_clock_expires_no_member(simulated_broker: SimulatedBroker) -> None:
    first, second = await a_pair(simulated_broker)
    for jump in (3_600_000, -7_200_000):
        simulated_broker.host.clock.jump(jump)
        await simulated_broker.pass_time(4)
        assert await first.heartbeat() == await second.heartbeat() == 0
    await simulated_broker.pass_time(30)
    assert (await describe(simulated_broker)).group_state == "Empty"


async def test_unknown_members_groups_and_generations(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    stranger = ClassicMember(simulated_broker)
    stranger.id, stranger.generation = "stranger", member.generation
    assert await stranger.heartbeat() == UnknownMemberId.code
    assert (await stranger.sync()).error_code == UnknownMemberId.code
    assert await stranger.leave() == UnknownMemberId.code
    stranger.group = "nobody's"
    assert await stranger.heartbeat() == UnknownMemberId.code
    assert (await stranger.sync()).error_code == UnknownMemberId.code
    assert await stranger.leave() == UnknownMemberId.code
    member.generation += 1
    assert await member.heartbeat() == IllegalGeneration.code
    assert (await member.sync()).error_code == IllegalGeneration.code


async def test_an_empty_group_id_cannot_be_joined(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker, group="")
    assert (await member.begin_join()).error_code == InvalidGroupId.code
    assert await member.heartbeat() == InvalidGroupId.code
    assert (await member.sync()).error_code == InvalidGroupId.code


@pytest.mark.parametrize("timeout_ms", [1, 5_999, 1_800_001])
async def test_a_session_timeout_outside_the_limits_is_rejected(
    simulated_broker: SimulatedBroker, timeout_ms: int
) -> None:
    assert (await ClassicMember(simulated_broker).join(3, timeout_ms)).error_code == InvalidSessionTimeout.code


async def test_old_versions_leave_one_by_one(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    response = await simulated_broker.send(LeaveGroupRequest(group_id=GROUP, member_id=member.id), 2)
    assert response.error_code == 0
    assert (
        await simulated_broker.send(LeaveGroupRequest(group_id=GROUP, member_id=member.id), 2)
    ).error_code == UnknownMemberId.code
    assert (await describe(simulated_broker)).group_state == "Empty"


async def test_static_members_keep_their_place_and_can_be_removed_by_name(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker, instance_id="one")
    await member.enter()
    again = ClassicMember(simulated_broker, instance_id="one")
    response = await again.join()
    assert (response.error_code, response.generation_id) == (0, member.generation)
    assert await member.heartbeat() == FencedInstanceId.code
    identity = MemberIdentity(member_id="", group_instance_id="one")
    response = await simulated_broker.send(LeaveGroupRequest(group_id=GROUP, members=[identity]), 5)
    assert [one.error_code for one in response.members] == [0]
    assert (await describe(simulated_broker)).members == []


async def test_groups_are_listed_by_state_and_type(simulated_broker: SimulatedBroker) -> None:
    member, gone = ClassicMember(simulated_broker), ClassicMember(simulated_broker, group="gone")
    await member.enter()
    await gone.enter()
    await gone.leave()
    assert await listed(simulated_broker) == {GROUP: "Stable", "gone": "Empty"}
    assert await listed(simulated_broker, states_filter=["stable", "Dead"]) == {GROUP: "Stable"}
    assert await listed(simulated_broker, types_filter=["Classic"]) == {GROUP: "Stable", "gone": "Empty"}
    assert await listed(simulated_broker, types_filter=["consumer"]) == {}
    for version in range(6):
        response = await simulated_broker.send(ListGroupsRequest(), version)
        assert sorted(group.group_id for group in response.groups) == ["gone", GROUP]


async def test_a_group_that_does_not_exist_is_dead(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.broker.offsets_log.ensure()
    assert (await describe(simulated_broker, "missing", version=5)).group_state == "Dead"
    assert (await describe(simulated_broker, "missing", version=5)).error_code == 0
    missing = await describe(simulated_broker, "missing", version=6)
    assert (missing.error_code, missing.group_state) == (GroupIdNotFound.code, "Dead")


async def test_only_an_empty_group_can_be_deleted_and_stays_so(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    assert await delete_group(simulated_broker) == GroupNotEmpty.code
    assert await member.heartbeat() == 0
    await member.leave()
    assert await delete_group(simulated_broker) == 0
    assert await delete_group(simulated_broker) == GroupIdNotFound.code
    assert await listed(simulated_broker) == {}
    simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await simulated_broker.pass_time(1)
    assert await listed(simulated_broker) == {}


async def test_a_group_that_was_deleted_can_begin_again(simulated_broker: SimulatedBroker) -> None:
    member = ClassicMember(simulated_broker)
    await member.enter()
    await member.leave()
    await delete_group(simulated_broker)
    again = ClassicMember(simulated_broker)
    await again.enter()
    assert again.generation == 1


async def test_a_request_of_a_closed_connection_does_no_harm(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.broker.offsets_log.ensure()
    first = ClassicMember(simulated_broker)
    joining = first.begin_join(3)
    await simulated_broker.run_ready_tasks()
    joining.cancel()
    second = ClassicMember(simulated_broker)
    response = await second.join()
    assert response.error_code == 0
