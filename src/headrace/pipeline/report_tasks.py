"""What the tasks of a report do: they read a stretch of a topic, or an acks log, and bring back sums per window."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.names import acks_topic
from headrace.pipeline.audit_settled import SubscriptionLedger
from headrace.pipeline.audit_sources import PartitionRange, ReadSource, TopicSource
from headrace.pipeline.report_windows import SettleFigures, Throughput, bucket_of, window_of
from headrace.wire.state_records.acks_records import AcksEvent, Created, Failed, Settled, Sought, decode_event

KEYS_KEPT = 20_000
"""Of more keys than that, the rare ones of a stretch are dropped."""


class ReportPeriod(msgspec.Struct, frozen=True):
    """What is looked at: [since_ms, until_ms), in windows of which those of the report are made."""

    window_ms: int
    since_ms: int
    until_ms: int


class TopicTask(msgspec.Struct, frozen=True):
    topic: TopicSource
    stretch: PartitionRange
    span: ReportPeriod


class TopicPart(msgspec.Struct, frozen=True):
    """Of one stretch: sums by the start of the window, and by key; the key None is that of messages without one.
    `after`: how many messages came after the time that is looked at."""

    partition: int
    windows: dict[int, Throughput]
    keys: dict[bytes | None, Throughput]
    after: int


class AcksTask(msgspec.Struct, frozen=True):
    topic: TopicSource
    partition: int
    start: int
    end: int
    acks_start: int
    acks_end: int
    subscriptions: frozenset[str]
    span: ReportPeriod


class AcksPart(msgspec.Struct, frozen=True):
    """Of one partition: by subscription, sums by the start of the window; when it was created, as far as that is in the
    log; and by how many its backlog fell after the time that is looked at."""

    partition: int
    settlings: dict[str, dict[int, SettleFigures]]
    created_ms: dict[str, int]
    gone_after: dict[str, int]


def read_topic(read: ReadSource, task: TopicTask) -> TopicPart:
    windows: dict[int, Throughput] = defaultdict(Throughput)
    keys: dict[bytes | None, Throughput] = defaultdict(Throughput)
    after = 0
    for batch in read(task.topic, task.stretch, ("key", "value", "timestamp")):
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
    return TopicPart(task.stretch.partition, dict(windows), largest_keys(keys, KEYS_KEPT), after)


def largest_keys(keys: Mapping[bytes | None, Throughput], count: int) -> dict[bytes | None, Throughput]:
    """The keys that have the most messages."""
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
    for name, event in _events(read, task):
        if isinstance(event, Created):
            created_ms[name] = event.at
        own = settlings.setdefault(name, {})
        found = _settling(event, ledgers[name], published)
        ledgers[name].take(event)
        if found is None:
            continue
        if event.at >= task.span.until_ms:
            gone_after[name] += found.gone
        elif event.at >= task.span.since_ms:
            own.setdefault(window_of(event.at, task.span.window_ms), SettleFigures()).add(found)
    alive = {name for name, ledger in ledgers.items() if ledger.exists}
    return AcksPart(
        task.partition,
        {name: own for name, own in settlings.items() if name in alive},
        {name: at for name, at in created_ms.items() if name in alive},
        dict(gone_after),
    )


def _events(read: ReadSource, task: AcksTask) -> Iterator[tuple[str, AcksEvent]]:
    acks = TopicSource(task.topic.brokers, acks_topic(task.topic.name))
    stretch = PartitionRange(task.partition, task.acks_start, task.acks_end)
    for batch in read(acks, stretch, ("key", "value")):
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            name, event = decode_event(key, value)
            if name in task.subscriptions:
                yield name, event


def _settling(event: AcksEvent, ledger: SubscriptionLedger, published: _PublishTimes) -> SettleFigures | None:
    """What the event adds to the sums; it is taken by the ledger next."""
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
        case _:
            return None


class _PublishTimes:
    """When each message of a partition was published, as far as they are still there."""

    def __init__(self, read: ReadSource, task: AcksTask) -> None:
        self.end = task.end
        self._offsets = array("q")
        self._times = array("q")
        if task.acks_end > task.acks_start:
            stretch = PartitionRange(task.partition, task.start, task.end)
            for batch in read(task.topic, stretch, ("offset", "timestamp")):
                self._offsets.extend(batch.column("offset").to_pylist())
                times = pc.divide(pc.cast(batch.column("timestamp"), pa.int64()), 1000)
                self._times.extend(times.to_pylist())

    def times(self, first: int, last: int) -> Sequence[int]:
        return self._times[bisect_left(self._offsets, first) : bisect_right(self._offsets, last)]
