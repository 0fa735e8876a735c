"""The queue of batches that wait to be written to one partition, in order.

    append -> [batch] [batch] [open batch]      one batch is in flight at a time

- One batch in flight keeps the order through every retry. Meanwhile the next one fills up, so a slow disk leads to
  larger batches instead of more requests.
- A batch keeps the producer id, epoch and sequence number of its first attempt, so the broker recognises a retry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.runtime.clock import Clock
from headrace.wire.batches.batch import HEADER_SIZE, TRANSACTIONAL, BatchRecord, build_batch

_RECORD_OVERHEAD = 24  # length, attributes, deltas and the lengths of key and value, at most
_HEADER_OVERHEAD = 8


class ProducerIdentity(NamedTuple):
    """Producer id and epoch, for the broker's check of sequence numbers; -1 without idempotence."""

    producer_id: int = -1
    epoch: int = -1


class PendingBatch:
    """Records that are sent together, and their common result: the base offset, -1 if the broker did not return it."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "created_at",
        "done",
        "identity",
        "in_doubt",
        "is_closed",
        "observed",
        "record_count",
        "records",
        "size_bytes",
        "split_batches",
        "waiting",
    )

    def __init__(self, created_at: float) -> None:
        self.created_at = created_at
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(self._wake)
        self.waiting: list[asyncio.Future[None]] = []
        self.records: list[BatchRecord] = []
        self.record_count = 0
        self.size_bytes = HEADER_SIZE
        self.identity = ProducerIdentity()
        self.base_sequence = -1
        self.attempts = 0
        self.in_doubt = False  # an attempt ended without a final result: the batch may be in the log
        self.split_batches: tuple[PendingBatch, PendingBatch] | None = None
        self.observed = False  # a caller waits for the result
        self.is_closed = False  # it takes no more records

    def encode(self, compression: int, *, is_transactional: bool) -> bytes | bytearray | memoryview:
        return build_batch(
            self.records,
            compression=compression,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.base_sequence,
            attributes=TRANSACTIONAL if is_transactional else 0,
        )

    async def offset_of(self, index: int) -> int:
        """Wait until the record at `index` is written; its offset, or -1 if the broker did not return it."""
        base_offset = await self._outcome()
        if self.split_batches is not None:
            first, second = self.split_batches
            if index < first.record_count:
                return await first.offset_of(index)
            return await second.offset_of(index - first.record_count)
        return base_offset + index if base_offset >= 0 else -1

    async def results_of(self, first: int, count: int) -> Sequence[int | HeadraceError]:
        """Wait for consecutive records; returns the offset of each, or its error."""
        try:
            base_offset = await self._outcome()
        except HeadraceError as error:
            return [error] * count
        if self.split_batches is None:
            return range(base_offset + first, base_offset + first + count)
        left, right = self.split_batches
        in_left = max(0, min(count, left.record_count - first))
        outcomes = [*(await left.results_of(first, in_left))] if in_left else []
        if in_left < count:
            outcomes += await right.results_of(max(0, first - left.record_count), count - in_left)
        return outcomes

    async def _outcome(self) -> int:
        """Wait for the result. Each caller waits on its own future, so that cancelling one does not affect the others;
        this costs half as much as `asyncio.shield`."""
        self.observed = True
        if not self.done.done():
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            await waiter
        return self.done.result()

    def _wake(self, done: asyncio.Future[int]) -> None:
        if not done.cancelled():
            # Mark the exception as retrieved: callers need not await the delivery of each record.
            done.exception()
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()


def size_of(record: BatchRecord) -> int:
    """An upper bound of the bytes that a record takes in a batch."""
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD + len(name) * 3 + len(value or b"")
    return size


class PartitionBatchQueue:
    """The batches of one partition; `in_flight` while the first one is being sent."""

    def __init__(self, target: TopicPartition) -> None:
        self.target = target
        self.batches: deque[PendingBatch] = deque()
        self.in_flight = False
        self.not_before = 0.0
        self.failures = 0
        self.last_error: HeadraceError | None = None  # of the failures
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0

    def has_room(self, size_bytes: int, size_bytes_max: int) -> bool:
        """Whether the last batch can take a record of this size: it is not full and not in flight."""
        if not self.batches or (self.in_flight and len(self.batches) == 1):
            return False
        last = self.batches[-1]
        return last.attempts == 0 and not last.is_closed and last.size_bytes + size_bytes <= size_bytes_max

    def append(
        self, records: Sequence[BatchRecord], size_bytes: int, clock: Clock, size_bytes_max: int, *, alone: bool
    ) -> PendingBatch:
        """Append consecutive records to the last batch, or to a new one; with `alone` to one without other records."""
        if alone or not self.has_room(size_bytes, size_bytes_max):
            self.batches.append(PendingBatch(clock.monotonic()))
        batch = self.batches[-1]
        batch.records += records
        batch.record_count += len(records)
        batch.size_bytes += size_bytes
        batch.is_closed = alone
        return batch

    def ready_at(self, linger_seconds: float, size_bytes_max: int) -> float:
        """When the head may be sent: at once if it is full, followed, or a retry, otherwise after its linger."""
        head = self.batches[0]
        hurried = len(self.batches) > 1 or head.attempts > 0 or head.size_bytes >= size_bytes_max
        return max(self.not_before, head.created_at if hurried else head.created_at + linger_seconds)

    def set_identity(self, identity: ProducerIdentity) -> None:
        """Use a new identity, from the next batch on that was never sent."""
        self.identity, self.next_sequence = identity, 0

    def assign_sequence(self) -> None:
        """Assign sequence numbers to the head at its first attempt."""
        head = self.batches[0]
        assert head.attempts == 0
        assert self.identity is not None
        head.identity, head.base_sequence = self.identity, self.next_sequence
        self.next_sequence = (self.next_sequence + head.record_count) % 0x80000000

    def complete_head(self, base_offset: int) -> PendingBatch:
        batch = self._remove_head()
        batch.done.set_result(base_offset)
        return batch

    def fail_head(self, error: BaseException) -> PendingBatch:
        """If the head was certainly rejected, the next batch takes its sequence numbers. If it may have been written,
        these can neither be reused nor skipped, and later batches need a new identity."""
        batch = self._remove_head()
        if batch.in_doubt:
            self.identity = None
        elif batch.base_sequence >= 0:
            self.next_sequence = batch.base_sequence
        batch.done.set_exception(error)
        return batch

    def _remove_head(self) -> PendingBatch:
        batch = self.batches.popleft()
        batch.records = []
        self.failures, self.last_error = 0, None
        return batch

    def restart_with_new_identity(self) -> None:
        """Send the head again with a new identity; only if no attempt of it can have been written."""
        self.identity = None
        self.batches[0].attempts = 0

    def split_head(self) -> None:
        """Split the head in two halves, which take over its sequence numbers."""
        whole = self.batches.popleft()
        assert whole.record_count > 1
        middle = whole.record_count // 2
        split_batches = PendingBatch(whole.created_at), PendingBatch(whole.created_at)
        for half, records in zip(split_batches, (whole.records[:middle], whole.records[middle:]), strict=True):
            half.records = records
            half.record_count = len(records)
            half.size_bytes += sum(map(size_of, records))
            half.observed = whole.observed
            half.is_closed = whole.is_closed
        self.batches.extendleft(reversed(split_batches))
        if whole.base_sequence >= 0:
            self.next_sequence = whole.base_sequence
        whole.records = []
        whole.split_batches = split_batches
        whole.done.set_result(-1)
