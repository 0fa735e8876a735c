"""The state of one transactional id: its producer, and the state of its transaction. Pure.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

A transaction is a value. Each step returns the next value, which is then stored. A stored Prepare state decides the
outcome: it has only one successor.

- A producer consists of an id and an epoch; a producer with an older epoch is fenced. The epoch grows with every
  InitProducerId, with every end in the newer protocol (KIP-890), with the end of a joint commit, and whenever the
  coordinator itself aborts. `EPOCH_LAST` is the last epoch that a producer gets; the epoch above it is only used in
  markers that fence it. After that there is a new producer id.
- Partitions are set in Ongoing and Prepare only. A next producer id is set in Prepare only, and then the epoch is the
  one above the last.
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
    """The names that Kafka's tools show."""

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
    start_ms: int = -1
    """Of the open transaction or, as Kafka's tools show it, the last one; -1 if there was none since Empty."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is decided, but some partitions do not have the marker yet."""
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_open(self) -> bool:
        """Whether partitions may have records of this transaction without its marker."""
        return self.status is TransactionStatus.ONGOING or self.is_ending

    @property
    def is_commit(self) -> bool:
        return self.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        """Whether the next bump needs a new producer id."""
        return self.producer.epoch >= EPOCH_LAST

    @property
    def previous(self) -> ProducerIdAndEpoch | None:
        """The producer before the last bump if it requested the bump itself: it may retry after a lost response."""
        if self.previous_producer_id == NO_PRODUCER_ID:
            return None
        if self.previous_producer_id == self.producer.id:
            return ProducerIdAndEpoch(self.producer.id, self.producer.epoch - 1)
        return ProducerIdAndEpoch(self.previous_producer_id, EPOCH_LAST)

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """The producer after the end of an ending transaction."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer
        return ProducerIdAndEpoch(self.next_producer_id, 0)

    def joined(self, partitions: Iterable[TopicPartition], now_ms: int) -> TransactionMetadata:
        """Return the Ongoing transaction with these partitions added. Its producer knows the last bump, so there will
        be no retry of it."""
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
        """Decide in the older protocol: the producer keeps its epoch."""
        assert not self.is_ending
        return replace(
            self,
            status=TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
            updated_ms=now_ms,
            previous_producer_id=NO_PRODUCER_ID,
        )

    def ending_bumped(self, new_producer_id: int | None, now_ms: int, *, is_commit: bool) -> TransactionMetadata:
        """Decide in the newer protocol: the markers have the next epoch, which the producer uses from then on."""
        assert new_producer_id is not None or not self.is_exhausted
        return replace(
            self.fenced(now_ms, is_commit=is_commit),
            previous_producer_id=self.producer.id,
            next_producer_id=new_producer_id if new_producer_id is not None and self.is_exhausted else NO_PRODUCER_ID,
        )

    def fenced(self, now_ms: int, *, is_commit: bool = False) -> TransactionMetadata:
        """Decide with an epoch that no client gets: the producer that began the transaction is fenced."""
        assert self.producer.epoch <= EPOCH_LAST
        return replace(
            self.ending(now_ms, is_commit=is_commit),
            producer=ProducerIdAndEpoch(self.producer.id, self.producer.epoch + 1),
        )

    def ended(self, now_ms: int) -> TransactionMetadata:
        """Return the completed transaction: all partitions have their markers."""
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
        """Return Empty for a producer in the next epoch; `by_itself`: its former self may retry."""
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
        """Return Empty for the same producer."""
        assert not self.is_open
        return replace(self, status=TransactionStatus.EMPTY, timeout_ms=timeout_ms, start_ms=-1, updated_ms=now_ms)
