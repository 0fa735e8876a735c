"""Spark tasks of a report: read a range of a topic or of an acks log, and return sums per time window.

- Tasks count in fine windows. Their sums are merged into the windows of the report, each of which consists of whole
  fine ones.
- Latencies are counted in buckets that grow by 2 %, so a percentile is accurate within 1 %.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.audit.settled_check import SubscriptionLedger, read_events
from headrace.pipeline.spark_tasks import PartitionRange, ReadSource, TopicSource
from headrace.wire.state_records.acks_records import AcksEvent, Created, Failed, Redriven, Settled, Sought

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
WINDOWS_MS: Final = (
    *(_SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(_MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY),
)
"""Each is a multiple of the previous ones."""

_POINTS = 120
_GROWTH = math.log(1.02)


class Throughput(msgspec.Struct):
    messages: int = 0
    bytes: int = 0

    def add(self, other: Throughput) -> None:
        self.messages += other.messages
        self.bytes += other.bytes


class SettleFigures(msgspec.Struct):
    """Counts of the messages of a subscription: acked; failed deliveries; dead letters; settled otherwise. `gone`: by
    how many the backlog decreased; `latencies`: acked messages by latency bucket."""

    acked: int = 0
    failed: int = 0
    dead: int = 0
    other: int = 0
    gone: int = 0
    latencies: Counter[int] = msgspec.field(default_factory=Counter)

    def add(self, other: SettleFigures) -> None:
        self.acked += other.acked
        self.failed += other.failed
        self.dead += other.dead
        self.other += other.other
        self.gone += other.gone
        self.latencies.update(other.latencies)


def window_for(span_ms: int, points: int = _POINTS) -> int:
    """The smallest window with which the span has at most this number of windows."""
    return next((window for window in WINDOWS_MS if window * points >= span_ms), WINDOWS_MS[-1])


def window_of(time_ms: int, window_ms: int) -> int:
    return time_ms // window_ms * window_ms


def times_of(starts: Iterable[int], window_ms: int) -> list[int]:
    """All windows from the first to the last of these, including empty ones."""
    found = {window_of(start, window_ms) for start in starts}
    return list(range(min(found), max(found) + window_ms, window_ms)) if found else []


def bucket_of(latency_ms: int) -> int:
    return round(math.log1p(max(latency_ms, 0)) / _GROWTH)


def percentile(latencies: Mapping[int, int], share: float) -> float | None:
    """The latency in ms at or below which this share of the latencies lies; None if there are none."""
    total = sum(latencies.values())
    wanted = math.ceil(total * share)
    reached = 0
    for bucket in sorted(latencies):
        reached += latencies[bucket]
        if reached >= wanted:
            return math.expm1(bucket * _GROWTH)
    return None


def depths(now: int, arrived: Sequence[int], gone: Sequence[int]) -> list[int]:
    """The backlog at the end of each window, computed backwards from the current one."""
    found = [0] * len(arrived)
    for index in range(len(arrived) - 1, -1, -1):
        found[index] = max(now, 0)
        now += gone[index] - arrived[index]
    return found


KEYS_KEPT = 20_000
"""The maximum number of keys per range; the rarest are dropped."""


class ReportPeriod(msgspec.Struct, frozen=True):
    """The reported time [since_ms, until_ms), and the window of the tasks, of which the report's is a multiple."""

    window_ms: int
    since_ms: int
    until_ms: int


class TopicTask(msgspec.Struct, frozen=True):
    topic: TopicSource
    offsets: PartitionRange
    span: ReportPeriod


class TopicPart(msgspec.Struct, frozen=True):
    """The sums of one range, by start of the window and by key; the key None stands for messages without a key.
    `after`: the number of messages after the reported time."""

    partition: int
    windows: dict[int, Throughput]
    keys: dict[bytes | None, Throughput]
    after: int


class AcksTask(msgspec.Struct, frozen=True):
    topic: TopicSource
    offsets: PartitionRange
    acks: PartitionRange
    subscriptions: frozenset[str]
    span: ReportPeriod


class AcksPart(msgspec.Struct, frozen=True):
    """The sums of one partition, by subscription and start of the window; the creation times of subscriptions, if the
    log has them; and by how many messages each backlog decreased after the reported time."""

    partition: int
    settlings: dict[str, dict[int, SettleFigures]]
    created_ms: dict[str, int]
    gone_after: dict[str, int]


