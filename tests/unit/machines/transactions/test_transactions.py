"""The rules of transactions, one by one, in both generations of the protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.machines.transactions.transaction_state import (
    EPOCH_LAST,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.errors import (
    ConcurrentTransactions,
    HeadraceError,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
)

ID = "shop"
A, B = ("a", 0), ("b", 1)
TIMEOUT_MS = 60_000
DAY_MS = 86_400_000


class Desk:
    """Asks the machine and applies what it says, as the coordinator does."""

    def __init__(self) -> None:
        self.machine = TransactionStates(timeout_max_ms=900_000)
        self.now_ms = 1_000
        self.producer_ids = 100

    @property
    def now(self) -> TransactionMetadata:
        transaction = self.machine.find(ID)
        assert transaction is not None
        return transaction

    def init(self, claim: ProducerIdAndEpoch | None = None, timeout_ms: int = TIMEOUT_MS) -> ProducerIdAndEpoch:
        return self._do(self.machine.init(ID, timeout_ms, claim, self._spare(), self.now_ms)).producer

    def add(self, producer: ProducerIdAndEpoch, *partitions: tuple[str, int]) -> None:
        self._do(self.machine.add(ID, producer, partitions, self.now_ms))

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, bumps_epoch: bool = False
    ) -> ProducerIdAndEpoch:
        spare = self._spare()
        return self._do(
            self.machine.end(ID, producer, spare, self.now_ms, is_commit=commit, bumps_epoch=bumps_epoch)
        ).next_producer

    def commit(self, producer: ProducerIdAndEpoch) -> None:
        self.end(producer)
        self.complete()

    def complete(self) -> None:
        self._do(self.machine.ended(ID, self.now_ms))

    def restart(self) -> None:
        """Only what was stored is left."""
        stored, self.machine = self.now, TransactionStates(timeout_max_ms=900_000)
        self.machine.restore(stored, self.now_ms)

    def at_epoch(self, epoch: int) -> ProducerIdAndEpoch:
        """A producer that has come as far as that."""
        producer = ProducerIdAndEpoch(self.init().id, epoch)
        self._do(TransactionMetadata(ID, producer, TIMEOUT_MS, self.now_ms))
        return producer

    def _do(self, transaction: TransactionMetadata) -> TransactionMetadata:
        self.machine.apply(transaction)
        return transaction

    def _spare(self) -> int | None:
        if not self.machine.needs_producer_id(ID):
            return None
        self.producer_ids += 1
        return self.producer_ids


@pytest.fixture
def desk() -> Desk:
    return Desk()


# Beginning


def test_a_new_id_gets_a_new_producer_id_with_epoch_0(desk: Desk) -> None:
    assert desk.init() == ProducerIdAndEpoch(101, 0)
    assert desk.now.status is TransactionStatus.EMPTY


def test_a_later_producer_gets_the_next_epoch_and_fences_the_earlier_one(desk: Desk) -> None:
    old = desk.init()
    new = desk.init()
    assert new == ProducerIdAndEpoch(old.id, 1)
    with pytest.raises(ProducerFenced):
        desk.add(old, A)
    desk.add(new, A)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_a_timeout_out_of_bounds_is_rejected(desk: Desk, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        desk.init(timeout_ms=timeout_ms)
    assert desk.machine.find(ID) is None


def test_the_last_timeout_counts(desk: Desk) -> None:
    desk.init(timeout_ms=900_000)
    desk.init(timeout_ms=1)
    assert desk.now.timeout_ms == 1


def test_when_the_epochs_are_used_up_there_is_a_new_producer_id(desk: Desk) -> None:
    old = desk.at_epoch(EPOCH_LAST)
    assert desk.init() == ProducerIdAndEpoch(102, 0)
    with pytest.raises(InvalidProducerIdMapping):
        desk.add(old, A)


@pytest.mark.parametrize("is_commit", [True, False])
def test_no_producer_begins_while_a_transaction_is_ending(desk: Desk, is_commit: bool) -> None:
    producer = desk.init()
    desk.add(producer, A)
    desk.end(producer, commit=is_commit)
    with pytest.raises(ConcurrentTransactions):
        desk.init()
    with pytest.raises(ConcurrentTransactions):
        desk.add(producer, B)
    desk.complete()
    desk.add(producer, B)
    assert desk.now.partitions == {B}


def test_an_open_transaction_is_aborted_before_another_producer_begins(desk: Desk) -> None:
    old = desk.init()
    desk.add(old, A)
    desk.init()
    assert desk.now.status is TransactionStatus.PREPARE_ABORT
    assert desk.now.producer == ProducerIdAndEpoch(old.id, 1), "the markers shut the old one out"
    for bumps_epoch in (False, True):
        with pytest.raises(ProducerFenced):
            desk.end(old, bumps_epoch=bumps_epoch)
    desk.complete()
    assert desk.init() == ProducerIdAndEpoch(old.id, 2)


# Going on after an error (KIP-360)


def test_a_producer_may_claim_its_next_epoch(desk: Desk) -> None:
    first = desk.init()
    assert desk.init(first) == ProducerIdAndEpoch(first.id, 1)


def test_a_claim_may_be_repeated_even_after_a_restart(desk: Desk) -> None:
    first = desk.init()
    second = desk.init(first)
    assert desk.init(first) == second
    desk.restart()
    assert desk.init(first) == second
    with pytest.raises(ProducerFenced):
        desk.end(first, commit=False, bumps_epoch=True)


def test_a_claim_is_rejected_after_another_producer_took_over(desk: Desk) -> None:
    first = desk.init()
    desk.init()
    with pytest.raises(ProducerFenced):
        desk.init(first)
    with pytest.raises(ProducerFenced):
        desk.init(ProducerIdAndEpoch(first.id + 1, first.epoch))


def test_a_rejected_claim_does_not_abort_the_open_transaction(desk: Desk) -> None:
    old = desk.init()
    new = desk.init()
    desk.add(new, A)
    with pytest.raises(ProducerFenced):
        desk.init(old)
    assert desk.now.status is TransactionStatus.ONGOING


def test_a_claim_aborts_the_producers_own_open_transaction(desk: Desk) -> None:
    first = desk.init()
    desk.add(first, A)
    desk.init(first)
    assert desk.now.status is TransactionStatus.PREPARE_ABORT
    with pytest.raises(ConcurrentTransactions):
        desk.init(first)
    desk.complete()
    assert desk.init(first) == ProducerIdAndEpoch(first.id, 1)
    assert desk.init(first) == ProducerIdAndEpoch(first.id, 1), "again, because the answer was lost"


def test_a_claim_of_the_last_epoch_leads_to_a_new_producer_id_and_may_be_repeated(desk: Desk) -> None:
    last = desk.at_epoch(EPOCH_LAST)
    new = desk.init(last)
    assert new.epoch == 0
    assert new.id != last.id
    assert desk.init(last) == new


def test_a_claim_of_the_last_epoch_in_a_transaction_leads_to_a_new_producer_id(desk: Desk) -> None:
    last = desk.at_epoch(EPOCH_LAST)
    desk.add(last, A)
    desk.init(last)
    assert desk.now.producer == ProducerIdAndEpoch(last.id, EPOCH_LAST + 1)
    desk.complete()
    new = desk.init(last)
    assert (new.id != last.id, new.epoch) == (True, 0)
    assert desk.init(last) == new


def test_a_claim_to_an_expired_id_has_no_effect(desk: Desk) -> None:
    assert desk.init(ProducerIdAndEpoch(7, 3)) == ProducerIdAndEpoch(101, 0)


def test_the_epoch_that_only_markers_have_cannot_be_claimed(desk: Desk) -> None:
    last = desk.at_epoch(EPOCH_LAST)
    desk.add(last, A)
    desk.init()
    desk.complete()
    guessed = ProducerIdAndEpoch(last.id, EPOCH_LAST + 1)
    assert desk.now.producer == guessed
    with pytest.raises(ProducerFenced):
        desk.init(guessed)
    with pytest.raises(ProducerFenced):
        desk.add(guessed, A)
    with pytest.raises(ProducerFenced):
        desk.end(guessed, commit=False, bumps_epoch=True)
    assert desk.init().epoch == 0


# Partitions


def test_the_first_partition_begins_the_transaction(desk: Desk) -> None:
    producer = desk.init()
    desk.now_ms = 5_000
    desk.add(producer, A)
    desk.now_ms = 6_000
    desk.add(producer, B)
    assert (desk.now.status, desk.now.start_ms) == (TransactionStatus.ONGOING, 5_000)
    assert desk.now.partitions == {A, B}


def test_the_start_of_an_ended_transaction_is_kept_until_the_next_begins(desk: Desk) -> None:
    producer = desk.init()
    desk.now_ms = 5_000
    desk.add(producer, A)
    desk.commit(producer)
    assert desk.now.start_ms == 5_000
    desk.now_ms = 7_000
    desk.add(desk.now.producer, A)
    assert desk.now.start_ms == 7_000
    desk.commit(desk.now.producer)
    desk.init()
    assert (desk.now.status, desk.now.start_ms) == (TransactionStatus.EMPTY, -1)


def test_adding_a_partition_twice_changes_nothing(desk: Desk) -> None:
    producer = desk.init()
    desk.add(producer, A)
    before = desk.now
    assert desk.machine.add(ID, producer, [A], 9_000) is before
    assert desk.machine.add(ID, producer, [], 9_000) is before


def test_only_the_partitions_of_the_open_transaction_may_be_written_to(desk: Desk) -> None:
    producer = desk.init()
    with pytest.raises(InvalidTransactionState):
        desk.machine.verify(ID, producer, A)
    desk.add(producer, A)
    desk.machine.verify(ID, producer, A)
    with pytest.raises(InvalidTransactionState):
        desk.machine.verify(ID, producer, B)
    desk.end(producer)
    with pytest.raises(ConcurrentTransactions):
        desk.machine.verify(ID, producer, A)
    desk.complete()
    with pytest.raises(InvalidTransactionState):
        desk.machine.verify(ID, producer, A)


def test_an_unknown_producer_gets_an_invalid_mapping_error(desk: Desk) -> None:
    stranger = ProducerIdAndEpoch(999, 0)
    for known in (False, True):
        if known:
            desk.init()
        with pytest.raises(InvalidProducerIdMapping):
            desk.add(stranger, A)
        with pytest.raises(InvalidProducerIdMapping):
            desk.machine.verify(ID, stranger, A)
        with pytest.raises(InvalidProducerIdMapping):
            desk.end(stranger)


@pytest.mark.parametrize("epoch", [0, 2])
def test_only_the_present_epoch_counts(desk: Desk, epoch: int) -> None:
    desk.init()
    producer = desk.init()
    desk.add(producer, A)
    other = ProducerIdAndEpoch(producer.id, epoch)
    with pytest.raises(ProducerFenced):
        desk.add(other, B)
    with pytest.raises(ProducerFenced):
        desk.machine.verify(ID, other, A)
    for bumps_epoch in (False, True):
        with pytest.raises(ProducerFenced):
            desk.end(other, bumps_epoch=bumps_epoch)


# The end in the older protocol


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_keeps_the_epoch_and_may_be_repeated(desk: Desk, is_commit: bool) -> None:
    producer = desk.init()
    desk.add(producer, A)
    assert desk.end(producer, commit=is_commit) == producer
    assert (desk.now.is_ending, desk.now.is_commit) == (True, is_commit)
    with pytest.raises(ConcurrentTransactions):
        desk.end(producer, commit=is_commit)
    with pytest.raises(InvalidTransactionState):
        desk.end(producer, commit=not is_commit)
    desk.complete()
    assert desk.end(producer, commit=is_commit) == producer
    with pytest.raises(InvalidTransactionState):
        desk.end(producer, commit=not is_commit)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_that_was_not_begun_cannot_be_ended(desk: Desk, is_commit: bool) -> None:
    producer = desk.init()
    with pytest.raises(InvalidTransactionState):
        desk.end(producer, commit=is_commit)


# The end in the newer protocol (KIP-890)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_bumps_the_epoch_and_may_be_repeated_with_the_old_one(desk: Desk, is_commit: bool) -> None:
    producer = desk.init()
    desk.add(producer, A)
    following = desk.end(producer, commit=is_commit, bumps_epoch=True)
    assert following == ProducerIdAndEpoch(producer.id, producer.epoch + 1)
    assert desk.now.producer == following, "the markers carry it"
    with pytest.raises(ConcurrentTransactions):
        desk.end(producer, commit=is_commit, bumps_epoch=True)
    with pytest.raises(InvalidTransactionState):
        desk.end(producer, commit=not is_commit, bumps_epoch=True)
    desk.restart()
    desk.complete()
    assert desk.end(producer, commit=is_commit, bumps_epoch=True) == following
    with pytest.raises(InvalidTransactionState):
        desk.end(producer, commit=not is_commit, bumps_epoch=True)


def test_a_late_end_does_not_touch_the_next_transaction(desk: Desk) -> None:
    first = desk.init()
    desk.add(first, A)
    second = desk.end(first, bumps_epoch=True)
    desk.complete()
    desk.add(second, A)
    before = desk.now
    for is_commit in (True, False):
        with pytest.raises(ProducerFenced):
            desk.end(first, commit=is_commit, bumps_epoch=True)
    with pytest.raises(ProducerFenced):
        desk.add(first, B)
    with pytest.raises(ProducerFenced):
        desk.machine.verify(ID, first, A)
    assert desk.now is before


def test_an_old_end_cannot_be_repeated_after_the_next_one(desk: Desk) -> None:
    first = desk.init()
    second = desk.end(first, commit=False, bumps_epoch=True)
    desk.end(second, commit=False, bumps_epoch=True)
    with pytest.raises(ProducerFenced):
        desk.end(first, commit=False, bumps_epoch=True)


def test_an_abort_of_an_empty_transaction_completes_at_once_and_bumps_the_epoch(desk: Desk) -> None:
    first = desk.init()
    second = desk.end(first, commit=False, bumps_epoch=True)
    assert second == ProducerIdAndEpoch(first.id, 1)
    assert desk.now.status is TransactionStatus.COMPLETE_ABORT
    assert desk.end(first, commit=False, bumps_epoch=True) == second, "a retry"
    with pytest.raises(InvalidTransactionState):
        desk.end(second, commit=True, bumps_epoch=True)
    assert desk.end(second, commit=False, bumps_epoch=True) == ProducerIdAndEpoch(first.id, 2)


def test_a_commit_without_a_transaction_is_rejected(desk: Desk) -> None:
    with pytest.raises(InvalidTransactionState):
        desk.end(desk.init(), commit=True, bumps_epoch=True)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_in_the_last_epoch_leads_to_a_new_producer_id(desk: Desk, is_commit: bool) -> None:
    last = desk.at_epoch(EPOCH_LAST)
    desk.add(last, A)
    following = desk.end(last, commit=is_commit, bumps_epoch=True)
    assert (following.id != last.id, following.epoch) == (True, 0)
    assert desk.now.producer == ProducerIdAndEpoch(last.id, EPOCH_LAST + 1), "the markers fence the old one"
    desk.restart()
    desk.complete()
    assert desk.now.producer == following
    assert desk.end(last, commit=is_commit, bumps_epoch=True) == following, "a retry"
    desk.add(following, A)
    with pytest.raises(InvalidProducerIdMapping):
        desk.end(last, commit=is_commit, bumps_epoch=True)


@pytest.mark.parametrize("epoch", [0, EPOCH_LAST])
def test_a_producer_ahead_of_the_log_after_a_crash_gets_concurrent_transactions(desk: Desk, epoch: int) -> None:
    """It has heard that its transaction is over, and begins the next; but that it is over was not yet on disk."""
    producer = desk.at_epoch(epoch)
    desk.add(producer, A)
    following = desk.end(producer, bumps_epoch=True)
    desk.restart()
    asks: list[Callable[[], object]] = [
        lambda: desk.add(following, A),
        lambda: desk.machine.verify(ID, following, A),
        lambda: desk.end(following, commit=False, bumps_epoch=True),
        lambda: desk.init(following),
    ]
    for ask in asks:
        with pytest.raises(ConcurrentTransactions):
            ask()
    desk.complete()
    desk.add(following, A)


def test_a_producer_that_lost_the_end_response_may_claim_the_next_epoch(desk: Desk) -> None:
    first = desk.init()
    desk.add(first, A)
    second = desk.end(first, bumps_epoch=True)
    desk.complete()
    assert desk.init(first) == second
    assert desk.now.status is TransactionStatus.EMPTY


def test_the_older_protocol_cannot_repeat_an_end_of_the_newer(desk: Desk) -> None:
    first = desk.init()
    desk.add(first, A)
    desk.end(first, bumps_epoch=True)
    with pytest.raises(ProducerFenced):
        desk.end(first, bumps_epoch=False)
    desk.complete()
    with pytest.raises(ProducerFenced):
        desk.end(first, bumps_epoch=False)


# Time


def test_a_timed_out_transaction_is_fenced_and_aborted(desk: Desk) -> None:
    producer = desk.init()
    desk.add(producer, A)
    desk.now_ms += TIMEOUT_MS
    assert desk.machine.timed_out(desk.now_ms) == []
    desk.now_ms += 1
    (aborting,) = desk.machine.timed_out(desk.now_ms)
    desk.machine.apply(aborting)
    assert (aborting.status, aborting.producer.epoch) == (TransactionStatus.PREPARE_ABORT, producer.epoch + 1)
    assert desk.machine.timed_out(desk.now_ms) == []
    asks: list[Callable[[], object]] = [
        lambda: desk.add(producer, B),
        lambda: desk.machine.verify(ID, producer, A),
        lambda: desk.end(producer, bumps_epoch=True),
        lambda: desk.end(producer, commit=False, bumps_epoch=True),
        lambda: desk.end(producer),
        lambda: desk.init(producer),
    ]
    for _ in range(2):
        for ask in asks:
            with pytest.raises(ProducerFenced):
                ask()
        if desk.now.is_ending:
            desk.complete()
    assert desk.init() == ProducerIdAndEpoch(producer.id, producer.epoch + 2)


def test_a_timeout_in_the_last_epoch_leaves_an_id_that_can_be_used_again(desk: Desk) -> None:
    producer = desk.at_epoch(EPOCH_LAST)
    desk.add(producer, A)
    (aborting,) = desk.machine.timed_out(desk.now_ms + TIMEOUT_MS + 1)
    desk.machine.apply(aborting)
    desk.complete()
    assert desk.init() == ProducerIdAndEpoch(desk.producer_ids, 0)


def test_a_clock_that_went_back_does_not_extend_a_transaction(desk: Desk) -> None:
    desk.now_ms = DAY_MS
    desk.add(desk.init(), A)
    desk.now_ms = 0
    desk.restart()
    assert len(desk.machine.timed_out(TIMEOUT_MS + 1)) == 1


def test_unused_ids_expire_but_not_while_a_transaction_is_open(desk: Desk) -> None:
    producer = desk.init()
    late_ms = desk.now_ms + DAY_MS + 1
    assert desk.machine.expired(late_ms - 1, DAY_MS) == []
    assert desk.machine.expired(late_ms, DAY_MS) == [ID]
    desk.add(producer, A)
    assert desk.machine.expired(late_ms, DAY_MS) == []
    desk.end(producer)
    assert desk.machine.expired(late_ms, DAY_MS) == []
    desk.complete()
    assert desk.machine.expired(late_ms, DAY_MS) == [ID]
    desk.machine.forget(ID)
    assert len(desk.machine) == 0
    assert desk.init() == ProducerIdAndEpoch(producer.id + 1, 0)


def test_a_partition_of_an_open_transaction_has_a_holder(desk: Desk) -> None:
    producer = desk.init()
    desk.add(producer, A)
    assert desk.machine.holder(producer.id, A) is desk.now
    assert desk.machine.holder(producer.id, B) is None
    assert desk.machine.holder(producer.id + 1, A) is None
    desk.end(producer)
    assert desk.machine.holder(producer.id, A) is desk.now
    desk.complete()
    assert desk.machine.holder(producer.id, A) is None


def test_an_error_changes_nothing(desk: Desk) -> None:
    producer = desk.init()
    desk.add(producer, A)
    before = desk.now
    asks: list[Callable[[], object]] = [
        lambda: desk.init(ProducerIdAndEpoch(producer.id, 9)),
        lambda: desk.add(ProducerIdAndEpoch(producer.id, 9), B),
        lambda: desk.end(ProducerIdAndEpoch(producer.id, 9)),
        lambda: desk.init(timeout_ms=0),
    ]
    for ask in asks:
        with pytest.raises(HeadraceError):
            ask()
        assert desk.now is before
