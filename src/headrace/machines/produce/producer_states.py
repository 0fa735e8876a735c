"""The state of the producers of a partition, with which a retried batch is stored once and an old one never. Pure.

Per producer: its epoch, the next sequence, the last five batches (clients have at most five in flight), and the first
offset of its open transaction. Sequences count records, and wrap from 2^31-1 to 0.

- `check` changes nothing and decides what to do with a batch; `apply` records an appended batch and cannot fail. The
  state is derived from the log: a snapshot and the batches after it restore the same state.
- All remembered batches of a producer have its current epoch. While its transaction is open, this is the epoch in which
  the transaction began.
- A producer expires only after this replica has run for the expiration time without appending a batch of it. Record
  timestamps and the wall clock do not count: with a backfill of old records, or a clock that jumps, the partition would
  otherwise forget a producer that is still retrying, and store its batch twice.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from headrace.machines.transactions.partition_transactions import PartitionTransactions
from headrace.model.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from headrace.wire.batches.batch import BatchHeader

SEQUENCE_MASK = 0x7FFF_FFFF
AHEAD_MAX = SEQUENCE_MASK // 2
"""Sequences wrap: a sequence that is further ahead than this is behind."""
EXPIRATION_MS = 86_400_000

_VALUES_PER_BATCH = 3
_VALUES_KEPT = 5 * _VALUES_PER_BATCH  # clients have at most five batches in flight
_ANY_SEQUENCE = -1  # the next batch may have any sequence
_NO_COORDINATOR = -1
_ACTIVE = -1.0  # idle time of a producer with a batch since the last call of `expire`
_SNAPSHOT_VERSION = 3
_SNAPSHOT_HEAD = struct.Struct(">BI")
_SNAPSHOT_ENTRY = struct.Struct(">qhqqiiqB")
_SNAPSHOT_ENTRY_2 = struct.Struct(">qhqiiqB")  # version 2 has no idle time


class ProducerDescription(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int  # -1 if unknown
    last_timestamp_ms: int
    coordinator_epoch: int
    first_offset: int  # of the open transaction, or -1


class Duplicate(NamedTuple):
    """The position of the batch, which is already in the log."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "idle_seconds", "last_timestamp_ms", "next_sequence")

    def __init__(self, epoch: int, next_sequence: int, last_timestamp_ms: int, batches: array[int]) -> None:
        self.epoch = epoch
        self.coordinator_epoch = _NO_COORDINATOR  # of the last marker
        self.next_sequence = next_sequence
        self.last_timestamp_ms = last_timestamp_ms  # of its last batch; only for descriptions
        self.idle_seconds = _ACTIVE  # time without a batch, as of the last call of `expire`
        # Flat, because a list of tuples takes five times the memory. Per batch: its first and last sequence in one
        # number, its base offset, its timestamp.
        self.batches = batches


