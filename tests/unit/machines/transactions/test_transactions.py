"""The rules of transactions, one by one, in both protocol versions."""

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


class TransactionDriver:
    """Runs the state machine as the coordinator does: each event is applied at once."""

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
def driver() -> TransactionDriver:
    return TransactionDriver()


# Beginning


def test_a_new_id_gets_a_new_producer_id_with_epoch_0(driver: TransactionDriver) -> None:
    assert driver.init() == ProducerIdAndEpoch(101, 0)
    assert driver.now.status is TransactionStatus.EMPTY


def test_a_later_producer_gets_the_next_epoch_and_fences_the_earlier_one(driver: TransactionDriver) -> None:
    old = driver.init()
    new = driver.init()
    assert new == ProducerIdAndEpoch(old.id, 1)
    with pytest.raises(ProducerFenced):
        driver.add(old, A)
    driver.add(new, A)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_a_timeout_out_of_bounds_is_rejected(driver: TransactionDriver, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        driver.init(timeout_ms=timeout_ms)
    assert driver.machine.find(ID) is None


def test_the_last_timeout_counts(driver: TransactionDriver) -> None:
    driver.init(timeout_ms=900_000)
    driver.init(timeout_ms=1)
    assert driver.now.timeout_ms == 1


def test_when_the_epochs_are_used_up_there_is_a_new_producer_id(driver: TransactionDriver) -> None:
    old = driver.at_epoch(EPOCH_LAST)
    assert driver.init() == ProducerIdAndEpoch(102, 0)
    with pytest.raises(InvalidProducerIdMapping):
        driver.add(old, A)


@pytest.mark.parametrize("is_commit", [True, False])
def test_no_producer_begins_while_a_transaction_is_ending(driver: TransactionDriver, is_commit: bool) -> None:
    producer = driver.init()
    driver.add(producer, A)
    driver.end(producer, commit=is_commit)
    with pytest.raises(ConcurrentTransactions):
        driver.init()
    with pytest.raises(ConcurrentTransactions):
        driver.add(producer, B)
    driver.complete()
    driver.add(producer, B)
    assert driver.now.partitions == {B}


def test_an_open_transaction_is_aborted_before_another_producer_begins(driver: TransactionDriver) -> None:
    old = driver.init()
    driver.add(old, A)
    driver.init()
    assert driver.now.status is TransactionStatus.PREPARE_ABORT
    assert driver.now.producer == ProducerIdAndEpoch(old.id, 1), "the markers shut the old one out"
    for bumps_epoch in (False, True):
        with pytest.raises(ProducerFenced):
            driver.end(old, bumps_epoch=bumps_epoch)
    driver.complete()
    assert driver.init() == ProducerIdAndEpoch(old.id, 2)


# Going on after an error (KIP-360)


def test_a_producer_may_claim_its_next_epoch(driver: TransactionDriver) -> None:
    first = driver.init()
    assert driver.init(first) == ProducerIdAndEpoch(first.id, 1)


def test_a_claim_may_be_repeated_even_after_a_restart(driver: TransactionDriver) -> None:
    first = driver.init()
    second = driver.init(first)
    assert driver.init(first) == second
    driver.restart()
    assert driver.init(first) == second
    with pytest.raises(ProducerFenced):
        driver.end(first, commit=False, bumps_epoch=True)


def test_a_claim_is_rejected_after_another_producer_took_over(driver: TransactionDriver) -> None:
    first = driver.init()
    driver.init()
    with pytest.raises(ProducerFenced):
        driver.init(first)
    with pytest.raises(ProducerFenced):
        driver.init(ProducerIdAndEpoch(first.id + 1, first.epoch))


def test_a_rejected_claim_does_not_abort_the_open_transaction(driver: TransactionDriver) -> None:
    old = driver.init()
    new = driver.init()
    driver.add(new, A)
    with pytest.raises(ProducerFenced):
        driver.init(old)
    assert driver.now.status is TransactionStatus.ONGOING


def test_a_claim_aborts_the_producers_own_open_transaction(driver: TransactionDriver) -> None:
    first = driver.init()
    driver.add(first, A)
    driver.init(first)
    assert driver.now.status is TransactionStatus.PREPARE_ABORT
    with pytest.raises(ConcurrentTransactions):
        driver.init(first)
    driver.complete()
    assert driver.init(first) == ProducerIdAndEpoch(first.id, 1)
    assert driver.init(first) == ProducerIdAndEpoch(first.id, 1), "again, because the answer was lost"


def test_a_claim_of_the_last_epoch_leads_to_a_new_producer_id_and_may_be_repeated(driver: TransactionDriver) -> None:
    last = driver.at_epoch(EPOCH_LAST)
    new = driver.init(last)
    assert new.epoch == 0
    assert new.id != last.id
    assert driver.init(last) == new


def test_a_claim_of_the_last_epoch_in_a_transaction_leads_to_a_new_producer_id(driver: TransactionDriver) -> None:
    last = driver.at_epoch(EPOCH_LAST)
    driver.add(last, A)
    driver.init(last)
    assert driver.now.producer == ProducerIdAndEpoch(last.id, EPOCH_LAST + 1)
    driver.complete()
    new = driver.init(last)
    assert (new.id != last.id, new.epoch) == (True, 0)
    assert driver.init(last) == new


def test_a_claim_to_an_expired_id_has_no_effect(driver: TransactionDriver) -> None:
    assert driver.init(ProducerIdAndEpoch(7, 3)) == ProducerIdAndEpoch(101, 0)


def test_the_epoch_that_only_markers_have_cannot_be_claimed(driver: TransactionDriver) -> None:
    last = driver.at_epoch(EPOCH_LAST)
    driver.add(last, A)
    driver.init()
    driver.complete()
    guessed = ProducerIdAndEpoch(last.id, EPOCH_LAST + 1)
    assert driver.now.producer == guessed
    with pytest.raises(ProducerFenced):
        driver.init(guessed)
    with pytest.raises(ProducerFenced):
        driver.add(guessed, A)
    with pytest.raises(ProducerFenced):
        driver.end(guessed, commit=False, bumps_epoch=True)
    assert driver.init().epoch == 0


# Partitions


def test_the_first_partition_begins_the_transaction(driver: TransactionDriver) -> None:
    producer = driver.init()
    driver.now_ms = 5_000
    driver.add(producer, A)
    driver.now_ms = 6_000
    driver.add(producer, B)
    assert (driver.now.status, driver.now.start_ms) == (TransactionStatus.ONGOING, 5_000)
    assert driver.now.partitions == {A, B}


def test_the_start_of_an_ended_transaction_is_kept_until_the_next_begins(driver: TransactionDriver) -> None:
    producer = driver.init()
    driver.now_ms = 5_000
    driver.add(producer, A)
    driver.commit(producer)
    assert driver.now.start_ms == 5_000
    driver.now_ms = 7_000
    driver.add(driver.now.producer, A)
    assert driver.now.start_ms == 7_000
    driver.commit(driver.now.producer)
    driver.init()
    assert (driver.now.status, driver.now.start_ms) == (TransactionStatus.EMPTY, -1)


def test_adding_a_partition_twice_changes_nothing(driver: TransactionDriver) -> None:
    producer = driver.init()
    driver.add(producer, A)
    before = driver.now
    assert driver.machine.add(ID, producer, [A], 9_000) is before
    assert driver.machine.add(ID, producer, [], 9_000) is before


def test_only_the_partitions_of_the_open_transaction_may_be_written_to(driver: TransactionDriver) -> None:
    producer = driver.init()
    with pytest.raises(InvalidTransactionState):
        driver.machine.verify(ID, producer, A)
    driver.add(producer, A)
    driver.machine.verify(ID, producer, A)
    with pytest.raises(InvalidTransactionState):
        driver.machine.verify(ID, producer, B)
    driver.end(producer)
    with pytest.raises(ConcurrentTransactions):
        driver.machine.verify(ID, producer, A)
    driver.complete()
    with pytest.raises(InvalidTransactionState):
        driver.machine.verify(ID, producer, A)


def test_an_unknown_producer_gets_an_invalid_mapping_error(driver: TransactionDriver) -> None:
    stranger = ProducerIdAndEpoch(999, 0)
    for known in (False, True):
        if known:
            driver.init()
        with pytest.raises(InvalidProducerIdMapping):
            driver.add(stranger, A)
        with pytest.raises(InvalidProducerIdMapping):
            driver.machine.verify(ID, stranger, A)
        with pytest.raises(InvalidProducerIdMapping):
            driver.end(stranger)


@pytest.mark.parametrize("epoch", [0, 2])
def test_only_the_present_epoch_counts(driver: TransactionDriver, epoch: int) -> None:
    driver.init()
    producer = driver.init()
    driver.add(producer, A)
    other = ProducerIdAndEpoch(producer.id, epoch)
    with pytest.raises(ProducerFenced):
        driver.add(other, B)
    with pytest.raises(ProducerFenced):
        driver.machine.verify(ID, other, A)
    for bumps_epoch in (False, True):
        with pytest.raises(ProducerFenced):
            driver.end(other, bumps_epoch=bumps_epoch)


# The end in the older protocol


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_keeps_the_epoch_and_may_be_repeated(driver: TransactionDriver, is_commit: bool) -> None:
    producer = driver.init()
    driver.add(producer, A)
    assert driver.end(producer, commit=is_commit) == producer
    assert (driver.now.is_ending, driver.now.is_commit) == (True, is_commit)
    with pytest.raises(ConcurrentTransactions):
        driver.end(producer, commit=is_commit)
    with pytest.raises(InvalidTransactionState):
        driver.end(producer, commit=not is_commit)
    driver.complete()
    assert driver.end(producer, commit=is_commit) == producer
    with pytest.raises(InvalidTransactionState):
        driver.end(producer, commit=not is_commit)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_that_was_not_begun_cannot_be_ended(driver: TransactionDriver, is_commit: bool) -> None:
    producer = driver.init()
    with pytest.raises(InvalidTransactionState):
        driver.end(producer, commit=is_commit)


# The end in the newer protocol (KIP-890)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_bumps_the_epoch_and_may_be_repeated_with_the_old_one(
    driver: TransactionDriver, is_commit: bool
) -> None:
    producer = driver.init()
    driver.add(producer, A)
    following = driver.end(producer, commit=is_commit, bumps_epoch=True)
    assert following == ProducerIdAndEpoch(producer.id, producer.epoch + 1)
    assert driver.now.producer == following, "the markers carry it"
    with pytest.raises(ConcurrentTransactions):
        driver.end(producer, commit=is_commit, bumps_epoch=True)
    with pytest.raises(InvalidTransactionState):
        driver.end(producer, commit=not is_commit, bumps_epoch=True)
    driver.restart()
    driver.complete()
    assert driver.end(producer, commit=is_commit, bumps_epoch=True) == following
    with pytest.raises(InvalidTransactionState):
        driver.end(producer, commit=not is_commit, bumps_epoch=True)


