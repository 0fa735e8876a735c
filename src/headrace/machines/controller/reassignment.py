"""The move of a partition to other brokers. Pure functions from one record to the next, as in `leadership`.

First the new replicas are added to the old ones; when the whole target is in sync, the old ones are dropped. While a
move is under way the record's replicas are the target, in the order that was asked for, then those that will go. The
replicas before the move are those that are not being added; a move that replaces another starts from these.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from headrace.machines.controller.leadership import LiveBrokers, excluding, update_leadership, without_leader
from headrace.model.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from headrace.model.registry_records import Nodes, PartitionRecord


def begin_reassignment(record: PartitionRecord, target: Nodes) -> PartitionRecord:
    """What was being added by a move under way and is not wanted any more goes at once. If that was the leader there is
    none until the controller has settled the record."""
    if not target:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(target)) < len(target):
        raise InvalidReplicaAssignment(f"the replicas {list(target)} name a broker twice")
    before = excluding(record.replicas, *record.adding)
    removing = excluding(before, *target)
    begun = _with_replicas(record, target + removing, adding=excluding(target, *before), removing=removing)
    return begun if begun.leader in begun.isr else without_leader(begun)


def cancel_reassignment(record: PartitionRecord) -> PartitionRecord:
    """Back to the replicas before the move. If the leader is one that was added there is none until the controller has
    settled the record."""
    if not is_reassigning(record):
        raise NoReassignmentInProgress("the partition is not being moved")
    reverted = _with_replicas(record, excluding(record.replicas, *record.adding))
    return reverted if reverted.leader in reverted.isr else without_leader(reverted)


def complete_reassignment(
    record: PartitionRecord, min_insync: int, live: LiveBrokers, *, favored: Collection[int] = ()
) -> PartitionRecord | None:
    """The end of the move, once the whole target is up and in sync; None if there is no move, or it is not that far.
    `rather` as for `settle`."""
    if not is_reassigning(record) or not is_target_in_sync(record, live):
        return None
    moved = _with_replicas(record, target_replicas(record))
    return update_leadership(moved, live, min_insync, favored=favored) or moved


def is_reassigning(record: PartitionRecord) -> bool:
    return bool(record.adding or record.removing)


def is_target_in_sync(record: PartitionRecord, live: LiveBrokers) -> bool:
    """Whether all who shall hold the partition are up and in sync."""
    return all(node_id in record.isr and node_id in live for node_id in target_replicas(record))


def target_replicas(record: PartitionRecord) -> Nodes:
    """Who shall hold the partition in the end."""
    return excluding(record.replicas, *record.removing)


def _with_replicas(
    record: PartitionRecord, replicas: Nodes, *, adding: Nodes = (), removing: Nodes = ()
) -> PartitionRecord:
    """The record with these replicas; those that go leave the isr and the elr. Who leads is not looked at."""
    complete = record.isr or record.elr
    if complete and not any(node_id in replicas for node_id in complete):
        raise InvalidReplicaAssignment(
            f"only brokers that would go at once have everything: {list(complete)}; wait until another is in sync"
        )
    return replace(
        record,
        replicas=replicas,
        isr=tuple(node_id for node_id in replicas if node_id in record.isr),
        elr=tuple(node_id for node_id in replicas if node_id in record.elr),
        adding=adding,
        removing=removing,
    )
