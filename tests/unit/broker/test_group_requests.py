"""Groups through their requests: joining, syncing, staying, leaving, and looking at them."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.house import House
from tests.unit.broker.members import GROUP, Member, delete_group, describe, listed

from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.list_groups import ListGroupsRequest


async def a_pair(house: House) -> tuple[Member, Member]:
    """Two members of one stable generation, the leader first."""
    members = Member(house), Member(house)
    joins = [asyncio.get_running_loop().create_task(member.join()) for member in members]
    for join in joins:
        assert (await join).error_code == 0
    first, second = sorted(members, key=lambda member: not member.leads)
    waiting = second.begin_sync()
    assert (await first.sync({first.id: b"one", second.id: b"two"})).assignment == b"one"
    assert (await waiting).assignment == b"two"
    return first, second


@pytest.mark.parametrize("version", range(10))
async def test_a_member_joins_syncs_and_stays_in_every_version(house: House, version: int) -> None:
    member = Member(house)
    response = await member.join(version)
    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 1, "range")
    assert [one.member_id for one in response.members] == [member.id] == [response.leader]
    assert member.id.startswith("tester-")
    answer = await member.sync({member.id: b"all"}, min(version, 5))
    assert (answer.error_code, answer.assignment) == (0, b"all")
    assert await member.heartbeat(min(version, 4)) == 0
    described = await describe(house)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (shown,) = described.members
    assert (shown.client_id, shown.client_host, shown.member_assignment) == ("tester", "/10.0.0.1", b"all")


async def test_from_version_4_on_a_new_member_is_told_its_id_first(house: House) -> None:
    member = Member(house)
    response = await member.begin_join(4)
    assert response.error_code == 79
    assert response.member_id
    assert (await listed(house)).keys() <= {GROUP}


async def test_members_share_a_generation(house: House) -> None:
    first, second = await a_pair(house)
    assert first.generation == second.generation
    assert first.leads
    assert not second.leads
    assert await first.heartbeat() == await second.heartbeat() == 0


async def test_one_that_leaves_makes_the_others_join_again(house: House) -> None:
    first, second = await a_pair(house)
    assert await first.leave() == 0
    assert await second.heartbeat() == 27
    assert (await second.join()).leader == second.id
    assert (await second.sync({second.id: b"all"})).assignment == b"all"
    assert await first.heartbeat() == 25


async def test_one_that_falls_silent_is_dropped(house: House) -> None:
    first, second = await a_pair(house)
    for _ in range(4):
        await house.pass_time(3)
        code = await first.heartbeat()
    assert code == 27
    assert (await first.join()).members[0].member_id == first.id
    assert await second.heartbeat() == 25


async def test_a_jump_of_the_wall_clock_drops_nobody(house: House) -> None:
    first, second = await a_pair(house)
    for jump in (3_600_000, -7_200_000):
        house.host.clock.jump(jump)
        await house.pass_time(4)
        assert await first.heartbeat() == await second.heartbeat() == 0
    await house.pass_time(30)
    assert (await describe(house)).group_state == "Empty"


async def test_unknown_members_groups_and_generations(house: House) -> None:
    member = Member(house)
    await member.enter()
    stranger = Member(house)
    stranger.id, stranger.generation = "stranger", member.generation
    assert await stranger.heartbeat() == 25
    assert (await stranger.sync()).error_code == 25
    assert await stranger.leave() == 25
    stranger.group = "nobody's"
    assert await stranger.heartbeat() == 25
    assert (await stranger.sync()).error_code == 25
    assert await stranger.leave() == 25
    member.generation += 1
    assert await member.heartbeat() == 22
    assert (await member.sync()).error_code == 22


async def test_an_empty_group_id_cannot_be_joined(house: House) -> None:
    member = Member(house, group="")
    assert (await member.begin_join()).error_code == 24
    assert await member.heartbeat() == 24
    assert (await member.sync()).error_code == 24


@pytest.mark.parametrize("timeout_ms", [1, 5_999, 1_800_001])
async def test_a_session_timeout_outside_the_limits_is_refused(house: House, timeout_ms: int) -> None:
    assert (await Member(house).join(3, timeout_ms)).error_code == 26


async def test_old_versions_leave_one_by_one(house: House) -> None:
    member = Member(house)
    await member.enter()
    response = await house.ask(LeaveGroupRequest(group_id=GROUP, member_id=member.id), 2)
    assert response.error_code == 0
    assert (await house.ask(LeaveGroupRequest(group_id=GROUP, member_id=member.id), 2)).error_code == 25
    assert (await describe(house)).group_state == "Empty"


async def test_static_members_keep_their_place_and_can_be_removed_by_name(house: House) -> None:
    member = Member(house, instance_id="one")
    await member.enter()
    again = Member(house, instance_id="one")
    response = await again.join()
    assert (response.error_code, response.generation_id) == (0, member.generation)
    assert await member.heartbeat() == 82
    identity = MemberIdentity(member_id="", group_instance_id="one")
    response = await house.ask(LeaveGroupRequest(group_id=GROUP, members=[identity]), 5)
    assert [one.error_code for one in response.members] == [0]
    assert (await describe(house)).members == []


async def test_groups_are_listed_by_state_and_type(house: House) -> None:
    member, gone = Member(house), Member(house, group="gone")
    await member.enter()
    await gone.enter()
    await gone.leave()
    assert await listed(house) == {GROUP: "Stable", "gone": "Empty"}
    assert await listed(house, states_filter=["stable", "Dead"]) == {GROUP: "Stable"}
    assert await listed(house, types_filter=["Classic"]) == {GROUP: "Stable", "gone": "Empty"}
    assert await listed(house, types_filter=["consumer"]) == {}
    for version in range(6):
        response = await house.ask(ListGroupsRequest(), version)
        assert sorted(group.group_id for group in response.groups) == ["gone", GROUP]


async def test_a_group_that_does_not_exist_is_dead(house: House) -> None:
    await house.broker.offsets_log.ensure()
    assert (await describe(house, "missing", version=5)).group_state == "Dead"
    assert (await describe(house, "missing", version=5)).error_code == 0
    missing = await describe(house, "missing", version=6)
    assert (missing.error_code, missing.group_state) == (69, "Dead")


async def test_only_an_empty_group_can_be_deleted_and_stays_so(house: House) -> None:
    member = Member(house)
    await member.enter()
    assert await delete_group(house) == 68
    assert await member.heartbeat() == 0
    await member.leave()
    assert await delete_group(house) == 0
    assert await delete_group(house) == 69
    assert await listed(house) == {}
    house.kill(keep_page_cache=False)
    await house.open()
    await house.pass_time(1)
    assert await listed(house) == {}


async def test_a_group_that_was_deleted_can_begin_again(house: House) -> None:
    member = Member(house)
    await member.enter()
    await member.leave()
    await delete_group(house)
    again = Member(house)
    await again.enter()
    assert again.generation == 1


async def test_a_request_whose_connection_is_gone_does_no_harm(house: House) -> None:
    await house.broker.offsets_log.ensure()
    first = Member(house)
    joining = first.begin_join(3)
    await house.turn()
    joining.cancel()
    second = Member(house)
    response = await second.join()
    assert response.error_code == 0
