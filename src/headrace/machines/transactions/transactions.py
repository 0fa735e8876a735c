"""The decisions of the transaction coordinator, for all transactional ids of one partition. Pure.

A method returns the next value of one transaction, or raises. The caller appends and applies the value in the same
step. A method that changes nothing returns the current value itself.

- A replay of the log restores the same state.
- A retry gets the same response as the first request. In the older protocol the epoch stays the same over the end of a
  transaction, and the outcome distinguishes a retry from the next end. In the newer protocol every end bumps the epoch:
  a producer with the epoch before retries a request that was already executed.
- Only the current producer of an id changes anything, so an abandoned producer is harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NoReturn

from msgspec.structs import replace

from headrace.machines.transactions.transaction_state import (
    EPOCH_LAST,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.model.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
)


class TransactionStates:
    def __init__(self, timeout_max_ms: int) -> None:
        self._timeout_max_ms = timeout_max_ms
        self._by_id: dict[str, TransactionMetadata] = {}

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        return self._by_id.get(transactional_id)

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether `init` and `end` need a new producer id that was never used before."""
        transaction = self._by_id.get(transactional_id)
        return transaction is None or transaction.is_exhausted

    # Questions

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        claim: ProducerIdAndEpoch | None,
        new_producer_id: int | None,
        now_ms: int,
    ) -> TransactionMetadata:
        """A producer begins to use the id, or, with a claim, continues after an error. If the returned transaction is
        ending, it must be completed first; then call again."""
        self._check_timeout(timeout_ms)
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            # The id of the claim may have expired: then the claim has no effect.
            assert new_producer_id is not None
            return TransactionMetadata(transactional_id, ProducerIdAndEpoch(new_producer_id, 0), timeout_ms, now_ms)
        if claim is not None and not _is_current_or_previous(transaction, claim):
            raise _fenced(transaction, claim)
        if transaction.is_ending:
            raise _concurrent_transactions(transaction)
        if transaction.status is TransactionStatus.ONGOING:
            if claim is None:
                return transaction.fenced(now_ms)
            return transaction.ending_bumped(new_producer_id, now_ms, is_commit=False)
        if claim is not None and claim == transaction.previous:
            return transaction.emptied(timeout_ms, now_ms)
        return transaction.taken_over(new_producer_id, timeout_ms, now_ms, by_itself=claim is not None)

    def add(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition], now_ms: int
    ) -> TransactionMetadata:
        """Add partitions to the producer's transaction; the first ones begin it."""
        transaction = self._of(transactional_id, producer)
        if transaction.partitions.issuperset(partitions):
            return transaction
        return transaction.joined(partitions, now_ms)

    def present(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """Return the transaction in any state, if this is its current producer."""
        transaction = self._known(transactional_id, producer)
        _check_present(transaction, producer)
        return transaction

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition) -> None:
        """Raise unless the partition is part of the producer's open transaction."""
        transaction = self._of(transactional_id, producer)
        if partition not in transaction.partitions:
            raise InvalidTransactionState(
                f"partition {partition[0]}-{partition[1]} is not part of an open transaction of {transactional_id}"
            )

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        new_producer_id: int | None,
        now_ms: int,
        *,
        is_commit: bool,
        bumps_epoch: bool,
    ) -> TransactionMetadata:
        """`bumps_epoch`: in the newer protocol. The producer's next epoch is in `next_producer` of the result."""
        transaction = self._known(transactional_id, producer)
        if transaction.is_ending:
            _reject_while_ending(transaction, producer, is_commit=is_commit, bumps_epoch=bumps_epoch)
        if bumps_epoch and producer == transaction.previous and transaction.status is not TransactionStatus.EMPTY:
            _check_outcome(transaction, is_commit=is_commit)
            return transaction
        _check_present(transaction, producer)
        if transaction.status is TransactionStatus.ONGOING:
            if bumps_epoch:
                return transaction.ending_bumped(new_producer_id, now_ms, is_commit=is_commit)
            return transaction.ending(now_ms, is_commit=is_commit)
        if bumps_epoch and not is_commit:
            # A producer that has sent nothing, or does not know whether it has, may abort. No partition needs a marker.
            return transaction.ending_bumped(new_producer_id, now_ms, is_commit=False).ended(now_ms)
        if bumps_epoch or transaction.status is TransactionStatus.EMPTY:
            raise InvalidTransactionState(f"{transactional_id} has no open transaction that could be ended")
        _check_outcome(transaction, is_commit=is_commit)
        return transaction

    def ended(self, transactional_id: str, now_ms: int) -> TransactionMetadata:
        """Complete an ending transaction whose partitions all have their markers."""
        return self._by_id[transactional_id].ended(now_ms)

    def timed_out(self, now_ms: int) -> list[TransactionMetadata]:
        """Return the transactions that were open for too long, fenced and aborting."""
        return [
            transaction.fenced(now_ms)
            for transaction in self._by_id.values()
            if transaction.status is TransactionStatus.ONGOING
            and now_ms - transaction.start_ms > transaction.timeout_ms
        ]

    def expired(self, now_ms: int, expiration_ms: int) -> list[str]:
        """Return the ids that were not used for this long."""
        return [
            transaction.transactional_id
            for transaction in self._by_id.values()
            if not transaction.is_open and now_ms - transaction.updated_ms > expiration_ms
        ]

    def holder(self, producer_id: int, partition: TopicPartition) -> TransactionMetadata | None:
        """Return the open transaction of this producer that includes the partition."""
        for transaction in self._by_id.values():
            if transaction.is_open and transaction.producer.id == producer_id and partition in transaction.partitions:
                return transaction
        return None

    # Changes

    def apply(self, transaction: TransactionMetadata) -> None:
        self._by_id[transaction.transactional_id] = transaction

    def forget(self, transactional_id: str) -> None:
        self._by_id.pop(transactional_id, None)

    def restore(self, transaction: TransactionMetadata, now_ms: int) -> None:
        """Apply a stored record after a restart. If the clock went back since, the record must not live longer."""
        start_ms, updated_ms = min(transaction.start_ms, now_ms), min(transaction.updated_ms, now_ms)
        self.apply(replace(transaction, start_ms=start_ms, updated_ms=updated_ms))

    def _check_timeout(self, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"a transaction may take 1 to {self._timeout_max_ms} ms (transaction.max.timeout.ms), not {timeout_ms}"
            )

    def _known(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            raise _invalid_mapping(transactional_id, producer)
        return transaction

    def _of(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """Return the transaction in which this producer may do something now."""
        transaction = self._known(transactional_id, producer)
        if transaction.is_ending and producer == transaction.next_producer:
            raise _concurrent_transactions(transaction)
        _check_present(transaction, producer)
        return transaction


def _is_current_or_previous(transaction: TransactionMetadata, claim: ProducerIdAndEpoch) -> bool:
    known = (transaction.producer, transaction.previous, transaction.next_producer)
    return claim in known and claim.epoch <= EPOCH_LAST


def _reject_while_ending(
    transaction: TransactionMetadata, producer: ProducerIdAndEpoch, *, is_commit: bool, bumps_epoch: bool
) -> NoReturn:
    """Raise the error for ending a transaction that is already decided."""
    previous = transaction.previous
    if producer == (previous or transaction.producer) and (bumps_epoch or previous is None):
        _check_outcome(transaction, is_commit=is_commit)
        raise _concurrent_transactions(transaction)
    if producer == transaction.next_producer:
        # The response was sent, but a crash reverted the completion; the producer is ending its next transaction.
        raise _concurrent_transactions(transaction)
    _check_present(transaction, producer)
    raise _fenced(transaction, producer)


def _check_present(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if producer.id != transaction.producer.id:
        raise _invalid_mapping(transaction.transactional_id, producer)
    if producer.epoch != transaction.producer.epoch or producer.epoch > EPOCH_LAST:
        raise _fenced(transaction, producer)


def _check_outcome(transaction: TransactionMetadata, *, is_commit: bool) -> None:
    """A retry must request the decided outcome; any other request is too late."""
    if transaction.is_commit != is_commit:
        raise InvalidTransactionState(
            f"the transaction of {transaction.transactional_id} is in state {transaction.status}: its outcome is fixed"
        )


def _invalid_mapping(transactional_id: str, producer: ProducerIdAndEpoch) -> InvalidProducerIdMapping:
    return InvalidProducerIdMapping(f"producer id {producer.id} does not belong to transactional id {transactional_id}")


def _fenced(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> ProducerFenced:
    return ProducerFenced(
        f"producer {producer.id} of {transaction.transactional_id} comes with epoch {producer.epoch}, "
        f"which is not its present one"
    )


def _concurrent_transactions(transaction: TransactionMetadata) -> ConcurrentTransactions:
    return ConcurrentTransactions(f"the last transaction of {transaction.transactional_id} is still ending; retry")
