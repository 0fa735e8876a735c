"""The reassignment of a partition to other brokers. Pure functions from one record to the next, as in `leadership`.

The new replicas are added to the old ones; when the whole target is in sync, the old ones are removed. During a
reassignment, `replicas` contains the target in the requested order, followed by the replicas to remove. The original
replicas are those that are not in `adding`; a reassignment that replaces another starts from them.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from headrace.machines.controller.leadership import LiveBrokers, excluding, update_leadership, without_leader
from headrace.model.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from headrace.model.registry_records import Nodes, PartitionRecord


def begin_reassignment(record: PartitionRecord, target: Nodes) -> PartitionRecord:
    """Begin a reassignment, which replaces one in progress: replicas that the latter was adding are removed at once
    unless they are in the target. If one of them is the leader, the partition has none until the next election."""
    if not target:
        raise InvalidReplicaAssignment("a partition needs at least one replica")
    if len(set(target)) < len(target):
        raise InvalidReplicaAssignment(f"the replicas {list(target)} name a broker twice")
    before = excluding(record.replicas, *record.adding)
    removing = excluding(before, *target)
    begun = _with_replicas(record, target + removing, adding=excluding(target, *before), removing=removing)
    return begun if begun.leader in begun.isr else without_leader(begun)


def cancel_reassignment(record: PartitionRecord) -> PartitionRecord:
    """Return to the original replicas. If the leader is not one of them, the partition has none until the next
    election."""
    if not is_reassigning(record):
        raise NoReassignmentInProgress("the partition has no reassignment in progress")
    reverted = _with_replicas(record, excluding(record.replicas, *record.adding))
    return reverted if reverted.leader in reverted.isr else without_leader(reverted)


def complete_reassignment(
    record: PartitionRecord, min_insync: int, live: LiveBrokers, *, favored: Collection[int] = ()
) -> PartitionRecord | None:
    """Complete the reassignment if the whole target is live and in sync. Return None otherwise, or if there is no
    reassignment. `favored` as in `update_leadership`."""
    if not is_reassigning(record) or not is_target_in_sync(record, live):
        return None
    moved = _with_replicas(record, target_replicas(record))
    return update_leadership(moved, live, min_insync, favored=favored) or moved


def is_reassigning(record: PartitionRecord) -> bool:
    return bool(record.adding or record.removing)


def is_target_in_sync(record: PartitionRecord, live: LiveBrokers) -> bool:
    """Whether all target replicas are live and in sync."""
    return all(node_id in record.isr and node_id in live for node_id in target_replicas(record))


def target_replicas(record: PartitionRecord) -> Nodes:
    return excluding(record.replicas, *record.removing)


def _with_replicas(
    record: PartitionRecord, replicas: Nodes, *, adding: Nodes = (), removing: Nodes = ()
) -> PartitionRecord:
    """Return the record with these replicas. Others leave the ISR and the ELR. The leader is not changed."""
    complete = record.isr or record.elr
    if complete and not any(node_id in replicas for node_id in complete):
        raise InvalidReplicaAssignment(
            f"only brokers that would be removed have all committed records: {list(complete)}; "
            "wait until another one is in sync"
        )
    return replace(
        record,
        replicas=replicas,
        isr=tuple(node_id for node_id in replicas if node_id in record.isr),
        elr=tuple(node_id for node_id in replicas if node_id in record.elr),
        adding=adding,
        removing=removing,
    )
