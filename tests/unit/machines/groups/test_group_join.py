"""JoinGroup: admission, the start of a generation, and the responses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.machines.groups.group_driver import SESSION_MS, GroupDriver

from headrace.machines.groups.group_state import GroupConfig, GroupState
from headrace.model.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.messages.groups import JoinGroupResponseMember


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def test_the_first_member_leads_and_gets_all_members(driver: GroupDriver) -> None:
    response = driver.joined(driver.join())
    assert (response.error_code, response.member_id, response.leader) == (0, "m1", "m1")
    assert (response.generation_id, response.protocol_type, response.protocol_name) == (1, "consumer", "range")
    assert response.members == [JoinGroupResponseMember("m1", None, b"range-metadata")]
    assert driver.state() is GroupState.COMPLETING_REBALANCE


def test_a_follower_gets_the_leader_but_not_the_members(driver: GroupDriver) -> None:
    first = driver.join()
    second = driver.join()
    assert driver.waits(second)
    again = driver.join("m1")
    assert driver.joined(second).leader == "m1"
    assert driver.joined(second).members == []
    assert [member.member_id for member in driver.joined(again).members] == ["m1", "m2"]
    assert driver.joined(again).generation_id == driver.joined(second).generation_id
    assert driver.joined(again).generation_id == driver.joined(first).generation_id + 1


def test_a_member_without_an_id_gets_one_and_rejoins(driver: GroupDriver) -> None:
    rejected = driver.joined(driver.join(require_known_member_id=True))
    assert (rejected.error_code, rejected.member_id) == (MemberIdRequired.code, "m1")
    assert driver.state() is GroupState.EMPTY
    assert not driver.group.has_no_members
    accepted = driver.joined(driver.join("m1", require_known_member_id=True))
    assert (accepted.error_code, accepted.member_id) == (0, "m1")


def test_an_assigned_member_id_is_valid_for_one_session_timeout(driver: GroupDriver) -> None:
    driver.join(require_known_member_id=True)
    driver.pass_time(SESSION_MS)
    assert driver.group.has_no_members
    assert driver.joined(driver.join("m1", require_known_member_id=True)).error_code == UnknownMemberId.code


def test_a_static_member_needs_no_second_round(driver: GroupDriver) -> None:
    assert driver.joined(driver.join(require_known_member_id=True, instance_id="i")).error_code == 0


def test_a_member_id_that_the_group_never_gave_is_unknown(driver: GroupDriver) -> None:
    rejected = driver.joined(driver.join("stranger"))
    assert (rejected.error_code, rejected.member_id) == (UnknownMemberId.code, "stranger")
    assert driver.group.has_no_members


def test_a_pending_member_is_waited_for(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.join(require_known_member_id=True)
    assert driver.state() is GroupState.STABLE
    leader = driver.join("m1")
    assert driver.waits(leader)
    driver.join("m2")
    assert [member.member_id for member in driver.joined(leader).members] == ["m1", "m2"]


def test_a_pending_member_that_never_joins_does_not_delay_the_others(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.join(require_known_member_id=True)
    leader = driver.join("m1")
    driver.pass_time(SESSION_MS)
    assert driver.joined(leader).generation_id == 2


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_outside_the_limits_is_rejected(driver: GroupDriver, timeout_ms: int) -> None:
    response = driver.joined(driver.join(session_timeout_ms=timeout_ms))
    assert response.error_code == InvalidSessionTimeout.code
    assert driver.group.has_no_members


@pytest.mark.parametrize(
    "changes", [{"protocol_type": ""}, {"protocols": ()}], ids=["without a type", "without protocols"]
)
def test_the_first_member_must_bring_protocols(driver: GroupDriver, changes: dict[str, Any]) -> None:
    assert driver.joined(driver.join(**changes)).error_code == InconsistentGroupProtocol.code


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}],
    ids=["another type", "no common protocol"],
)
def test_a_member_with_inconsistent_protocols_is_rejected(driver: GroupDriver, changes: dict[str, Any]) -> None:
    driver.stable(1)
    assert driver.joined(driver.join(**changes)).error_code == InconsistentGroupProtocol.code
    assert driver.joined(driver.join("m1", **changes)).error_code == InconsistentGroupProtocol.code
    assert driver.state() is GroupState.STABLE


def test_an_empty_group_accepts_another_protocol_type(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.leave("m1")
    assert driver.joined(driver.join(protocol_type="connect")).protocol_type == "connect"


def test_the_protocol_with_the_most_votes_among_the_common_ones_wins(driver: GroupDriver) -> None:
    a, b, c = (("a", b"A"), ("b", b"B"), ("c", b"C"))
    driver.join(protocols=(c, a, b))
    driver.join(protocols=(b, a))
    third = driver.join(protocols=(b, a, c))
    leader = driver.joined(driver.join("m1", protocols=(c, a, b)))
    assert leader.protocol_name == "b"
    assert driver.joined(third).protocol_name == "b"
    assert {member.metadata for member in leader.members} == {b"B"}


def test_a_protocol_named_twice_counts_once(driver: GroupDriver) -> None:
    driver.join(protocols=(("a", b""), ("a", b"")))
    driver.join(protocols=(("a", b""), ("b", b"")))
    assert driver.joined(driver.join("m1", protocols=(("a", b""), ("a", b"")))).protocol_name == "a"


def test_a_follower_that_joins_again_unchanged_keeps_its_generation(driver: GroupDriver) -> None:
    _, follower = driver.stable(2)
    response = driver.joined(driver.join(follower))
    assert (response.error_code, response.generation_id, response.leader) == (0, 2, "m1")
    assert driver.state() is GroupState.STABLE


def test_a_leader_that_joins_again_starts_a_rebalance(driver: GroupDriver) -> None:
    leader, _ = driver.stable(2)
    assert driver.waits(driver.join(leader))
    assert driver.state() is GroupState.PREPARING_REBALANCE


def test_a_follower_with_other_metadata_starts_a_rebalance(driver: GroupDriver) -> None:
    _, follower = driver.stable(2)
    assert driver.waits(driver.join(follower, protocols=(("range", b"owns other partitions"),)))
    assert driver.state() is GroupState.PREPARING_REBALANCE


def test_a_member_that_lost_the_join_response_gets_it_again(driver: GroupDriver) -> None:
    driver.join()
    driver.join()
    driver.join("m1")
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    assert len(driver.joined(driver.join("m1")).members) == 2
    assert driver.joined(driver.join("m2")).members == []
    assert driver.group.generation_id == 2


def test_other_metadata_before_the_assignment_starts_over(driver: GroupDriver) -> None:
    driver.join()
    driver.join()
    driver.join("m1")
    follower = driver.sync("m2")
    assert driver.waits(driver.join("m1", protocols=(("range", b"changed"),)))
    assert driver.synced(follower).error_code == RebalanceInProgress.code


def test_a_second_join_of_a_waiting_member_replaces_the_first(driver: GroupDriver) -> None:
    driver.stable(2)
    first = driver.join("m1")
    second = driver.join("m1")
    assert driver.joined(first).error_code == RebalanceInProgress.code
    driver.join("m2")
    assert driver.joined(second).error_code == 0


def test_a_full_group_rejects_new_members(driver: GroupDriver) -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, max_size=2))
    leader, follower = driver.stable(2)
    rejected = driver.joined(driver.join())
    assert (rejected.error_code, rejected.member_id) == (GroupMaxSizeReached.code, "")
    assert driver.state() is GroupState.STABLE
    driver.join(leader)
    driver.join(follower, protocols=(("range", b"changed"),))
    assert driver.state() is GroupState.COMPLETING_REBALANCE


def test_a_group_that_is_too_large_after_a_restart_loses_the_last_to_rejoin(driver: GroupDriver) -> None:
    one, two, three = driver.stable(3)
    driver.config = GroupConfig(initial_rebalance_delay_ms=0, max_size=2)
    driver.restart()
    assert driver.state() is GroupState.PREPARING_REBALANCE
    waiting = [driver.join(three), driver.join(one)]
    assert driver.joined(driver.join(two)).error_code == GroupMaxSizeReached.code
    assert [driver.joined(token).error_code for token in waiting] == [0, 0]
    assert len(driver.group.describe().members) == 2


def test_a_full_group_accepts_a_returning_static_member(driver: GroupDriver) -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, max_size=1))
    driver.stable(1, instance_id="i")
    assert driver.joined(driver.join(instance_id="i")).error_code == 0


def test_members_of_a_dead_group_get_coordinator_not_available(driver: GroupDriver) -> None:
    driver.run(driver.group.delete(driver.now_ms))
    assert driver.joined(driver.join()).error_code == CoordinatorNotAvailable.code
    assert driver.joined(driver.join("m1")).error_code == CoordinatorNotAvailable.code


def test_a_join_without_a_rebalance_timeout_uses_the_session_timeout(driver: GroupDriver) -> None:
    driver.stable(2, rebalance_timeout_ms=-1)
    driver.join("m1", rebalance_timeout_ms=-1)
    for _ in range(3):
        driver.pass_time(3_000)
        with pytest.raises(RebalanceInProgress):
            driver.heartbeat("m2")
    driver.pass_time(1_000)
    assert driver.state() is GroupState.COMPLETING_REBALANCE
    assert [member.member_id for member in driver.group.describe().members] == ["m1"]


class TestTheFirstRebalance:
    """A new group waits for more members: a delay, extended while they come, within the rebalance timeout."""

    DELAY_MS = 3_000

    @pytest.fixture
    def driver(self) -> GroupDriver:
        return GroupDriver(GroupConfig(initial_rebalance_delay_ms=self.DELAY_MS))

    def test_waits_for_the_delay(self, driver: GroupDriver) -> None:
        token = driver.join()
        assert driver.state() is GroupState.PREPARING_REBALANCE
        driver.pass_time(self.DELAY_MS - 1)
        assert driver.waits(token)
        driver.pass_time(1)
        assert driver.joined(token).generation_id == 1

    def test_new_members_extend_the_initial_rebalance_delay(self, driver: GroupDriver) -> None:
        first = driver.join()
        driver.pass_time(1_000)
        second = driver.join()
        driver.pass_time(2_000)
        assert driver.waits(first)
        driver.pass_time(self.DELAY_MS)
        assert driver.joined(first).generation_id == driver.joined(second).generation_id == 1

    def test_is_never_extended_beyond_the_rebalance_timeout(self, driver: GroupDriver) -> None:
        first = driver.join(rebalance_timeout_ms=7_000)
        elapsed_ms = 0
        while driver.waits(first):
            driver.join(rebalance_timeout_ms=7_000)
            driver.pass_time(500)
            elapsed_ms += 500
        assert elapsed_ms == 7_000

    def test_a_group_left_before_its_first_generation_becomes_empty(self, driver: GroupDriver) -> None:
        token = driver.join()
        driver.leave("m1")
        assert driver.joined(token).error_code == UnknownMemberId.code
        driver.pass_time(self.DELAY_MS)
        assert driver.state() is GroupState.EMPTY
        assert driver.group.generation_id == 1

    def test_the_initial_rebalance_delay_applies_again_after_the_group_was_empty(self, driver: GroupDriver) -> None:
        driver.join()
        driver.pass_time(self.DELAY_MS)
        driver.leave("m1")
        token = driver.join()
        driver.pass_time(self.DELAY_MS - 1)
        assert driver.waits(token)
        driver.pass_time(1)
        assert driver.joined(token).error_code == 0


def test_a_cooperative_follow_up_rebalance_gives_the_next_generation(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    # The follower revoked partitions and reports it by rejoining with other metadata.
    again = driver.join(follower, protocols=(("range", b"owns less"),))
    with pytest.raises(RebalanceInProgress):
        driver.heartbeat(leader)
    driver.join(leader)
    assert driver.joined(again).generation_id == 3
    driver.assign([leader, follower])
    driver.heartbeat(leader)
    driver.heartbeat(follower)


def test_a_member_id_with_a_wrong_instance_id_is_rejected(driver: GroupDriver) -> None:
    driver.stable(1, instance_id="i")
    assert driver.joined(driver.join("m9", instance_id="i")).error_code == FencedInstanceId.code
    assert driver.joined(driver.join("m1", instance_id="other")).error_code == UnknownMemberId.code


def test_a_handed_out_id_cannot_be_used_with_an_instance_id(driver: GroupDriver) -> None:
    driver.join(require_known_member_id=True)
    assert driver.joined(driver.join("m1", instance_id="i")).error_code == UnknownMemberId.code


def test_the_defaults_are_kafkas() -> None:
    config = GroupConfig()
    assert (config.min_session_timeout_ms, config.max_session_timeout_ms) == (6_000, 1_800_000)
    assert config.initial_rebalance_delay_ms == 3_000
