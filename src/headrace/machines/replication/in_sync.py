"""The leader's view of its followers: their positions, the high watermark, and changes of the in-sync replicas.

Each leadership has its own `IsrState`: a follower counts only with what it fetched in this leader epoch. A follower
fetches from the offset below which it has flushed everything.

Invariants:

- The high watermark never decreases, and advances only to offsets that every member of the maximal ISR has flushed. The
  maximal ISR is the union of the registry's ISR and the proposed one: which of them is in effect is unknown until the
  registry has been read again.
- The high watermark does not advance while the ISR is smaller than min.insync.replicas or the ELR is not empty: members
  of the ELR have all committed records, but the leader does not wait for them.
- A follower joins the ISR when it has reached the high watermark and the start of this leader epoch, below which are
  all records that earlier leaders committed. The leader's own high watermark need not have reached the start of the
  epoch: with an ISR that is too small to commit it never would.
- The leader also waits for a follower that is about to join. Otherwise the log end of a busy partition would stay ahead
  of it forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.machines.controller.leadership import with_isr
from headrace.model.errors import StaleBrokerEpoch, UnknownLeaderEpoch
from headrace.model.registry_records import NO_EPOCH, BrokerRecord, PartitionRecord

_UNKNOWN = -1
_BEHIND_ALL = 1 << 63  # larger than any offset


class IsrState:
    __slots__ = (
        "_awaited",
        "_epoch_start",
        "_followers",
        "_isr_size",
        "_node_id",
        "_slowest",
        "maximal_isr",
        "proposed",
        "record",
    )

    def __init__(self, node_id: int, record: PartitionRecord, end_offset: int, now: float) -> None:
        """`end_offset` is the log end offset at which this leader epoch starts. Times are in seconds."""
        assert record.leader == node_id
        self.record = record
        self.proposed: PartitionRecord | None = None
        self._node_id = node_id
        self._epoch_start = end_offset
        # Members of the ISR have the full replica.lag.time.max.ms to fetch; the others must catch up first.
        self._followers = {
            follower: _FollowerState(now if follower in record.isr else float("-inf"))
            for follower in record.replicas
            if follower != node_id
        }
        self._awaited: frozenset[int] = frozenset()
        self._slowest: int
        self._recompute()

    def has_min_isr(self, min_insync: int) -> bool:
        """Whether the ISR is large enough to commit. A partition with fewer replicas than min.insync.replicas needs all
        of them."""
        return self._isr_size >= min(min_insync, len(self.record.replicas))

    def high_watermark(self, flushed_offset: int, current: int, min_insync: int) -> int:
        """Return the high watermark. It may advance after a flush, a fetch, `update_record` and `proposal`."""
        reached = flushed_offset if flushed_offset < self._slowest else self._slowest
        return reached if reached > current and self.has_min_isr(min_insync) else current

    def record_follower_fetch(
        self, node_id: int, broker_epoch: int, offset: int, log_start_offset: int, end_offset: int, now: float
    ) -> bool:
        """Record a fetch of a follower that has all records below `offset` on its disk, in a log that matches this one.
        `end_offset` is the leader's log end offset. Return whether the high watermark may have advanced."""
        follower = self._followers.get(node_id)
        if follower is None:
            # The follower may have learned of a reassignment before this leader.
            raise UnknownLeaderEpoch(f"broker {node_id} is not known as a replica; retry")
        if broker_epoch < follower.broker_epoch:
            raise StaleBrokerEpoch(f"broker {node_id} was restarted after epoch {broker_epoch}")
        follower.note(broker_epoch, offset, log_start_offset, end_offset, now)
        slowest = self._slowest
        self._slowest = self._recompute_slowest()
        return self._slowest > slowest

    def shares_history(self, node_id: int) -> bool:
        """Whether a follower is known to share the history of this log even if its log is empty: it is in the ISR or
        the ELR, or its log matched earlier in this leader epoch. `record_follower_fetch` rejects brokers without a
        replica.
        """
        follower = self._followers.get(node_id)
        return (
            follower is None or follower.offset != _UNKNOWN or node_id in self.maximal_isr or node_id in self.record.elr
        )

    def record_caught_up(self, end_offset: int, now: float) -> None:
        """Mark followers that have all records as caught up, even if they have not fetched recently: a fetch waits at
        the leader while there are no new records."""
        for follower in self._followers.values():
            if follower.offset >= end_offset:
                follower.caught_up_at = now

    def proposal(
        self,
        live: Mapping[int, BrokerRecord],
        now: float,
        lag_seconds_max: float,
        high_watermark: int,
        min_insync: int,
    ) -> PartitionRecord | None:
        """Return the next change of the ISR, or None: followers that have caught up join, lagging ones leave. Call it
        at every tick, because it also determines the followers that the leader waits for.

        The write of the change must check that the added followers still have the broker epoch that fetched
        (`broker_epoch`): a broker that was restarted without its disk removes itself only from an ISR that contains it.
        """
        oldest = now - lag_seconds_max
        near = {node_id for node_id, follower in self._followers.items() if follower.caught_up_at >= oldest}
        eligible = {node_id for node_id in near if self._may_join(node_id, live)}
        self._awaited = frozenset(eligible - self.maximal_isr)
        self._recompute()
        if self.proposed is not None:
            return None
        needed = max(high_watermark, self._epoch_start)
        joining = {node_id for node_id in eligible if self._followers[node_id].offset >= needed}
        isr = {self._node_id, *near.intersection(self.record.isr), *joining}
        changed = with_isr(self.record, tuple(isr), min_insync)
        return None if changed == self.record else changed

    def propose(self, record: PartitionRecord) -> None:
        """Note a change before it is written: from now on only the registry knows which ISR is in effect. This includes
        a leader's own removal (`remove_from_isr`)."""
        assert self.proposed is None
        self.proposed = record
        self._recompute()

    def update_record(self, record: PartitionRecord) -> None:
        """Apply the registry's record, and end the proposal. The record must therefore show the outcome of the
        proposal: it has a later version than the one that the proposal replaces, or was read after the outcome of the
        write. It must belong to this leadership."""
        assert (record.leader, record.leader_epoch) == (self._node_id, self.record.leader_epoch)
        self.record = record
        self.proposed = None
        self._followers = {
            node_id: self._followers.get(node_id) or _FollowerState(float("-inf"))
            for node_id in record.replicas
            if node_id != self._node_id
        }
        self._awaited = self._awaited.intersection(record.replicas).difference(record.isr)
        self._recompute()

    def are_followers_silent(self, since: float) -> bool:
        """Whether no in-sync follower has fetched since then, so that one of them may be the leader by now."""
        others = [follower for node_id, follower in self._followers.items() if node_id in self.record.isr]
        return bool(others) and all(follower.fetched_at < since for follower in others)

    def broker_epoch(self, node_id: int) -> int:
        """The broker epoch of a follower's last fetch."""
        return self._followers[node_id].broker_epoch

    def low_watermark(self, own_start: int, live: Mapping[int, BrokerRecord]) -> int:
        """Return the lowest log start offset of the live in-sync replicas; -1 while one of them has not reported it."""
        starts = [
            follower.log_start_offset
            for node_id, follower in self._followers.items()
            if node_id in self.record.isr and node_id in live
        ]
        return min([own_start, *starts])

    def lag(self) -> Mapping[int, int]:
        """Return the position of each follower; -1 if it has not fetched in this leader epoch."""
        return {node_id: follower.offset for node_id, follower in self._followers.items()}

    def _may_join(self, node_id: int, live: Mapping[int, BrokerRecord]) -> bool:
        broker = live.get(node_id)
        return broker is not None and broker.epoch == self._followers[node_id].broker_epoch and not broker.is_draining

    def _recompute(self) -> None:
        proposed = self.record if self.proposed is None else self.proposed
        self.maximal_isr = frozenset(self.record.isr + proposed.isr)  # those that may be in effect
        self._isr_size = 0 if self.record.elr else min(len(self.record.isr), len(proposed.isr))
        self._slowest = self._recompute_slowest()

    def _recompute_slowest(self) -> int:
        counted = self.maximal_isr | self._awaited
        return min(
            (follower.offset for node_id, follower in self._followers.items() if node_id in counted),
            default=_BEHIND_ALL,
        )


@dataclass(slots=True, eq=False)
class _FollowerState:
    """`end_offset` is the leader's log end offset at the last fetch of the follower: a follower that now fetches from
    there had caught up at that time. In a busy partition every follower is one fetch behind."""

    caught_up_at: float
    broker_epoch: int = NO_EPOCH
    offset: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN
    end_offset: int = _BEHIND_ALL
    fetched_at: float = float("-inf")

    def note(self, broker_epoch: int, offset: int, log_start_offset: int, end_offset: int, now: float) -> None:
        if offset >= end_offset:
            self.caught_up_at = now
        elif offset >= self.end_offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.broker_epoch = broker_epoch
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        self.fetched_at = now