def test_a_late_end_does_not_touch_the_next_transaction(driver: TransactionDriver) -> None:
    first = driver.init()
    driver.add(first, A)
    second = driver.end(first, bumps_epoch=True)
    driver.complete()
    driver.add(second, A)
    before = driver.now
    for is_commit in (True, False):
        with pytest.raises(ProducerFenced):
            driver.end(first, commit=is_commit, bumps_epoch=True)
    with pytest.raises(ProducerFenced):
        driver.add(first, B)
    with pytest.raises(ProducerFenced):
        driver.machine.verify(ID, first, A)
    assert driver.now is before


def test_an_old_end_cannot_be_repeated_after_the_next_one(driver: TransactionDriver) -> None:
    first = driver.init()
    second = driver.end(first, commit=False, bumps_epoch=True)
    driver.end(second, commit=False, bumps_epoch=True)
    with pytest.raises(ProducerFenced):
        driver.end(first, commit=False, bumps_epoch=True)


def test_an_abort_of_an_empty_transaction_completes_at_once_and_bumps_the_epoch(driver: TransactionDriver) -> None:
    first = driver.init()
    second = driver.end(first, commit=False, bumps_epoch=True)
    assert second == ProducerIdAndEpoch(first.id, 1)
    assert driver.now.status is TransactionStatus.COMPLETE_ABORT
    assert driver.end(first, commit=False, bumps_epoch=True) == second, "a retry"
    with pytest.raises(InvalidTransactionState):
        driver.end(second, commit=True, bumps_epoch=True)
    assert driver.end(second, commit=False, bumps_epoch=True) == ProducerIdAndEpoch(first.id, 2)


