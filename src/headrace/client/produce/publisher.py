"""Write records for many concurrent callers with a few records each, such as HTTP requests.

    view = await publisher.topic("orders")
    (publish,) = publisher.submit(view, [record])
    outcomes = await publish.outcomes()

- Records that are submitted together are consecutive in one batch, which they share with those of other callers.
- Callers wait once per `PendingPublish`, not per record. A record that violates a rule of its topic fails alone.
- Order and idempotence are those of `Sender`.
- Memory is bounded: `submit` raises `Overloaded` when too many bytes wait, because a caller that retries later is
  better off than one in an unbounded queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerClosed
from headrace.client.metadata import TopicPartition, TopicView
from headrace.client.produce.partitioner import StickyPartitioner, partition_for_key
from headrace.client.produce.pending_batches import PendingBatch, size_of
from headrace.client.produce.sender import Sender, SenderSettings
from headrace.model.errors import HeadraceError, RetriableError, UnknownTopicOrPartition
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord


class Overloaded(RetriableError):
    """Too many bytes wait to be written; send them again in a moment."""


class PublisherSettings(msgspec.Struct, frozen=True):
    """`sticky_bytes`: the bytes without key or partition that go to one partition before the next one is chosen."""

    sticky_bytes: int = 256 * 1024
    batch_bytes_max: int = 256 * 1024
    buffer_bytes_max: int = 64 * 1024 * 1024
    delivery_timeout_seconds: float = 30.0
    topic_wait_seconds: float = 5.0


class PendingPublish(NamedTuple):
    """Records of one caller in one batch."""

    partition: int
    batch: PendingBatch
    first: int
    record_count: int

    def outcomes(self) -> Awaitable[Sequence[int | HeadraceError]]:
        """Wait until the records are written; returns the offset of each, or its error."""
        return self.batch.results_of(self.first, self.record_count)


class Publisher:
    """Writes through one cluster; the first `submit` starts it."""

    def __init__(self, cluster: Cluster, settings: PublisherSettings | None = None) -> None:
        self.settings = settings or PublisherSettings()
        self.buffered_bytes = 0
        self._cluster = cluster
        self._sticky = StickyPartitioner(cluster.entropy)
        self._records_left: dict[str, int] = {}  # bytes until the next partition's turn
        sending = SenderSettings(
            batch_bytes_max=self.settings.batch_bytes_max,
            delivery_timeout_seconds=self.settings.delivery_timeout_seconds,
            topic_wait_seconds=self.settings.topic_wait_seconds,
            isolate_invalid_records=True,
        )
        self._sender = Sender(cluster, sending, self._settled)
        self._is_started = False
        self._is_closed = False

    async def close(self) -> None:
        """Stop, and fail what is still waiting."""
        self._is_closed = True
        await self._sender.stop()
        self._sender.abandon(ProducerClosed("this server is stopping; the message may not have been written"))

    def cached_topic(self, name: str) -> TopicView | None:
        """The topic, if it is in fresh metadata."""
        return self._cluster.view.topics.get(name) if self._cluster.fresh else None

    async def topic(self, name: str, *, create: bool = True) -> TopicView:
        """The topic, created if the broker creates topics automatically and `create` is set. Raises the broker's error
        if there is none."""
        await switch_to_task()
        cluster = self._cluster
        if not cluster.fresh:
            try:
                return await cluster.call_with_retries(lambda: cluster.topic(name))
            except UnknownTopicOrPartition:
                if not create:
                    raise
        # Only this topic is refreshed, because `create` would recreate others that were deleted.
        return await cluster.call_with_retries(
            lambda: cluster.current_topic(name, create=create), deadline_seconds=self.settings.topic_wait_seconds
        )

    def partition_for(self, key: bytes, view: TopicView) -> int:
        return partition_for_key(key, len(view.partitions))

    def submit(
        self, view: TopicView, records: Sequence[BatchRecord], partition: int | None = None, *, alone: bool = False
    ) -> list[PendingPublish]:
        """Submit at least one record for one partition, by default the current sticky one. The result is a single
        publish, unless the records are too large for one batch. With `alone` the batch has no other records."""
        if self._is_closed:
            raise ProducerClosed("this server is stopping")
        size_bytes = sum(map(size_of, records))
        if self.buffered_bytes + size_bytes > self.settings.buffer_bytes_max:
            raise Overloaded(f"{self.buffered_bytes} bytes wait to be written, and {size_bytes} more are too many")
        if not self._is_started:
            self._is_started = True
            self._sender.start()
        if partition is None:
            partition = self._choose_partition(view.name, len(view.partitions), size_bytes)
        else:
            view.check_partition(partition)
        target = TopicPartition(view.name, partition)
        if size_bytes <= self.settings.batch_bytes_max or len(records) == 1:
            return [self._enqueue(target, records, size_bytes, alone)]
        sizes = [*map(size_of, records)]
        return [
            self._enqueue(target, records[first:end], sum(sizes[first:end]), alone)
            for first, end in _batch_ranges(sizes, self.settings.batch_bytes_max)
        ]

    def _choose_partition(self, topic: str, count: int, size_bytes: int) -> int:
        """The same partition for a while, so that concurrent records share batches."""
        partition = self._sticky.choose(topic, count)
        if count > 1:
            left = self._records_left.get(topic, self.settings.sticky_bytes) - size_bytes
            if left <= 0:
                self._sticky.move_on(topic, count)
                left = self.settings.sticky_bytes
            self._records_left[topic] = left
        return partition

    def _enqueue(
        self, target: TopicPartition, records: Sequence[BatchRecord], size_bytes: int, alone: bool
    ) -> PendingPublish:
        batch = self._sender.submit(target, records, size_bytes, alone=alone)
        batch.observed = True
        self.buffered_bytes += size_bytes
        return PendingPublish(target.partition, batch, batch.record_count - len(records), len(records))

    def _settled(self, batch: PendingBatch) -> None:
        self.buffered_bytes -= batch.size_bytes - HEADER_SIZE


def _batch_ranges(sizes: Sequence[int], size_bytes_max: int) -> list[tuple[int, int]]:
    """Split into ranges of at most this size, or of one record."""
    runs: list[tuple[int, int]] = []
    first = size_bytes = 0
    for index, size in enumerate(sizes):
        if index > first and size_bytes + size > size_bytes_max:
            runs.append((first, index))
            first, size_bytes = index, 0
        size_bytes += size
    runs.append((first, len(sizes)))
    return runs
