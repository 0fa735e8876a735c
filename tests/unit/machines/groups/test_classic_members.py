"""Members of the classic protocol in a consumer group: their responses, and when they are removed."""

from __future__ import annotations

import pytest
from tests.unit.machines.classic_client import ClassicClient
from tests.unit.machines.groups.consumer_group_driver import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    ConsumerGroupDriver,
    settle,
)

from headrace.machines.groups.classic_members import ClassicMembers
from headrace.machines.groups.consumer_group import ConsumerGroupConfig
from headrace.machines.groups.consumer_group_state import MemberState
from headrace.machines.groups.group_state import GroupConfig, LeavingMember, SyncRequest
from headrace.model.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from headrace.wire.codec.codec import version_of
from headrace.wire.state_records.consumer_protocol import decode_assignment


@pytest.fixture
def driver() -> ConsumerGroupDriver:
    return ConsumerGroupDriver(t=4)


def test_a_classic_member_shares_the_partitions_with_the_others(driver: ConsumerGroupDriver) -> None:
    one, two = Client(driver, "new", "t"), ClassicClient(driver, "old", "t")
    settle([one, two])
    assert one.owned | two.owned == driver.partitions("t")
    assert (len(one.owned), len(two.owned)) == (2, 2)
    assert one.epoch == two.epoch == driver.state.epoch


def test_a_join_gets_an_immediate_response(driver: ConsumerGroupDriver) -> None:
    Client(driver, "new", "t").beat()
    response = ClassicClient(driver, "old", "t").join()
    assert (response.error_code, response.member_id, response.generation_id) == (0, "old-0", 2)
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert (response.leader, response.members) == ("", [])


def test_an_assignment_has_the_version_of_the_subscription(driver: ConsumerGroupDriver) -> None:
    client = ClassicClient(driver, "old", "t")
    client.join()
    response = client.sync()
    assert version_of(response.assignment) == 1
    (topic,) = decode_assignment(response.assignment).assigned_partitions
    assert (topic.topic, topic.partitions) == ("t", [0, 1, 2, 3])
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")


def test_a_cooperative_member_gives_up_before_another_gets_it(driver: ConsumerGroupDriver) -> None:
    old, new = ClassicClient(driver, "old", "t", is_cooperative=True), Client(driver, "new", "t")
    old.beat()
    assert old.owned == driver.partitions("t")
    new.beat()
    assert not new.owned
    with pytest.raises(RebalanceInProgress):
        old.heartbeat()
    old.join()
    assert driver.state.current_assignment(old.id).state is MemberState.UNREVOKED_PARTITIONS
    assert old.epoch == 1
    old.sync()
    assert len(old.wanted) == 2
    new.beat()
    assert not new.owned, "the classic member still reads them"
    with pytest.raises(RebalanceInProgress):
        old.heartbeat()
    old.revoke()
    old.join()
    assert old.epoch == 2
    new.beat()
    assert new.owned == driver.partitions("t") - old.owned


def test_a_member_rejoins_when_its_missing_partitions_are_free(driver: ConsumerGroupDriver) -> None:
    new, old = Client(driver, "new", "t"), ClassicClient(driver, "old", "t")
    new.beat()
    old.beat()
    assert driver.state.current_assignment(old.id).state is MemberState.UNRELEASED_PARTITIONS
    old.heartbeat()
    new.beat()
    old.heartbeat()
    new.revoke()
    new.beat()
    with pytest.raises(RebalanceInProgress):
        old.heartbeat()
    old.beat()
    assert old.owned | new.owned == driver.partitions("t")
    old.heartbeat()


def test_a_sync_of_an_old_generation_gets_rebalance_in_progress(driver: ConsumerGroupDriver) -> None:
    old = ClassicClient(driver, "old", "t")
    old.join()
    Client(driver, "new", "t").beat()
    with pytest.raises(RebalanceInProgress):
        old.sync()


def test_a_rejected_join_has_the_reason(driver: ConsumerGroupDriver) -> None:
    driver.group.config = ConsumerGroupConfig(max_size=1)
    one = ClassicClient(driver, "one", "t")
    one.join()
    two, members = ClassicClient(driver, "two", "t"), ClassicMembers(driver.group)
    with pytest.raises(GroupMaxSizeReached):
        members.join(two.request(), GroupConfig(), driver.view)
    driver.group.config = ConsumerGroupConfig()
    with pytest.raises(MemberIdRequired):
        members.join(two.request(), GroupConfig(), driver.view)
    with pytest.raises(InvalidSessionTimeout):
        members.join(two.request(session_timeout_ms=1), GroupConfig(), driver.view)
    metadata = two.request().protocols[0][1]
    for changes in (
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocols": (("sticky", metadata),)},
        {"protocols": (("range", b""),)},
    ):
        with pytest.raises(InconsistentGroupProtocol):
            members.join(two.request(**changes), GroupConfig(), driver.view)


def test_a_request_of_another_generation_or_protocol_has_no_effect(driver: ConsumerGroupDriver) -> None:
    new, old = Client(driver, "new", "t"), ClassicClient(driver, "old", "t")
    settle([new, old])
    members = ClassicMembers(driver.group)
    with pytest.raises(IllegalGeneration):
        members.heartbeat(old.id, old.epoch - 1, driver.now_ms)
    for member_id in (new.id, "nobody"):
        with pytest.raises(UnknownMemberId):
            members.heartbeat(member_id, new.epoch, driver.now_ms)
    for protocol_type, name in (("connect", None), (None, "sticky")):
        request = SyncRequest(
            member_id=old.id, generation_id=old.epoch, protocol_type=protocol_type, protocol_name=name
        )
        with pytest.raises(InconsistentGroupProtocol):
            members.sync(request, driver.view, driver.now_ms)


