"""The decisions of the transaction coordinator, for all its transactional ids.

A question returns the next value of one transaction, or raises; what it returns is appended to the log and applied in
the same step. A question that changes nothing returns the present value itself. So a replay of the log gives the same
state again, and whatever is asked twice is answered alike:

- the older protocol keeps the epoch over the end of a transaction: the outcome tells a retry from the next end;
- the newer one bumps it with every end: whoever still has the epoch before it asks again for what was done.

Who is not the present producer of his id changes nothing: that is what makes a producer that was given up harmless.
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
        """Whether `init` and `end` must be given a new producer id: one that nobody had before."""
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
        """A producer begins to use the id, or (with a claim) goes on after an error.

        If what is returned is ending, an open transaction must be ended first; then ask again.
        """
        self._check_timeout(timeout_ms)
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            # A claim to an id that has expired is as good as none.
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
        """The partitions become part of the producer's transaction, which begins with the first of them."""
        transaction = self._of(transactional_id, producer)
        if transaction.partitions.issuperset(partitions):
            return transaction
        return transaction.joined(partitions, now_ms)

    def present(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """What the id has come to, whatever that is, for its present producer alone."""
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            raise _invalid_mapping(transactional_id, producer)
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
        """The producer ends its transaction; `bumps_epoch` in the newer protocol. Its next epoch is the answer's
        `next_producer`."""
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            raise _invalid_mapping(transactional_id, producer)
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
            # A producer that sent nothing, or does not know whether it did, may abort. There is nobody to tell.
            return transaction.ending_bumped(new_producer_id, now_ms, is_commit=False).ended(now_ms)
        if bumps_epoch or transaction.status is TransactionStatus.EMPTY:
            raise InvalidTransactionState(f"{transactional_id} has no open transaction that could be ended")
        _check_outcome(transaction, is_commit=is_commit)
        return transaction

    def ended(self, transactional_id: str, now_ms: int) -> TransactionMetadata:
        """All partitions of a transaction that was ending have their markers."""
        return self._by_id[transactional_id].ended(now_ms)

    def timed_out(self, now_ms: int) -> list[TransactionMetadata]:
        """The transactions that have been open for too long, fenced and to be aborted."""
        return [
            transaction.fenced(now_ms)
            for transaction in self._by_id.values()
            if transaction.status is TransactionStatus.ONGOING
            and now_ms - transaction.start_ms > transaction.timeout_ms
        ]

    def expired(self, now_ms: int, expiration_ms: int) -> list[str]:
        """The ids that nobody has used for so long."""
        return [
            transaction.transactional_id
            for transaction in self._by_id.values()
            if not transaction.is_open and now_ms - transaction.updated_ms > expiration_ms
        ]

    def holder(self, producer_id: int, partition: TopicPartition) -> TransactionMetadata | None:
        """The open transaction of this producer that will tell the partition its outcome."""
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
        """Apply what was stored before the start. A clock that went back since must not make it live longer."""
        self.apply(
            replace(
                transaction,
                start_ms=min(transaction.start_ms, now_ms),
                updated_ms=min(transaction.updated_ms, now_ms),
            )
        )

    def _check_timeout(self, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._timeout_max_ms:
            raise InvalidTransactionTimeout(
                f"a transaction may take 1 to {self._timeout_max_ms} ms (transaction.max.timeout.ms), not {timeout_ms}"
            )

    def _of(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """The transaction in which this producer can do something now."""
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            raise _invalid_mapping(transactional_id, producer)
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
    """A transaction that is decided cannot be ended now; say why."""
    previous = transaction.previous
    if producer == (previous or transaction.producer) and (bumps_epoch or previous is None):
        _check_outcome(transaction, is_commit=is_commit)
        raise _concurrent_transactions(transaction)
    if producer == transaction.next_producer:
        # It has heard that this one is over, but a crash took that back; what it ends now is its next one.
        raise _concurrent_transactions(transaction)
    _check_present(transaction, producer)
    raise _fenced(transaction, producer)


def _check_present(transaction: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if producer.id != transaction.producer.id:
        raise _invalid_mapping(transaction.transactional_id, producer)
    if producer.epoch != transaction.producer.epoch or producer.epoch > EPOCH_LAST:
        raise _fenced(transaction, producer)


def _check_outcome(transaction: TransactionMetadata, *, is_commit: bool) -> None:
    """A retry asks for the outcome that was decided. Anything else comes too late."""
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
    return ConcurrentTransactions(f"the last transaction of {transaction.transactional_id} is still ending; ask again")
