"""Counters and latencies of a subscription, read by the metrics. Pure.

- They count requests and decisions of this broker; a replay of the acks log adds nothing. All partitions of a topic on
  a broker share one object.
- The publish time of a message is the newest timestamp of its batch. Reading it costs a read of the log, so it is read
  for at most one lease per ten milliseconds; the messages of that lease represent all deliveries since the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from headrace.machines.queues.leases import UNKNOWN, Lease
from headrace.machines.queues.subscription_values import GrantedRange
from headrace.model.histogram import Histogram
from headrace.wire.state_records.acks_records import SettledHow

BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3600.0, 86_400.0)
"""In seconds. Messages may wait for days."""

_SAMPLE_INTERVAL_MS = 10
_BUCKETS_MAX = 1000


class SubscriptionStats:
    def __init__(self) -> None:
        self.deliveries = self.redeliveries = 0
        self.acks = self.nacks = self.rejects = self.extends = self.refused = 0
        self.leases_expired = self.leases_released = 0
        self.expired = self.filtered = self.dead = self.discarded = 0
        self.delivery_seconds = Histogram(BOUNDS)
        self._settle = _DurationCounts()
        self._end_to_end = _DurationCounts()
        self._deliveries_unsampled = self._acks_unsampled = 0
        self._sampled_ms = 0

    @property
    def settle_seconds(self) -> Histogram:
        return self._settle.histogram()

    @property
    def end_to_end_seconds(self) -> Histogram:
        return self._end_to_end.histogram()

    def needs_publish_time(self, now_ms: int) -> bool:
        """Whether the caller should read the publish time of the messages that it leases."""
        return now_ms >= self._sampled_ms + _SAMPLE_INTERVAL_MS

    def delivered(self, granted: Iterable[GrantedRange], published_ms: int, now_ms: int) -> None:
        new = again = 0
        for first, last, attempt in granted:
            if attempt == 1:
                new += last - first + 1
            else:
                again += last - first + 1
        self.deliveries += new + again
        self.redeliveries += again
        self._deliveries_unsampled += new
        if published_ms != UNKNOWN:
            self._sampled_ms = now_ms
            self._settle.bound()
            self._end_to_end.bound()
            if new:
                self.delivery_seconds.observe(max(now_ms - published_ms, 0) / 1000, self._deliveries_unsampled)
                self._deliveries_unsampled = 0

    def acked(self, count: int, lease: Lease, now_ms: int) -> None:
        """Count acked messages of this lease, or of it and adjacent ones."""
        self.acks += count
        self._settle.by_ms[now_ms - lease.leased_ms] += count
        if lease.published_ms == UNKNOWN:
            self._acks_unsampled += count
        else:
            self._end_to_end.by_ms[now_ms - lease.published_ms] += count + self._acks_unsampled
            self._acks_unsampled = 0

    def dead_lettered(self, how: SettledHow) -> None:
        if how == "dead":
            self.dead += 1
        elif how == "discarded":
            self.discarded += 1
        else:
            self.expired += 1


class _DurationCounts:
    """Counts durations by millisecond, which is cheap for single acks, and adds them to a histogram from time to
    time."""

    __slots__ = ("_histogram", "by_ms")

    def __init__(self) -> None:
        self._histogram = Histogram(BOUNDS)
        self.by_ms: defaultdict[int, int] = defaultdict(int)

    def bound(self) -> None:
        if len(self.by_ms) > _BUCKETS_MAX:
            self.histogram()

    def histogram(self) -> Histogram:
        for duration_ms, count in self.by_ms.items():
            self._histogram.observe(max(duration_ms, 0) / 1000, count)
        self.by_ms.clear()
        return self._histogram