def read_topic(read: ReadSource, task: TopicTask) -> TopicPart:
    windows: dict[int, Throughput] = defaultdict(Throughput)
    keys: dict[bytes | None, Throughput] = defaultdict(Throughput)
    after = 0
    for batch in read(task.topic, task.offsets, ("key", "value", "timestamp")):
        times = pc.divide(pc.cast(batch.column("timestamp"), pa.int64()), 1000)
        sizes = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
        table = pa.table(
            {
                "key": batch.column("key"),
                "time": times,
                "window": pc.multiply(pc.divide(times, task.span.window_ms), task.span.window_ms),
                "bytes": pc.add(*(pc.cast(size, pa.int64()) for size in sizes)),
            }
        )
        after += pc.sum(pc.greater_equal(times, task.span.until_ms)).as_py() or 0
        table = table.filter((pc.field("time") >= task.span.since_ms) & (pc.field("time") < task.span.until_ms))
        _add_groups(windows, table, "window")
        _add_groups(keys, table, "key")
        if len(keys) > 2 * KEYS_KEPT:
            keys = defaultdict(Throughput, largest_keys(keys, KEYS_KEPT))
    return TopicPart(task.offsets.partition, dict(windows), largest_keys(keys, KEYS_KEPT), after)


def largest_keys(keys: Mapping[bytes | None, Throughput], count: int) -> dict[bytes | None, Throughput]:
    """The keys with the most messages."""
    return dict(sorted(keys.items(), key=lambda one: one[1].messages, reverse=True)[:count])


def _add_groups(sums: dict[Any, Throughput], table: pa.Table, by: str) -> None:
    grouped = table.group_by(by).aggregate([("bytes", "sum"), ("bytes", "count")])
    columns = (grouped.column(name).to_pylist() for name in (by, "bytes_count", "bytes_sum"))
    for name, messages, size in zip(*columns, strict=True):
        sums[name].add(Throughput(messages, size))


def read_acks(read: ReadSource, task: AcksTask) -> AcksPart:
    published = _PublishTimes(read, task)
    ledgers: dict[str, SubscriptionLedger] = defaultdict(SubscriptionLedger)
    settlings: dict[str, dict[int, SettleFigures]] = {}
    created_ms: dict[str, int] = {}
    gone_after: Counter[str] = Counter()
    for name, event in read_events(read, task.topic, task.acks, task.subscriptions):
        if isinstance(event, Created):
            created_ms[name] = event.at
        own = settlings.setdefault(name, {})
        found = _settling(event, ledgers[name], published)
        ledgers[name].apply(event)
        if found is None:
            continue
        if event.at >= task.span.until_ms:
            gone_after[name] += found.gone
        elif event.at >= task.span.since_ms:
            own.setdefault(window_of(event.at, task.span.window_ms), SettleFigures()).add(found)
    alive = {name for name, ledger in ledgers.items() if ledger.exists}
    return AcksPart(
        task.offsets.partition,
        {name: own for name, own in settlings.items() if name in alive},
        {name: at for name, at in created_ms.items() if name in alive},
        dict(gone_after),
    )


def _settling(event: AcksEvent, ledger: SubscriptionLedger, published: _PublishTimes) -> SettleFigures | None:
    """What the event adds to the sums; call it before the ledger applies the event."""
    match event:
        case Settled():
            count = sum(last - first + 1 for first, last in event.ranges)
            gone = ledger.newly_settled(event)
            if event.how == "ack":
                found = SettleFigures(acked=count, gone=gone)
                for first, last in event.ranges:
                    found.latencies.update(bucket_of(event.at - at) for at in published.times(first, last))
                return found
            return (
                SettleFigures(dead=count, gone=gone) if event.how == "dead" else SettleFigures(other=count, gone=gone)
            )
        case Failed():
            return SettleFigures(failed=event.last - event.first + 1)
        case Sought():
            before = ledger.settled_count(0, published.end)
            return SettleFigures(gone=event.floor - before)
        case Redriven():
            settled = sum(ledger.settled_count(offset, offset + 1) for offset, _ in event.messages)
            return SettleFigures(gone=-settled)
        case _:
            return None


class _PublishTimes:
    """The publish times of the messages of a partition that the topic still has."""

    def __init__(self, read: ReadSource, task: AcksTask) -> None:
        self.end = task.offsets.end
        self._offsets = array("q")
        self._times = array("q")
        if task.acks.end > task.acks.start:
            for batch in read(task.topic, task.offsets, ("offset", "timestamp")):
                self._offsets.extend(batch.column("offset").to_pylist())
                times = pc.divide(pc.cast(batch.column("timestamp"), pa.int64()), 1000)
                self._times.extend(times.to_pylist())

    def times(self, first: int, last: int) -> Sequence[int]:
        return self._times[bisect_left(self._offsets, first) : bisect_right(self._offsets, last)]
