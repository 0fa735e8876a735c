"""Read an offset range of one partition as Arrow columns, synchronously: what a Spark task runs.

- The next Fetch is in flight while the previous response is decoded, so memory is bounded by two responses and the
  columns of one.
- A scan survives restarts and leader changes, as long as it makes progress within its deadline.
- A response without records means either that nothing can follow before the end of the range (the last offsets were
  compacted away or belong to control records), and the scan ends; or that the end cannot be read yet (a transaction is
  open, or a new leader is catching up), and the scan waits until its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from headrace.client.cluster import Cluster
from headrace.client.errors import only_result, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.columns.decode import BYTES_MAX, ROWS_MAX, ColumnReader
from headrace.columns.offsets import OffsetBounds, find_bounds
from headrace.columns.schema import COLUMNS
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import CorruptMessage, OffsetOutOfRange
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

_NAMES_UNTIL: Final = 12  # Fetch names topics by id from version 13 on
_WAIT_SECONDS: Final = 0.5

FETCH_BYTES: Final = 4 << 20
DEADLINE_SECONDS: Final = 60.0


class RangeOutOfLog(OffsetOutOfRange):
    """The log does not hold the whole range: retention has removed its start, or the log ends before its end."""

    def __init__(self, message: str = "", log_start: int = -1, log_end: int = -1) -> None:
        super().__init__(message)
        self.log_start = log_start
        self.log_end = log_end


async def fetch_partition(
    cluster: Cluster,
    target: TopicPartition,
    offset: int,
    bytes_max: int,
    *,
    read_committed: bool,
    connection_key: str = "",
) -> PartitionData:
    """One attempt, at the current leader."""
    leader = (await cluster.partition(*target)).leader
    requested = FetchPartition(partition=target.partition, fetch_offset=offset, partition_max_bytes=bytes_max)
    request = FetchRequest(
        max_wait_ms=int(_WAIT_SECONDS * 1000),
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=1 if read_committed else 0,
        topics=[FetchTopic(topic=target.topic, partitions=[requested])],
    )
    response: FetchResponse = await cluster.call(
        request, node_id=leader, version_max=_NAMES_UNTIL, connection_key=connection_key
    )
    raise_for_code(response.error_code)
    fetched = only_result(only_result(response.responses).partitions)
    raise_for_code(fetched.error_code)
    return fetched


class RangeFetcher(msgspec.Struct, frozen=True):
    """Fetches an offset range of one partition from its leader, across leader changes."""

    target: TopicPartition
    start: int
    end: int
    read_committed: bool
    fetch_bytes: int
    deadline_seconds: float
    connection_key: str

    async def fetch(self, offset: int, cluster: Cluster) -> PartitionData | None:
        """Batches from this offset; None if there are no more before the end of the range."""
        if offset == self.start:
            # Check that the partition exists. Later, a broker that does not know it is restarting, so retry.
            await cluster.call_with_retries(
                lambda: cluster.partition(*self.target), deadline_seconds=self.deadline_seconds
            )
        deadline = cluster.clock.monotonic() + self.deadline_seconds
        backoff = cluster.backoff()
        while True:
            try:
                fetched = await cluster.call_with_retries(
                    lambda: fetch_partition(
                        cluster,
                        self.target,
                        offset,
                        self.fetch_bytes,
                        read_committed=self.read_committed,
                        connection_key=self.connection_key,
                    ),
                    deadline_seconds=self.deadline_seconds,
                    topics_may_appear=True,
                )
            except OffsetOutOfRange:
                log = await self._bounds(cluster)
                if offset < log.earliest or cluster.clock.monotonic() >= deadline:
                    raise self._out_of_log(log) from None
                await asyncio.sleep(backoff.next_seconds())  # a new leader may be catching up
                continue
            if fetched.records:
                return fetched
            if (fetched.last_stable_offset if self.read_committed else fetched.high_watermark) >= self.end:
                return None
            if cluster.clock.monotonic() >= deadline:
                raise self._out_of_log(await self._bounds(cluster))

    async def _bounds(self, cluster: Cluster) -> OffsetBounds:
        return (await find_bounds(cluster, [self.target], read_committed=self.read_committed))[self.target]

    def _out_of_log(self, log: OffsetBounds) -> RangeOutOfLog:
        return RangeOutOfLog(
            f"offsets {self.start} to {self.end - 1} of {self.target} are not all there: "
            f"the log starts at {log.earliest} and can be read to before {log.latest}",
            log.earliest,
            log.latest,
        )


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
    """The records of [start, end), in order.

    A `RecordBatch` ends with the record batch that makes it reach `rows_max` or `bytes_max`. Raises `RangeOutOfLog`,
    and the last error if the scan makes no progress within the deadline.
    """
    reader = ColumnReader(topic, partition, columns, start, end, read_committed=read_committed)
    if start >= end:
        return
    cluster = sync_cluster(bootstrap)
    with cluster.connection_key() as connection_key:
        target = TopicPartition(topic, partition)
        fetcher = RangeFetcher(target, start, end, read_committed, fetch_bytes, deadline_seconds, connection_key)
        pending: Future[PartitionData | None] | None = cluster.start(partial(fetcher.fetch, start))
        try:
            while pending is not None and (fetched := pending.result()) is not None:
                requested = reader.next_offset
                assert isinstance(fetched.records, memoryview)
                reader.add(fetched.records, fetched.aborted_transactions)
                if reader.next_offset <= requested:
                    raise CorruptMessage(f"a fetch of {target} at offset {requested} returned only earlier offsets")
                pending = None
                if reader.next_offset < end:
                    pending = cluster.start(partial(fetcher.fetch, reader.next_offset))
                while (rows := reader.take(rows_max, bytes_max)) is not None:
                    yield rows
            if (rows := reader.rest()) is not None:
                yield rows
        finally:
            if pending is not None:
                pending.cancel()
