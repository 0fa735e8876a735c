"""One transactional id: who its producer is at present, and how far its transaction has come.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

A transaction is a value; each step returns the next one, and that value is what is stored. From a Prepare state there
is one way only: once it is stored, the outcome is decided.

A producer is its id and epoch; whoever has an older epoch is fenced. The epoch moves with every InitProducerId, with
every end in the newer protocol, with the end of a bundle, and whenever the coordinator itself aborts. `EPOCH_LAST` is
the last epoch that a producer is told; the one above it only stands in the markers that fence it. Behind that comes a
new producer id.

Invariants: partitions are named in Ongoing and Prepare only; a next producer id is named in Prepare only, and then the
epoch is the one above the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

EPOCH_LAST = 32_766
NO_PRODUCER_ID = -1

TopicPartition = tuple[str, int]


class TransactionStatus(StrEnum):
    """By the names that Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class ProducerIdAndEpoch(NamedTuple):
    id: int
    epoch: int


class TransactionMetadata(msgspec.Struct, frozen=True):
    transactional_id: str
    producer: ProducerIdAndEpoch
    timeout_ms: int
    updated_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = (
        -1
    )  # of the transaction that is open or, as Kafka's tools show it, was the last; -1: none since Empty
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID

    @property
    def is_ending(self) -> bool:
        """Decided, but not yet told to all its partitions."""
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_open(self) -> bool:
        """Partitions may hold something of it whose end they do not know."""
        return self.status is TransactionStatus.ONGOING or self.is_ending

    @property
    def is_commit(self) -> bool:
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        """The next bump must be to a new producer id."""
        return self.producer.epoch >= EPOCH_LAST

    @property
    def previous(self) -> ProducerIdAndEpoch | None:
        """The producer before the last bump, if it asked for that itself: it may ask again, not having heard."""
        if self.previous_producer_id == NO_PRODUCER_ID:
            return None
        if self.previous_producer_id == self.producer.id:
            return ProducerIdAndEpoch(self.producer.id, self.producer.epoch - 1)
        return ProducerIdAndEpoch(self.previous_producer_id, EPOCH_LAST)

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """The producer as it will be when a transaction that is ending is over."""
        return (
            self.producer if self.next_producer_id == NO_PRODUCER_ID else ProducerIdAndEpoch(self.next_producer_id, 0)
        )

    def joined(self, partitions: Iterable[TopicPartition], now_ms: int) -> TransactionMetadata:
        """Ongoing, with these partitions too. Who begins anew has heard of the last bump: nobody asks for it again."""
        assert not self.is_ending
        return replace(
            self,
            status=TransactionStatus.ONGOING,
            partitions=self.partitions | frozenset(partitions),
            start_ms=self.start_ms if self.status is TransactionStatus.ONGOING else now_ms,
            updated_ms=now_ms,
            previous_producer_id=NO_PRODUCER_ID,
        )

    def ending(self, now_ms: int, *, is_commit: bool) -> TransactionMetadata:
        """Decided in the older protocol: the producer goes on in its epoch."""
        return self._decided(now_ms, is_commit=is_commit)

    def ending_bumped(self, new_producer_id: int | None, now_ms: int, *, is_commit: bool) -> TransactionMetadata:
        """Decided in the newer protocol: the markers carry the next epoch, with which the producer goes on."""
        assert self.producer.epoch <= EPOCH_LAST
        assert new_producer_id is not None or not self.is_exhausted
        return replace(
            self._decided(now_ms, is_commit=is_commit),
            producer=ProducerIdAndEpoch(self.producer.id, self.producer.epoch + 1),
            previous_producer_id=self.producer.id,
            next_producer_id=new_producer_id if new_producer_id is not None and self.is_exhausted else NO_PRODUCER_ID,
        )

    def fenced(self, now_ms: int, *, is_commit: bool = False) -> TransactionMetadata:
        """Decided under an epoch that nobody is told: whoever has begun it is shut out."""
        assert self.producer.epoch <= EPOCH_LAST
        return replace(
            self._decided(now_ms, is_commit=is_commit),
            producer=ProducerIdAndEpoch(self.producer.id, self.producer.epoch + 1),
        )

    def ended(self, now_ms: int) -> TransactionMetadata:
        """All partitions know; nothing is open any more."""
        assert self.is_ending
        is_new_id = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            status=TransactionStatus.COMPLETE_COMMIT if self.is_commit else TransactionStatus.COMPLETE_ABORT,
            producer=self.next_producer,
            previous_producer_id=self.producer.id if is_new_id else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def taken_over(
        self, new_producer_id: int | None, timeout_ms: int, now_ms: int, *, by_itself: bool = False
    ) -> TransactionMetadata:
        """Empty, for a producer in the next epoch; `by_itself`: the one before may ask again."""
        assert not self.is_open
        producer = ProducerIdAndEpoch(self.producer.id, self.producer.epoch + 1)
        if self.is_exhausted:
            assert new_producer_id is not None
            producer = ProducerIdAndEpoch(new_producer_id, 0)
        return replace(
            self.emptied(timeout_ms, now_ms),
            producer=producer,
            previous_producer_id=self.producer.id if by_itself else NO_PRODUCER_ID,
        )

    def emptied(self, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """Empty, for the same producer."""
        assert not self.is_open
        return replace(self, status=TransactionStatus.EMPTY, timeout_ms=timeout_ms, start_ms=-1, updated_ms=now_ms)

    def _decided(self, now_ms: int, *, is_commit: bool) -> TransactionMetadata:
        assert not self.is_ending
        return replace(
            self,
            status=TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
            updated_ms=now_ms,
            previous_producer_id=NO_PRODUCER_ID,
        )