def test_a_commit_without_a_transaction_is_rejected(driver: TransactionDriver) -> None:
    with pytest.raises(InvalidTransactionState):
        driver.end(driver.init(), commit=True, bumps_epoch=True)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_in_the_last_epoch_leads_to_a_new_producer_id(driver: TransactionDriver, is_commit: bool) -> None:
    last = driver.at_epoch(EPOCH_LAST)
    driver.add(last, A)
    following = driver.end(last, commit=is_commit, bumps_epoch=True)
    assert (following.id != last.id, following.epoch) == (True, 0)
    assert driver.now.producer == ProducerIdAndEpoch(last.id, EPOCH_LAST + 1), "the markers fence the old one"
    driver.restart()
    driver.complete()
    assert driver.now.producer == following
    assert driver.end(last, commit=is_commit, bumps_epoch=True) == following, "a retry"
    driver.add(following, A)
    with pytest.raises(InvalidProducerIdMapping):
        driver.end(last, commit=is_commit, bumps_epoch=True)


@pytest.mark.parametrize("epoch", [0, EPOCH_LAST])
def test_a_producer_ahead_of_the_log_after_a_crash_gets_concurrent_transactions(
    driver: TransactionDriver, epoch: int
) -> None:
    """The producer got the response to its end and begins the next transaction, but the crash lost the completion."""
    producer = driver.at_epoch(epoch)
    driver.add(producer, A)
    following = driver.end(producer, bumps_epoch=True)
    driver.restart()
    requests: list[Callable[[], object]] = [
        lambda: driver.add(following, A),
        lambda: driver.machine.verify(ID, following, A),
        lambda: driver.end(following, commit=False, bumps_epoch=True),
        lambda: driver.init(following),
    ]
    for request in requests:
        with pytest.raises(ConcurrentTransactions):
            request()
    driver.complete()
    driver.add(following, A)


