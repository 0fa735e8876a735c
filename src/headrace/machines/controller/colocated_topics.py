"""Keep the partitions of co-located topics on the replicas and the leader of their owner's partition. Pure functions
from one record to the next, as in `leadership`.

- A reassignment of the owner also reassigns its co-located partitions. The owner's reassignment completes when all of
  them are in sync on the target, and theirs complete afterwards.
- The leader of the owner also leads the co-located partitions, if it can without loss. An election for the owner
  prefers a replica that can lead the co-located partitions too, so they converge to one leader from any state.
- Each record changes separately, and as safely as any other record. The records agree eventually.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from headrace.machines.controller.leadership import LiveBrokers, elect_preferred, new_partition, update_leadership
from headrace.machines.controller.reassignment import (
    begin_reassignment,
    complete_reassignment,
    is_reassigning,
    is_target_in_sync,
    target_replicas,
)
from headrace.model.errors import InvalidReplicaAssignment
from headrace.model.registry_records import NO_LEADER, PartitionRecord


class ConfiguredPartition(NamedTuple):
    """A partition, its min.insync.replicas, and whether a replica that may lack committed records becomes the leader if
    no other can."""

    record: PartitionRecord
    min_insync: int
    allows_unclean: bool = False


def update_colocated(
    owner: ConfiguredPartition,
    colocated_topics: Sequence[ConfiguredPartition],
    live: LiveBrokers,
    *,
    prefers: bool,
) -> list[PartitionRecord | None]:
    """Return the changed records of a partition and of its co-located partitions, in this order; None where no change
    is needed. `prefers`: also elect the preferred leader."""
    changed = _updated_owner(owner, [one.record for one in colocated_topics], live, prefers=prefers)
    settled = changed or owner.record
    return [changed, *(_updated_colocated(one, settled, live) for one in colocated_topics)]


def colocated_record(owner: PartitionRecord, live: LiveBrokers) -> PartitionRecord:
    """Return the record of a new co-located partition, which shares the leader and a reassignment in progress of its
    owner."""
    leads = owner.leader in live and live[owner.leader].epoch == owner.leader_broker_epoch
    record = new_partition(owner.replicas, live, leader=owner.leader if leads else NO_LEADER)
    return replace(record, adding=owner.adding, removing=owner.removing)


def _updated_owner(
    owner: ConfiguredPartition, colocated_topics: Sequence[PartitionRecord], live: LiveBrokers, *, prefers: bool
) -> PartitionRecord | None:
    record, min_insync, allows_unclean = owner
    in_sync = [frozenset(record.isr) for record in colocated_topics]
    favored = frozenset.intersection(*in_sync) if in_sync else ()
    changed = update_leadership(record, live, min_insync, favored=favored, allows_unclean=allows_unclean)
    if changed is None and all(
        target_replicas(one) == target_replicas(record) and is_target_in_sync(one, live) for one in colocated_topics
    ):
        changed = complete_reassignment(record, min_insync, live, favored=favored)
    if changed is None and prefers and (not colocated_topics or record.replicas[0] in favored):
        changed = elect_preferred(record, live, min_insync)
    return changed


def _updated_colocated(
    colocated_topic: ConfiguredPartition, owner: PartitionRecord, live: LiveBrokers
) -> PartitionRecord | None:
    record, min_insync, allows_unclean = colocated_topic
    favored = () if owner.leader == NO_LEADER else (owner.leader,)
    changed = None
    if target_replicas(record) != target_replicas(owner):
        changed = _reassigned_with_owner(colocated_topic, owner, live, favored)
    elif not is_reassigning(owner):
        changed = complete_reassignment(record, min_insync, live, favored=favored)
    return changed or update_leadership(record, live, min_insync, favored=favored, allows_unclean=allows_unclean)


def _reassigned_with_owner(
    colocated_topic: ConfiguredPartition, owner: PartitionRecord, live: LiveBrokers, favored: Collection[int]
) -> PartitionRecord | None:
    try:
        begun = begin_reassignment(colocated_topic.record, target_replicas(owner))
    except InvalidReplicaAssignment:
        return None  # it would remove all replicas that have every committed record: another must be in sync first
    return update_leadership(begun, live, colocated_topic.min_insync, favored=favored) or begun
