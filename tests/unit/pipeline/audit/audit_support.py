"""Support for audit tests: sources in memory, and archives with altered files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.columns.offsets import bounds
from headrace.columns.schema import schema_of
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.names import acks_topic, dead_letter_topic
from headrace.pipeline.audit.settled_check import read_events
from headrace.pipeline.spark_tasks import PartitionRange, RecordSource, TopicSource, read_source
from headrace.wire.state_records.acks_records import AcksEvent, Settled, encode_event

Row = dict[str, Any]


def row(offset: int, **fields: Any) -> Row:
    """A record with a value in each field."""
    return {
        "key": b"key-%d" % (offset % 7),
        "value": b"value-%d" % offset,
        "offset": offset,
        "timestamp": 1_700_000_000_000_000 + offset * 1000,
        "headers": [{"key": "trace", "value": b"%d" % offset}],
    } | fields


def rows(start: int, end: int) -> list[Row]:
    return [row(offset) for offset in range(start, end)]


def events(*told: tuple[str, AcksEvent]) -> list[Row]:
    """An acks log."""
    encoded = [encode_event(name, event) for name, event in told]
    return [row(at, key=key, value=value, headers=[]) for at, (key, value) in enumerate(encoded)]


def batch_of(rows: Sequence[Row], columns: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in columns} for row in rows], schema_of(columns))


def wait_for_dead_letters(address: str, topic: str) -> None:
    """Wait until the dead letters of `billing` are written, and the acks log says so: the leader counts a message as
    settled before that event is committed, and an audit reads only what is committed."""

    async def dying(cluster: Cluster) -> int:
        return sum(one.dying for one in await SubscriptionAdmin(cluster).describe(topics=[topic]))

    def settled_dead() -> int:
        found = [
            event
            for target, there in bounds(address, [acks_topic(topic)]).items()
            for _, event in read_events(
                read_source, TopicSource(address, topic), PartitionRange(target.partition, *there), ["billing"]
            )
        ]
        ranges = [one for event in found if isinstance(event, Settled) and event.how == "dead" for one in event.ranges]
        return sum(last - first + 1 for first, last in ranges)

    def letters() -> int:
        try:
            found = bounds(address, [dead_letter_topic(topic)])
        except UnknownTopicOrPartition:
            return 0
        return sum(there.latest - there.earliest for there in found.values())

    while sync_cluster(address).call(dying) or settled_dead() < letters():
        pass


class InMemorySources:
    """Records by source name and partition, read like `read_source`, in small batches."""

    def __init__(self, held: dict[tuple[str, int], list[Row]], rows_per_batch: int = 100) -> None:
        self.held = held
        self._rows_per_batch = rows_per_batch

    def __call__(self, side: RecordSource, range_: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        held = self.held.get((side.name, range_.partition), [])
        wanted = [one for one in held if range_.start <= one["offset"] < range_.end]
        for start in range(0, len(wanted), self._rows_per_batch):
            yield batch_of(wanted[start : start + self._rows_per_batch], columns)


def tamper(archive: Path, topic: str, change: Callable[[list[Row]], None], *, quietly: bool = True) -> None:
    """Rewrite the rows of the first file; `quietly`: the manifest is updated to match."""
    path = min((archive / topic).glob("*.parquet"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    if quietly:
        data = path.read_bytes()
        for entry in (archive / topic / "_headrace").glob("*.json"):
            told = msgspec.json.decode(entry.read_bytes())
            for file in told["added"]:
                if file["name"] == path.name:
                    file |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "records": len(rows)}
            entry.write_bytes(msgspec.json.encode(told))
