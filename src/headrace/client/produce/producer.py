"""Write records to topics: `await producer.publish(topic, value)` returns when the broker has acknowledged it.

- Records are batched per partition. The order within a partition is the order of the calls, also with retries.
- With `idempotent` (the default) a retry never writes twice.
- Memory is bounded: `submit` waits while `buffer_bytes_max` bytes are not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import DeliveryTimedOut, ProducerClosed
from headrace.client.metadata import TopicPartition, TopicView
from headrace.client.produce.partitioner import StickyPartitioner, partition_for_key
from headrace.client.produce.pending_batches import PendingBatch, size_of
from headrace.client.produce.sender import ACKS_ALL, Sender, SenderSettings, TransactionContext, Wait
from headrace.model.errors import HeadraceError, MessageTooLarge
from headrace.model.ids import MessageId
from headrace.wire.batches import compression as codecs
from headrace.wire.batches.batch import HEADER_SIZE, BatchRecord

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer. Idempotence requires acks=ACKS_ALL and is disabled otherwise."""

    acks: int = ACKS_ALL
    idempotent: bool = True
    compression: str = "none"
    linger_seconds: float = 0.0
    batch_bytes_max: int = 256 * 1024
    record_bytes_max: int = 64 * 1024 * 1024  # bounds memory; the topic's max.message.bytes decides what is written
    buffer_bytes_max: int = 64 * 1024 * 1024
    delivery_timeout_seconds: float = 120.0
    topic_wait_seconds: float = 10.0  # for a topic that does not exist: the broker may create it on first use
    create_topics: bool = True


class Receipt(NamedTuple):
    """The position of a written record. The offset is -1 with acks=0."""

    topic: str
    partition: int
    offset: int

    @property
    def id(self) -> MessageId:
        """The message id, the same in all protocols."""
        return MessageId(*self)


class Delivery:
    """A submitted record; await it for its receipt."""

    __slots__ = ("_batch", "_index", "_target")

    def __init__(self, target: TopicPartition, batch: PendingBatch, index: int) -> None:
        self._target = target
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, Receipt]:
        offset = yield from self._batch.offset_of(self._index).__await__()
        return Receipt(*self._target, offset)


class Producer:
    """Writes through one cluster. Use it as `async with Producer(cluster) as producer:`; leaving it flushes. All
    records are part of `transaction`, if it is given; see `headrace.client.transactions.transactional_producer`."""

    def __init__(
        self, cluster: Cluster, settings: ProducerSettings | None = None, transaction: TransactionContext | None = None
    ) -> None:
        self.settings = settings or ProducerSettings()
        self._cluster = cluster
        self._sticky = StickyPartitioner(cluster.entropy)
        self._sender = Sender(cluster, _sender_settings(self.settings), self._batch_settled, transaction)
        self._buffered_bytes = 0
        self._room = asyncio.Event()
        self._topic_wait: Wait | None = None
        self._failure: HeadraceError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._sender.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Receipt:
        """Write one record and wait until it is acknowledged."""
        return await (
            await self.submit(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        )

    async def submit(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Submit one record; returns when there is room for it. Await the delivery, or `flush` later."""
        if self._closed:
            raise ProducerClosed("this producer is closed")
        view = self._cluster.view.topics.get(topic) or await self._topic(topic)
        now_ms = self._cluster.clock.now_ms() if timestamp_ms is None else timestamp_ms
        record = BatchRecord(key=key, value=value, headers=tuple(headers), timestamp_ms=now_ms)
        size_bytes = size_of(record)
        if size_bytes > self.settings.record_bytes_max:
            raise MessageTooLarge(
                f"a message for {topic} has {size_bytes} bytes, more than this client sends at once "
                f"({self.settings.record_bytes_max}); store large content elsewhere and publish a reference to it"
            )
        if self._buffered_bytes + size_bytes > self.settings.buffer_bytes_max:
            await self._wait_for_room(size_bytes)
        return self._enqueue(view, record, size_bytes, partition)

    @property
    def oldest_wait(self) -> Wait | None:
        """What the oldest record waits for; None if all records are acknowledged or rejected."""
        return self._sender.oldest_wait or self._topic_wait

    async def flush(self) -> None:
        """Wait until all submitted records are acknowledged or rejected. Raises the first failure since the last flush
        whose delivery was not awaited."""
        self._sender.set_no_linger(True)
        try:
            while pending := self._sender.pending:
                await asyncio.wait([batch.done for batch in pending])
        finally:
            self._sender.set_no_linger(False)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self, *, flush: bool = True) -> None:
        """Stop; with `flush` after all records were acknowledged or rejected."""
        if self._closed:
            return
        try:
            if flush:
                await self.flush()
        finally:
            self._closed = True
            await self._sender.stop()
            self._sender.abandon(ProducerClosed("the producer was closed before the record was acknowledged"))

    def _enqueue(self, view: TopicView, record: BatchRecord, size_bytes: int, partition: int | None) -> Delivery:
        count = len(view.partitions)
        if partition is None and record.key is not None:
            partition = partition_for_key(record.key, count)
        elif partition is None:
            partition = self._sticky.choose(view.name, count)
            if not self._sender.has_room(TopicPartition(view.name, partition), size_bytes):
                partition = self._sticky.move_on(view.name, count)
        else:
            view.check_partition(partition)
        target = TopicPartition(view.name, partition)
        batch = self._sender.submit(target, (record,), size_bytes)
        self._buffered_bytes += size_bytes
        return Delivery(target, batch, batch.record_count - 1)

    async def _topic(self, name: str) -> TopicView:
        settings = self.settings
        self._topic_wait = Wait(f"the metadata of topic {name}", self._cluster.clock.monotonic())
        try:
            return await self._cluster.wait_for_topic(name, settings.topic_wait_seconds, create=settings.create_topics)
        finally:
            self._topic_wait = None

    async def _wait_for_room(self, size_bytes: int) -> None:
        try:
            async with asyncio.timeout(self.settings.delivery_timeout_seconds):
                while self._buffered_bytes + size_bytes > self.settings.buffer_bytes_max:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise DeliveryTimedOut(
                f"{self._buffered_bytes} bytes wait to be written and none could be within "
                f"{self.settings.delivery_timeout_seconds:g} s; is the broker up?"
            ) from None

    def _batch_settled(self, batch: PendingBatch) -> None:
        self._buffered_bytes -= batch.size_bytes - HEADER_SIZE
        self._room.set()
        if self._failure is None and not batch.observed:
            error = batch.done.exception()
            self._failure = error if isinstance(error, HeadraceError) else None


def _sender_settings(settings: ProducerSettings) -> SenderSettings:
    names = {name: codec for codec, name in codecs.NAMES.items()}
    if settings.compression not in names:
        raise ValueError(f"compression {settings.compression!r} is none of {', '.join(names)}")
    if settings.record_bytes_max > settings.buffer_bytes_max:
        raise ValueError("record_bytes_max is over buffer_bytes_max: such a record could never be taken")
    return SenderSettings(
        acks=settings.acks,
        idempotent=settings.idempotent and settings.acks == ACKS_ALL,
        compression=names[settings.compression],
        linger_seconds=settings.linger_seconds,
        batch_bytes_max=settings.batch_bytes_max,
        delivery_timeout_seconds=settings.delivery_timeout_seconds,
        topic_wait_seconds=None if settings.create_topics else settings.topic_wait_seconds,
    )
