"""The answers of a partition's leader, whoever that is, from offset to offset of a range.

An answer without records means one of two things: nothing can come any more before the end of the range, or the end
cannot be read yet (a transaction is open, or a new leader has to catch up), which is waited for, but not for ever.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import only_result, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.columns.offsets import OffsetBounds, find_bounds
from headrace.model.errors import OffsetOutOfRange
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

_NAMES_UNTIL: Final = 12  # Fetch names topics by id from version 13 on
_WAIT_SECONDS: Final = 0.5


class RangeOutOfLog(OffsetOutOfRange):
    """The log does not hold the range that was to be read: it has been trimmed, or it ends before."""

    def __init__(self, message: str = "", log_start: int = -1, log_end: int = -1) -> None:
        super().__init__(message)
        self.log_start = log_start
        self.log_end = log_end


class RangeFetcher(msgspec.Struct, frozen=True):
    """What is asked for, and how."""

    target: TopicPartition
    start: int
    end: int
    read_committed: bool
    fetch_bytes: int
    deadline_seconds: float
    connection_key: str

    async def fetch(self, offset: int, cluster: Cluster) -> PartitionData | None:
        """Batches from this offset on; None when there are none before the end of the range."""
        if offset == self.start:
            # Whether there is such a partition: from then on, a broker that does not know it is one that restarts.
            await cluster.call_with_retries(
                lambda: cluster.partition(*self.target), deadline_seconds=self.deadline_seconds
            )
        deadline = cluster.clock.monotonic() + self.deadline_seconds
        backoff = cluster.backoff()
        while True:
            try:
                told = await cluster.call_with_retries(
                    lambda: self._fetch(offset, cluster),
                    deadline_seconds=self.deadline_seconds,
                    topics_may_appear=True,
                )
            except OffsetOutOfRange:
                log = await self._bounds(cluster)
                if offset < log.earliest or cluster.clock.monotonic() >= deadline:
                    raise self._out_of_log(log) from None
                await asyncio.sleep(backoff.next_seconds())  # a new leader may have to catch up
                continue
            if told.records:
                return told
            if (told.last_stable_offset if self.read_committed else told.high_watermark) >= self.end:
                return None
            if cluster.clock.monotonic() >= deadline:
                raise self._out_of_log(await self._bounds(cluster))

    async def _fetch(self, offset: int, cluster: Cluster) -> PartitionData:
        """One attempt, at whoever leads now."""
        topic, partition = self.target
        leader = (await cluster.partition(topic, partition)).leader
        requested = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=self.fetch_bytes)
        request = FetchRequest(
            max_wait_ms=int(_WAIT_SECONDS * 1000),
            min_bytes=1,
            max_bytes=self.fetch_bytes,
            isolation_level=1 if self.read_committed else 0,
            topics=[FetchTopic(topic=topic, partitions=[requested])],
        )
        answer: FetchResponse = await cluster.call(
            request, node_id=leader, version_max=_NAMES_UNTIL, connection_key=self.connection_key
        )
        raise_for_code(answer.error_code)
        told = only_result(only_result(answer.responses).partitions)
        raise_for_code(told.error_code)
        return told

    async def _bounds(self, cluster: Cluster) -> OffsetBounds:
        return (await find_bounds(cluster, [self.target], read_committed=self.read_committed))[self.target]

    def _out_of_log(self, log: OffsetBounds) -> RangeOutOfLog:
        return RangeOutOfLog(
            f"offsets {self.start} to {self.end - 1} of {self.target} are not all there: "
            f"the log starts at {log.earliest} and can be read to before {log.latest}",
            log.earliest,
            log.latest,
        )
