"""What becomes of a partition's record: who is in sync, and who leads. Pure functions from one record to the next.

Invariants, of every record that was made here:
- Whoever is in the isr or the elr has everything that is committed. Nothing is committed while the isr is smaller than
  min.insync.replicas or the elr is not empty, so who leaves the isr then still has everything, and moves to the elr.
- isr and elr share nobody, are in the order of the replicas, and together count no more than min.insync.replicas
  while the elr is not empty.
- The leader is in the isr. Every change of leader, also to a new start of the same broker and to nobody, has a new
  leader epoch; so an epoch has one leader at most.
- What is believed of who is up may be wrong: that can make a change useless, never unsafe. Only `elect_unclean` loses
  committed records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from headrace.model.errors import ElectionNotNeeded
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, BrokerRecord, Leadership, Nodes, PartitionRecord

LiveBrokers = Mapping[int, BrokerRecord]

PAST_MAX = 16
"""Leaderships of a partition that its record keeps, one for each start of a broker that led it: each takes some ten
bytes of the registry."""


def update_leadership(
    record: PartitionRecord, live: LiveBrokers, min_insync: int, *, favored: Collection[int] = ()
) -> PartitionRecord | None:
    """What the controller makes of a partition, given who is up; None if it is well as it is. Who is not up leaves the
    isr while somebody remains in it; a leader that is gone, was started again or is about to go is replaced. One that
    is about to go stays in the isr: it still has everything. Who is named by `rather` goes before the others, and
    replaces one of these even if all is well."""
    candidate = _clean_candidate(record, live, favored)
    if candidate == NO_LEADER:
        settled = without_leader(record)
    else:
        up = tuple(node_id for node_id in record.isr if node_id in live)
        settled = with_isr(record, up or (candidate,), min_insync)
        if (
            not _has_live_leader(record, live)
            or (live[record.leader].is_draining and not live[candidate].is_draining)
            or (candidate in favored and record.leader not in favored)
        ):
            settled = with_leader(settled, live[candidate])
    return None if settled == record else settled


def elect_preferred(record: PartitionRecord, live: LiveBrokers, min_insync: int) -> PartitionRecord | None:
    """Let the first replica lead, if it can without loss and does not yet."""
    preferred = live.get(record.replicas[0])
    if preferred is None or preferred.is_draining or preferred.node_id not in record.isr:
        return None
    if record.is_led_by(preferred.node_id, preferred.epoch):
        return None
    return with_leader(with_isr(record, record.isr, min_insync), preferred)


def elect_unclean(record: PartitionRecord, live: LiveBrokers, candidate: int | None = None) -> PartitionRecord | None:
    """Let a replica lead that may lack committed records, because an operator prefers that loss to waiting: the one
    that was named, else the first that is up. None if it is not up."""
    if _has_live_leader(record, live):
        raise ElectionNotNeeded(f"broker {record.leader} leads")
    complete = _clean_candidate(record, live, ())
    if complete != NO_LEADER:
        raise ElectionNotNeeded(f"broker {complete} has everything and will be elected without loss")
    requested = record.replicas if candidate is None else (candidate,)
    chosen = _first_live(tuple(node_id for node_id in requested if node_id in record.replicas), live, ())
    if chosen == NO_LEADER:
        return None
    lossy = with_leader(replace(record, isr=(chosen,), elr=()), live[chosen])
    return replace(lossy, unclean_epoch=lossy.leader_epoch)


def remove_from_isr(record: PartitionRecord, node_id: int, min_insync: int) -> PartitionRecord | None:
    """The broker may have lost what it acknowledged: it counts for nothing until it has caught up. The last one of the
    isr is struck out too: rather nobody leads than one that lacks committed records."""
    if node_id not in record.isr and node_id not in record.elr:
        return None
    isr, elr = excluding(record.isr, node_id), excluding(record.elr, node_id)
    struck = with_isr(replace(record, isr=isr, elr=elr), isr, min_insync)
    return without_leader(struck) if record.leader == node_id else struck


def with_isr(record: PartitionRecord, isr: Nodes, min_insync: int) -> PartitionRecord:
    """The record with this isr and the elr that follows from it: as long as the isr is too small to commit, those that
    left it last, and of those that left before as many as are needed to make up min.insync.replicas."""
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
    """A new epoch begins, with this leader."""
    assert leader.node_id in record.isr
    return replace(
        _without_leader(record, record.leader_epoch + 1), leader=leader.node_id, leader_broker_epoch=leader.epoch
    )


def without_leader(record: PartitionRecord) -> PartitionRecord:
    """Nobody leads, until somebody who may is up."""
    if record.leader == NO_LEADER:
        return record
    return _without_leader(record, record.leader_epoch + 1)


def raise_leader_epoch(record: PartitionRecord, epoch: int) -> PartitionRecord:
    """Nobody leads, and the next leader's epoch is higher than this one: lower ones may have been used."""
    return _without_leader(record, max(record.leader_epoch + 1, epoch))


def has_foreign_history(record: PartitionRecord, latest_epoch: int, is_known: Callable[[Leadership], bool]) -> bool:
    """Whether a log that ends in `latest_epoch` may hold records of a leader that the registry does not know.

    A broker learns of a leader before it writes or copies anything in that leader's epoch (`is_known`). A leadership
    that it does not know began while it was down, after everything in its log. If the epoch of that leadership is not
    higher than those in the log, the registry was set back in between and handed the epoch out again. If all of the
    leaderships that the record still has are unknown, older ones may be too: then the answer is yes, to be safe."""
    leaderships = record.leaderships
    unknown = [one.leader_epoch for one in leaderships if not is_known(one)]
    if not unknown:
        return False
    is_cut = len(record.past) == PAST_MAX and len(unknown) == len(leaderships)
    return is_cut or unknown[0] <= latest_epoch


def excluding(nodes: Nodes, *gone: int) -> Nodes:
    return tuple(node_id for node_id in nodes if node_id not in gone)


def _without_leader(record: PartitionRecord, epoch: int) -> PartitionRecord:
    """The first leadership of a broker's start stands for all of that start: who knows it knows the others as well."""
    past = record.past
    if record.leader != NO_LEADER and (record.leader, record.leader_broker_epoch) not in {one[1:] for one in past}:
        past = record.leaderships[-PAST_MAX:]
    return replace(record, leader=NO_LEADER, leader_broker_epoch=NO_EPOCH, leader_epoch=epoch, past=past)


def _has_live_leader(record: PartitionRecord, live: LiveBrokers) -> bool:
    """Whether the leader is up, has been since it was elected, and still is a replica."""
    leader = live.get(record.leader)
    return leader is not None and leader.epoch == record.leader_broker_epoch and record.leader in record.isr


def _clean_candidate(record: PartitionRecord, live: LiveBrokers, favored: Collection[int]) -> int:
    """Who can lead without loss. The isr goes before the elr even if its members are about to go: they have what was
    answered with acks=1 too, and the elr does not."""
    in_sync = tuple(node_id for node_id in record.replicas if node_id in record.isr)
    leader = _first_live(in_sync, live, favored)
    return leader if leader != NO_LEADER else _first_live(record.elr, live, favored)


def _first_live(nodes: Nodes, live: LiveBrokers, favored: Collection[int]) -> int:
    """The first that is up; one that is about to go only if there is no other."""
    up = [node_id for node_id in nodes if node_id in live]
    return min(up, key=lambda node_id: (live[node_id].is_draining, node_id not in favored), default=NO_LEADER)
