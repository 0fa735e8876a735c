"""The figures of a report, computed from the sums of its tasks, and their Parquet tables.

throughput      per topic and window              subscriptions   per subscription and window
partitions      per partition                     keys            the biggest keys
lag             per consumer group and partition
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from msgspec.structs import astuple

from headrace.model.errors import InvalidRequest
from headrace.pipeline.report.tasks import (
    AcksPart,
    SettleFigures,
    Throughput,
    TopicPart,
    depths,
    largest_keys,
    percentile,
    times_of,
    window_for,
    window_of,
)

KEYS_SHOWN = 10
WINDOWS_MAX = 10_000


class GroupPartitionLag(msgspec.Struct, frozen=True):
    """The lag of a consumer group in a partition; `committed` is None if it has committed nothing there."""

    group: str
    partition: int
    committed: int | None
    end: int
    lag: int


class SubscriptionBacklog(msgspec.Struct, frozen=True):
    """The current state of a subscription, summed over the partitions of a topic."""

    subscription: str
    backlog: int
    leased: int
    waiting: int
    dying: int


class SubscriptionFigures(msgspec.Struct, frozen=True):
    """Per window: settlements, and the backlog at its end, None before the subscription was created."""

    name: str
    now: SubscriptionBacklog
    settlings: Sequence[SettleFigures]
    depths: Sequence[int | None]
    total: SettleFigures

    def percentiles(self, share: float) -> list[float | None]:
        return [percentile(one.latencies, share) for one in self.settlings]


class TopicFigures(msgspec.Struct, frozen=True):
    name: str
    partitions: Mapping[int, Throughput]
    windows: Sequence[Throughput]
    total: Throughput
    keys: Sequence[tuple[str, Throughput]]
    subscriptions: Sequence[SubscriptionFigures]
    lags: Sequence[GroupPartitionLag]


class TopicFacts(msgspec.Struct, frozen=True):
    name: str
    partitions: int
    parts: Sequence[TopicPart]
    acks: Sequence[AcksPart]
    backlogs: Sequence[SubscriptionBacklog]
    lags: Sequence[GroupPartitionLag]


class Report(msgspec.Struct, frozen=True):
    """`times_ms`: the starts of the windows."""

    title: str
    made_ms: int
    times_ms: Sequence[int]
    window_ms: int
    topics: Sequence[TopicFigures]


def build_report(title: str, made_ms: int, facts: Sequence[TopicFacts], window_ms: int | None) -> Report:
    """Build a report with the given window, or with one that suits the covered time."""
    starts = sorted({start for topic in facts for start in _starts(topic)})
    if window_ms is None:
        window_ms = window_for(starts[-1] - starts[0] if starts else 0)
    if starts and (count := (starts[-1] - starts[0]) // window_ms + 1) > WINDOWS_MAX:
        raise InvalidRequest(
            f"the report would have {count} windows of {window_ms} ms, and at most {WINDOWS_MAX} can be shown; choose "
            "a larger window, or a shorter time with since and until"
        )
    times_ms = times_of(starts, window_ms)
    return Report(title, made_ms, times_ms, window_ms, [_topic(one, times_ms, window_ms) for one in facts])


def _starts(topic: TopicFacts) -> Iterable[int]:
    for part in topic.parts:
        yield from part.windows
    for acks in topic.acks:
        for windows in acks.settlings.values():
            yield from windows


def _topic(facts: TopicFacts, times_ms: Sequence[int], window_ms: int) -> TopicFigures:
    windows: dict[int, Throughput] = defaultdict(Throughput)
    partitions = {partition: Throughput() for partition in range(facts.partitions)}
    keys: dict[bytes | None, Throughput] = defaultdict(Throughput)
    total = Throughput()
    for part in facts.parts:
        for start, one in part.windows.items():
            windows[window_of(start, window_ms)].add(one)
            partitions[part.partition].add(one)
            total.add(one)
        for key, one in part.keys.items():
            keys[key].add(one)
    named = [(_key_text(key), one) for key, one in largest_keys(keys, KEYS_SHOWN).items()]
    own = [windows[start] for start in times_ms]
    arrived, after = [one.messages for one in own], sum(part.after for part in facts.parts)
    subscriptions = [
        _subscription(backlog, facts.acks, arrived, after, times_ms, window_ms) for backlog in facts.backlogs
    ]
    return TopicFigures(facts.name, partitions, own, total, named, subscriptions, facts.lags)


def _subscription(
    now: SubscriptionBacklog,
    parts: Sequence[AcksPart],
    arrived: Sequence[int],
    after: int,
    times_ms: Sequence[int],
    window_ms: int,
) -> SubscriptionFigures:
    name = now.subscription
    windows: dict[int, SettleFigures] = defaultdict(SettleFigures)
    total = SettleFigures()
    for part in parts:
        for start, one in part.settlings.get(name, {}).items():
            windows[window_of(start, window_ms)].add(one)
            total.add(one)
    own = [windows[start] for start in times_ms]
    at_end = now.backlog - after + sum(part.gone_after.get(name, 0) for part in parts)
    found = depths(at_end, arrived, [one.gone for one in own])
    began_ms = min((part.created_ms[name] for part in parts if name in part.created_ms), default=0)
    known = [depth if start + window_ms > began_ms else None for start, depth in zip(times_ms, found, strict=True)]
    return SubscriptionFigures(name, now, own, known, total)


def _key_text(key: bytes | None) -> str:
    if key is None:
        return "(no key)"
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else repr(key)[2:-1]


_TIME = pa.timestamp("ms", tz="UTC")
_COUNT, _TEXT, _FIGURE = pa.int64(), pa.string(), pa.float64()

SCHEMAS: Mapping[str, Mapping[str, pa.DataType]] = {
    "throughput": {
        "topic": _TEXT,
        "window": _TIME,
        "messages": _COUNT,
        "bytes": _COUNT,
        "messages_per_second": _FIGURE,
        "bytes_per_second": _FIGURE,
    },
    "subscriptions": {
        "topic": _TEXT,
        "subscription": _TEXT,
        "window": _TIME,
        "acked": _COUNT,
        "failed": _COUNT,
        "dead": _COUNT,
        "settled_otherwise": _COUNT,
        "latency_p50_ms": _FIGURE,
        "latency_p90_ms": _FIGURE,
        "latency_p99_ms": _FIGURE,
        "backlog": _COUNT,
    },
    "partitions": {"topic": _TEXT, "partition": _COUNT, "messages": _COUNT, "bytes": _COUNT},
    "keys": {"topic": _TEXT, "key": _TEXT, "messages": _COUNT, "bytes": _COUNT},
    "lag": {"topic": _TEXT, "group": _TEXT, "partition": _COUNT, "committed": _COUNT, "end": _COUNT, "lag": _COUNT},
}


def write_tables(report: Report, location: str) -> None:
    """Write all tables to a folder or URI; existing ones are replaced."""
    files, folder = _file_system(location)
    files.create_dir(folder, recursive=True)
    rows = {
        "throughput": _throughput(report),
        "subscriptions": _subscriptions(report),
        "partitions": ((t.name, number, *astuple(one)) for t in report.topics for number, one in t.partitions.items()),
        "keys": ((t.name, key, *astuple(one)) for t in report.topics for key, one in t.keys),
        "lag": ((t.name, *astuple(one)) for t in report.topics for one in t.lags),
    }
    for name, some in rows.items():
        pq.write_table(table_of(name, list(some)), f"{folder}/{name}.parquet", filesystem=files)


def table_of(name: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    schema = pa.schema(list(SCHEMAS[name].items()))
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _file_system(location: str) -> tuple[Any, str]:
    if "://" in location:
        files, folder = pyarrow.fs.FileSystem.from_uri(location)
        return files, folder.rstrip("/")
    return pyarrow.fs.LocalFileSystem(), location


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _throughput(report: Report) -> Iterator[Sequence[Any]]:
    seconds = report.window_ms / 1000
    for topic in report.topics:
        for start, one in zip(report.times_ms, topic.windows, strict=True):
            yield topic.name, _time(start), one.messages, one.bytes, one.messages / seconds, one.bytes / seconds


def _subscriptions(report: Report) -> Iterator[Sequence[Any]]:
    for topic in report.topics:
        for one in topic.subscriptions:
            latencies = zip(*(one.percentiles(share) for share in (0.5, 0.9, 0.99)), strict=True)
            rows = zip(report.times_ms, one.settlings, latencies, one.depths, strict=True)
            for start, settled, shares, depth in rows:
                counts = settled.acked, settled.failed, settled.dead, settled.other
                yield topic.name, one.name, _time(start), *counts, *shares, depth
