"""The transactions of one partition: open ones, the last stable offset, and aborted ones."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.machines.produced_batch import batch

from headrace.machines.produce.producer_states import ProducerStates
from headrace.model.errors import (
    CorruptMessage,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from headrace.wire.batches.batch import TRANSACTIONAL


class Log:
    """A partition's log, as far as producers matter; `committed` lets the high watermark catch up."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end_offset = 0
        self.high_watermark = 0

    def send(self, producer_id: int, sequence: int, *, epoch: int = 0, transactional: bool = True) -> int:
        header = batch(sequence, epoch=epoch, producer_id=producer_id, attributes=TRANSACTIONAL if transactional else 0)
        assert self.states.check(header) is None
        return self._append(lambda offset: self.states.apply(header, offset))

    def mark(self, producer_id: int, *, epoch: int = 0, is_commit: bool = True, coordinator_epoch: int = 0) -> int:
        header = batch(-1, epoch=epoch, producer_id=producer_id, attributes=TRANSACTIONAL)
        self.states.check_marker(header, coordinator_epoch)
        return self._append(
            lambda offset: self.states.apply_marker(header, offset, coordinator_epoch, is_commit=is_commit)
        )

    def commit_all(self) -> None:
        self.high_watermark = self.end_offset
        self.states.transactions.committed(self.high_watermark)

    @property
    def stable(self) -> int:
        first_unstable = self.states.transactions.first_unstable
        return self.high_watermark if first_unstable is None else min(first_unstable, self.high_watermark)

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        return [tuple(one) for one in self.states.transactions.aborted(start, end)]  # type: ignore[misc]

    def _append(self, apply: object) -> int:
        offset = self.end_offset
        self.end_offset += 1
        apply(offset)  # type: ignore[operator]
        return offset


def test_an_open_transaction_holds_back_everything_from_its_first_batch_on() -> None:
    log = Log()
    log.send(1, 0, transactional=False)
    first = log.send(7, 0)
    log.send(1, 1, transactional=False)
    log.commit_all()
    assert log.stable == first


def test_the_end_of_a_transaction_counts_when_its_marker_is_committed() -> None:
    log = Log()
    first = log.send(7, 0)
    log.commit_all()
    log.mark(7)
    assert log.stable == first
    log.commit_all()
    assert log.stable == log.end_offset


def test_the_oldest_open_transaction_decides() -> None:
    log = Log()
    log.send(7, 0)
    second = log.send(8, 0)
    log.mark(7)
    log.commit_all()
    assert log.stable == second


def test_only_aborted_transactions_are_listed_and_only_where_they_matter() -> None:
    log = Log()
    log.send(7, 0)
    log.send(8, 0)
    log.mark(7, is_commit=True)
    end = log.mark(8, is_commit=False)
    log.send(9, 0, transactional=False)
    log.commit_all()
    assert log.aborted(0, log.end_offset) == [(8, 1, end)]
    assert log.aborted(0, 1) == []
    assert log.aborted(end, log.end_offset) == [(8, 1, end)]
    assert log.aborted(end + 1, log.end_offset) == []


def test_aborted_transactions_are_returned_in_the_order_of_their_first_offsets() -> None:
    log = Log()
    for producer_id in (7, 8, 9):
        log.send(producer_id, 0)
    for producer_id in (9, 7, 8):
        log.mark(producer_id, is_commit=False)
    assert [first for _, first, _ in log.aborted(0, log.end_offset)] == [0, 1, 2]


def test_transactions_aborted_below_the_log_start_are_removed() -> None:
    log = Log()
    log.send(7, 0)
    end = log.mark(7, is_commit=False)
    log.states.transactions.trim(end)
    assert log.aborted(0, 9) == [(7, 0, end)]
    log.states.transactions.trim(end + 1)
    assert log.aborted(0, 9) == []


def test_transactions_removed_by_compaction_are_forgotten() -> None:
    log = Log()
    log.send(7, 0)
    first = log.mark(7, is_commit=False)
    log.send(8, 0)
    second = log.mark(8, is_commit=False)
    log.states.transactions.forget([first])
    assert log.aborted(0, 9) == [(8, 2, second)]


def test_a_batch_outside_of_the_open_transaction_of_its_producer_is_rejected() -> None:
    log = Log()
    log.send(7, 0)
    with pytest.raises(InvalidTransactionState):
        log.send(7, 1, transactional=False)


def test_a_new_epoch_cannot_begin_before_the_transaction_of_the_old_one_has_ended() -> None:
    log = Log()
    log.send(7, 0)
    with pytest.raises(InvalidTransactionState):
        log.send(7, 0, epoch=1)
    log.mark(7, epoch=1, is_commit=False)
    log.send(7, 0, epoch=1)


