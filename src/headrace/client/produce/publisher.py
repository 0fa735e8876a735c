"""Writing for many callers who each bring a few records and wait for them, such as the requests of a door.

    view = await publisher.topic("orders")
    (shipment,) = publisher.submit(view, [record])
    outcomes = await shipment.outcomes()

Records that are submitted together stay together: they travel in one batch, side by side with those of other callers,
while the batch before theirs is under way. One wait per shipment, none per record; a record that breaks a rule of its
topic is refused alone. Order and idempotence are those of
`Sender`. Memory is bounded: when too many bytes wait, `submit` refuses, since a caller that is told to come again is
better off than one that waits in a queue without an end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerClosed, error_of_code
from headrace.client.metadata import TopicPartition, TopicView
from headrace.client.produce.partitioner import StickyPartitioner, partition_for_key
from headrace.client.produce.pending_batches import PendingBatch, size_of
from headrace.client.produce.producer import ACKS_ALL
from headrace.client.produce.sender import Sender, SenderSettings
from headrace.model.errors import HeadraceError, RetriableError, UnknownTopicOrPartition
from headrace.runtime.inline_start import switch_to_task
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord
from headrace.wire.batches.compression import NONE


class Overloaded(RetriableError):
    """Too many bytes wait to be written; send them again in a moment."""


class PublisherSettings(msgspec.Struct, frozen=True):
    """`sticky_bytes`: so much goes to one partition, of what names none, before it is another one's turn."""

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
        """Wait until they are written; the offset of each, or why it was refused."""
        return self.batch.results_of(self.first, self.record_count)


class Publisher:
    """Writes through one cluster; `start` it on its loop."""

    def __init__(self, cluster: Cluster, settings: PublisherSettings | None = None) -> None:
        self.settings = settings or PublisherSettings()
        self.buffered_bytes = 0
        self._cluster = cluster
        self._sticky = StickyPartitioner(cluster.entropy)
        self._records_left: dict[str, int] = {}  # bytes until the next partition's turn
        self._sender = Sender(cluster, _sender_settings(self.settings), self._settled)
        self._is_started = False
        self._is_closed = False

    async def close(self) -> None:
        """What waits is given up: whoever waits for it is told so."""
        self._is_closed = True
        await self._sender.stop()
        self._sender.abandon(ProducerClosed("this server is stopping; the message may not have been written"))

    def cached_topic(self, name: str) -> TopicView | None:
        """The topic, if it need not be asked for."""
        return self._cluster.view.topics.get(name) if self._cluster.fresh else None

    async def topic(self, name: str, *, create: bool = True) -> TopicView:
        """The topic; made by the broker, if it makes topics by itself and that is wanted. Raises what the broker says
        if there is none."""
        await switch_to_task()
        cluster = self._cluster
        if not cluster.fresh:
            try:
                return await cluster.call_with_retries(lambda: cluster.topic(name))
            except UnknownTopicOrPartition:
                if not create:
                    raise
        deadline_seconds = self.settings.topic_wait_seconds
        return await cluster.call_with_retries(
            lambda: self._fetch_topic(name, create), deadline_seconds=deadline_seconds
        )

    def partition_for(self, key: bytes, view: TopicView) -> int:
        return partition_for_key(key, len(view.partitions))

    def submit(
        self, view: TopicView, records: Sequence[BatchRecord], partition: int | None = None, *, alone: bool = False
    ) -> list[PendingPublish]:
        """Hand over at least one record for one partition, the one that others use if none is named. They make one
        shipment, unless they are too large for one batch. `alone`: nobody else's records come into the batch."""
        if self._is_closed:
            raise ProducerClosed("this server is stopping")
        size_bytes = 0
        for record in records:
            size_bytes += size_of(record)
        if self.buffered_bytes + size_bytes > self.settings.buffer_bytes_max:
            raise Overloaded(f"{self.buffered_bytes} bytes wait to be written, and {size_bytes} more are too many")
        if not self._is_started:
            self._is_started = True
            self._sender.start()
        count = len(view.partitions)
        if partition is None:
            partition = self._choose_partition(view.name, count, size_bytes)
        elif not 0 <= partition < count:
            raise UnknownTopicOrPartition(f"topic {view.name!r} has partitions 0 to {count - 1}, not {partition}")
        target = TopicPartition(view.name, partition)
        if size_bytes <= self.settings.batch_bytes_max or len(records) == 1:
            return [self._enqueue(target, records, size_bytes, alone)]
        sizes = [size_of(record) for record in records]
        return [
            self._enqueue(target, records[first:end], sum(sizes[first:end]), alone)
            for first, end in _batch_ranges(sizes, self.settings.batch_bytes_max)
        ]

    async def _fetch_topic(self, name: str, create: bool) -> TopicView:
        """Of this topic alone: others that have gone are not to be made again."""
        view = await self._cluster.refresh([name], create=create)
        found = view.topics.get(name)
        if found is None:
            code = view.topic_errors.get(name, UnknownTopicOrPartition.code)
            raise error_of_code(code, f"there is no topic {name!r}" if code == UnknownTopicOrPartition.code else None)
        return found

    def _choose_partition(self, topic: str, count: int, size_bytes: int) -> int:
        """The same partition for a while: those who come together shall travel together."""
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
        batch = self._sender.submit_together(target, records, size_bytes, alone=alone)
        batch.observed = True
        self.buffered_bytes += size_bytes
        return PendingPublish(target.partition, batch, batch.record_count - len(records), len(records))

    def _settled(self, batch: PendingBatch) -> None:
        self.buffered_bytes -= batch.size_bytes - HEADER_SIZE


def _batch_ranges(sizes: Sequence[int], size_bytes_max: int) -> list[tuple[int, int]]:
    """Cut into pieces of at most that size, or of one."""
    runs: list[tuple[int, int]] = []
    first = size_bytes = 0
    for index, size in enumerate(sizes):
        if index > first and size_bytes + size > size_bytes_max:
            runs.append((first, index))
            first, size_bytes = index, 0
        size_bytes += size
    runs.append((first, len(sizes)))
    return runs


def _sender_settings(settings: PublisherSettings) -> SenderSettings:
    return SenderSettings(
        acks=ACKS_ALL,
        idempotent=True,
        compression=NONE,
        linger_seconds=0.0,
        batch_bytes_max=settings.batch_bytes_max,
        delivery_timeout_seconds=settings.delivery_timeout_seconds,
        topic_wait_seconds=settings.topic_wait_seconds,
        isolate_invalid_records=True,
    )
