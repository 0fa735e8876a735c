"""All records of an offset range of one partition, as columns, without async: what a task of Spark's runs.

The next Fetch is under way while the last answer is unpacked and used, so memory is bounded by two answers and what is
made of one. A scan outlives restarts and changes of the leader, as long as it gets on within its deadline. It ends when
nothing can come any more before the end of the range, also where the last offsets were compacted away or belong to
control records: it never waits for a record that will not come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import pyarrow as pa

from headrace.client.metadata import TopicPartition
from headrace.columns.decode import BYTES_MAX, ROWS_MAX, ColumnReader
from headrace.columns.link import SyncCluster, sync_cluster
from headrace.columns.offsets import OffsetBounds, bounds, offsets_at, topics_matching
from headrace.columns.reading import RangeFetcher, RangeOutOfLog
from headrace.columns.schema import COLUMNS
from headrace.model.errors import CorruptMessage
from headrace.wire.messages.fetch import PartitionData

__all__ = [
    "OffsetBounds",
    "RangeOutOfLog",
    "SyncCluster",
    "bounds",
    "offsets_at",
    "scan",
    "sync_cluster",
    "topics_matching",
]

FETCH_BYTES: Final = 4 << 20
DEADLINE_SECONDS: Final = 60.0


def scan(
    bootstrap: str,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    columns: Sequence[str] = COLUMNS,
    read_committed: bool = True,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
    fetch_bytes: int = FETCH_BYTES,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Iterator[pa.RecordBatch]:
    """The records from `start` to before `end`, in their order.

    A `RecordBatch` ends with the record batch that makes it reach `rows_max` or `bytes_max`. Raises `RangeOutOfLog`,
    and the last failure of those that lasted longer than the deadline.
    """
    reader = ColumnReader(topic, partition, columns, start, end, read_committed=read_committed)
    if start >= end:
        return
    way = sync_cluster(bootstrap)
    with way.connection_key() as connection_key:
        target = TopicPartition(topic, partition)
        reading = RangeFetcher(target, start, end, read_committed, fetch_bytes, deadline_seconds, connection_key)
        coming: Future[PartitionData | None] | None = way.start(partial(reading.fetch, start))
        try:
            while coming is not None and (told := coming.result()) is not None:
                requested = reader.next_offset
                assert isinstance(told.records, memoryview)
                reader.add(told.records, told.aborted_transactions)
                if reader.next_offset <= requested:
                    raise CorruptMessage(f"{target} was asked for offset {requested} and gave only earlier ones")
                coming = None
                if reader.next_offset < end:
                    coming = way.start(partial(reading.fetch, reader.next_offset))
                while (rows := reader.take(rows_max, bytes_max)) is not None:
                    yield rows
            if (rows := reader.rest()) is not None:
                yield rows
        finally:
            if coming is not None:
                coming.cancel()