def test_commits_and_fetches_need_the_generation(driver: ConsumerGroupDriver) -> None:
    new, old = Client(driver, "new", "t"), ClassicClient(driver, "old", "t")
    settle([new, old])
    group = driver.group
    group.check_commit(old.id, old.epoch, old.owned)
    group.check_fetch(old.id, old.epoch)
    with pytest.raises(IllegalGeneration):
        group.check_commit(old.id, old.epoch - 1, old.owned)
    with pytest.raises(IllegalGeneration):
        group.check_fetch(old.id, old.epoch + 1)
    with pytest.raises(StaleMemberEpoch):
        group.check_commit(new.id, new.epoch + 1)


# Time


def test_a_member_without_heartbeats_is_removed_after_its_own_session_timeout(driver: ConsumerGroupDriver) -> None:
    old = ClassicClient(driver, "old", "t")
    old.join(session_timeout_ms=SESSION_MS // 3)
    old.sync()
    driver.pass_time(SESSION_MS // 3 - 1)
    old.heartbeat()
    driver.pass_time(SESSION_MS // 3 - 1)
    assert old.is_member
    driver.pass_time(1)
    assert not old.is_member


@pytest.mark.parametrize("syncs", [True, False])
def test_a_member_that_sends_no_sync_is_removed(driver: ConsumerGroupDriver, syncs: bool) -> None:
    old = ClassicClient(driver, "old", "t")
    old.join()
    if syncs:
        old.sync()
    driver.pass_time(REBALANCE_MS)
    assert old.is_member is syncs


@pytest.mark.parametrize("joins", [True, False])
def test_a_member_that_does_not_rejoin_in_time_is_removed(driver: ConsumerGroupDriver, joins: bool) -> None:
    old = ClassicClient(driver, "old", "t")
    old.beat()
    Client(driver, "new", "t").beat()
    for _ in range(2):
        with pytest.raises(RebalanceInProgress):
            old.heartbeat()
        driver.pass_time(REBALANCE_MS // 2 - 1)
    if joins:
        old.beat()
    driver.pass_time(2)
    assert old.is_member is joins


def test_members_continue_after_a_restart(driver: ConsumerGroupDriver) -> None:
    new, old = Client(driver, "new", "t"), ClassicClient(driver, "old", "t", is_cooperative=True)
    settle([new, old])
    before = set(old.owned)
    driver.restart()
    old.heartbeat()
    old.beat(is_full=True)
    assert old.owned == before
    new.leave()
    old.beat()
    assert old.owned == driver.partitions("t")


# Leaving


def test_members_leave_one_by_one_or_together(driver: ConsumerGroupDriver) -> None:
    new, old = Client(driver, "new", "t"), ClassicClient(driver, "old", "t")
    static = ClassicClient(driver, "static", "t", instance_id="i")
    settle([new, old, static])
    departures = [
        LeavingMember(old.id),
        LeavingMember(new.id),
        LeavingMember("nobody"),
        LeavingMember("", "i"),
        LeavingMember("other", "i"),
        LeavingMember("", "j"),
    ]
    departed, removed = ClassicMembers(driver.group).departing(departures)
    unknown = UnknownMemberId.code
    assert [one.error_code for one in departed] == [0, unknown, unknown, 0, FencedInstanceId.code, unknown]
    assert removed == [old.id, static.id]


# Static members


def test_a_static_member_returns_with_either_protocol(driver: ConsumerGroupDriver) -> None:
    other = Client(driver, "other", "t")
    first = ClassicClient(driver, "first", "t", instance_id="i")
    settle([other, first])
    had = set(first.owned)
    second = Client(driver, "second", "t", instance_id="i")
    second.beat()
    assert second.owned == had
    assert not first.is_member
    with pytest.raises(FencedInstanceId):
        first.heartbeat()
    third = ClassicClient(driver, "third", "t", instance_id="i")
    third.beat()
    assert third.owned == had
    assert "second" not in driver.state.metadata_by_member
    fourth = ClassicClient(driver, "fourth", "t", instance_id="i")
    fourth.beat()
    assert fourth.owned == had
    assert driver.state.instances == {"i": fourth.id}


def test_both_processes_of_a_static_member_with_the_consumer_protocol_may_not_run(driver: ConsumerGroupDriver) -> None:
    Client(driver, "one", "t", instance_id="i").beat()
    with pytest.raises(UnreleasedInstanceId):
        Client(driver, "two", "t", instance_id="i").beat()


def test_a_regular_expression_does_not_outlive_the_protocol_that_knows_it(driver: ConsumerGroupDriver) -> None:
    driver.create_topic("u", 1)
    Client(driver, "new", regex="t|u", instance_id="i").beat()
    old = ClassicClient(driver, "old", "t", instance_id="i")
    old.beat()
    assert old.owned == driver.partitions("t")
    newer = Client(driver, "newer", regex="u", instance_id="i")
    newer.beat()
    assert newer.owned == driver.partitions("u")
    member_metadata = driver.state.metadata_by_member["newer"]
    assert (member_metadata.topics, member_metadata.regex, member_metadata.classic) == (frozenset(), "u", None)
