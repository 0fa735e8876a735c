"""The figures of a report as Parquet tables, one file each: for dashboards, and for what the page leaves open.

throughput      per topic and window              subscriptions   per subscription and window
partitions      per partition                     keys            the biggest keys
lag             per consumer group and partition
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from headrace.pipeline.report_figures import Report

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
    """Write all of them to a folder, or to a URI, in place of what was there."""
    files, folder = _place(location)
    files.create_dir(folder, recursive=True)
    rows = {
        "throughput": _throughput(report),
        "subscriptions": _subscriptions(report),
        "partitions": _partitions(report),
        "keys": _keys(report),
        "lag": _lags(report),
    }
    for name, some in rows.items():
        pq.write_table(table_of(name, list(some)), f"{folder}/{name}.parquet", filesystem=files)


def table_of(name: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    schema = pa.schema(list(SCHEMAS[name].items()))
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _place(location: str) -> tuple[Any, str]:
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
            for start, told, shares, depth in rows:
                counts = told.acked, told.failed, told.dead, told.other
                yield topic.name, one.name, _time(start), *counts, *shares, depth


def _partitions(report: Report) -> Iterator[Sequence[Any]]:
    for topic in report.topics:
        for partition, one in topic.partitions.items():
            yield topic.name, partition, one.messages, one.bytes


def _keys(report: Report) -> Iterator[Sequence[Any]]:
    for topic in report.topics:
        for key, one in topic.keys:
            yield topic.name, key, one.messages, one.bytes


def _lags(report: Report) -> Iterator[Sequence[Any]]:
    for topic in report.topics:
        for one in topic.lags:
            yield topic.name, one.group, one.partition, one.committed, one.end, one.lag
