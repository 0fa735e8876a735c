"""Write record batches that are already encoded, for example from columns without a loop over records.

    async with BatchWriter(cluster, producer) as writer:
        await writer.append(target, batches)
        await writer.flush()

- Batches are sent unchanged, also when they are retried. They must contain the identity of the producer and consecutive
  sequence numbers of their partition.
- Order and retries are those of `Sender`: one batch per partition is in flight, one request carries the next batch of
  every partition of a leader, and a retried batch is stored once.
- Memory is bounded: `append` waits while `bytes_in_flight_max` bytes are not acknowledged.
- The first rejected batch fails the writer, because the sequence numbers of all later batches depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerClosed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.pending_batches import PartitionBatchQueue, PendingBatch, ProducerIdentity
from headrace.client.produce.sender import BatchProducer, Sender, SenderSettings, new_producer_identity
from headrace.model.errors import HeadraceError, MessageTooLarge


class ReadyBatch(NamedTuple):
    encoded: bytes | bytearray | memoryview
    record_count: int


class BatchWriterSettings(msgspec.Struct, frozen=True):
    """`topic_wait_seconds`: how long the leader may not know a topic that was just created."""

    bytes_in_flight_max: int = 32 * 1024 * 1024
    delivery_timeout_seconds: float = 120.0
    topic_wait_seconds: float = 10.0


class IdempotentProducer:
    """A producer without a transaction; retried batches are stored once."""

    transactional_id = ""

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        """Nothing to do without a transaction."""


async def idempotent_producer(cluster: Cluster) -> IdempotentProducer:
    return IdempotentProducer(await cluster.call_with_retries(lambda: new_producer_identity(cluster)))


class BatchWriter:
    """Sends while it is entered, on the cluster's event loop."""

    def __init__(self, cluster: Cluster, producer: BatchProducer, settings: BatchWriterSettings | None = None) -> None:
        self.settings = settings or BatchWriterSettings()
        self._cluster = cluster
        sending = SenderSettings(
            batch_bytes_max=1,
            delivery_timeout_seconds=self.settings.delivery_timeout_seconds,
            topic_wait_seconds=self.settings.topic_wait_seconds,
        )
        self._sender = _EncodedBatchSender(cluster, sending, self._settled, _WriterTransactionContext(producer))
        self._buffered_bytes = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._sender.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abandon batches in flight; after `flush` there are none."""
        await self._sender.stop()
        self._sender.abandon(ProducerClosed("the writer was left before this batch was acknowledged"))

    async def append(self, target: TopicPartition, batches: Sequence[ReadyBatch]) -> None:
        """Hand over the next batches of a partition; waits while too many bytes are in flight."""
        for ready in batches:
            # A batch is accepted whatever its size if there is room at all: otherwise a large one would wait forever.
            await self._wait_until(lambda: self._buffered_bytes < self.settings.bytes_in_flight_max)
            self._buffered_bytes += len(ready.encoded)
            self._sender.submit_ready(target, _PendingEncodedBatch(self._cluster.clock.monotonic(), ready))

    async def flush(self) -> None:
        """Return when every batch is committed; raises the error of the first failed one."""
        await self._wait_until(lambda: self._buffered_bytes == 0)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            if condition():
                return
            self._changed.clear()
            await self._changed.wait()

    def _settled(self, batch: PendingBatch) -> None:
        assert isinstance(batch, _PendingEncodedBatch)
        self._buffered_bytes -= len(batch.encoded)
        self._failure = self._failure or batch.done.exception()
        batch.encoded = b""
        self._changed.set()


class _WriterTransactionContext:
    """Adapts the producer to the sender. Errors need no handling here: the writer keeps the first one."""

    def __init__(self, producer: BatchProducer) -> None:
        self.transactional_id = producer.transactional_id
        self.identity = producer.identity
        self.enlist = producer.enlist

    def set_abortable_error(self, error: HeadraceError) -> None: ...


class _PendingEncodedBatch(PendingBatch):
    __slots__ = ("encoded",)

    def __init__(self, created_at: float, ready: ReadyBatch) -> None:
        super().__init__(created_at)
        self.encoded = ready.encoded
        self.record_count = ready.record_count
        self.size_bytes = len(ready.encoded)
        self.is_closed = True

    def encode(self, compression: int, *, is_transactional: bool) -> bytes | bytearray | memoryview:  # noqa: ARG002
        return self.encoded


class _EncodedBatchSender(Sender):
    def submit_ready(self, target: TopicPartition, batch: _PendingEncodedBatch) -> None:
        queue = self._queues[target]
        queue.batches.append(batch)
        self._active_queues[target] = queue
        self._wake.set()

    def _fail_batch(self, queue: PartitionBatchQueue, error: HeadraceError) -> None:
        if isinstance(error, MessageTooLarge):
            head = queue.batches[0]
            error = MessageTooLarge(
                f"{queue.target} refused a batch of {head.record_count} records in {head.size_bytes} bytes "
                f"({error.message}); make smaller batches, or raise the topic's max.message.bytes"
            )
        super()._fail_batch(queue, error)
