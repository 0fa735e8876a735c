"""What waits to be written to one partition, in order.

    append -> [batch] [batch] [open batch]      one batch is under way at a time

One batch at a time keeps the order through every retry without thought, and while it is under way the next
one fills up, so a slow disk makes batches larger instead of requests more. A batch keeps the producer
identity and sequence of its first attempt, so a repetition is recognised by the broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.client.metadata import TopicPartition
from headrace.model.errors import HeadraceError
from headrace.wire.batches.batch import HEADER_SIZE, TRANSACTIONAL, BatchRecord, build_batch

_RECORD_OVERHEAD = 24  # length, attributes, deltas and the lengths of key and value, at most
_HEADER_OVERHEAD = 8


class ProducerIdentity(NamedTuple):
    """Who writes, for the broker's check of sequences; -1 when it does not check."""

    producer_id: int = -1
    epoch: int = -1


class BatchLocation(NamedTuple):
    """Where a batch lies now; the offset is -1 when the broker did not tell."""

    base_offset: int
    log_append_time_ms: int


class PendingBatch:
    """Records that travel together, and the one answer for all of them."""

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
        self.done: asyncio.Future[BatchLocation] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(self._wake)
        self.waiting: list[asyncio.Future[None]] = []
        self.records: list[BatchRecord] = []
        self.record_count = 0
        self.size_bytes = HEADER_SIZE
        self.identity = ProducerIdentity()
        self.base_sequence = -1
        self.attempts = 0
        self.in_doubt = False  # an attempt ended without a final verdict: it may be in the log
        self.split_batches: tuple[PendingBatch, PendingBatch] | None = None
        self.observed = False  # somebody waits for the outcome
        self.is_closed = False  # it takes no more records

    def add(self, record: BatchRecord, size_bytes: int) -> None:
        self.records.append(record)
        self.record_count += 1
        self.size_bytes += size_bytes

    def add_all(self, records: Sequence[BatchRecord], size_bytes: int) -> None:
        self.records += records
        self.record_count += len(records)
        self.size_bytes += size_bytes

    def encode(self, compression: int, *, is_transactional: bool = False) -> bytearray:
        return build_batch(
            self.records,
            compression=compression,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.base_sequence,
            attributes=TRANSACTIONAL if is_transactional else 0,
        )

    async def offset_of(self, index: int) -> int:
        """Wait until the record at `index` is written; its offset, or -1 if the broker did not tell."""
        location = await self._outcome()
        if self.split_batches is not None:
            first, second = self.split_batches
            if index < first.record_count:
                return await first.offset_of(index)
            return await second.offset_of(index - first.record_count)
        return location.base_offset + index if location.base_offset >= 0 else -1

    async def results_of(self, first: int, count: int) -> Sequence[int | HeadraceError]:
        """What became of records that stand side by side: the offset of each, or why it was refused."""
        try:
            location = await self._outcome()
        except HeadraceError as error:
            return [error] * count
        if self.split_batches is None:
            return range(location.base_offset + first, location.base_offset + first + count)
        left, right = self.split_batches
        in_left = max(0, min(count, left.record_count - first))
        outcomes = [*(await left.results_of(first, in_left))] if in_left else []
        if in_left < count:
            outcomes += await right.results_of(max(0, first - left.record_count), count - in_left)
        return outcomes

    async def _outcome(self) -> BatchLocation:
        """Whoever gives up waiting takes nothing from the others. A future for each of them costs half of a shield."""
        self.observed = True
        if not self.done.done():
            waiter = asyncio.get_running_loop().create_future()
            self.waiting.append(waiter)
            await waiter
        return self.done.result()

    def _wake(self, done: asyncio.Future[BatchLocation]) -> None:
        if not done.cancelled():
            # A record sent without looking back must not leave "exception was never retrieved" behind.
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
    """The batches of one partition. `in_flight` while its head is under way."""

    def __init__(self, target: TopicPartition) -> None:
        self.target = target
        self.batches: deque[PendingBatch] = deque()
        self.in_flight = False
        self.not_before = 0.0
        self.failures = 0
        self.last_error: HeadraceError | None = None  # the last refusal of those
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0

    def has_room(self, size_bytes: int, size_bytes_max: int) -> bool:
        """Whether the last batch can still take a record of this size: it is not full and not under way."""
        if not self.batches or (self.in_flight and len(self.batches) == 1):
            return False
        last = self.batches[-1]
        return last.attempts == 0 and not last.is_closed and last.size_bytes + size_bytes <= size_bytes_max

    def append(self, record: BatchRecord, size_bytes: int, now: float, size_bytes_max: int) -> PendingBatch:
        """Put a record into the last batch, or into a new one behind it."""
        if not self.has_room(size_bytes, size_bytes_max):
            self.batches.append(PendingBatch(now))
        batch = self.batches[-1]
        batch.add(record, size_bytes)
        return batch

    def append_all(
        self, records: Sequence[BatchRecord], size_bytes: int, now: float, size_bytes_max: int, *, alone: bool
    ) -> PendingBatch:
        """Put records side by side into one batch; `alone` in one that has no others."""
        if alone or not self.has_room(size_bytes, size_bytes_max):
            self.batches.append(PendingBatch(now))
        batch = self.batches[-1]
        batch.add_all(records, size_bytes)
        batch.is_closed = alone
        return batch

    def ready_at(self, linger_seconds: float, size_bytes_max: int) -> float:
        """When the head may be sent: at once if it is full, followed or a repetition, else after its
        linger.
        """
        head = self.batches[0]
        hurried = len(self.batches) > 1 or head.attempts > 0 or head.size_bytes >= size_bytes_max
        return max(self.not_before, head.created_at if hurried else head.created_at + linger_seconds)

    def set_identity(self, identity: ProducerIdentity) -> None:
        """Write under a new identity from the next fresh batch on."""
        self.identity, self.next_sequence = identity, 0

    def assign_sequence(self) -> None:
        """Give the head its place in the producer's sequence, at its first attempt."""
        head = self.batches[0]
        assert head.attempts == 0
        assert self.identity is not None
        head.identity, head.base_sequence = self.identity, self.next_sequence
        self.next_sequence = (self.next_sequence + head.record_count) % 0x80000000

    def complete_head(self, location: BatchLocation) -> PendingBatch:
        """The head is written."""
        batch = self.batches.popleft()
        batch.records = []
        self.failures, self.last_error = 0, None
        batch.done.set_result(location)
        return batch

    def fail_head(self, error: BaseException, *, in_doubt: bool) -> PendingBatch:
        """The head is given up.

        If it was refused for certain, the next batch takes its sequence. If it may have been written, its
        sequence can neither be used nor skipped: what follows needs a new identity.
        """
        batch = self.batches.popleft()
        batch.records = []
        self.failures, self.last_error = 0, None
        if in_doubt:
            self.identity = None
        elif batch.base_sequence >= 0:
            self.next_sequence = batch.base_sequence
        batch.done.set_exception(error)
        return batch

    def restart_with_new_identity(self) -> None:
        """Let the head start again under a new identity; only when no attempt of it can have been written."""
        self.identity = None
        self.batches[0].attempts = 0

    def split_head(self) -> None:
        """Halve the head, which the broker found too large; the halves take over its sequences."""
        whole = self.batches.popleft()
        assert whole.record_count > 1
        middle = whole.record_count // 2
        split_batches = PendingBatch(whole.created_at), PendingBatch(whole.created_at)
        for half, records in zip(split_batches, (whole.records[:middle], whole.records[middle:]), strict=True):
            for record in records:
                half.add(record, size_of(record))
        self.batches.extendleft(reversed(split_batches))
        if whole.base_sequence >= 0:
            self.next_sequence = whole.base_sequence
        whole.records = []
        whole.split_batches = split_batches
        for half in split_batches:
            half.observed = whole.observed
            half.is_closed = whole.is_closed
        whole.done.set_result(BatchLocation(-1, -1))
