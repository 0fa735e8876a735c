"""What a task of a replay does: it reads a stretch of one partition, and writes it into a transaction that stays open.

The stretch becomes part of the target when the driver commits it, under the number of its last offset; so whatever
number was committed last says up to where the partition was replayed. A task has one partition, and reads and writes it
in the order of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.archive.catalogue import Archive, Catalogue
from headrace.client.bundles import Member
from headrace.columns.scan import scan
from headrace.columns.schema import ARROW_SCHEMA, COLUMNS, HEADERS_TYPE
from headrace.model.message_headers import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC
from headrace.spark.sink_columns import SinkColumns
from headrace.spark.sink_options import SinkOptions
from headrace.spark.writing import Share, write

_MEMBER = "0"


class Stretch(msgspec.Struct, frozen=True):
    """What is read: offsets [start, end) of a partition, from an archive or, without one, from the log; of those, the
    records of [from_ms, to_ms)."""

    brokers: str
    archive: str | None
    topic: str
    partition: int
    start: int
    end: int
    from_ms: int | None = None
    to_ms: int | None = None


class Target(msgspec.Struct, frozen=True):
    """Where and how it is written."""

    options: SinkOptions
    bundle: str
    keep_partitions: bool
    origin_header: bool


class Written(msgspec.Struct, frozen=True):
    """What came of it. No member: there was nothing to write, or it was written and committed before."""

    records: int
    member: Member | None


def replay_stretch(task: tuple[Stretch, Target]) -> Written:
    """Read and write in one go."""
    stretch, target = task
    return write_rows(stretch, target, read_rows(stretch))


def read_rows(stretch: Stretch) -> Iterator[pa.RecordBatch]:
    start, end = stretch.start, stretch.end
    if stretch.archive is None:
        batches = scan(stretch.brokers, stretch.topic, stretch.partition, start, end)
    else:
        batches = _catalogue(stretch.archive, stretch.topic, stretch.partition, end).read(stretch.partition, start, end)
    return _within(batches, stretch.from_ms, stretch.to_ms)


def write_rows(stretch: Stretch, target: Target, rows: Iterator[pa.RecordBatch]) -> Written:
    names = ["key", "value", "headers", "timestamp", *(["partition"] if target.keep_partitions else [])]
    columns = SinkColumns(
        key=0,
        value=1,
        headers=2,
        timestamp=3 if target.options.keep_timestamp else None,
        partition=4 if target.keep_partitions else None,
    )
    typed = (batch.select(COLUMNS).cast(ARROW_SCHEMA) for batch in rows)
    marked = (with_origin(batch) for batch in typed) if target.origin_header else typed
    share = Share(target.bundle, stretch.end - 1, _MEMBER)
    told = write(target.options, columns, share, (batch.select(names) for batch in marked))
    return Written(told.records, told.member)


def with_origin(rows: pa.RecordBatch) -> pa.RecordBatch:
    """With three more headers at the end, which tell where a record came from."""
    headers = rows.column("headers")
    flat = pc.list_flatten(headers)
    every = pa.array(range(len(rows)), pa.int64())
    parents, names, values = [pc.list_parent_indices(headers)], [flat.field("key")], [flat.field("value")]
    for name, column in ((ORIGIN_TOPIC, "topic"), (ORIGIN_PARTITION, "partition"), (ORIGIN_OFFSET, "offset")):
        parents.append(every)
        names.append(pa.repeat(pa.scalar(name), len(rows)))
        values.append(rows.column(column).cast(pa.string()).cast(pa.binary()))
    order = pc.array_sort_indices(pa.concat_arrays(parents))  # stable: each record's own stay before, in their order
    entries = pa.StructArray.from_arrays(
        [pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order)],
        fields=list(HEADERS_TYPE.value_type),
    )
    counts = pc.add(pc.fill_null(pc.list_value_length(headers), 0), 3)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    marked = pa.ListArray.from_arrays(ends, entries, type=HEADERS_TYPE)
    return rows.set_column(rows.schema.get_field_index("headers"), rows.schema.field("headers"), marked)


def _within(batches: Iterable[pa.RecordBatch], from_ms: int | None, to_ms: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64())
        rows = batch
        if from_ms is not None:
            keep = pc.greater_equal(times, from_ms * 1000)
            rows, times = rows.filter(keep), times.filter(keep)
        if to_ms is not None:
            rows = rows.filter(pc.less(times, to_ms * 1000))
        yield rows


def _catalogue(location: str, topic: str, partition: int, end: int) -> Catalogue:
    """Kept from task to task; what it does not reach yet was added since."""
    catalogue = _opened(location, topic)
    if (catalogue.end_offset(partition) or 0) < end:
        catalogue.refresh()
    return catalogue


@lru_cache(maxsize=16)
def _opened(location: str, topic: str) -> Catalogue:
    return Archive(location).existing(topic)