class ProducerStates:
    __slots__ = ("_expired_at", "_producers", "transactions")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._expired_at: float | None = None  # when `expire` was last called
        self.transactions = PartitionTransactions()

    def check(self, batch: BatchHeader) -> Duplicate | None:
        """Return None if the batch may be appended, or its position if it was already appended.

        Raise `InvalidProducerEpoch` for a fenced producer, and `OutOfOrderSequence` for a gap, or, as Kafka does, for a
        duplicate that is older than the five remembered batches.
        """
        sequence = batch.base_sequence
        producer = self._producers.get(batch.producer_id)
        if producer is not None and self.transactions.first_offset(batch.producer_id) >= 0:
            _check_open(producer, batch)
        if producer is not None and sequence == producer.next_sequence and batch.producer_epoch == producer.epoch:
            return None
        if sequence < 0:
            raise InvalidRecord(f"a batch of producer {batch.producer_id} must have a sequence, not {sequence}")
        if producer is None or (producer.next_sequence == _ANY_SEQUENCE and batch.producer_epoch == producer.epoch):
            # Its state may have expired, so the next batch may have any sequence (KIP-360).
            return None
        return _check_against(producer, batch)

    def is_next_in_sequence(self, batch: BatchHeader) -> bool:
        """Whether the batch follows or repeats the known batches of its producer. The first batch of a producer or an
        epoch has sequence 0. Stricter than `check`, which accepts any sequence of an unknown producer."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or producer.epoch < batch.producer_epoch or producer.next_sequence == _ANY_SEQUENCE:
            return batch.base_sequence == 0
        if producer.epoch == batch.producer_epoch and producer.next_sequence == batch.base_sequence:
            return True
        return producer.epoch == batch.producer_epoch and _duplicate(producer, batch) is not None

    def is_ahead(self, batch: BatchHeader) -> bool:
        """Return whether earlier batches of a known producer are missing before this one."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or batch.producer_epoch < producer.epoch:
            return False
        expected = producer.next_sequence if batch.producer_epoch == producer.epoch else 0
        return 0 < (batch.base_sequence - expected) & SEQUENCE_MASK <= AHEAD_MAX

    def check_unnumbered(self, batch: BatchHeader) -> None:
        """Raise unless the broker may append a batch without sequence to the producer's transaction."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return
        if batch.producer_epoch < producer.epoch:
            raise _stale_epoch(batch, producer)
        if self.transactions.first_offset(batch.producer_id) >= 0:
            _check_open(producer, batch)

    def check_marker(self, batch: BatchHeader, coordinator_epoch: int) -> None:
        """Raise unless a marker of this producer and coordinator may be appended."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return
        if batch.producer_epoch < producer.epoch:
            raise _stale_epoch(batch, producer)
        if coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"coordinator epoch {coordinator_epoch} is older than {producer.coordinator_epoch} of the last marker"
            )

    def has_marker(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's last batch is a marker of this epoch."""
        producer = self._producers.get(producer_id)
        if producer is None or self.transactions.first_offset(producer_id) >= 0:
            return False
        return producer.epoch >= producer_epoch and producer.coordinator_epoch != _NO_COORDINATOR

    def apply(self, batch: BatchHeader, base_offset: int) -> None:
        """Record that the batch was appended at `base_offset`, now or in a replay."""
        if batch.is_transactional and self.transactions.first_offset(batch.producer_id) < 0:
            self.transactions.begin(batch.producer_id, base_offset)
        base_sequence = batch.base_sequence
        if base_sequence < 0:
            self._apply_unnumbered(batch)
            return
        delta = batch.last_offset_delta
        last_sequence = (base_sequence + delta) & SEQUENCE_MASK
        timestamp_ms = batch.max_timestamp
        values = (base_sequence << 32 | last_sequence, base_offset, timestamp_ms)
        next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            self._producers[batch.producer_id] = _Producer(
                batch.producer_epoch, next_sequence, timestamp_ms, array("q", values)
            )
            return
        batches = producer.batches
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            del batches[:]
        elif len(batches) == _VALUES_KEPT:
            del batches[:_VALUES_PER_BATCH]
        batches.extend(values)
        producer.next_sequence = next_sequence
        producer.last_timestamp_ms = timestamp_ms
        producer.idle_seconds = _ACTIVE

    def apply_marker(self, batch: BatchHeader, offset: int, coordinator_epoch: int, *, is_commit: bool) -> None:
        """Record that the marker in this batch was appended at `offset`."""
        self._apply_unnumbered(batch).coordinator_epoch = coordinator_epoch
        self.transactions.end(batch.producer_id, offset, is_commit=is_commit)

    def describe(self) -> list[ProducerDescription]:
        return [
            ProducerDescription(
                producer_id,
                producer.epoch,
                (producer.next_sequence - 1) & SEQUENCE_MASK if producer.batches else -1,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                self.transactions.first_offset(producer_id),
            )
            for producer_id, producer in self._producers.items()
        ]

    def expire(self, now: float, expiration_ms: int = EXPIRATION_MS) -> int:
        """Remove producers without an open transaction that were idle for this long; return how many.

        `now` is monotonic time in seconds. Idle time is the sum of the times between calls; the first call after a
        batch resets it. So it is never too long, and after a restart it continues from the value in the snapshot.
        """
        elapsed = 0.0 if self._expired_at is None else now - self._expired_at
        self._expired_at = now
        idle_max = expiration_ms / 1000
        expired = []
        for producer_id, producer in self._producers.items():
            producer.idle_seconds = 0.0 if producer.idle_seconds == _ACTIVE else producer.idle_seconds + elapsed
            if producer.idle_seconds >= idle_max and self.transactions.first_offset(producer_id) < 0:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def ids(self) -> frozenset[int]:
        return frozenset(self._producers)

    def __len__(self) -> int:
        return len(self._producers)

    def snapshot(self) -> bytes:
        chunks = [_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, len(self._producers))]
        for producer_id, producer in self._producers.items():
            count = len(producer.batches)
            chunks.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    producer.last_timestamp_ms,
                    int(max(producer.idle_seconds, 0.0) * 1000),
                    producer.next_sequence,
                    producer.coordinator_epoch,
                    self.transactions.first_offset(producer_id),
                    count,
                )
            )
            chunks.append(struct.pack(f">{count}q", *producer.batches))
        chunks.append(self.transactions.snapshot())
        return b"".join(chunks)

    @classmethod
    def restore(cls, data: bytes) -> ProducerStates:
        """Restore the state from a `snapshot`; raise `CorruptMessage` if the bytes are not one."""
        states = cls()
        try:
            states._read_snapshot(data)
        except struct.error as error:
            raise CorruptMessage(f"a producer snapshot of {len(data)} bytes is truncated: {error}") from None
        return states

    def _read_snapshot(self, data: bytes) -> None:
        version, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version not in (2, _SNAPSHOT_VERSION):
            raise CorruptMessage(f"producer snapshots of version {version} are not supported")
        position = _SNAPSHOT_HEAD.size
        entry = _SNAPSHOT_ENTRY_2 if version == 2 else _SNAPSHOT_ENTRY
        open_transactions: dict[int, int] = {}
        for _ in range(count):
            producer_id, epoch, timestamp_ms, *idle_ms, next_sequence, coordinator_epoch, first_offset, value_count = (
                entry.unpack_from(data, position)
            )
            position += entry.size
            values = struct.unpack_from(f">{value_count}q", data, position)
            position += value_count * 8
            producer = self._producers[producer_id] = _Producer(epoch, next_sequence, timestamp_ms, array("q", values))
            producer.coordinator_epoch = coordinator_epoch
            producer.idle_seconds = sum(idle_ms) / 1000
            if first_offset >= 0:
                open_transactions[first_offset] = producer_id
        for first_offset in sorted(open_transactions):
            self.transactions.begin(open_transactions[first_offset], first_offset)
        self.transactions.restore_aborted(data[position:])

    def _apply_unnumbered(self, batch: BatchHeader) -> _Producer:
        """Record a batch without sequence that the broker has written for a producer's transaction."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = _Producer(
                batch.producer_epoch, _ANY_SEQUENCE, batch.max_timestamp, array("q")
            )
        elif producer.epoch != batch.producer_epoch:
            # Batches of the old epoch that are still in flight are rejected; the new epoch begins with sequence 0.
            producer.epoch = batch.producer_epoch
            producer.next_sequence = 0
            del producer.batches[:]
        producer.last_timestamp_ms = batch.max_timestamp
        producer.idle_seconds = _ACTIVE
        return producer


def _check_against(producer: _Producer, batch: BatchHeader) -> Duplicate | None:
    """Check a batch that is not simply the next one of a known producer."""
    epoch, sequence = batch.producer_epoch, batch.base_sequence
    if epoch < producer.epoch:
        raise _stale_epoch(batch, producer)
    if epoch > producer.epoch:
        if sequence == 0:
            return None
        raise OutOfOrderSequence(
            f"producer {batch.producer_id} begins epoch {epoch} with sequence {sequence} instead of 0"
        )
    duplicate = _duplicate(producer, batch)
    if duplicate is None:
        raise OutOfOrderSequence(
            f"producer {batch.producer_id} sent sequence {sequence}; the next one is {producer.next_sequence}"
        )
    return duplicate


def _duplicate(producer: _Producer, batch: BatchHeader) -> Duplicate | None:
    sequence, delta = batch.base_sequence, batch.last_offset_delta
    wanted = sequence << 32 | (sequence + delta) & SEQUENCE_MASK
    batches = producer.batches
    for index in range(0, len(batches), _VALUES_PER_BATCH):
        if batches[index] == wanted:
            base_offset = batches[index + 1]
            return Duplicate(base_offset, base_offset + delta, batches[index + 2])
    return None


def _check_open(producer: _Producer, batch: BatchHeader) -> None:
    """Check a batch while the producer's transaction is open: only a batch of this transaction may follow."""
    if not batch.is_transactional:
        raise InvalidTransactionState(
            f"producer {batch.producer_id} has an open transaction in this partition; a batch outside of it is rejected"
        )
    if batch.producer_epoch > producer.epoch:
        raise InvalidTransactionState(
            f"the transaction of producer {batch.producer_id} in epoch {producer.epoch} is still open in this partition"
        )


def _stale_epoch(batch: BatchHeader, producer: _Producer) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"producer {batch.producer_id} has epoch {producer.epoch}; a batch of epoch {batch.producer_epoch} is fenced"
    )
