"""What a partition remembers of its idempotent producers, so that a retried batch is stored once.

Per producer: its epoch, the sequence that must come next, and the last five batches (clients keep at most
five in flight). Sequences count records and wrap from 2^31-1 to 0.

`check` changes nothing and says what to do with a batch; `apply` notes an appended one and cannot fail. The
state is derived from the log: a snapshot plus the batches behind it give the same state again. Invariant: the
remembered batches of a producer are all of its present epoch.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from headrace.model.errors import CorruptMessage, InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence

SEQUENCE_MASK = 0x7FFF_FFFF
BATCHES_KEPT = 5
EXPIRATION_MS = 86_400_000

_VALUES_PER_BATCH = 3
_VALUES_KEPT = BATCHES_KEPT * _VALUES_PER_BATCH
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">BI")
_SNAPSHOT_ENTRY = struct.Struct(">qhqiB")


class ProducedBatch(Protocol):
    """The fields of a record batch's header that matter here."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


class Duplicate(NamedTuple):
    """The batch lies in the log already, here."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class _Producer:
    __slots__ = ("batches", "epoch", "next_sequence", "seen_ms")

    def __init__(self, epoch: int, next_sequence: int, seen_ms: int, batches: array[int]) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.seen_ms = seen_ms
        # Flat, because a list of tuples costs five times the memory: per batch its first and last sequence
        # in one number, its base offset, its timestamp.
        self.batches = batches


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def check(self, batch: ProducedBatch) -> Duplicate | None:
        """None when the batch may be appended, or where it was appended before.

        Raises `InvalidProducerEpoch` for a producer that was replaced, `OutOfOrderSequence` for a gap, also
        for a duplicate that is older than the five batches remembered (Kafka says the same).
        """
        sequence = batch.base_sequence
        producer = self._producers.get(batch.producer_id)
        if producer is not None and sequence == producer.next_sequence and batch.producer_epoch == producer.epoch:
            return None
        if sequence < 0:
            raise InvalidRecord(f"a batch of producer {batch.producer_id} must carry a sequence, not {sequence}")
        if producer is None:
            # Its state may have expired, so any sequence may be its next one (KIP-360).
            return None
        return _check_against(producer, batch)

    def apply(self, batch: ProducedBatch, base_offset: int, now_ms: int | None = None) -> None:
        """Note that the batch was appended at `base_offset`.

        `now_ms` is when: the producer is forgotten a day after it. A replay does not know, and takes the
        batch's own timestamp.
        """
        base_sequence = batch.base_sequence
        delta = batch.last_offset_delta
        last_sequence = (base_sequence + delta) & SEQUENCE_MASK
        timestamp_ms = batch.max_timestamp
        values = (base_sequence << 32 | last_sequence, base_offset, timestamp_ms)
        seen_ms = timestamp_ms if now_ms is None else now_ms
        next_sequence = (last_sequence + 1) & SEQUENCE_MASK
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            self._producers[batch.producer_id] = _Producer(
                batch.producer_epoch, next_sequence, seen_ms, array("q", values)
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
        producer.seen_ms = seen_ms

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Forget the producers that have been silent for so long; returns how many."""
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.seen_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def __len__(self) -> int:
        return len(self._producers)

    def snapshot(self) -> bytes:
        chunks = [_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, len(self._producers))]
        for producer_id, producer in self._producers.items():
            count = len(producer.batches)
            chunks.append(
                _SNAPSHOT_ENTRY.pack(producer_id, producer.epoch, producer.seen_ms, producer.next_sequence, count)
            )
            chunks.append(struct.pack(f">{count}q", *producer.batches))
        return b"".join(chunks)

    @classmethod
    def restore(cls, data: bytes) -> ProducerStates:
        """The state that `snapshot` wrote down. Raises `CorruptMessage` when the bytes are not a snapshot."""
        states = cls()
        try:
            states._producers.update(_read_snapshot(data))
        except struct.error as error:
            raise CorruptMessage(f"a producer snapshot of {len(data)} bytes is cut short: {error}") from None
        return states


def _check_against(producer: _Producer, batch: ProducedBatch) -> Duplicate | None:
    """A batch that is not simply the next one of a producer that is known."""
    epoch, sequence = batch.producer_epoch, batch.base_sequence
    if epoch < producer.epoch:
        raise InvalidProducerEpoch(
            f"producer {batch.producer_id} has epoch {producer.epoch}; a batch of epoch {epoch} is too late"
        )
    if epoch > producer.epoch:
        if sequence == 0:
            return None
        raise OutOfOrderSequence(
            f"producer {batch.producer_id} begins epoch {epoch} with sequence {sequence} instead of 0"
        )
    delta = batch.last_offset_delta
    wanted = sequence << 32 | (sequence + delta) & SEQUENCE_MASK
    batches = producer.batches
    for index in range(0, len(batches), _VALUES_PER_BATCH):
        if batches[index] == wanted:
            base_offset = batches[index + 1]
            return Duplicate(base_offset, base_offset + delta, batches[index + 2])
    raise OutOfOrderSequence(
        f"producer {batch.producer_id} sent sequence {sequence}; the next one is {producer.next_sequence}"
    )


def _read_snapshot(data: bytes) -> Iterator[tuple[int, _Producer]]:
    version, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptMessage(f"a producer snapshot of version {version} is not known here")
    position = _SNAPSHOT_HEAD.size
    for _ in range(count):
        producer_id, epoch, seen_ms, next_sequence, value_count = _SNAPSHOT_ENTRY.unpack_from(data, position)
        position += _SNAPSHOT_ENTRY.size
        values = struct.unpack_from(f">{value_count}q", data, position)
        position += value_count * 8
        yield producer_id, _Producer(epoch, next_sequence, seen_ms, array("q", values))
    if position != len(data):
        raise CorruptMessage(f"a producer snapshot has {len(data) - position} bytes too many")
