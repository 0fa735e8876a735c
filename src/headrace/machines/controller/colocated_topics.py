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

from headrace.machines.controller.leadership import LiveBrokers, elect_preferred, update_leadership
from headrace.machines.controller.reassignment import (
    begin_reassignment,
    complete_reassignment,
    is_reassigning,
    is_target_in_sync,
    target_replicas,
)
from headrace.model.errors import InvalidReplicaAssignment
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, PartitionRecord


class PartitionWithMinInsync(NamedTuple):
    """A partition, and how many replicas must be in sync for it to take writes."""

    record: PartitionRecord
    min_insync: int


def update_colocated(
    owner: PartitionWithMinInsync,
    colocated_topics: Sequence[PartitionWithMinInsync],
    live: LiveBrokers,
    *,
    prefers: bool,
) -> list[PartitionRecord | None]:
    """What the controller makes of a partition and of its companions, in this order; None for what is well as it is.
    `prefers`: it is time to give the lead back to the replica that comes first."""
    changed = _updated_owner(owner, [one.record for one in colocated_topics], live, prefers=prefers)
    settled = changed or owner.record
    return [changed, *(_updated_colocated(one, settled, live) for one in colocated_topics)]


def colocated_record(owner: PartitionRecord, live: LiveBrokers) -> PartitionRecord:
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


def _updated_owner(
    owner: PartitionWithMinInsync, colocated_topics: Sequence[PartitionRecord], live: LiveBrokers, *, prefers: bool
) -> PartitionRecord | None:
    record, min_insync = owner
    favored = _in_sync_everywhere(colocated_topics)
    changed = update_leadership(record, live, min_insync, favored=favored)
    if changed is None and all(_is_at_target(record, one, live) for one in colocated_topics):
        changed = complete_reassignment(record, min_insync, live, favored=favored)
    if changed is None and prefers and (not colocated_topics or record.replicas[0] in favored):
        changed = elect_preferred(record, live, min_insync)
    return changed


def _updated_colocated(
    colocated_topic: PartitionWithMinInsync, owner: PartitionRecord, live: LiveBrokers
) -> PartitionRecord | None:
    record, min_insync = colocated_topic
    favored = () if owner.leader == NO_LEADER else (owner.leader,)
    changed = None
    if target_replicas(record) != target_replicas(owner):
        changed = _reassigned_with_owner(colocated_topic, owner, live, favored)
    elif not is_reassigning(owner):
        changed = complete_reassignment(record, min_insync, live, favored=favored)
    return changed or update_leadership(record, live, min_insync, favored=favored)


def _reassigned_with_owner(
    colocated_topic: PartitionWithMinInsync, owner: PartitionRecord, live: LiveBrokers, favored: Collection[int]
) -> PartitionRecord | None:
    try:
        begun = begin_reassignment(colocated_topic.record, target_replicas(owner))
    except InvalidReplicaAssignment:
        return None  # who has everything would go at once: another must be in sync first
    return update_leadership(begun, live, colocated_topic.min_insync, favored=favored) or begun


def _in_sync_everywhere(colocated_topics: Sequence[PartitionRecord]) -> Collection[int]:
    in_sync = [frozenset(record.isr) for record in colocated_topics]
    return frozenset.intersection(*in_sync) if in_sync else ()


def _is_at_target(owner: PartitionRecord, colocated_topic: PartitionRecord, live: LiveBrokers) -> bool:
    """Whether the companion is where the owner's move leads."""
    return target_replicas(colocated_topic) == target_replicas(owner) and is_target_in_sync(colocated_topic, live)
