"""Elections and changes of the in-sync replicas. Pure functions from one partition record to the next.

Invariants of every record that these functions return:

- Every replica in the ISR or the ELR has all committed records. Nothing is committed while the ISR is smaller than
  min.insync.replicas or the ELR is not empty. Therefore a replica that leaves such an ISR still has all committed
  records, and moves to the ELR.
- ISR and ELR are disjoint and in the order of the replicas. While the ELR is not empty, they have at most
  min.insync.replicas members together.
- The leader is in the ISR. Every change of the leader, also to a new start of the same broker or to no leader,
  increments the leader epoch. Therefore an epoch has at most one leader.
- The set of live brokers may be outdated: a change may then be useless, but never unsafe. Only `elect_unclean` can lose
  committed records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from headrace.model.errors import ElectionNotNeeded
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, BrokerRecord, Leadership, Nodes, PartitionRecord

LiveBrokers = Mapping[int, BrokerRecord]

PAST_MAX = 16
"""The maximum number of past leaderships in a record, one for each start of a broker that led the partition. Each takes
about ten bytes in the registry."""


def new_partition(replicas: Nodes, live: LiveBrokers, *, leader: int = NO_LEADER) -> PartitionRecord:
    """Return the record of a new partition, led by `leader` if that is a live replica, else by the first live one. All
    live replicas are in sync, because the partition is empty."""
    up = tuple(node_id for node_id in replicas if node_id in live)
    elected = live[leader if leader in up else up[0]] if up else None
    return PartitionRecord(
        replicas=replicas,
        isr=up or replicas,
        leader=elected.node_id if elected else NO_LEADER,
        leader_broker_epoch=elected.epoch if elected else NO_EPOCH,
    )


def update_leadership(
    record: PartitionRecord,
    live: LiveBrokers,
    min_insync: int,
    *,
    favored: Collection[int] = (),
    allows_unclean: bool = False,
) -> PartitionRecord | None:
    """Return the record for this set of live brokers, or None if no change is needed.

    Brokers that are not live leave the ISR unless it would become empty. A leader that is not live, was restarted, or
    is draining is replaced. A draining broker stays in the ISR, since it still has all records. A replica in `favored`
    is preferred, and replaces a live leader that is not in `favored`. With `allows_unclean`, a live replica that may
    lack committed records becomes the leader if no other replica can."""
    candidate = _clean_candidate(record, live, favored)
    if candidate == NO_LEADER:
        unclean = elect_unclean(record, live, favored=favored) if allows_unclean else None
        updated = unclean or without_leader(record)
    else:
        up = tuple(node_id for node_id in record.isr if node_id in live)
        updated = with_isr(record, up or (candidate,), min_insync)
        if (
            not _has_live_leader(record, live)
            or (live[record.leader].is_draining and not live[candidate].is_draining)
            or (candidate in favored and record.leader not in favored)
        ):
            updated = with_leader(updated, live[candidate])
    return None if updated == record else updated


def elect_preferred(record: PartitionRecord, live: LiveBrokers, min_insync: int) -> PartitionRecord | None:
    """Elect the first replica. Return None if it already leads, or cannot lead without loss."""
    preferred = live.get(record.replicas[0])
    if preferred is None or preferred.is_draining or preferred.node_id not in record.isr:
        return None
    if record.is_led_by(preferred.node_id, preferred.epoch):
        return None
    return with_leader(with_isr(record, record.isr, min_insync), preferred)


def elect_unclean(
    record: PartitionRecord, live: LiveBrokers, *, favored: Collection[int] = ()
) -> PartitionRecord | None:
    """Elect the first live replica, preferably one in `favored`, although it may lack committed records. Return None if
    none is live. This restores availability at the cost of data loss: an operator requests it, or the topic's
    configuration allows it."""
    if _has_live_leader(record, live):
        raise ElectionNotNeeded(f"broker {record.leader} is the leader")
    complete = _clean_candidate(record, live, ())
    if complete != NO_LEADER:
        raise ElectionNotNeeded(f"broker {complete} has all committed records and will be elected without loss")
    chosen = _first_live(record.replicas, live, favored)
    if chosen == NO_LEADER:
        return None
    lossy = with_leader(replace(record, isr=(chosen,), elr=()), live[chosen])
    return replace(lossy, unclean_epoch=lossy.leader_epoch)


def remove_from_isr(record: PartitionRecord, node_id: int, min_insync: int) -> PartitionRecord | None:
    """Remove a broker that may have lost acknowledged records from ISR and ELR, until it has caught up. This also
    removes the last member: a partition without a leader is better than a leader that lacks committed records."""
    if node_id not in record.isr and node_id not in record.elr:
        return None
    isr, elr = excluding(record.isr, node_id), excluding(record.elr, node_id)
    removed = with_isr(replace(record, isr=isr, elr=elr), isr, min_insync)
    return without_leader(removed) if record.leader == node_id else removed


def with_isr(record: PartitionRecord, isr: Nodes, min_insync: int) -> PartitionRecord:
    """Return the record with this ISR and the ELR that follows from it: while the ISR is too small to commit, the ELR
    contains the replicas that left it last, filled up with earlier ones to min.insync.replicas."""
    members = frozenset(isr)
    left = [node_id for node_id in (*record.isr, *record.elr) if node_id not in members]
    eligible = left[: max(0, min_insync - len(members))]
    assert members.issubset(record.replicas)
    return replace(
        record,
        isr=tuple(node_id for node_id in record.replicas if node_id in members),
        elr=tuple(node_id for node_id in record.replicas if node_id in eligible),
    )


def with_leader(record: PartitionRecord, leader: BrokerRecord) -> PartitionRecord:
    """Return the record with this leader, in a new leader epoch."""
    assert leader.node_id in record.isr
    return replace(
        _without_leader(record, record.leader_epoch + 1), leader=leader.node_id, leader_broker_epoch=leader.epoch
    )


def without_leader(record: PartitionRecord) -> PartitionRecord:
    """Return the record without a leader, in a new leader epoch."""
    if record.leader == NO_LEADER:
        return record
    return _without_leader(record, record.leader_epoch + 1)


def raise_leader_epoch(record: PartitionRecord, epoch: int) -> PartitionRecord:
    """Return the record without a leader, in an epoch of at least `epoch`, because lower epochs may have been used."""
    return _without_leader(record, max(record.leader_epoch + 1, epoch))


def has_foreign_history(record: PartitionRecord, latest_epoch: int, is_known: Callable[[Leadership], bool]) -> bool:
    """Whether a log that ends in `latest_epoch` may contain records of a leader that the registry does not know.

    A broker stores a leadership before it writes or replicates in the leader's epoch (`is_known`). An unknown
    leadership began while the broker was down, after all records in its log. If its epoch is not higher than those in
    the log, the registry was rolled back in between and assigned the epoch again. If all leaderships in a full record
    are unknown, earlier ones may be unknown too, so the function returns True to be safe."""
    leaderships = record.leaderships
    unknown = [one.leader_epoch for one in leaderships if not is_known(one)]
    if not unknown:
        return False
    is_cut = len(record.past) == PAST_MAX and len(unknown) == len(leaderships)
    return is_cut or unknown[0] <= latest_epoch


def excluding(nodes: Nodes, *gone: int) -> Nodes:
    return tuple(node_id for node_id in nodes if node_id not in gone)


def _without_leader(record: PartitionRecord, epoch: int) -> PartitionRecord:
    """`past` keeps only the first leadership of each start of a broker: a broker that knows it knows the later ones."""
    past = record.past
    if record.leader != NO_LEADER and (record.leader, record.leader_broker_epoch) not in {one[1:] for one in past}:
        past = record.leaderships[-PAST_MAX:]
    return replace(record, leader=NO_LEADER, leader_broker_epoch=NO_EPOCH, leader_epoch=epoch, past=past)


def _has_live_leader(record: PartitionRecord, live: LiveBrokers) -> bool:
    """Whether the leader is live, was not restarted since its election, and is in sync."""
    leader = live.get(record.leader)
    return leader is not None and leader.epoch == record.leader_broker_epoch and record.leader in record.isr


def _clean_candidate(record: PartitionRecord, live: LiveBrokers, favored: Collection[int]) -> int:
    """Return a replica that can lead without loss. The ISR is preferred to the ELR, even if its members are draining:
    they also have records that were acknowledged with acks=1."""
    in_sync = tuple(node_id for node_id in record.replicas if node_id in record.isr)
    leader = _first_live(in_sync, live, favored)
    return leader if leader != NO_LEADER else _first_live(record.elr, live, favored)


def _first_live(nodes: Nodes, live: LiveBrokers, favored: Collection[int]) -> int:
    """Return the first live broker; a draining one only if there is no other."""
    up = [node_id for node_id in nodes if node_id in live]
    return min(up, key=lambda node_id: (live[node_id].is_draining, node_id not in favored), default=NO_LEADER)
