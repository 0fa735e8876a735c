"""A group of the consumer protocol: admission, responses, and fencing of members."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.machines.groups.consumer_group_driver import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    ConsumerGroupDriver,
    settle,
)

from headrace.machines.groups.consumer_group import ConsumerGroupConfig
from headrace.machines.groups.consumer_group_heartbeat import ConsumerHeartbeat, check_heartbeat
from headrace.machines.groups.consumer_group_state import ConsumerGroupPhase, MemberState
from headrace.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    GroupNotEmpty,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)


def test_the_first_member_gets_everything_at_once() -> None:
    driver = ConsumerGroupDriver(t=3)
    response = driver.join("m1", "t")
    assert response.member_epoch == 1
    assert response.heartbeat_interval_ms == 5_000
    assert response.assigned == driver.partitions("t")
    assert driver.group.phase is ConsumerGroupPhase.STABLE


def test_a_partition_is_assigned_only_when_its_owner_has_revoked_it() -> None:
    driver = ConsumerGroupDriver(t=2)
    one, two = Client(driver, "m1", "t"), Client(driver, "m2", "t")
    one.beat()
    two.beat()
    assert two.owned == set()
    assert driver.state.current_assignment("m2").state is MemberState.UNRELEASED_PARTITIONS
    one.beat()
    assert driver.state.current_assignment("m1").state is MemberState.UNREVOKED_PARTITIONS
    assert (one.epoch, len(one.wanted), len(one.owned)) == (1, 1, 2)
    two.beat()
    assert two.owned == set(), "the other still reads it"
    one.revoke()
    two.beat()
    assert two.owned == set(), "the other has not said so yet"
    one.beat()
    assert one.epoch == 2
    two.beat()
    assert one.owned | two.owned == driver.partitions("t")
    assert len(two.owned) == 1
    assert driver.group.phase is ConsumerGroupPhase.STABLE


def test_a_member_that_reports_no_partitions_has_revoked_none() -> None:
    driver = ConsumerGroupDriver(t=2)
    driver.join("m1", "t")
    driver.join("m2", "t")
    driver.beat("m1", 1, owned=frozenset(driver.partitions("t")))
    assert driver.beat("m1", 1).member_epoch == 1
    assert driver.beat("m1", 1, owned=frozenset()).member_epoch == 2


def test_the_assignment_is_returned_when_it_changes_or_after_a_full_heartbeat() -> None:
    driver = ConsumerGroupDriver(t=2)
    everything = driver.partitions("t")
    driver.join("m1", "t")
    owned = frozenset(everything)
    assert driver.beat("m1", 1, owned=owned).assigned is None
    full = {"topics": frozenset("t"), "rebalance_timeout_ms": 1, "owned": owned}
    assert driver.beat("m1", 1, **full).assigned == everything
    driver.grow("t", 3)
    response = driver.beat("m1", 1)
    assert (response.member_epoch, response.assigned) == (2, driver.partitions("t"))


def test_a_quiet_heartbeat_stores_nothing() -> None:
    driver = ConsumerGroupDriver(t=2, u=1)
    driver.join("m1", "t")
    before = len(driver.log)
    driver.beat("m1", 1)
    driver.create_topic("another", 1)
    driver.beat("m1", 1)
    assert len(driver.log) == before


def test_a_member_that_lost_the_response_may_send_its_previous_epoch() -> None:
    driver = ConsumerGroupDriver(t=2)
    one = Client(driver, "m1", "t")
    one.beat()
    driver.grow("t", 3)
    one.beat(has_response=False)
    assert one.epoch == 1
    one.beat()
    assert (one.epoch, one.owned) == (2, driver.partitions("t"))


@pytest.mark.parametrize(("epoch", "owns_too_much"), [(1, False), (4, False), (2, True)])
def test_a_member_of_another_epoch_is_fenced(epoch: int, owns_too_much: bool) -> None:
    driver = ConsumerGroupDriver(t=2, u=1)
    driver.join("m1", "t")
    for size in (3, 4):
        driver.grow("t", size)
        driver.beat("m1", size - 2)
    assert driver.state.current_assignment("m1").epoch == 3
    owned = driver.partitions("u") if owns_too_much else set()
    with pytest.raises(FencedMemberEpoch):
        driver.beat("m1", epoch, owned=frozenset(owned))
    with pytest.raises(FencedMemberEpoch):
        driver.beat("m1", 2)


def test_an_unknown_member_must_join() -> None:
    driver = ConsumerGroupDriver(t=2)
    driver.join("m1", "t")
    with pytest.raises(UnknownMemberId):
        driver.beat("m2", 1)
    with pytest.raises(UnknownMemberId):
        driver.beat("m2", -1)


def test_a_rejoining_member_keeps_its_partitions_and_gets_them_returned() -> None:
    driver = ConsumerGroupDriver(t=2)
    driver.join("m1", "t")
    response = driver.join("m1", "t")
    assert (response.member_epoch, response.assigned) == (1, driver.partitions("t"))


def test_a_leaving_member_frees_its_partitions_at_once() -> None:
    driver = ConsumerGroupDriver(t=2)
    one, two = Client(driver, "m1", "t"), Client(driver, "m2", "t")
    settle([one, two])
    one.leave()
    assert driver.group.phase is ConsumerGroupPhase.ASSIGNING
    two.beat()
    assert two.owned == driver.partitions("t")
    two.leave()
    assert driver.state.phase is ConsumerGroupPhase.EMPTY
    assert driver.group.has_no_members
    assert driver.group.deadline() is None


def test_a_silent_member_is_removed_after_its_session_timeout() -> None:
    driver = ConsumerGroupDriver(t=2)
    one, two = Client(driver, "m1", "t"), Client(driver, "m2", "t")
    settle([one, two])
    driver.pass_time(SESSION_MS - 1)
    two.beat()
    driver.pass_time(1)
    two.beat()
    assert two.owned == driver.partitions("t")
    with pytest.raises(UnknownMemberId):
        driver.beat("m1", 2)


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    driver = ConsumerGroupDriver(t=2)
    one, two = Client(driver, "m1", "t"), Client(driver, "m2", "t")
    for client in (one, two, one):
        client.beat()
    driver.pass_time(REBALANCE_MS - 1)
    one.beat()
    assert one.is_member
    driver.pass_time(1)
    assert not one.is_member
    two.beat()
    assert two.owned == driver.partitions("t")


def test_a_member_that_revokes_in_time_stays() -> None:
    driver = ConsumerGroupDriver(t=2)
    one, two = Client(driver, "m1", "t"), Client(driver, "m2", "t")
    for client in (one, two, one):
        client.beat()
    one.revoke()
    one.beat()
    driver.pass_time(REBALANCE_MS)
    assert one.is_member


# Static members


def test_a_static_member_that_left_for_a_while_finds_its_partitions_under_its_new_id() -> None:
    driver = ConsumerGroupDriver(t=4)
    static, other = Client(driver, "m1", "t", instance_id="i"), Client(driver, "m2", "t")
    settle([static, other])
    had, epoch = set(static.owned), driver.state.epoch
    static.leave(-2)
    other.beat()
    assert len(other.owned) == 2
    again = Client(driver, "m3", "t", instance_id="i")
    again.beat()
    assert again.owned == had
    assert driver.state.epoch == epoch, "nobody else noticed"
    with pytest.raises(FencedInstanceId):
        driver.beat("m1", 2, instance_id="i")
    with pytest.raises(FencedInstanceId):
        driver.beat("m1", -1, instance_id="i")


def test_a_static_member_that_does_not_return_is_removed_when_its_session_expires() -> None:
    driver = ConsumerGroupDriver(t=2)
    static = Client(driver, "m1", "t", instance_id="i")
    static.beat()
    driver.pass_time(1_000)
    static.leave(-2)
    assert driver.group.phase is ConsumerGroupPhase.RECONCILING
    driver.pass_time(SESSION_MS - 1_001)
    assert static.is_member
    driver.pass_time(1)
    assert not static.is_member


def test_a_static_member_that_leaves_temporarily_releases_partitions_it_had_to_revoke() -> None:
    driver = ConsumerGroupDriver(t=2)
    static, other = Client(driver, "m1", "t", instance_id="i"), Client(driver, "m2", "t")
    for client in (static, other, static):
        client.beat()
    static.leave(-2)
    other.beat()
    assert len(other.owned) == 1


def test_an_instance_id_in_use_is_not_taken_over() -> None:
    driver = ConsumerGroupDriver(t=2)
    driver.join("m1", "t", instance_id="i")
    with pytest.raises(UnreleasedInstanceId):
        driver.join("m2", "t", instance_id="i")
    assert driver.join("m1", "t", instance_id="i").member_epoch == 1, "it may be a repetition"
    with pytest.raises(UnknownMemberId):
        driver.beat("m1", 1, instance_id="another")
    with pytest.raises(FencedMemberEpoch):
        driver.beat("m1", 7, instance_id="i")


def test_an_old_heartbeat_does_not_bring_back_an_absent_static_member() -> None:
    driver = ConsumerGroupDriver(t=2)
    driver.join("m1", "t", instance_id="i")
    driver.grow("t", 3)
    driver.beat("m1", 1, instance_id="i")
    driver.beat("m1", -2, instance_id="i")
    for epoch in (1, 2):
        with pytest.raises(FencedMemberEpoch):
            driver.beat("m1", epoch, instance_id="i", owned=frozenset())


# Topics


def test_assignments_follow_created_grown_and_deleted_topics() -> None:
    driver = ConsumerGroupDriver(t=1)
    client = Client(driver, "m1", "t", "u")
    client.beat()
    driver.create_topic("u", 2)
    client.beat()
    assert client.owned == driver.partitions("t", "u")
    driver.grow("t", 3)
    client.beat()
    assert client.owned == driver.partitions("t", "u")
    driver.delete_topic("u")
    client.beat()
    client.revoke()
    client.beat()
    assert client.owned == driver.partitions("t")
    assert client.epoch == driver.state.epoch == 4


def test_a_regular_expression_follows_topic_changes() -> None:
    driver = ConsumerGroupDriver(t1=1, other=1)
    client = Client(driver, "m1", regex="t.*")
    client.beat()
    assert client.owned == driver.partitions("t1")
    driver.create_topic("t2", 2)
    client.beat()
    assert client.owned == driver.partitions("t1", "t2")
    assert driver.group.is_subscribed_to("t2")
    assert not driver.group.is_subscribed_to("other")
    client.leave()
    assert driver.state.resolved == {}


def test_names_and_a_regular_expression_add_up() -> None:
    driver = ConsumerGroupDriver(a=1, b=1, c=1)
    assert driver.join("m1", "a", regex="b").assigned == driver.partitions("a", "b")


def test_an_invalid_regular_expression_changes_nothing() -> None:
    driver = ConsumerGroupDriver(t=1)
    with pytest.raises(InvalidRegularExpression):
        driver.join("m1", regex="(")
    assert driver.log == []


def test_a_member_may_change_its_subscription() -> None:
    driver = ConsumerGroupDriver(t=1, u=1)
    client = Client(driver, "m1", "t")
    client.beat()
    client.topics = frozenset({"u"})
    client.beat(is_full=True)
    client.revoke()
    client.beat()
    assert client.owned == driver.partitions("u")


def test_the_most_requested_assignor_is_used() -> None:
    driver = ConsumerGroupDriver(t=4)
    driver.join("m1", "t", assignor="range")
    driver.join("m2", "t", assignor="uniform")
    assert driver.group.assignor == "uniform"
    driver.join("m3", "t", assignor="range")
    assert driver.group.assignor == "range"


def test_a_full_group_rejects_new_members() -> None:
    driver = ConsumerGroupDriver(ConsumerGroupConfig(max_size=1), t=1)
    driver.join("m1", "t")
    with pytest.raises(GroupMaxSizeReached):
        driver.join("m2", "t")
    assert driver.join("m1", "t").member_epoch == 1


# Offsets


def test_members_commit_with_their_epoch_and_for_owned_partitions_with_an_older_one() -> None:
    driver = ConsumerGroupDriver(t=2)
    group = driver.group
    group.check_commit("", -1)
    driver.join("m1", "t")
    old = driver.partitions("t")
    driver.grow("t", 3)
    driver.beat("m1", 1)
    (new,) = driver.partitions("t") - old
    group.check_commit("m1", 2)
    group.check_commit("m1", 1, old)
    for epoch, partitions in [(1, [new]), (1, None), (3, old), (-1, None)]:
        with pytest.raises(StaleMemberEpoch):
            group.check_commit("m1", epoch, partitions)
    with pytest.raises(UnknownMemberId):
        group.check_commit("", -1)
    with pytest.raises(UnknownMemberId):
        group.check_commit("m2", 2)


def test_members_fetch_offsets_with_their_epoch_and_others_without() -> None:
    driver = ConsumerGroupDriver(t=1)
    driver.join("m1", "t")
    driver.group.check_fetch(None, -1)
    driver.group.check_fetch("m1", 1)
    with pytest.raises(StaleMemberEpoch):
        driver.group.check_fetch("m1", 0)
    with pytest.raises(UnknownMemberId):
        driver.group.check_fetch("m2", 1)


def test_only_a_group_without_members_can_be_deleted() -> None:
    driver = ConsumerGroupDriver(t=1)
    driver.join("m1", "t")
    with pytest.raises(GroupNotEmpty):
        driver.group.check_delete()
    assert driver.group.offset_retention().kept_topics == {"t"}
    driver.beat("m1", -1)
    driver.group.check_delete()
    assert driver.group.offset_retention().kept_topics == frozenset()


def test_after_a_restart_members_continue_with_full_session_timeouts() -> None:
    driver = ConsumerGroupDriver(t=2)
    one, two = Client(driver, "m1", "t"), Client(driver, "m2", "t")
    for client in (one, two, one):
        client.beat()
    driver.pass_time(10_000)
    driver.restart()
    driver.pass_time(REBALANCE_MS - 1)
    one.revoke()
    one.beat()
    two.beat()
    assert one.owned | two.owned == driver.partitions("t")
    assert driver.group.phase is ConsumerGroupPhase.STABLE


JOINING: dict[str, Any] = {"rebalance_timeout_ms": 1, "owned": frozenset(), "topics": frozenset("t")}


@pytest.mark.parametrize(
    ("changes", "version", "words"),
    [
        ({"member_id": " "}, 1, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": -1}, 0, "MemberId can't be empty."),
        ({"group_id": ""}, 1, "GroupId can't be empty."),
        ({"instance_id": ""}, 1, "InstanceId can't be empty."),
        ({"rack_id": ""}, 1, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, 1, "RebalanceTimeoutMs must be provided in first request."),
        ({"owned": None}, 1, "TopicPartitions must be empty when"),
        ({"topics": None}, 1, "Either SubscribedTopicNames or SubscribedTopicRegex"),
        ({"member_epoch": -2}, 1, "InstanceId can't be null."),
        ({"member_epoch": -3}, 1, "MemberEpoch is invalid."),
    ],
)
def test_an_invalid_request_is_rejected(changes: dict[str, Any], version: int, words: str) -> None:
    fields = {"group_id": "g", "member_id": "m1", "member_epoch": 0, **JOINING, **changes}
    with pytest.raises(InvalidRequest, match=words.replace("(", r"\(")):
        check_heartbeat(ConsumerHeartbeat(**fields), version, ["uniform"])


def test_an_unsupported_assignor_is_rejected() -> None:
    beat = ConsumerHeartbeat(group_id="g", member_id="", member_epoch=0, **JOINING)
    check_heartbeat(beat, 0, ["uniform"])
    with pytest.raises(UnsupportedAssignor, match="Supported assignors: uniform, range"):
        check_heartbeat(
            ConsumerHeartbeat(group_id="g", member_id="m", member_epoch=1, assignor="best"), 1, ["uniform", "range"]
        )
