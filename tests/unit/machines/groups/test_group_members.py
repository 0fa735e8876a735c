"""SyncGroup, Heartbeat, OffsetCommit and LeaveGroup succeed only for members of the current generation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.machines.groups.group_driver import SESSION_MS, GroupDriver

from headrace.machines.groups.group_state import GroupState, LeavingMember
from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def completing_pair(driver: GroupDriver) -> tuple[str, str]:
    """Two members that have joined generation 2 and have no assignment yet; the first leads."""
    driver.join()
    driver.join()
    driver.join("m1")
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    return "m1", "m2"


# SyncGroup


def test_followers_wait_for_the_leaders_assignment(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    waiting = driver.sync(follower)
    assert driver.waits(waiting)
    own = driver.sync(leader, assignments={leader: b"L", follower: b"F"})
    assert driver.synced(waiting).assignment == b"F"
    assert driver.synced(own).assignment == b"L"
    assert (driver.synced(own).protocol_type, driver.synced(own).protocol_name) == ("consumer", "range")
    assert driver.state() is GroupState.STABLE


def test_sync_responds_only_after_the_assignment_is_stored(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    driver.holds_stores = True
    tokens = [driver.sync(leader, assignments={leader: b"L", follower: b"F"}), driver.sync(follower)]
    assert all(driver.waits(token) for token in tokens)
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    snapshot = driver.stored[-1]
    assert snapshot is not None
    assert {member.member_id: member.assignment for member in snapshot.members} == {
        leader: b"L",
        follower: b"F",
    }
    driver.release_stores()
    assert [driver.synced(token).assignment for token in tokens] == [b"L", b"F"]


def test_a_member_without_an_assignment_gets_an_empty_one(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    waiting = driver.sync(follower)
    driver.sync(leader, assignments={leader: b"L"})
    assert (driver.synced(waiting).error_code, driver.synced(waiting).assignment) == (0, b"")


def test_a_late_sync_of_a_stable_group_gets_its_response_at_once(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    driver.sync(leader, assignments={follower: b"F"})
    assert driver.synced(driver.sync(follower)).assignment == b"F"
    assert driver.synced(driver.sync(follower)).assignment == b"F"


def test_all_members_rejoin_when_the_assignment_cannot_be_stored(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    driver.holds_stores = True
    tokens = [driver.sync(follower), driver.sync(leader, assignments={leader: b"L", follower: b"F"})]
    driver.release_stores(NotCoordinator.code)
    assert [driver.synced(token).error_code for token in tokens] == [NotCoordinator.code] * 2
    assert driver.state() is GroupState.PREPARING_REBALANCE
    assert {member.member_assignment for member in driver.group.describe().members} == {b""}


def test_an_assignment_that_is_stored_too_late_has_no_effect(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    driver.holds_stores = True
    waiting = driver.sync(leader, assignments={leader: b"old", follower: b"old"})
    driver.leave(follower)
    assert driver.synced(waiting).error_code == RebalanceInProgress.code
    driver.join(leader)
    driver.release_stores()
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    assert driver.group.describe().members[0].member_assignment == b""


def test_a_repeated_sync_of_the_leader_replaces_the_first(driver: GroupDriver) -> None:
    leader, _ = completing_pair(driver)
    driver.holds_stores = True
    first = driver.sync(leader, assignments={leader: b"1"})
    second = driver.sync(leader, assignments={leader: b"2"})
    assert driver.synced(first).error_code == RebalanceInProgress.code
    driver.release_stores()
    assert driver.synced(second).error_code == 0
    assert driver.state() is GroupState.STABLE


def test_sync_during_a_rebalance_gets_rebalance_in_progress(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    assert driver.synced(driver.sync(follower)).error_code == RebalanceInProgress.code


def test_sync_with_another_protocol_is_rejected(driver: GroupDriver) -> None:
    leader, _ = completing_pair(driver)
    for token in (driver.sync(leader, protocol_type="connect"), driver.sync(leader, protocol_name="sticky")):
        assert driver.synced(token).error_code == InconsistentGroupProtocol.code
    driver.sync(leader, protocol_type="consumer", protocol_name="range")
    assert driver.state() is GroupState.STABLE


@pytest.mark.parametrize("away", [-1, 1])
def test_sync_of_another_generation_is_rejected(driver: GroupDriver, away: int) -> None:
    leader, _ = completing_pair(driver)
    token = driver.sync(leader, driver.group.generation_id + away)
    assert driver.synced(token).error_code == IllegalGeneration.code


def test_sync_of_an_unknown_member_is_rejected(driver: GroupDriver) -> None:
    assert driver.synced(driver.sync("m1")).error_code == UnknownMemberId.code
    completing_pair(driver)
    assert driver.synced(driver.sync("stranger")).error_code == UnknownMemberId.code


# Heartbeat


def test_heartbeats_keep_a_member_in_the_group(driver: GroupDriver) -> None:
    (member,) = driver.stable(1)
    for _ in range(5):
        driver.pass_time(SESSION_MS - 1)
        driver.heartbeat(member)
    assert driver.state() is GroupState.STABLE


def test_heartbeats_before_the_assignment_succeed(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    for _ in range(3):
        driver.pass_time(SESSION_MS - 1)
        driver.heartbeat(leader)
        driver.heartbeat(follower)


def test_a_heartbeat_during_a_rebalance_gets_rebalance_in_progress_and_keeps_the_session(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    waiting = driver.join(leader)
    for _ in range(5):
        driver.pass_time(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            driver.heartbeat(follower)
    assert driver.waits(waiting)
    driver.join(follower)
    assert len(driver.joined(waiting).members) == 2


# The fences that heartbeat and commit share.

Request = Callable[[GroupDriver], Callable[..., None]]
requests = pytest.mark.parametrize(
    "request_of", [lambda d: d.heartbeat, lambda d: d.commit], ids=["heartbeat", "commit"]
)


@requests
def test_an_old_generation_is_rejected(driver: GroupDriver, request_of: Request) -> None:
    leader, _ = driver.stable(2)
    with pytest.raises(IllegalGeneration):
        request_of(driver)(leader, driver.group.generation_id - 1)


@requests
def test_an_unknown_member_is_rejected(driver: GroupDriver, request_of: Request) -> None:
    driver.stable(1)
    with pytest.raises(UnknownMemberId):
        request_of(driver)("stranger")


@requests
def test_a_member_of_an_empty_group_is_unknown(driver: GroupDriver, request_of: Request) -> None:
    driver.stable(1)
    driver.leave("m1")
    with pytest.raises(UnknownMemberId):
        request_of(driver)("m1")


@requests
def test_a_dead_group_is_not_available(driver: GroupDriver, request_of: Request) -> None:
    driver.run(driver.group.delete(driver.now_ms))
    with pytest.raises(CoordinatorNotAvailable):
        request_of(driver)("m1")


# OffsetCommit


def test_members_may_commit_while_the_group_is_stable_or_gathers(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.commit(leader)
    driver.join(leader)
    driver.commit(follower)


def test_a_commit_keeps_the_session(driver: GroupDriver) -> None:
    (member,) = driver.stable(1)
    for _ in range(3):
        driver.pass_time(SESSION_MS - 1)
        driver.commit(member)
    assert driver.state() is GroupState.STABLE


def test_a_commit_before_the_assignment_has_to_wait_for_it(driver: GroupDriver) -> None:
    leader, _ = completing_pair(driver)
    with pytest.raises(RebalanceInProgress):
        driver.commit(leader)


def test_anybody_may_commit_to_an_empty_group_without_a_generation(driver: GroupDriver) -> None:
    driver.commit("", -1)
    driver.stable(1)
    driver.leave("m1")
    driver.commit("", -1)


def test_a_client_without_membership_cannot_commit_to_an_active_group(driver: GroupDriver) -> None:
    driver.stable(1)
    with pytest.raises(UnknownMemberId):
        driver.commit("", -1)
    with pytest.raises(IllegalGeneration):
        driver.commit("m1", -1)


# LeaveGroup


def test_when_a_member_leaves_the_others_rebalance_at_once(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    assert driver.leave(leader)[0].error_code == 0
    assert driver.group.roster.leader == follower
    response = driver.joined(driver.join(follower))
    assert (response.generation_id, response.leader) == (3, follower)


def test_when_the_last_member_leaves_the_group_is_empty_and_that_is_stored(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.leave("m1")
    assert (driver.state(), driver.group.generation_id, driver.group.roster.leader) == (GroupState.EMPTY, 2, None)
    snapshot = driver.stored[-1]
    assert snapshot is not None
    assert (snapshot.members, snapshot.generation, snapshot.protocol_type) == ([], 2, "consumer")


def test_several_members_leave_in_one_request_with_one_result_each(driver: GroupDriver) -> None:
    members = driver.stable(3)
    departed = driver.leave(LeavingMember(members[0]), LeavingMember("stranger"), LeavingMember(members[2]))
    assert [(d.member_id, d.error_code) for d in departed] == [
        (members[0], 0),
        ("stranger", UnknownMemberId.code),
        (members[2], 0),
    ]
    assert [member.member_id for member in driver.group.describe().members] == [members[1]]


def test_a_member_that_leaves_while_it_waits_gets_a_response(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    waiting = driver.join(leader)
    driver.leave(leader)
    rejected = driver.joined(waiting)
    assert (rejected.error_code, rejected.member_id) == (UnknownMemberId.code, "")
    assert driver.joined(driver.join(follower)).error_code == 0


def test_a_leave_of_the_last_one_missing_completes_the_rebalance(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    waiting = driver.join(leader)
    driver.leave(follower)
    assert driver.joined(waiting).generation_id == 3


def test_a_member_that_leaves_before_the_assignment_is_not_assigned_to(driver: GroupDriver) -> None:
    leader, follower = completing_pair(driver)
    waiting = driver.sync(follower)
    driver.leave(follower)
    assert driver.synced(waiting).error_code == UnknownMemberId.code
    assert driver.synced(driver.sync(leader)).error_code == RebalanceInProgress.code


def test_a_pending_member_may_leave_without_troubling_the_others(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.join(require_known_member_id=True)
    assert driver.leave("m2")[0].error_code == 0
    assert driver.state() is GroupState.STABLE
    assert driver.joined(driver.join("m2")).error_code == UnknownMemberId.code


def test_a_leave_without_ids_is_rejected(driver: GroupDriver) -> None:
    driver.stable(1)
    assert driver.leave(LeavingMember(""))[0].error_code == UnknownMemberId.code
    assert driver.state() is GroupState.STABLE


def test_leaving_a_dead_group_is_rejected(driver: GroupDriver) -> None:
    driver.run(driver.group.delete(driver.now_ms))
    with pytest.raises(HeadraceError) as error:
        driver.leave("m1")
    assert error.type is CoordinatorNotAvailable
