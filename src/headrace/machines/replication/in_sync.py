"""The leader's view of its followers: how far each of them is, who counts for a commit, and who should.

There is one `IsrState` per lead: whoever is elected again begins with a new one, because a follower counts only by what
it fetched in this lead. A follower fetches at the offset up to which it has flushed everything, so that is what it has.

Invariants:
- The high watermark never goes back, and moves only to what is flushed by every member of the maximal isr: that of the
  registry and the one that is proposed. Which of the two holds is not known until the registry was read again.
- It does not move while the isr is smaller than min.insync.replicas, or the elr is not empty: the members of the elr
  have everything that is committed, and they are not waited for.
- Who joins the isr has reached the high watermark and the start of our epoch, below which lies all that was committed
  before us. That our own high watermark has got there is not asked for: with an isr too small to commit it never would.
- A follower that is about to join is waited for as well; else a busy partition would run away from it for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

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
        "_maximal_isr",
        "_node_id",
        "_slowest",
        "proposed",
        "record",
    )

    def __init__(self, node_id: int, record: PartitionRecord, end_offset: int, now: float) -> None:
        """`end_offset`: of our log as this lead begins, which is where our epoch starts. Times are in seconds."""
        assert record.leader == node_id
        self.record = record
        self.proposed: PartitionRecord | None = None
        self._node_id = node_id
        self._epoch_start = end_offset
        # Members of the isr get the whole of the time to show up; the others have yet to catch up.
        self._followers = {
            follower: _FollowerState(now if follower in record.isr else float("-inf"))
            for follower in record.replicas
            if follower != node_id
        }
        self._awaited: frozenset[int] = frozenset()
        self._maximal_isr: frozenset[int]
        self._isr_size: int
        self._slowest: int
        self._recompute()

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Whoever may be in the isr, whether or not what is proposed came to be."""
        return self._maximal_isr

    def has_min_isr(self, min_insync: int) -> bool:
        """Whether anything can be committed."""
        return self._isr_size >= min_insync

    def high_watermark(self, flushed_offset: int, current: int, min_insync: int) -> int:
        """Where it is now. May move with a flush, a fetch, and after `settle` and `proposal`."""
        reached = flushed_offset if flushed_offset < self._slowest else self._slowest
        return reached if reached > current and self.has_min_isr(min_insync) else current

    def record_follower_fetch(
        self, node_id: int, broker_epoch: int, offset: int, log_start_offset: int, end_offset: int, now: float
    ) -> bool:
        """A follower has everything below `offset` on its disk, and its log agrees with ours up to there. `end_offset`:
        of our log now. Whether the high watermark may move by it."""
        follower = self._followers.get(node_id)
        if follower is None:
            # It may have heard of a move of this partition before we did.
            raise UnknownLeaderEpoch(f"broker {node_id} is not known here to hold a replica")
        if broker_epoch < follower.broker_epoch:
            raise StaleBrokerEpoch(f"broker {node_id} has been started again since; its epoch {broker_epoch} is over")
        follower.note(broker_epoch, offset, log_start_offset, end_offset, now)
        slowest = self._slowest
        self._slowest = self._recompute_slowest()
        return self._slowest > slowest

    def shares_history(self, node_id: int) -> bool:
        """Return whether a follower is known to have our history even if its log is empty: it is in sync or eligible to
        lead, or its log agreed with ours before in this leader epoch. `record_follower_fetch` rejects one that is no
        replica."""
        follower = self._followers.get(node_id)
        return (
            follower is None
            or follower.offset != _UNKNOWN
            or node_id in self._maximal_isr
            or node_id in self.record.elr
        )

    def record_caught_up(self, end_offset: int, now: float) -> None:
        """Whoever has everything has caught up, also if it has not asked for a while: a leader that has nothing new is
        not asked for the same again."""
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
        """The next change of the in-sync set, if one is due: who has caught up joins, who has not for a while leaves.
        None while one is proposed. To be asked at every tick, because it also settles which followers are waited for.

        Whoever writes it must make sure that those who join are still the starts that fetched (`broker_epoch`): one
        that was started again without its disk would not have to strike itself out of an isr that it is not in yet."""
        oldest = now - lag_seconds_max
        near = {node_id for node_id, follower in self._followers.items() if follower.caught_up_at >= oldest}
        eligible = {node_id for node_id in near if self._may_join(node_id, live)}
        self._awaited = frozenset(eligible - self._maximal_isr)
        self._recompute()
        if self.proposed is not None:
            return None
        needed = max(high_watermark, self._epoch_start)
        joining = {node_id for node_id in eligible if self._followers[node_id].offset >= needed}
        isr = {self._node_id, *near.intersection(self.record.isr), *joining}
        changed = with_isr(self.record, tuple(isr), min_insync)
        return None if changed == self.record else changed

    def propose(self, record: PartitionRecord) -> None:
        """It is about to be written. From here on only a look at the registry tells whether it was. A leader that gives
        itself up (`remove_from_isr`) proposes that too."""
        assert self.proposed is None
        self.proposed = record
        self._recompute()

    def settle(self, record: PartitionRecord) -> None:
        """What the registry holds, by whoever's hand. That ends the proposal, so it must tell what became of it: it is
        of a later version than the one that the proposal replaces, or was read after that had its answer. When it says
        that this lead is over, so is this object, and it is not told."""
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
        """Whether no in-sync follower has fetched since then: one of them may lead already."""
        others = [follower for node_id, follower in self._followers.items() if node_id in self.record.isr]
        return bool(others) and all(follower.fetched_at < since for follower in others)

    def broker_epoch(self, node_id: int) -> int:
        """Which start of a follower it is that fetches."""
        return self._followers[node_id].broker_epoch

    def low_watermark(self, own_start: int, live: Mapping[int, BrokerRecord]) -> int:
        """Nobody in the isr who is up has anything before this offset; -1 while one has not said where its log
        starts."""
        starts = [
            follower.log_start_offset
            for node_id, follower in self._followers.items()
            if node_id in self.record.isr and node_id in live
        ]
        return min([own_start, *starts])

    def lag(self) -> Mapping[int, int]:
        """How far each follower is; -1 if it has not fetched in this lead."""
        return {node_id: follower.offset for node_id, follower in self._followers.items()}

    def _may_join(self, node_id: int, live: Mapping[int, BrokerRecord]) -> bool:
        broker = live.get(node_id)
        return broker is not None and broker.epoch == self._followers[node_id].broker_epoch and not broker.is_draining

    def _recompute(self) -> None:
        proposed = self.record if self.proposed is None else self.proposed
        self._maximal_isr = frozenset(self.record.isr + proposed.isr)
        self._isr_size = 0 if self.record.elr else min(len(self.record.isr), len(proposed.isr))
        self._slowest = self._recompute_slowest()

    def _recompute_slowest(self) -> int:
        counted = self._maximal_isr | self._awaited
        return min(
            (follower.offset for node_id, follower in self._followers.items() if node_id in counted),
            default=_BEHIND_ALL,
        )


class _FollowerState:
    """`end_offset` is that of the leader's log when the follower fetched last: one that now asks for what comes behind
    it had caught up then. In a busy partition every follower is one fetch behind."""

    __slots__ = ("broker_epoch", "caught_up_at", "end_offset", "fetched_at", "log_start_offset", "offset")

    def __init__(self, caught_up_at: float) -> None:
        self.broker_epoch = NO_EPOCH
        self.offset = _UNKNOWN
        self.log_start_offset = _UNKNOWN
        self.end_offset = _BEHIND_ALL
        self.fetched_at = float("-inf")
        self.caught_up_at = caught_up_at

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
