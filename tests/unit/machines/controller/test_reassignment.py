"""A reassignment adds the new replicas, waits for them, then removes the old ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.machines.replication.replication_model import broker_record, brokers_up, without_past

from headrace.machines.controller.reassignment import begin_reassignment, cancel_reassignment, complete_reassignment
from headrace.model.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, PartitionRecord

ALL = brokers_up(1, 2, 3, 4, 5)


def record(replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = (1, 2, 3), **fields: Any) -> PartitionRecord:
    given_fields = {"leader": 1, "leader_epoch": 5, "leader_broker_epoch": 1, **fields}
    return PartitionRecord(replicas=replicas, isr=isr, **given_fields)


def test_a_move_adds_the_new_replicas_and_keeps_the_old_ones() -> None:
    begun = begin_reassignment(record(), (4, 2, 5))
    assert begun == record((4, 2, 5, 1, 3), (2, 1, 3), adding=(4, 5), removing=(1, 3))


def test_a_new_replica_order_is_no_reassignment() -> None:
    assert begin_reassignment(record(), (3, 1, 2)) == record((3, 1, 2), (3, 1, 2))
    assert begin_reassignment(record(), (1, 2, 3)) == record()


@pytest.mark.parametrize("target", [(), (1, 2, 1)])
def test_an_invalid_target_is_rejected(target: tuple[int, ...]) -> None:
    with pytest.raises(InvalidReplicaAssignment):
        begin_reassignment(record(), target)


def test_a_move_ends_when_the_whole_target_is_in_sync() -> None:
    moving = record((4, 2, 1), (2, 1), adding=(4,), removing=(1,))
    assert complete_reassignment(moving, 2, ALL) is None
    caught_up = replace(moving, isr=(4, 2, 1))
    assert without_past(complete_reassignment(caught_up, 2, ALL)) == record((4, 2), (4, 2), leader=4, leader_epoch=6)
    assert complete_reassignment(record(), 2, ALL) is None


def test_the_leader_stays_if_it_is_in_the_target() -> None:
    moving = record((4, 1, 2), (4, 1, 2), adding=(4,), removing=(2,))
    assert complete_reassignment(moving, 2, ALL) == record((4, 1), (4, 1))


def test_a_reassignment_waits_for_the_target_replicas_that_stay() -> None:
    moving = record((1, 2, 3), (1, 3), removing=(3,))
    assert complete_reassignment(moving, 1, ALL) is None
    assert complete_reassignment(replace(moving, isr=(1, 2, 3)), 1, brokers_up(1, 3)) is None


def test_the_old_leader_is_not_followed_by_a_draining_broker_if_another_will_do() -> None:
    moving = record((4, 5, 1), (4, 5, 1), adding=(4, 5), removing=(1,))
    moved = complete_reassignment(moving, 1, {**ALL, 4: broker_record(4, is_draining=True)})
    assert without_past(moved) == record((4, 5), (4, 5), leader=5, leader_epoch=6)


def test_a_cancelled_move_leaves_the_replicas_of_before() -> None:
    assert cancel_reassignment(begin_reassignment(record(), (1, 2, 4))) == record()
    joined = record((1, 4, 2, 3), (1, 4, 2), adding=(4,), removing=(2, 3))
    assert cancel_reassignment(joined) == record((1, 2, 3), (1, 2))
    with pytest.raises(NoReassignmentInProgress):
        cancel_reassignment(record())


def test_a_leading_new_replica_gives_up_leadership_when_the_reassignment_is_cancelled() -> None:
    moving = record((4, 2, 1), (4, 2), leader=4, adding=(4,), removing=(1,))
    assert without_past(cancel_reassignment(moving)) == record(
        (2, 1), (2,), leader=NO_LEADER, leader_epoch=6, leader_broker_epoch=NO_EPOCH
    )


def test_a_move_that_replaces_another_starts_from_the_replicas_before_both() -> None:
    first = begin_reassignment(record(), (4, 2, 3))
    second = begin_reassignment(first, (5, 2, 3))
    assert second == record((5, 2, 3, 1), (2, 3, 1), adding=(5,), removing=(1,))
    third = begin_reassignment(second, (5, 1, 4))
    assert third == record((5, 1, 4, 2, 3), (1, 2, 3), adding=(5, 4), removing=(2, 3))
    assert begin_reassignment(third, (1, 2, 3)) == record()


def test_an_added_replica_that_is_still_a_target_stays_in_the_isr() -> None:
    moving = record((4, 2, 3, 1), (4, 2, 3, 1), adding=(4,), removing=(1,))
    assert begin_reassignment(moving, (4, 3)) == record((4, 3, 2, 1), (4, 3, 2, 1), adding=(4,), removing=(2, 1))


def test_the_only_replica_that_has_everything_is_not_dropped() -> None:
    moving = record((4, 2, 1), (4,), leader=4, adding=(4,), removing=(1,))
    with pytest.raises(InvalidReplicaAssignment, match=r"\[4\]"):
        cancel_reassignment(moving)
    with pytest.raises(InvalidReplicaAssignment):
        begin_reassignment(moving, (5, 2))
    eligible = replace(moving, isr=(), elr=(4,), leader=NO_LEADER)
    with pytest.raises(InvalidReplicaAssignment):
        cancel_reassignment(eligible)
    assert begin_reassignment(moving, (4, 5)).isr == (4,)