def test_after_a_marker_with_a_new_epoch_a_delayed_batch_of_the_old_epoch_is_rejected() -> None:
    log = Log()
    log.send(7, 0)
    log.mark(7, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        log.send(7, 1, epoch=0)
    with pytest.raises(OutOfOrderSequence):
        log.send(7, 1, epoch=1)
    log.send(7, 0, epoch=1)


def test_after_a_marker_of_the_same_epoch_the_sequences_continue() -> None:
    log = Log()
    log.send(7, 0)
    log.mark(7)
    log.send(7, 1)


def test_a_marker_of_an_old_producer_or_an_old_coordinator_is_rejected() -> None:
    log = Log()
    log.send(7, 0, epoch=3)
    log.mark(7, epoch=3, coordinator_epoch=5)
    with pytest.raises(InvalidProducerEpoch):
        log.mark(7, epoch=2, coordinator_epoch=6)
    with pytest.raises(TransactionCoordinatorFenced):
        log.mark(7, epoch=3, coordinator_epoch=4)


def test_a_written_marker_is_recognized() -> None:
    log = Log()
    assert not log.states.has_marker(7, 0)
    log.send(7, 0)
    assert not log.states.has_marker(7, 0)
    log.mark(7, epoch=1)
    assert log.states.has_marker(7, 1)
    assert not log.states.has_marker(7, 2)


def test_a_producer_that_is_known_by_a_marker_only_may_begin_anywhere() -> None:
    log = Log()
    log.mark(7)
    log.send(7, 12)


def test_a_batch_of_the_broker_itself_needs_no_sequence_and_opens_the_transaction() -> None:
    log = Log()
    header = batch(-1, epoch=4, attributes=TRANSACTIONAL)
    log.states.check_unnumbered(header)
    log.states.apply(header, 0)
    assert log.states.transactions.first_unstable == 0
    with pytest.raises(InvalidProducerEpoch):
        log.states.check_unnumbered(batch(-1, epoch=3, attributes=TRANSACTIONAL))


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    log = Log()
    log.send(7, 0)
    for now in (0.0, 1e9):
        assert log.states.expire(now) == 0
    log.mark(7)
    assert [log.states.expire(now) for now in (2e9, 3e9)] == [0, 1]


def test_producers_are_described_with_their_transactions() -> None:
    log = Log()
    log.send(1, 5, transactional=False)
    first = log.send(7, 0)
    result = {one.producer_id: one for one in log.states.describe()}
    assert (result[1].last_sequence, result[1].first_offset) == (5, -1)
    assert (result[7].last_sequence, result[7].first_offset) == (0, first)


def test_a_damaged_list_of_aborted_transactions_is_rejected() -> None:
    log = Log()
    log.send(7, 0)
    log.mark(7, is_commit=False)
    with pytest.raises(CorruptMessage):
        ProducerStates.restore(log.states.snapshot()[:-1])


class TransactionsMachine(RuleBasedStateMachine):
    """Random producers against a model that looks through the whole log for every question."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.entries: list[tuple[str, int, int]] = []  # kind, producer id, epoch; its place is its offset
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}

    @rule(producer_id=st.integers(1, 4))
    def write(self, producer_id: int) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.log.send(producer_id, sequence, epoch=self.epochs.get(producer_id, 0))
        self.sequences[producer_id] = sequence + 1
        self.entries.append(("data", producer_id, self.epochs.get(producer_id, 0)))

    @rule(producer_id=st.integers(1, 4), is_commit=st.booleans(), bumps_epoch=st.booleans())
    def end(self, producer_id: int, is_commit: bool, bumps_epoch: bool) -> None:
        if bumps_epoch:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        self.log.mark(producer_id, epoch=self.epochs.get(producer_id, 0), is_commit=is_commit)
        self.entries.append(("commit" if is_commit else "abort", producer_id, self.epochs.get(producer_id, 0)))

    @rule(producer_id=st.integers(1, 4))
    def write_delayed_batch(self, producer_id: int) -> None:
        epoch = self.epochs.get(producer_id, 0) - 1
        if epoch >= 0:
            with pytest.raises(HeadraceError):
                self.log.send(producer_id, self.sequences.get(producer_id, 0), epoch=epoch)

    @rule()
    def catch_up(self) -> None:
        self.log.commit_all()

    @rule()
    def restart(self) -> None:
        self.log.states = ProducerStates.restore(self.log.states.snapshot())
        self.log.commit_all()

    @invariant()
    def last_stable_offset_excludes_open_transactions(self) -> None:
        expected = self.log.high_watermark
        for first, end, _, _ in self._transactions():
            if end is None or end >= self.log.high_watermark:
                expected = min(expected, first)
        assert self.log.stable == expected

    @invariant()
    def aborted_transactions_match_the_log(self) -> None:
        size = self.log.end_offset
        for start, end in ((0, size), (size // 3, size // 2), (size // 2, size)):
            expected = sorted(
                (first, producer_id, last)
                for first, last, producer_id, is_commit in self._transactions()
                if last is not None and not is_commit and last >= start and first < end
            )
            assert [(first, who, last) for who, first, last in self.log.aborted(start, end)] == expected

    def _transactions(self) -> list[tuple[int, int | None, int, bool]]:
        """First offset, marker, producer, outcome of every transaction with data."""
        found: list[tuple[int, int | None, int, bool]] = []
        open_ones: dict[int, int] = {}
        for offset, (kind, producer_id, _) in enumerate(self.entries):
            if kind == "data":
                open_ones.setdefault(producer_id, offset)
            elif producer_id in open_ones:
                found.append((open_ones.pop(producer_id), offset, producer_id, kind == "commit"))
        found.extend((first, None, producer_id, False) for producer_id, first in open_ones.items())
        return found


TestTransactionsMachine = TransactionsMachine.TestCase
TestTransactionsMachine.settings = settings(max_examples=60, stateful_step_count=40)
