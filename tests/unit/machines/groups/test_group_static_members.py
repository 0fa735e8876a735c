"""Static members (group.instance.id): a restart within the session changes nothing for the others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.machines.groups.group_driver import REBALANCE_MS, SESSION_MS, GroupDriver, subscription

from headrace.machines.groups.group_state import GroupState, LeavingMember
from headrace.model.errors import (
    FencedInstanceId,
    HeadraceError,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def stable_pair(driver: GroupDriver, **changes: Any) -> tuple[str, str]:
    """A stable group of the static members `a`, who leads, and `b`."""
    first = driver.join(instance_id="a", **changes)
    second = driver.join(instance_id="b", **changes)
    leader = driver.joined(first).member_id
    driver.join(leader, instance_id="a", **changes)
    follower = driver.joined(second).member_id
    driver.assign([leader, follower])
    return leader, follower


def test_a_follower_that_restarts_gets_a_new_id_and_its_old_assignment(driver: GroupDriver) -> None:
    leader, follower = stable_pair(driver)
    response = driver.joined(driver.join(instance_id="b"))
    assert response.error_code == 0
    assert response.member_id not in (leader, follower)
    assert (response.generation_id, response.leader, response.members) == (2, leader, [])
    assert driver.state() is GroupState.STABLE
    assert driver.synced(driver.sync(response.member_id)).assignment == f"for {follower}".encode()


def test_the_new_id_is_stored_before_the_response(driver: GroupDriver) -> None:
    stable_pair(driver)
    driver.holds_stores = True
    token = driver.join(instance_id="b")
    assert driver.waits(token)
    driver.release_stores()
    new_id = driver.joined(token).member_id
    snapshot = driver.stored[-1]
    assert snapshot is not None
    assert {member.group_instance_id: member.member_id for member in snapshot.members}["b"] == new_id


def test_a_restarted_leader_gets_skip_assignment(driver: GroupDriver) -> None:
    _, follower = stable_pair(driver)
    response = driver.joined(driver.join(instance_id="a", skips_assignment=True))
    assert response.skip_assignment
    assert response.leader == response.member_id
    assert {member.member_id for member in response.members} == {response.member_id, follower}
    assert driver.state() is GroupState.STABLE


def test_a_follower_never_gets_skip_assignment(driver: GroupDriver) -> None:
    leader, _ = stable_pair(driver)
    response = driver.joined(driver.join(instance_id="b", skips_assignment=True))
    assert not response.skip_assignment
    assert (response.leader, response.members) == (leader, [])


def test_a_restarted_leader_of_an_older_version_is_not_returned_as_leader(driver: GroupDriver) -> None:
    leader, _ = stable_pair(driver)
    response = driver.joined(driver.join(instance_id="a"))
    assert response.leader == leader != response.member_id
    assert (response.members, response.skip_assignment) == ([], False)
    assert driver.group.roster.leader == response.member_id


def test_the_former_process_is_fenced_everywhere(driver: GroupDriver) -> None:
    _, follower = stable_pair(driver)
    driver.join(instance_id="b")
    for rejected in (driver.heartbeat, driver.commit):
        with pytest.raises(FencedInstanceId):
            rejected(follower, instance_id="b")
    assert driver.synced(driver.sync(follower, instance_id="b")).error_code == FencedInstanceId.code
    assert driver.joined(driver.join(follower, instance_id="b")).error_code == FencedInstanceId.code
    assert driver.leave(LeavingMember(follower, "b"))[0].error_code == FencedInstanceId.code
    with pytest.raises(UnknownMemberId):
        driver.heartbeat(follower)


def test_waiting_requests_of_the_former_process_are_fenced(driver: GroupDriver) -> None:
    leader, _ = stable_pair(driver)
    waiting = driver.join(leader, instance_id="a")
    assert driver.waits(waiting)
    driver.join(instance_id="a")
    rejected = driver.joined(waiting)
    assert (rejected.error_code, rejected.member_id) == (FencedInstanceId.code, leader)


def test_a_restart_before_the_assignment_starts_over(driver: GroupDriver) -> None:
    leader, follower = stable_pair(driver)
    driver.join(leader, instance_id="a")
    driver.join(follower, instance_id="b")
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    waiting = driver.sync(follower, instance_id="b")
    again = driver.join(instance_id="a")
    assert driver.waits(again)
    assert driver.state() is GroupState.PREPARING_REBALANCE
    assert driver.synced(waiting).error_code == RebalanceInProgress.code


def test_a_restart_while_the_others_join_counts_as_joining(driver: GroupDriver) -> None:
    leader, _ = stable_pair(driver)
    waiting = driver.join(leader, instance_id="a")
    again = driver.join(instance_id="b")
    assert driver.joined(waiting).generation_id == driver.joined(again).generation_id == 3


def test_a_restart_with_other_topics_starts_a_rebalance(driver: GroupDriver) -> None:
    stable_pair(driver, protocols=(("range", subscription("t")),))
    assert driver.waits(driver.join(instance_id="b", protocols=(("range", subscription("t", "u")),)))
    assert driver.state() is GroupState.PREPARING_REBALANCE


def test_a_restart_that_forgot_what_it_owned_does_not(driver: GroupDriver) -> None:
    stable_pair(driver, protocols=(("range", subscription("t", owned=b"t-0")),))
    driver.join(instance_id="b", protocols=(("range", subscription("t")),))
    assert driver.state() is GroupState.STABLE


def test_a_restart_that_changes_the_vote_starts_a_rebalance(driver: GroupDriver) -> None:
    range_first = (("range", b""), ("sticky", b""))
    driver.stable(1, instance_id="a", protocols=range_first)
    assert driver.group.protocol_name == "range"
    response = driver.joined(driver.join(instance_id="a", protocols=range_first[::-1]))
    assert (response.generation_id, response.protocol_name) == (2, "sticky")


def test_when_the_new_id_cannot_be_stored_the_old_one_stays(driver: GroupDriver) -> None:
    _, follower = stable_pair(driver)
    driver.holds_stores = True
    token = driver.join(instance_id="b")
    driver.release_stores(NotCoordinator.code)
    assert driver.joined(token).error_code == NotCoordinator.code
    driver.heartbeat(follower, instance_id="b")
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(follower, instance_id="b")


def test_of_two_concurrent_processes_with_one_instance_id_the_later_one_stays(driver: GroupDriver) -> None:
    stable_pair(driver)
    driver.holds_stores = True
    first, second = driver.join(instance_id="b"), driver.join(instance_id="b")
    assert driver.joined(first).error_code == FencedInstanceId.code
    driver.release_stores()
    driver.heartbeat(driver.joined(second).member_id, instance_id="b")


def test_two_processes_that_cannot_be_stored_are_both_rejected(driver: GroupDriver) -> None:
    stable_pair(driver)
    driver.holds_stores = True
    tokens = [driver.join(instance_id="b"), driver.join(instance_id="b")]
    driver.release_stores(NotCoordinator.code)
    assert [driver.joined(token).error_code for token in tokens] == [FencedInstanceId.code, NotCoordinator.code]
    driver.holds_stores = False
    assert driver.joined(driver.join(instance_id="b")).error_code == 0


def test_a_rebalance_during_the_store_takes_the_waiting_member_along(driver: GroupDriver) -> None:
    leader, _ = stable_pair(driver)
    driver.holds_stores = True
    token = driver.join(instance_id="b")
    again = driver.join(leader, instance_id="a")
    assert driver.joined(token).generation_id == driver.joined(again).generation_id == 3
    driver.release_stores()
    assert driver.group.generation_id == 3


def test_a_static_member_is_not_dropped_when_it_misses_a_rebalance(driver: GroupDriver) -> None:
    leader, follower = stable_pair(driver, session_timeout_ms=1_000_000)
    token = driver.join(leader, instance_id="a", session_timeout_ms=1_000_000)
    driver.pass_time(REBALANCE_MS)
    assert {member.member_id for member in driver.joined(token).members} == {leader, follower}


def test_the_leader_that_misses_a_rebalance_loses_the_lead(driver: GroupDriver) -> None:
    leader, follower = stable_pair(driver, session_timeout_ms=1_000_000)
    token = driver.join(follower, instance_id="b", session_timeout_ms=1_000_000, protocols=(("range", b"changed"),))
    driver.pass_time(REBALANCE_MS)
    response = driver.joined(token)
    assert response.leader == follower
    assert {member.member_id for member in response.members} == {leader, follower}


def test_without_returning_static_members_the_rebalance_waits_for_their_sessions(driver: GroupDriver) -> None:
    leader, follower = stable_pair(driver, session_timeout_ms=150_000)
    extra = driver.join()
    driver.leave(driver.group.describe().members[-1].member_id)
    assert driver.joined(extra).error_code == UnknownMemberId.code
    driver.pass_time(REBALANCE_MS * 2)
    assert driver.state() is GroupState.PREPARING_REBALANCE
    assert {member.member_id for member in driver.group.describe().members} == {leader, follower}
    driver.pass_time(REBALANCE_MS)
    assert driver.state() is GroupState.EMPTY


def test_a_tiny_rebalance_timeout_causes_no_busy_loop(driver: GroupDriver) -> None:
    stable_pair(driver, rebalance_timeout_ms=1)
    driver.join(rebalance_timeout_ms=1)
    driver.leave(driver.group.describe().members[-1].member_id)
    driver.pass_time(1)
    deadline_ms = driver.group.deadline()
    assert deadline_ms is not None
    assert deadline_ms >= driver.now_ms + 100
    driver.pass_time(SESSION_MS)
    assert driver.state() is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_its_instance_id(driver: GroupDriver) -> None:
    leader, _ = stable_pair(driver)
    departed = driver.leave(LeavingMember("", "b"), LeavingMember("", "nobody"))
    assert [(d.member_id, d.group_instance_id, d.error_code) for d in departed] == [
        ("", "b", 0),
        ("", "nobody", UnknownMemberId.code),
    ]
    assert [member.member_id for member in driver.group.describe().members] == [leader]


def test_commits_of_a_static_member_need_its_present_id(driver: GroupDriver) -> None:
    _, follower = stable_pair(driver)
    driver.commit(follower, instance_id="b")
    errors: list[type[HeadraceError]] = []
    for member_id, instance_id in (("m99", "b"), (follower, "nobody"), ("m99", None)):
        with pytest.raises(HeadraceError) as error:
            driver.commit(member_id, instance_id=instance_id)
        errors.append(error.type)
    assert errors == [FencedInstanceId, UnknownMemberId, UnknownMemberId]