def test_a_producer_that_lost_the_end_response_may_claim_the_next_epoch(driver: TransactionDriver) -> None:
    first = driver.init()
    driver.add(first, A)
    second = driver.end(first, bumps_epoch=True)
    driver.complete()
    assert driver.init(first) == second
    assert driver.now.status is TransactionStatus.EMPTY


def test_the_older_protocol_cannot_repeat_an_end_of_the_newer(driver: TransactionDriver) -> None:
    first = driver.init()
    driver.add(first, A)
    driver.end(first, bumps_epoch=True)
    with pytest.raises(ProducerFenced):
        driver.end(first, bumps_epoch=False)
    driver.complete()
    with pytest.raises(ProducerFenced):
        driver.end(first, bumps_epoch=False)


# Time


def test_a_timed_out_transaction_is_fenced_and_aborted(driver: TransactionDriver) -> None:
    producer = driver.init()
    driver.add(producer, A)
    driver.now_ms += TIMEOUT_MS
    assert driver.machine.timed_out(driver.now_ms) == []
    driver.now_ms += 1
    (aborting,) = driver.machine.timed_out(driver.now_ms)
    driver.machine.apply(aborting)
    assert (aborting.status, aborting.producer.epoch) == (TransactionStatus.PREPARE_ABORT, producer.epoch + 1)
    assert driver.machine.timed_out(driver.now_ms) == []
    requests: list[Callable[[], object]] = [
        lambda: driver.add(producer, B),
        lambda: driver.machine.verify(ID, producer, A),
        lambda: driver.end(producer, bumps_epoch=True),
        lambda: driver.end(producer, commit=False, bumps_epoch=True),
        lambda: driver.end(producer),
        lambda: driver.init(producer),
    ]
    for _ in range(2):
        for request in requests:
            with pytest.raises(ProducerFenced):
                request()
        if driver.now.is_ending:
            driver.complete()
    assert driver.init() == ProducerIdAndEpoch(producer.id, producer.epoch + 2)


