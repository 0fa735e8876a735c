"""Deadlines of a group: sessions, and joins and syncs that do not arrive."""

from __future__ import annotations

import pytest
from tests.unit.machines.groups.group_driver import REBALANCE_MS, SESSION_MS, GroupDriver

from headrace.machines.groups.group_state import GroupState
from headrace.model.errors import RebalanceInProgress, UnknownMemberId

NEW_MEMBER_MS = 300_000


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def test_an_empty_group_has_no_deadline(driver: GroupDriver) -> None:
    assert driver.group.deadline() is None
    assert driver.group.tick(driver.now_ms) == []


def test_a_tick_before_the_deadline_does_nothing(driver: GroupDriver) -> None:
    driver.stable(1)
    assert driver.group.tick(driver.now_ms + 1) == []
    assert driver.state() is GroupState.STABLE


def test_a_member_that_is_silent_for_its_session_is_removed(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(leader)
    assert driver.state() is GroupState.STABLE
    driver.pass_time(1)
    assert driver.state() is GroupState.PREPARING_REBALANCE
    with pytest.raises(UnknownMemberId):
        driver.heartbeat(follower)
    assert driver.joined(driver.join(leader)).members[0].member_id == leader


def test_an_expired_leader_is_replaced(driver: GroupDriver) -> None:
    _, follower = driver.stable(2)
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(follower)
    driver.pass_time(1)
    response = driver.joined(driver.join(follower))
    assert (response.leader, [member.member_id for member in response.members]) == (follower, [follower])


def test_a_group_whose_members_all_expire_becomes_empty(driver: GroupDriver) -> None:
    driver.stable(3)
    driver.pass_time(SESSION_MS)
    assert driver.state() is GroupState.EMPTY
    assert driver.group.deadline() is None
    assert driver.stored[-1] is not None


def test_a_member_that_does_not_rejoin_in_time_is_left_behind(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    waiting = driver.join(leader)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        driver.pass_time(5_000)
        with pytest.raises(RebalanceInProgress):
            driver.heartbeat(follower)
    assert driver.waits(waiting)
    driver.pass_time(5_000)
    assert [member.member_id for member in driver.joined(waiting).members] == [leader]
    with pytest.raises(UnknownMemberId):
        driver.heartbeat(follower)


def test_a_member_that_dies_during_a_rebalance_does_not_hold_it_up(driver: GroupDriver) -> None:
    leader, _ = driver.stable(2)
    waiting = driver.join(leader)
    driver.pass_time(SESSION_MS)
    assert driver.joined(waiting).generation_id == 3


def test_the_longest_rebalance_timeout_counts(driver: GroupDriver) -> None:
    driver.stable(1)
    waiting = driver.join(rebalance_timeout_ms=90_000)
    for _ in range(17):
        driver.pass_time(5_000)
        with pytest.raises(RebalanceInProgress):
            driver.heartbeat("m1")
    assert driver.waits(waiting)
    driver.pass_time(5_000)
    assert driver.joined(waiting).leader == "m2"


def test_waiting_members_need_no_heartbeats(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    waiting = driver.join(leader)
    for _ in range(3):
        driver.pass_time(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            driver.heartbeat(follower)
    assert driver.waits(waiting)
    driver.join(follower)
    assert driver.joined(waiting).error_code == 0
    # From the response on it has a full session timeout.
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(leader)


def test_a_disconnected_member_has_one_session_timeout_after_its_join_response(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    for _ in range(3):
        driver.pass_time(SESSION_MS - 1)
        with pytest.raises(RebalanceInProgress):
            driver.heartbeat(follower)
    driver.join(follower)
    driver.pass_time(SESSION_MS - 1)
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    driver.pass_time(1)
    assert driver.state() is GroupState.EMPTY


def test_a_new_member_has_a_normal_session_after_its_join_response(driver: GroupDriver) -> None:
    driver.join()
    driver.pass_time(SESSION_MS)
    assert driver.state() is GroupState.EMPTY


def test_a_new_member_whose_client_disconnected_is_not_waited_for_forever(driver: GroupDriver) -> None:
    leader, _ = driver.stable(2)
    waiting = driver.join(rebalance_timeout_ms=2 * NEW_MEMBER_MS)
    for _ in range(NEW_MEMBER_MS // 5_000):
        driver.pass_time(5_000)
        for member_id in (leader, "m2"):
            with pytest.raises(RebalanceInProgress):
                driver.heartbeat(member_id)
    assert driver.joined(waiting).error_code == UnknownMemberId.code
    assert len(driver.group.describe().members) == 2


def test_a_leader_that_never_syncs_is_removed_after_the_rebalance_timeout(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    waiting = driver.sync(follower)
    for _ in range(REBALANCE_MS // 5_000):
        assert driver.waits(waiting)
        driver.heartbeat(leader)
        driver.pass_time(5_000)
    assert driver.synced(waiting).error_code == RebalanceInProgress.code
    with pytest.raises(UnknownMemberId):
        driver.heartbeat(leader)
    assert driver.joined(driver.join(follower)).leader == follower


def test_a_follower_that_never_syncs_is_removed_from_the_stable_group(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join(leader)
    driver.join(follower)
    driver.sync(leader)
    assert driver.state() is GroupState.STABLE
    for _ in range(REBALANCE_MS // 5_000 - 1):
        driver.pass_time(5_000)
        driver.heartbeat(leader)
        driver.heartbeat(follower)
    driver.pass_time(5_000)
    assert driver.state() is GroupState.PREPARING_REBALANCE
    assert [member.member_id for member in driver.group.describe().members] == [leader]


def test_the_rebalance_timeout_does_not_apply_after_all_members_synced(driver: GroupDriver) -> None:
    (member,) = driver.stable(1)
    for _ in range(2 * REBALANCE_MS // 5_000):
        driver.pass_time(5_000)
        driver.heartbeat(member)
    assert driver.state() is GroupState.STABLE


def test_a_late_tick_catches_up(driver: GroupDriver) -> None:
    driver.stable(2)
    driver.join(require_known_member_id=True)
    driver.now_ms += 10 * REBALANCE_MS
    driver.settle()
    assert driver.state() is GroupState.EMPTY
    assert driver.group.has_no_members


def test_the_last_member_leaves_while_another_is_pending(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.join(require_known_member_id=True)
    driver.leave("m1")
    assert driver.state() is GroupState.EMPTY
    assert driver.joined(driver.join("m2")).error_code == 0
