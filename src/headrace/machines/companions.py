"""The partitions of companions stay with the partition that they belong to: same replicas, same leader. Pure functions
from records to the next, as in `leadership`.

- Where the owner's replicas are to go, the companions' go. The owner's move ends when all have arrived, then theirs.
- Who leads the owner leads the companions, if it can without loss. When a leader is sought for the owner, one that can
  lead the companions too goes before the others; so they find together again, however they came apart.
- Each record changes by itself, and as safely as any: that they agree is a matter of time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from headrace.machines.leadership import Live, prefer, settle
from headrace.machines.reassignment import advance, begin, has_arrived, is_moving, target_of
from headrace.model.errors import InvalidReplicaAssignment
from headrace.model.partition_record import NO_EPOCH, NO_LEADER, PartitionRecord


class Kept(NamedTuple):
    """A partition, and how many replicas must be in sync for it to take writes."""

    record: PartitionRecord
    min_insync: int


def settle_together(
    owner: Kept, companions: Sequence[Kept], live: Live, *, prefers: bool
) -> list[PartitionRecord | None]:
    """What the controller makes of a partition and of its companions, in this order; None for what is well as it is.
    `prefers`: it is time to give the lead back to the replica that comes first."""
    changed = _settled_owner(owner, [one.record for one in companions], live, prefers=prefers)
    settled = changed or owner.record
    return [changed, *(_settled_companion(one, settled, live) for one in companions)]


def beside(owner: PartitionRecord, live: Live) -> PartitionRecord:
    """A new partition of a companion, in the midst of a move if its owner is. Everybody who is up has everything,
    because there is nothing."""
    up = tuple(node_id for node_id in owner.replicas if node_id in live)
    leads = owner.leader in up and live[owner.leader].epoch == owner.leader_broker_epoch
    leader = live[owner.leader if leads else up[0]] if up else None
    return PartitionRecord(
        replicas=owner.replicas,
        isr=up or owner.replicas,
        leader=leader.node_id if leader else NO_LEADER,
        leader_broker_epoch=leader.epoch if leader else NO_EPOCH,
        adding=owner.adding,
        removing=owner.removing,
    )


def _settled_owner(
    owner: Kept, companions: Sequence[PartitionRecord], live: Live, *, prefers: bool
) -> PartitionRecord | None:
    record, min_insync = owner
    rather = _in_sync_everywhere(companions)
    changed = settle(record, live, min_insync, rather=rather)
    if changed is None and all(_arrives_with(record, one, live) for one in companions):
        changed = advance(record, min_insync, live, rather=rather)
    if changed is None and prefers and (not companions or record.replicas[0] in rather):
        changed = prefer(record, live, min_insync)
    return changed


def _settled_companion(companion: Kept, owner: PartitionRecord, live: Live) -> PartitionRecord | None:
    record, min_insync = companion
    rather = () if owner.leader == NO_LEADER else (owner.leader,)
    changed = None
    if target_of(record) != target_of(owner):
        changed = _moved_along(companion, owner, live, rather)
    elif not is_moving(owner):
        changed = advance(record, min_insync, live, rather=rather)
    return changed or settle(record, live, min_insync, rather=rather)


def _moved_along(
    companion: Kept, owner: PartitionRecord, live: Live, rather: Collection[int]
) -> PartitionRecord | None:
    try:
        begun = begin(companion.record, target_of(owner))
    except InvalidReplicaAssignment:
        return None  # who has everything would go at once: another must be in sync first
    return settle(begun, live, companion.min_insync, rather=rather) or begun


def _in_sync_everywhere(companions: Sequence[PartitionRecord]) -> Collection[int]:
    in_sync = [frozenset(record.isr) for record in companions]
    return frozenset.intersection(*in_sync) if in_sync else ()


def _arrives_with(owner: PartitionRecord, companion: PartitionRecord, live: Live) -> bool:
    """Whether the companion is where the owner's move leads."""
    return target_of(companion) == target_of(owner) and has_arrived(companion, live)
