"""What became of the messages of a subscription: plain numbers, turned into metrics when somebody asks. Pure.

They count what was asked and decided here and now; a replay of the acks log adds nothing. One tally serves all
partitions of a topic.

How long a delivery took is known only by looking into the log, so it is looked at for one lease of every ten
milliseconds at most: its messages stand for all that were delivered since the last look. When a message was published
is what its batch says, with its newest timestamp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from headrace.machines.queues.leases import UNKNOWN, Lease
from headrace.machines.queues.subscription_values import GrantedRange
from headrace.model.histogram import Histogram
from headrace.wire.state_records.acks_records import SettledHow

BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3600.0, 86_400.0)
"""In seconds: queues may be slow on purpose."""

_LOOK_MS = 10
_UNFOLDED_MAX = 1000


class SubscriptionStats:
    __slots__ = (
        "__weakref__",
        "_acked_unseen",
        "_delivered_unseen",
        "_end_to_end",
        "_looked_ms",
        "_settle",
        "acks",
        "dead",
        "deliveries",
        "delivery_seconds",
        "discarded",
        "expired",
        "extends",
        "filtered",
        "leases_expired",
        "leases_released",
        "nacks",
        "redeliveries",
        "refused",
        "rejects",
    )

    def __init__(self) -> None:
        self.deliveries = self.redeliveries = 0
        self.acks = self.nacks = self.rejects = self.extends = self.refused = 0
        self.leases_expired = self.leases_released = 0
        self.expired = self.filtered = self.dead = self.discarded = 0
        self.delivery_seconds = Histogram(BOUNDS)
        self._settle = _DurationCounts()
        self._end_to_end = _DurationCounts()
        self._delivered_unseen = self._acked_unseen = 0
        self._looked_ms = 0

    @property
    def settle_seconds(self) -> Histogram:
        return self._settle.histogram()

    @property
    def end_to_end_seconds(self) -> Histogram:
        return self._end_to_end.histogram()

    def needs_publish_time(self, now_ms: int) -> bool:
        """Whether whoever leases should find out when the messages were published."""
        return now_ms >= self._looked_ms + _LOOK_MS

    def delivered(self, granted: Iterable[GrantedRange], published_ms: int, now_ms: int) -> None:
        new = again = 0
        for first, last, attempt in granted:
            if attempt == 1:
                new += last - first + 1
            else:
                again += last - first + 1
        self.deliveries += new + again
        self.redeliveries += again
        self._delivered_unseen += new
        if published_ms != UNKNOWN:
            self._looked_ms = now_ms
            self._settle.bound()
            self._end_to_end.bound()
            if new:
                self.delivery_seconds.observe(max(now_ms - published_ms, 0) / 1000, self._delivered_unseen)
                self._delivered_unseen = 0

    def acked(self, count: int, lease: Lease, now_ms: int) -> None:
        """So many of this lease, or of it and its neighbours."""
        self.acks += count
        self._settle.by_ms[now_ms - lease.leased_ms] += count
        if lease.published_ms == UNKNOWN:
            self._acked_unseen += count
        else:
            self._end_to_end.by_ms[now_ms - lease.published_ms] += count + self._acked_unseen
            self._acked_unseen = 0

    def dead_lettered(self, how: SettledHow) -> None:
        """Count an undeliverable message by how it was settled."""
        if how == "dead":
            self.dead += 1
        elif how == "discarded":
            self.discarded += 1
        else:
            self.expired += 1


class _DurationCounts:
    """Noted by the millisecond, because that is cheap, and put into a histogram now and then: messages are acked one by
    one."""

    __slots__ = ("_histogram", "by_ms")

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS)
        self.by_ms: defaultdict[int, int] = defaultdict(int)

    def bound(self) -> None:
        if len(self.by_ms) > _UNFOLDED_MAX:
            self.histogram()

    def histogram(self) -> Histogram:
        for taken_ms, count in self.by_ms.items():
            self._histogram.observe(max(taken_ms, 0) / 1000, count)
        self.by_ms.clear()
        return self._histogram
