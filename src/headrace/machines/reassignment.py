"""The move of a partition to other brokers. Pure functions from one record to the next, as in `leadership`.

First the new replicas are added to the old ones; when the whole target is in sync, the old ones are dropped. While a
move is under way the record's replicas are the target, in the order that was asked for, then those that will go. The
replicas before the move are those that are not being added; a move that replaces another starts from these.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.machines.leadership import Live, resigned, settle, without
from headrace.model.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from headrace.model.partition_record import Nodes, PartitionRecord


def begin(record: PartitionRecord, target: Nodes) -> PartitionRecord:
    """What was being added by a move under way and is not wanted any more goes at once. If that was the leader there is
    none until the controller has settled the record."""
    if not target:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(target)) < len(target):
        raise InvalidReplicaAssignment(f"the replicas {list(target)} name a broker twice")
    before = without(record.replicas, *record.adding)
    removing = without(before, *target)
    begun = _with_replicas(record, target + removing, adding=without(target, *before), removing=removing)
    return begun if begun.leader in begun.isr else resigned(begun)


def cancel(record: PartitionRecord) -> PartitionRecord:
    """Back to the replicas before the move. If the leader is one that was added there is none until the controller has
    settled the record."""
    if not record.adding and not record.removing:
        raise NoReassignmentInProgress("the partition is not being moved")
    reverted = _with_replicas(record, without(record.replicas, *record.adding))
    return reverted if reverted.leader in reverted.isr else resigned(reverted)


def advance(record: PartitionRecord, min_insync: int, live: Live) -> PartitionRecord | None:
    """The end of the move, once the whole target is up and in sync; None if there is no move, or it is not that far."""
    if not record.adding and not record.removing:
        return None
    target = without(record.replicas, *record.removing)
    if not all(node_id in record.isr and node_id in live for node_id in target):
        return None
    moved = _with_replicas(record, target)
    return settle(moved, live, min_insync) or moved


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
