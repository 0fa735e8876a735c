"""Describing, deleting, closing and restoring a group, and protecting its offsets."""

from __future__ import annotations

import pytest
from tests.unit.machines.groups.group_driver import REBALANCE_MS, SESSION_MS, GroupDriver, subscription

from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.group_state import GroupState, OffsetRetention
from headrace.machines.groups.group_topics import subscribed_topics
from headrace.model.errors import (
    GroupIdNotFound,
    GroupNotEmpty,
    IllegalGeneration,
    NotCoordinator,
    UnknownMemberId,
)
from headrace.wire.state_records.offsets_records import GroupMemberMetadata, GroupMetadataValue

ORDERS = (("range", subscription("orders")),)


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def test_a_stable_group_is_described_with_metadata_and_assignments(driver: GroupDriver) -> None:
    driver.stable(2)
    description = driver.group.describe()
    assert (description.group_state, description.protocol_type, description.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    first = description.members[0]
    assert (first.member_id, first.client_id, first.client_host) == ("m1", "client", "/127.0.0.1")
    assert (first.member_metadata, first.member_assignment) == (b"range-metadata", b"for m1")


def test_a_rebalancing_group_is_described_without_metadata(driver: GroupDriver) -> None:
    driver.stable(2)
    driver.join("m1")
    description = driver.group.describe()
    assert (description.group_state, description.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_metadata for member in description.members] == [b"", b""]


def test_a_new_group_is_described_as_empty(driver: GroupDriver) -> None:
    description = driver.group.describe()
    assert (description.group_state, description.protocol_type, description.members) == ("Empty", "", [])


def test_only_an_empty_group_can_be_deleted(driver: GroupDriver) -> None:
    driver.stable(1)
    with pytest.raises(GroupNotEmpty):
        driver.group.delete(driver.now_ms)
    driver.leave("m1")
    driver.run(driver.group.delete(driver.now_ms))
    assert driver.state() is GroupState.DEAD
    assert driver.stored[-1] is None
    assert driver.group.deadline() is None
    with pytest.raises(GroupIdNotFound):
        driver.group.delete(driver.now_ms)


def test_waiting_requests_fail_when_the_broker_drops_a_group(driver: GroupDriver) -> None:
    driver.stable(2)
    waiting = driver.join("m1")
    stored = len(driver.stored)
    driver.run(driver.group.close(NotCoordinator.code, driver.now_ms))
    assert driver.joined(waiting).error_code == NotCoordinator.code
    assert len(driver.stored) == stored
    assert driver.group.deadline() is None


def test_a_restored_group_is_stable_with_whole_sessions(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    before = driver.group.describe()
    driver.now_ms += 1_000_000
    driver.restart()
    assert driver.group.describe() == before
    assert driver.group.roster.leader == leader
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(leader)
    driver.commit(follower)
    with pytest.raises(IllegalGeneration):
        driver.heartbeat(leader, 1)
    assert driver.synced(driver.sync(follower)).assignment == f"for {follower}".encode()


def test_members_that_did_not_survive_the_restart_expire(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.restart()
    driver.pass_time(SESSION_MS - 1)
    driver.heartbeat(leader)
    driver.pass_time(1)
    with pytest.raises(UnknownMemberId):
        driver.heartbeat(follower)
    assert driver.joined(driver.join(leader)).generation_id == 3


def test_a_restored_static_member_is_still_static(driver: GroupDriver) -> None:
    driver.stable(1, instance_id="i")
    driver.restart()
    response = driver.joined(driver.join(instance_id="i"))
    assert (response.error_code, response.generation_id) == (0, 1)
    assert driver.state() is GroupState.STABLE


def test_a_stored_group_is_restored_unchanged(driver: GroupDriver) -> None:
    driver.stable(3, instance_id=None)
    snapshot = driver.group.snapshot()
    restored = ClassicGroup.restore("g", driver.config, snapshot, driver.now_ms)
    assert restored.snapshot() == snapshot


def test_an_empty_group_is_restored_empty_and_keeps_its_generation(driver: GroupDriver) -> None:
    driver.stable(1)
    driver.leave("m1")
    driver.restart()
    assert (driver.state(), driver.group.generation_id) == (GroupState.EMPTY, 2)
    assert driver.joined(driver.join()).generation_id == 3


def test_a_stored_leader_that_is_no_member_is_replaced() -> None:
    member = GroupMemberMetadata("m", None, "c", "/h", REBALANCE_MS, SESSION_MS, b"", b"")
    group = ClassicGroup.restore(
        "g", GroupDriver().config, GroupMetadataValue("consumer", 4, "range", "x", -1, [member]), 0
    )
    assert group.roster.leader == "m"


def test_offsets_of_an_empty_group_age_from_when_it_became_empty(driver: GroupDriver) -> None:
    driver.stable(1, protocols=ORDERS)
    driver.pass_time(5_000)
    driver.leave("m1")
    assert driver.group.offset_retention() == OffsetRetention(driver.now_ms, frozenset())
    driver.restart()
    assert driver.group.offset_retention() == OffsetRetention(driver.now_ms, frozenset())


def test_offsets_of_a_stable_group_age_by_commit_unless_subscribed(driver: GroupDriver) -> None:
    driver.stable(1, protocols=ORDERS)
    assert driver.group.offset_retention() == OffsetRetention(None, frozenset({"orders"}))
    assert driver.group.is_subscribed_to("orders")
    assert not driver.group.is_subscribed_to("payments")


def test_offsets_of_consumers_without_a_group_age_by_commit(driver: GroupDriver) -> None:
    assert driver.group.offset_retention() == OffsetRetention(None, frozenset())
    assert not driver.group.is_subscribed_to("orders")


def test_offsets_are_kept_while_the_group_rebalances_or_cannot_be_understood(driver: GroupDriver) -> None:
    driver.stable(1)
    assert driver.group.offset_retention() is None, "the metadata is no subscription"
    assert driver.group.is_subscribed_to("anything")
    other = GroupDriver()
    other.stable(2, protocols=ORDERS)
    other.join("m1", protocols=ORDERS)
    assert other.group.offset_retention() is None


def test_an_empty_group_of_an_old_record_ages_by_commit() -> None:
    snapshot = GroupMetadataValue("consumer", 3, None, None, -1, [])
    group = ClassicGroup.restore("g", GroupDriver().config, snapshot, 1_000)
    assert group.offset_retention() == OffsetRetention(None, frozenset())


def test_offsets_can_be_deleted_where_the_subscriptions_are_known(driver: GroupDriver) -> None:
    driver.group.check_offset_delete()
    driver.stable(1, protocols=ORDERS)
    driver.group.check_offset_delete()
    other = GroupDriver()
    other.stable(1, protocol_type="connect")
    with pytest.raises(GroupNotEmpty):
        other.group.check_offset_delete()
    other.leave("m1")
    other.run(other.group.delete(other.now_ms))
    with pytest.raises(GroupIdNotFound):
        other.group.check_offset_delete()


def test_topics_are_read_from_a_subscription() -> None:
    assert subscribed_topics(subscription("a", "bc", owned=b"whatever follows")) == frozenset({"a", "bc"})
    assert subscribed_topics(subscription()) == frozenset()


def test_metadata_that_is_no_subscription_is_no_error() -> None:
    whole = subscription("topic", "other")
    for length in range(len(whole)):
        assert subscribed_topics(whole[:length]) is None
    assert subscribed_topics(b"\xff" * 20) is None
    assert subscribed_topics(b"\0\1\0\0\0\1\0\1\xff") is None
