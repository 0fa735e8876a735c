"""One partition, its registry key and its brokers, in as few lines as the rules of replication allow.

A broker acts on the record that it read last, and its commits arrive later or never.
Every step checks the invariants I5 to I8 and I11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace.machines.replication.in_sync import IsrState
from headrace.model.errors import StaleBrokerEpoch, UnknownLeaderEpoch
from headrace.model.registry_records import NO_LEADER, BrokerRecord, Nodes, PartitionRecord

LAG_SECONDS_MAX = 10.0

Entry = tuple[int, int]
"""Of a log: leader epoch, and a number that no other has."""


def broker_record(node_id: int, epoch: int = 1, *, rack: str | None = None, is_draining: bool = False) -> BrokerRecord:
    return BrokerRecord(node_id=node_id, epoch=epoch, host="h", port=9092, rack=rack, is_draining=is_draining)


def without_past(record: PartitionRecord | None) -> PartitionRecord | None:
    """The record without its former leaders, of which most tests have nothing to say."""
    return None if record is None else replace(record, past=())


def brokers_up(*node_ids: int) -> dict[int, BrokerRecord]:
    return {node_id: broker_record(node_id) for node_id in node_ids}


@dataclass
class Broker:
    node_id: int
    epoch: int = 1
    is_up: bool = True
    has_lost_disk: bool = False  # and has not owned up to it
    log: list[Entry] = field(default_factory=list)
    flushed: int = 0
    high_watermark: int = 0
    known: PartitionRecord | None = None
    version: int = -1
    lead: IsrState | None = None
    has_commit_under_way: bool = False


@dataclass
class Commit:
    """On its way to the registry."""

    broker: Broker
    epoch: int
    version: int
    record: PartitionRecord
    starts: Mapping[int, int]  # the broker epochs of the replicas that join the isr


class World:
    def __init__(self, brokers: int, replicas: Nodes) -> None:
        self.now = 0.0
        self.brokers = {node_id: Broker(node_id) for node_id in range(1, brokers + 1)}
        self.live = brokers_up(*self.brokers)
        self.record = PartitionRecord(replicas=replicas, isr=replicas)
        self.version = 0
        self.under_way: list[Commit] = []
        self.committed: list[Entry] = []
        self.leaders: dict[int, tuple[int, int]] = {}
        self._next = 0

    # The registry.

    def change(self, decide: Callable[[PartitionRecord], PartitionRecord | None]) -> None:
        """Read, decide and write by compare-and-set, without a concurrent change."""
        changed = decide(self.record)
        if changed is not None:
            self._write(changed)

    def arrive(self, commit: Commit) -> None:
        """The commit takes effect or fails; its sender has not read the outcome yet."""
        self.lose(commit)
        is_current = all(self.brokers[node_id].epoch == epoch for node_id, epoch in commit.starts.items())
        if commit.version == self.version and is_current:
            self._write(commit.record)

    def lose(self, commit: Commit) -> None:
        self.under_way.remove(commit)
        if commit.epoch == commit.broker.epoch:
            commit.broker.has_commit_under_way = False

    def _write(self, record: PartitionRecord) -> None:
        old, self.record = self.record, record
        self.version += 1
        assert len({*record.isr, *record.elr}) == len(record.isr) + len(record.elr)
        for nodes in (record.isr, record.elr):
            assert nodes == tuple(node_id for node_id in record.replicas if node_id in nodes)
        assert record.leader == NO_LEADER or record.leader in record.isr
        has_same_leader = (record.leader, record.leader_broker_epoch) == (old.leader, old.leader_broker_epoch)
        assert record.leader_epoch >= old.leader_epoch  # I8
        assert has_same_leader or record.leader_epoch > old.leader_epoch
        leader = (record.leader, record.leader_broker_epoch)
        assert self.leaders.setdefault(record.leader_epoch, leader) == leader  # I11

    # The brokers.

    def mirror_registry(self, broker: Broker) -> None:
        """The broker learns what the registry holds. While a commit of its own is under way, only a new version tells
        what became of it."""
        is_same_lead = (
            broker.lead is not None
            and self.record.is_led_by(broker.node_id, broker.epoch)
            and broker.lead.record.leader_epoch == self.record.leader_epoch
        )
        if is_same_lead and broker.has_commit_under_way and broker.version == self.version:
            return
        broker.known, broker.version = self.record, self.version
        if is_same_lead:
            assert broker.lead is not None
            broker.lead.update_record(self.record)
        elif self.record.is_led_by(broker.node_id, broker.epoch):
            broker.lead = IsrState(broker.node_id, self.record, len(broker.log), self.now)
        else:
            broker.lead = None

    def append(self, broker: Broker) -> None:
        if broker.lead is not None:
            self._next += 1
            broker.log.append((broker.lead.record.leader_epoch, self._next))

    def flush(self, broker: Broker, min_insync: int) -> None:
        broker.flushed = len(broker.log)
        self._commit(broker, min_insync)

    def fetch(self, follower: Broker, min_insync: int, *, is_response_lost: bool = False) -> None:
        known = follower.known
        if known is None or follower.lead is not None or known.leader == NO_LEADER:
            return
        leader = self.brokers[known.leader]
        if leader.lead is None or leader.lead.record.leader_epoch != known.leader_epoch:
            return
        agreed = _agreement(follower.log, leader.log)
        if agreed < len(follower.log):
            assert agreed >= follower.high_watermark  # I7
            del follower.log[agreed:]
            follower.flushed = agreed
            return
        try:
            leader.lead.record_follower_fetch(follower.node_id, follower.epoch, agreed, 0, len(leader.log), self.now)
        except (UnknownLeaderEpoch, StaleBrokerEpoch):
            return
        self._commit(leader, min_insync)
        if not is_response_lost:
            follower.log[agreed:] = leader.log[agreed:]
            follower.flushed = len(follower.log)
            follower.high_watermark = max(follower.high_watermark, min(leader.high_watermark, follower.flushed))

    def propose(self, broker: Broker, live: Mapping[int, BrokerRecord], min_insync: int) -> None:
        lead = broker.lead
        if lead is None or broker.has_commit_under_way:
            return
        proposal = lead.proposal(live, self.now, LAG_SECONDS_MAX, broker.high_watermark, min_insync)
        self._commit(broker, min_insync)
        if proposal is None:
            return
        starts = {node_id: lead.broker_epoch(node_id) for node_id in {*proposal.isr} - {*lead.record.isr}}
        lead.propose(proposal)
        broker.has_commit_under_way = True
        self.under_way.append(Commit(broker, broker.epoch, broker.version, proposal, starts))

    def stop(self, broker: Broker) -> None:
        """Crash without notice. Unflushed records are lost; sent messages may still arrive."""
        broker.is_up = False
        broker.lead = broker.known = None
        del broker.log[broker.flushed :]
        broker.high_watermark = min(broker.high_watermark, broker.flushed)

    def lose_disk(self, broker: Broker) -> None:
        assert not broker.is_up
        broker.log.clear()
        broker.flushed = broker.high_watermark = 0
        broker.has_lost_disk = True

    def start(self, broker: Broker) -> None:
        broker.epoch += 1
        broker.is_up = True
        broker.has_commit_under_way = False

    def register(self, broker: Broker) -> None:
        assert broker.is_up
        assert not broker.has_lost_disk
        self.live[broker.node_id] = broker_record(broker.node_id, broker.epoch)

    # What is promised.

    def _commit(self, leader: Broker, min_insync: int) -> None:
        """Move the high watermark, and remember what that commits."""
        assert leader.lead is not None or leader.flushed == len(leader.log)
        if leader.lead is None:
            return
        reached = leader.lead.high_watermark(leader.flushed, leader.high_watermark, min_insync)
        assert leader.high_watermark <= reached <= leader.flushed  # I8
        leader.high_watermark = reached
        overlap = min(reached, len(self.committed))
        assert leader.log[:overlap] == self.committed[:overlap]  # I5
        self.committed += leader.log[overlap:reached]

    def check(self) -> None:
        complete = {*self.record.isr, *self.record.elr}
        for node_id in complete:
            broker = self.brokers[node_id]
            has_latest_data = broker.log[: broker.flushed][: len(self.committed)] == self.committed
            assert has_latest_data or broker.has_lost_disk  # I5
        for broker in self.brokers.values():
            lead = broker.lead
            if lead is not None and lead.record.leader_epoch == self.record.leader_epoch and lead.has_min_isr(1):
                assert lead.maximal_isr >= complete  # I6


def _agreement(log: list[Entry], other: list[Entry]) -> int:
    """How many entries are the same from the start on: what the leader epochs tell in the real protocol."""
    return next((n for n, (a, b) in enumerate(zip(log, other, strict=False)) if a != b), min(len(log), len(other)))