def test_a_timeout_in_the_last_epoch_leaves_an_id_that_can_be_used_again(driver: TransactionDriver) -> None:
    producer = driver.at_epoch(EPOCH_LAST)
    driver.add(producer, A)
    (aborting,) = driver.machine.timed_out(driver.now_ms + TIMEOUT_MS + 1)
    driver.machine.apply(aborting)
    driver.complete()
    assert driver.init() == ProducerIdAndEpoch(driver.producer_ids, 0)


def test_a_clock_that_went_back_does_not_extend_a_transaction(driver: TransactionDriver) -> None:
    driver.now_ms = DAY_MS
    driver.add(driver.init(), A)
    driver.now_ms = 0
    driver.restart()
    assert len(driver.machine.timed_out(TIMEOUT_MS + 1)) == 1


def test_unused_ids_expire_but_not_while_a_transaction_is_open(driver: TransactionDriver) -> None:
    producer = driver.init()
    late_ms = driver.now_ms + DAY_MS + 1
    assert driver.machine.expired(late_ms - 1, DAY_MS) == []
    assert driver.machine.expired(late_ms, DAY_MS) == [ID]
    driver.add(producer, A)
    assert driver.machine.expired(late_ms, DAY_MS) == []
    driver.end(producer)
    assert driver.machine.expired(late_ms, DAY_MS) == []
    driver.complete()
    assert driver.machine.expired(late_ms, DAY_MS) == [ID]
    driver.machine.forget(ID)
    assert len(driver.machine) == 0
    assert driver.init() == ProducerIdAndEpoch(producer.id + 1, 0)


def test_a_partition_of_an_open_transaction_has_a_holder(driver: TransactionDriver) -> None:
    producer = driver.init()
    driver.add(producer, A)
    assert driver.machine.holder(producer.id, A) is driver.now
    assert driver.machine.holder(producer.id, B) is None
    assert driver.machine.holder(producer.id + 1, A) is None
    driver.end(producer)
    assert driver.machine.holder(producer.id, A) is driver.now
    driver.complete()
    assert driver.machine.holder(producer.id, A) is None


def test_an_error_changes_nothing(driver: TransactionDriver) -> None:
    producer = driver.init()
    driver.add(producer, A)
    before = driver.now
    requests: list[Callable[[], object]] = [
        lambda: driver.init(ProducerIdAndEpoch(producer.id, 9)),
        lambda: driver.add(ProducerIdAndEpoch(producer.id, 9), B),
        lambda: driver.end(ProducerIdAndEpoch(producer.id, 9)),
        lambda: driver.init(timeout_ms=0),
    ]
    for request in requests:
        with pytest.raises(HeadraceError):
            request()
        assert driver.now is before
