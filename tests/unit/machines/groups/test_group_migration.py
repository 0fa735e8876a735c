"""A group with members changes its protocol as its policy allows, and members keep their partitions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.machines.classic_client import ClassicClient
from tests.unit.machines.groups.consumer_group_driver import GROUP, Client, ConsumerGroupDriver, replayed
from tests.unit.machines.groups.group_driver import REBALANCE_MS, SESSION_MS, GroupDriver

from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.consumer_group_state import ClassicProfile, ConsumerGroupEvent, ConsumerGroupState
from headrace.machines.groups.group_migration import MigrationPolicy, can_downgrade, downgrade, tombstones, upgrade
from headrace.machines.groups.group_state import GroupConfig, GroupState
from headrace.model.errors import GroupIdNotFound
from headrace.wire.state_records.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    NamedTopicPartitions,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

BIDIRECTIONAL, UPGRADE, DOWNGRADE, DISABLED = MigrationPolicy
TOPICS = ConsumerGroupDriver(t=4)
MANY = 2**31 - 1


def subscription(*topics: str, owned: list[int] | None = None, **more: Any) -> bytes:
    held = [NamedTopicPartitions(topic="t", partitions=owned)] if owned else []
    fields = ConsumerProtocolSubscription(topics=list(topics), owned_partitions=held, **more)
    return encode_subscription(fields)


def assignment(*indexes: int, user_data: bytes | None = None) -> bytes:
    assigned = [NamedTopicPartitions(topic="t", partitions=list(indexes))]
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data))


def classic_group(*assignments: bytes, **changes: Any) -> GroupDriver:
    """A stable group, one member for each of the assignments."""
    driver = GroupDriver()
    options = {"protocols": (("range", subscription("t")),), **changes}
    ids = [f"m{number + 1}" for number in range(len(assignments))]
    for _ in ids:
        driver.join(**options)
    for member_id in ids[:-1]:
        driver.join(member_id, **options)
    for member_id in reversed(ids):
        driver.sync(member_id, assignments=dict(zip(ids, assignments, strict=True)))
    assert driver.group.state is GroupState.STABLE
    return driver


def upgraded(driver: GroupDriver, policy: MigrationPolicy = BIDIRECTIONAL, max_size: int = MANY) -> ConsumerGroupState:
    return replayed(upgrade(driver.group, policy, max_size, TOPICS.view))


def held(state: ConsumerGroupState, member_id: str) -> set[int]:
    return {index for _, index in state.current_assignment(member_id).assigned}


# Upgrade


def test_classic_members_become_members_that_use_the_classic_protocol() -> None:
    driver = classic_group(assignment(0, 1), assignment(2, 3))
    state = upgraded(driver)
    assert list(state.metadata_by_member) == ["m1", "m2"]
    assert state.epoch == state.target_epoch == driver.group.generation_id == 2
    member_metadata, current_assignment = state.metadata_by_member["m1"], state.current_assignment("m1")
    assert (member_metadata.topics, member_metadata.rebalance_timeout_ms) == (frozenset({"t"}), REBALANCE_MS)
    assert (member_metadata.client_id, member_metadata.client_host) == ("client", "/127.0.0.1")
    protocols = (("range", subscription("t")),)
    assert member_metadata.classic == ClassicProfile(session_timeout_ms=SESSION_MS, protocols=protocols)
    assert (current_assignment.epoch, current_assignment.previous_epoch) == (2, 2)
    assert [held(state, member_id) for member_id in ("m1", "m2")] == [{0, 1}, {2, 3}]
    assert state.target("m1") == current_assignment.assigned.keys()


@pytest.mark.parametrize(
    ("policy", "may_upgrade", "may_downgrade"),
    [(BIDIRECTIONAL, True, True), (UPGRADE, True, False), (DOWNGRADE, False, True), (DISABLED, False, False)],
)
def test_the_migration_policy_determines_the_allowed_direction(
    policy: MigrationPolicy, may_upgrade: bool, may_downgrade: bool
) -> None:
    driver = classic_group(assignment(0, 1, 2, 3))
    if may_upgrade:
        assert upgraded(driver, policy).metadata_by_member.keys() == {"m1"}
    else:
        with pytest.raises(GroupIdNotFound, match=r"Cannot upgrade classic group g .* online upgrade is disabled"):
            upgraded(driver, policy)
    assert can_downgrade(upgraded(driver), policy, MANY) is may_downgrade


def test_a_group_of_another_protocol_type_stays_classic() -> None:
    driver = classic_group(b"tasks", protocol_type="connect", protocols=(("v1", b"worker"),))
    with pytest.raises(GroupIdNotFound, match="does not use the consumer embedded protocol"):
        upgraded(driver)


def test_a_group_that_is_too_large_stays_classic() -> None:
    with pytest.raises(GroupIdNotFound, match="exceeds the consumer group maximum size"):
        upgraded(classic_group(assignment(0), assignment(1)), max_size=1)


@pytest.mark.parametrize(
    ("metadata", "assigned"), [(b"", assignment(0)), (b"\0\1\0\0\0\7", assignment(0)), (subscription("t"), b"?")]
)
def test_a_group_whose_metadata_cannot_be_read_stays_classic(metadata: bytes, assigned: bytes) -> None:
    driver = classic_group(assigned, protocols=(("range", metadata),))
    with pytest.raises(GroupIdNotFound, match="the embedded consumer protocol is malformed"):
        upgraded(driver)


def test_a_group_whose_assignor_has_user_data_stays_classic() -> None:
    driver = classic_group(assignment(0, user_data=b"tasks"), protocols=(("streams", subscription("t")),))
    with pytest.raises(GroupIdNotFound, match="an unsupported custom assignor is in use"):
        upgraded(driver)


def test_user_data_of_the_assignors_of_kafkas_clients_is_not_missed() -> None:
    driver = classic_group(
        assignment(0, user_data=b"generation"), protocols=(("cooperative-sticky", subscription("t")),)
    )
    assert held(upgraded(driver), "m1") == {0}


def test_partitions_of_deleted_topics_have_no_owner() -> None:
    driver = classic_group(assignment(0, 1), protocols=(("range", subscription("t", "u")),))
    assert replayed(upgrade(driver.group, BIDIRECTIONAL, MANY, ConsumerGroupDriver(u=1).view)).owners == {}


def test_a_partition_assigned_to_two_members_stays_with_the_first() -> None:
    state = upgraded(classic_group(assignment(0, 1), assignment(1, 2)))
    assert [held(state, member_id) for member_id in ("m1", "m2")] == [{0, 1}, {2}]
    assert {index: owner for (_, index), owner in state.owners.items()} == {0: "m1", 1: "m1", 2: "m2"}


def test_a_group_that_rebalances_keeps_its_generation_and_its_assignment() -> None:
    driver = classic_group(assignment(0, 1, 2, 3))
    driver.join(protocols=(("range", subscription("t")),))
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    state = upgraded(driver)
    assert [held(state, member_id) for member_id in ("m1", "m2")] == [{0, 1, 2, 3}, set()]
    assert state.epoch == driver.group.generation_id == 1


def test_a_cooperative_member_keeps_its_partitions_when_the_rebalance_restarts() -> None:
    driver = classic_group(assignment(0, 1))
    owns = (("range", subscription("t", owned=[0, 1])),)
    driver.join("m1", protocols=owns)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.join(protocols=(("range", subscription("t")),))
    assert next(iter(driver.group.roster)).assignment == b""
    assert held(upgraded(driver), "m1") == {0, 1}


# Downgrade


def mixed_group(*classic: str, **more: Any) -> tuple[ConsumerGroupDriver, Client, list[ClassicClient]]:
    driver = ConsumerGroupDriver(t=4)
    client = Client(driver, "new", "t", **more)
    others = [ClassicClient(driver, name, "t") for name in classic]
    for _ in range(4):
        client.beat()
        client.revoke()
        for other in others:
            other.beat()
    return driver, client, others


def downgraded(driver: ConsumerGroupDriver, *removed: str) -> ClassicGroup:
    return downgrade(GROUP, driver.state, GroupConfig(), driver.view, driver.now_ms, removed)


def test_the_remaining_consumer_protocol_records_determine_the_group_type() -> None:
    driver, client, _ = mixed_group("a", "b")
    assert not can_downgrade(driver.state, BIDIRECTIONAL, MANY)
    assert not can_downgrade(driver.state, BIDIRECTIONAL, MANY, ["a-0"])
    assert can_downgrade(driver.state, BIDIRECTIONAL, MANY, [client.id])
    assert can_downgrade(driver.state, BIDIRECTIONAL, 2, [client.id])
    assert not can_downgrade(driver.state, BIDIRECTIONAL, 1, [client.id])
    assert not can_downgrade(driver.state, BIDIRECTIONAL, MANY, ["a-0", "b-0", client.id])


def test_a_downgraded_group_continues_at_its_epoch_with_its_assignment() -> None:
    driver, client, (one, two) = mixed_group("a", "b")
    group = downgraded(driver, client.id)
    assert (group.state, group.generation_id, group.protocol_name) == (GroupState.STABLE, driver.state.epoch, "range")
    assert [member.member_id for member in group.roster] == [one.id, two.id]
    for member, owner in zip(group.roster, (one, two), strict=True):
        (assigned,) = decode_assignment(member.assignment).assigned_partitions
        assert {(driver.view.topics[assigned.topic].id, index) for index in assigned.partitions} == owner.owned
        assert member.session_timeout_ms == driver.state.metadata_by_member[member.member_id].classic.session_timeout_ms  # type: ignore[union-attr]
    assert group.rebalance(driver.now_ms) == []
    assert group.state is GroupState.PREPARING_REBALANCE


def test_an_upgrade_of_a_downgraded_group_gives_the_same_members_again() -> None:
    driver, client, _ = mixed_group("a", "b")
    metadata_by_member = {
        m: member_metadata for m, member_metadata in driver.state.metadata_by_member.items() if m != client.id
    }
    again = replayed(upgrade(downgraded(driver, client.id), BIDIRECTIONAL, MANY, driver.view))
    assert again.metadata_by_member == metadata_by_member
    assert again.owners.items() <= driver.state.owners.items()


def test_a_group_that_was_to_rebalance_does_so_when_it_is_restored() -> None:
    """Otherwise the partitions of the member that left would have no owner."""
    driver, client, _ = mixed_group("a", "b")
    group = downgraded(driver, client.id)
    now_ms = driver.now_ms
    settled = ClassicGroup.restore(GROUP, GroupConfig(), group.snapshot(), now_ms)
    assert settled.state is GroupState.STABLE
    restored = ClassicGroup.restore(GROUP, GroupConfig(), group.snapshot(rebalances=True), now_ms)
    assert restored.state is GroupState.PREPARING_REBALANCE
    assert restored.generation_id == driver.state.epoch


def test_tombstones_leave_nothing_but_epochs() -> None:
    driver, _, _ = mixed_group("a", regex="t.*")
    events: list[ConsumerGroupEvent] = [*driver.log, *tombstones(driver.state)]
    state = replayed(events)
    kept = (
        state.metadata_by_member,
        state.targets,
        state.current_assignments,
        state.resolved,
        state.owners,
        state.instances,
    )
    assert not any(kept)
