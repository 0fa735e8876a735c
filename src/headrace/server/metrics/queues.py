"""Metrics of queues: backlog, settlements and latencies of subscriptions; delayed messages and how late they are.

All values cover the partitions that this broker leads; the sum over all brokers is that of the subscription. Above a
limit of subscriptions there is one sample per topic, `subscription="all"`, and no histograms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.partition import Partition
from headrace.broker.queues.lease_reader import newest_publish_time_ms
from headrace.machines.queues.leases import UNKNOWN
from headrace.machines.queues.subscription_stats import SubscriptionStats
from headrace.machines.queues.subscription_values import SubscriptionCounts
from headrace.model.errors import HeadraceError
from headrace.model.names import ACKS_PREFIX, DELAYED_PREFIX
from headrace.runtime.clock import Clock
from headrace.runtime.tasks import CooperativeYield
from headrace.server.metrics.exposition import Exposition, format_labels
from headrace.server.metrics.topics import ALL
from headrace.storage.log.reading import LogSlice

SUBSCRIPTIONS_MAX = 500
_COLD_READS_MAX = 32  # per scrape
_ONE_BATCH = 1  # byte

_COUNTERS = (
    ("headrace_subscription_deliveries_total", "deliveries"),
    ("headrace_subscription_redeliveries_total", "redeliveries"),
    ("headrace_subscription_acks_total", "acks"),
    ("headrace_subscription_nacks_total", "nacks"),
    ("headrace_subscription_rejects_total", "rejects"),
    ("headrace_subscription_extends_total", "extends"),
    ("headrace_subscription_leases_expired_total", "leases_expired"),
    ("headrace_subscription_leases_released_total", "leases_released"),
    ("headrace_subscription_settles_refused_total", "refused"),
    ("headrace_subscription_messages_expired_total", "expired"),
    ("headrace_subscription_messages_filtered_total", "filtered"),
    ("headrace_subscription_dead_letters_total", "dead"),
    ("headrace_subscription_discarded_total", "discarded"),
)
_HISTOGRAMS = (
    ("headrace_subscription_delivery_seconds", "delivery_seconds"),
    ("headrace_subscription_settle_seconds", "settle_seconds"),
    ("headrace_subscription_end_to_end_seconds", "end_to_end_seconds"),
)


class QueueStats(NamedTuple):
    """A subscription in one partition. The counters are shared by all partitions of a topic."""

    subscription: str
    topic: str
    partition: int
    floor: int
    counts: SubscriptionCounts
    oldest_ms: int | None
    stats: SubscriptionStats


async def collect_queue_stats(
    broker: Broker, oldest: OldestMessages, yield_turn: CooperativeYield
) -> Sequence[QueueStats]:
    queues: list[QueueStats] = []
    oldest.begin()
    for shard in list(broker.subscriptions):
        topic, index = shard.partition.topic.removeprefix(ACKS_PREFIX), shard.partition.index
        for name in list(shard.subscriptions):
            await yield_turn()
            try:
                (described,) = shard.describe([name])
                stats, partition = shard.find(name).stats, shard.source()
            except (HeadraceError, ValueError):
                continue  # deleted, moved to another broker, or its new leader does not know the high watermark yet
            _, floor, end, counts = described
            oldest_ms = await oldest.publish_time_ms(partition, name, floor, end) if counts.backlog else None
            queues.append(QueueStats(name, topic, index, floor, counts, oldest_ms, stats))
    return queues


async def add_queues(out: Exposition, queues: Iterable[QueueStats], now_ms: int, yield_turn: CooperativeYield) -> None:
    by_name: dict[tuple[str, str], list[QueueStats]] = {}
    by_topic: dict[tuple[str, str], list[QueueStats]] = {}
    for queue in queues:
        await yield_turn()
        by_name.setdefault((queue.subscription, queue.topic), []).append(queue)
        by_topic.setdefault((ALL, queue.topic), []).append(queue)
    if len(by_name) > SUBSCRIPTIONS_MAX:
        by_name = by_topic
    for (subscription, topic), some in by_name.items():
        await yield_turn()
        label = format_labels(subscription=subscription, topic=topic)
        _add_messages(out, some, now_ms, subscription, topic)
        stats_of_topic = list({id(queue.stats): queue.stats for queue in some}.values())
        for name, field in _COUNTERS:
            out.add(name, sum(getattr(stats, field) for stats in stats_of_topic), label)
        if len(stats_of_topic) == 1:
            for name, field in _HISTOGRAMS:
                out.add_histogram(name, getattr(stats_of_topic[0], field), label)


def _add_messages(out: Exposition, queues: Sequence[QueueStats], now_ms: int, subscription: str, topic: str) -> None:
    backlog, leased, waiting, dying = (sum(queue.counts[at] for queue in queues) for at in range(4))
    # The counts are not taken atomically, so the remainder may be off by concurrent changes.
    ready = max(backlog - leased - waiting - dying, 0)
    for state, count in (("ready", ready), ("leased", leased), ("waiting", waiting), ("dying", dying)):
        label = format_labels(subscription=subscription, topic=topic, state=state)
        out.add("headrace_subscription_messages", count, label)
    label = format_labels(subscription=subscription, topic=topic)
    out.add("headrace_subscription_backlog", backlog, label)
    oldest_ms = min((queue.oldest_ms for queue in queues if queue.oldest_ms is not None), default=now_ms)
    out.add("headrace_subscription_oldest_age_seconds", max(now_ms - oldest_ms, 0) / 1000, label)


class OldestMessages:
    """Caches the publish times of the oldest unsettled messages until the subscription advances."""

    def __init__(self) -> None:
        self._cached: dict[tuple[Partition, str], tuple[int, int]] = {}
        self._before = self._cached
        self._cold_reads = 0

    def begin(self) -> None:
        """Start a new scrape: entries that it does not request are dropped at the start of the next one."""
        self._before, self._cached = self._cached, {}
        self._cold_reads = 0

    async def publish_time_ms(self, partition: Partition, subscription: str, floor: int, end: int) -> int | None:
        """Return the publish time in milliseconds, or None if it is unknown now."""
        cached = self._before.get((partition, subscription))
        if cached is None or cached[0] != floor:
            publish_ms = await self._read(partition, floor, end)
            cached = None if publish_ms is None else (floor, publish_ms)
        if cached is None:
            return None
        self._cached[partition, subscription] = cached
        return cached[1]

    async def _read(self, partition: Partition, floor: int, end: int) -> int | None:
        try:
            piece = partition.read(floor, _ONE_BATCH, end)
            if isinstance(piece, LogSlice):
                publish_ms = newest_publish_time_ms(piece)
                piece.release()
            else:
                self._cold_reads += 1
                if self._cold_reads > _COLD_READS_MAX:
                    return None
                publish_ms = newest_publish_time_ms(await piece.load())
        except (HeadraceError, OSError):
            return None
        return None if publish_ms == UNKNOWN else publish_ms


async def add_delays(out: Exposition, broker: Broker, clock: Clock, yield_turn: CooperativeYield) -> None:
    waiting: dict[str, int] = {}
    overdue_ms: dict[str, int] = {}
    now_ms = clock.now_ms()
    for shard in list(broker.delayed):
        await yield_turn()
        topic = shard.partition.topic.removeprefix(DELAYED_PREFIX)
        waiting[topic] = waiting.get(topic, 0) + len(shard.delays)
        first_ms = shard.delays.first_ms()
        late_ms = 0 if first_ms is None else max(now_ms - first_ms, 0)
        overdue_ms[topic] = max(overdue_ms.get(topic, 0), late_ms)
    for topic, count in waiting.items():
        label = format_labels(topic=topic)
        counts = broker.delayed.counts[topic]
        out.add("headrace_delayed_messages", count, label)
        out.add("headrace_delayed_overdue_seconds", overdue_ms[topic] / 1000, label)
        out.add("headrace_delayed_released_total", counts.released, label)
        out.add_histogram("headrace_delayed_late_seconds", counts.late_seconds, label)
