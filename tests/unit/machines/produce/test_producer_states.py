"""Idempotent producers: a retried batch is stored once, and a sequence gap is rejected."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.machines.produced_batch import batch

from headrace.machines.produce.producer_states import Duplicate, ProducerStates
from headrace.machines.transactions.partition_transactions import PartitionTransactions
from headrace.model.errors import (
    CorruptMessage,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
)
from headrace.wire.batches.batch import TRANSACTIONAL, BatchHeader

SEQUENCE_MAX = 2**31 - 1
DAY = 86_400.0


def states_after(*batches: BatchHeader) -> ProducerStates:
    states, offset = ProducerStates(), 100
    for header in batches:
        assert states.check(header) is None
        states.apply(header, offset)
        offset += header.last_offset_delta + 1
    return states


def test_a_retried_batch_gets_its_first_offset() -> None:
    states = states_after(batch(0, 10), batch(10, 5))
    assert states.check(batch(0, 10)) == Duplicate(100, 109, 1_000)
    assert states.check(batch(10, 5)) == Duplicate(110, 114, 1_000)


def test_the_next_batch_begins_where_the_last_one_ended() -> None:
    states = states_after(batch(0, 10))
    assert states.check(batch(10, 3)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(11, 3))


def test_only_the_same_range_is_a_duplicate() -> None:
    states = states_after(batch(0, 10))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(0, 9))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(1, 9))


def test_five_batches_are_remembered_and_an_older_duplicate_is_out_of_order() -> None:
    states = states_after(*(batch(n) for n in range(6)))
    for n in range(1, 6):
        assert states.check(batch(n)) == Duplicate(100 + n, 100 + n, 1_000)
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(0))


def test_sequences_wrap_to_zero() -> None:
    states = states_after(batch(SEQUENCE_MAX - 1, 2), batch(0, 3))
    assert states.check(batch(3)) is None
    assert states.check(batch(SEQUENCE_MAX - 1, 2)) == Duplicate(100, 101, 1_000)


def test_a_batch_may_lie_across_the_wrap() -> None:
    states = states_after(batch(SEQUENCE_MAX, 4))
    assert states.check(batch(3)) is None
    assert states.check(batch(SEQUENCE_MAX, 4)) == Duplicate(100, 103, 1_000)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerStates().check(batch(12_345)) is None


def test_a_new_epoch_begins_at_zero() -> None:
    states = states_after(batch(0, 5, epoch=1))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(5, epoch=2))
    assert states.check(batch(0, 5, epoch=2)) is None


def test_after_a_new_epoch_nothing_of_the_old_one_is_a_duplicate() -> None:
    states = states_after(batch(0, 5, epoch=1), batch(0, 2, epoch=2))
    assert states.check(batch(0, 2, epoch=2)) == Duplicate(105, 106, 1_000)
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(0, 5, epoch=2))


def test_an_old_epoch_is_fenced_even_with_the_right_sequence() -> None:
    states = states_after(batch(0, epoch=3))
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(1, epoch=2))


def test_a_producer_must_send_sequences() -> None:
    with pytest.raises(InvalidRecord):
        ProducerStates().check(batch(-1))
    with pytest.raises(InvalidRecord):
        states_after(batch(0)).check(batch(-1))


def test_producers_do_not_mix() -> None:
    states = states_after(batch(0, 10), batch(0, 10, producer_id=8))
    assert states.check(batch(0, 10, producer_id=8)) == Duplicate(110, 119, 1_000)


def expired(states: ProducerStates, *times: float) -> list[int]:
    return [states.expire(now) for now in times]


def test_an_idle_producer_is_forgotten_a_day_after_its_last_append() -> None:
    states = states_after(batch(0))
    assert expired(states, 1_000, 1_000 + DAY - 1, 1_000 + DAY) == [0, 0, 1]
    assert len(states) == 0
    assert states.check(batch(77)) is None


@pytest.mark.parametrize("timestamp", [0, 1, 2**62])
def test_the_timestamps_of_its_records_do_not_make_a_producer_older(timestamp: int) -> None:
    states = states_after(batch(0, timestamp=timestamp))
    assert expired(states, 10 * DAY, 11 * DAY - 1, 11 * DAY) == [0, 0, 1]


@pytest.mark.parametrize("kind", ["batch", "unnumbered", "marker"])
def test_any_batch_resets_the_idle_time(kind: str) -> None:
    states = states_after(batch(0))
    expired(states, 0, DAY - 1)
    if kind == "marker":
        states.apply_marker(batch(-1), 200, 0, is_commit=True)
    else:
        states.apply(batch(1 if kind == "batch" else -1), 200)
    assert expired(states, 2 * DAY, 3 * DAY - 1, 3 * DAY) == [0, 0, 1]


def test_time_without_expiration_runs_does_not_expire_a_newer_batch() -> None:
    """After a pause of the process, the first batch may come before the first look at the clock."""
    states = states_after(batch(0))
    expired(states, 0, 1)
    states.apply(batch(1), 101)
    assert expired(states, 5 * DAY) == [0]


def test_a_restored_producer_keeps_its_idle_time_even_if_the_clock_restarts() -> None:
    states = states_after(batch(0))
    expired(states, 1_000_000, 1_000_000 + DAY / 2)
    restored = ProducerStates.restore(states.snapshot())
    assert expired(restored, 3, 3 + DAY / 2 - 1, 3 + DAY / 2) == [0, 0, 1]


def test_a_snapshot_of_version_2_is_restored_and_its_producers_begin_to_be_idle() -> None:
    """Version 2 had a wall clock time instead of an idle time."""
    version_2 = bytes.fromhex(
        "02 00000001 0000000000000007 0003 0000000000000005 0000000a 00000002 0000000000000064 03"
        "0000000000000009 0000000000000064 0000000000000005"
    )
    states = ProducerStates.restore(version_2 + PartitionTransactions().snapshot())
    assert states.check(batch(0, 10, epoch=3, attributes=TRANSACTIONAL)) == Duplicate(100, 109, 5)
    assert (states.transactions.first_offset(7), states.describe()[0].last_timestamp_ms) == (100, 5)
    states.apply_marker(batch(-1, epoch=3), 110, 2, is_commit=True)
    assert expired(states, 0, DAY - 1, DAY) == [0, 0, 1]


def test_an_empty_snapshot_restores_nothing() -> None:
    assert len(ProducerStates.restore(ProducerStates().snapshot())) == 0


def test_a_damaged_snapshot_is_rejected() -> None:
    snapshot = states_after(*(batch(n) for n in range(7)), batch(0, producer_id=9)).snapshot()
    for length in range(len(snapshot)):
        with pytest.raises(CorruptMessage):
            ProducerStates.restore(snapshot[:length])
    with pytest.raises(CorruptMessage):
        ProducerStates.restore(snapshot + b"\0")
    with pytest.raises(CorruptMessage):
        ProducerStates.restore(b"\xff" + snapshot[1:])


class NaiveProducers:
    """The rules in their plainest form: a list of everything that was ever appended, per producer."""

    def __init__(self) -> None:
        self.appended: dict[int, list[tuple[BatchHeader, int]]] = {}

    def verdict(self, header: BatchHeader) -> Duplicate | type[HeadraceError] | None:
        history = self.appended.get(header.producer_id)
        if not history:
            return None
        last, _ = history[-1]
        if header.producer_epoch < last.producer_epoch:
            return InvalidProducerEpoch
        if header.producer_epoch > last.producer_epoch:
            return None if header.base_sequence == 0 else OutOfOrderSequence
        for earlier, offset in [entry for entry in history if entry[0].producer_epoch == last.producer_epoch][-5:]:
            if (earlier.base_sequence, earlier.last_offset_delta) == (
                header.base_sequence,
                header.last_offset_delta,
            ):
                return Duplicate(offset, offset + earlier.last_offset_delta, earlier.max_timestamp)
        follows = (last.base_sequence + last.last_offset_delta + 1) % 2**31
        return None if header.base_sequence == follows else OutOfOrderSequence


class ProducersMachine(RuleBasedStateMachine):
    """Any order of new, repeated, skipped and fenced batches, near the wrap and far from it."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.naive = NaiveProducers()
        self.log: list[tuple[BatchHeader, int]] = []
        self.end_offset = 0

    def send(self, header: BatchHeader) -> None:
        expected = self.naive.verdict(header)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.states.check(header)
            return
        assert self.states.check(header) == expected
        if expected is None:
            self.states.apply(header, self.end_offset)
            self.naive.appended.setdefault(header.producer_id, []).append((header, self.end_offset))
            self.log.append((header, self.end_offset))
            self.end_offset += header.last_offset_delta + 1

    @rule(
        producer_id=st.integers(1, 3),
        epoch=st.integers(0, 2),
        sequence=st.one_of(st.integers(0, 6), st.integers(SEQUENCE_MAX - 4, SEQUENCE_MAX)),
        count=st.integers(1, 4),
    )
    def send_anything(self, producer_id: int, epoch: int, sequence: int, count: int) -> None:
        self.send(batch(sequence, count, epoch, producer_id))

    @rule(producer_id=st.integers(1, 3), count=st.integers(1, 4))
    def send_the_next(self, producer_id: int, count: int) -> None:
        history = self.naive.appended.get(producer_id)
        if history:
            last, _ = history[-1]
            follows = (last.base_sequence + last.last_offset_delta + 1) % 2**31
            self.send(batch(follows, count, last.producer_epoch, producer_id))

    @rule(back=st.integers(1, 8))
    def send_again(self, back: int) -> None:
        if back <= len(self.log):
            self.send(self.log[-back][0])

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.states = ProducerStates.restore(self.states.snapshot())

    @invariant()
    def replaying_the_log_rebuilds_the_state(self) -> None:
        replica = ProducerStates()
        for header, offset in self.log:
            replica.apply(header, offset)
        assert replica.snapshot() == self.states.snapshot()


ProducersMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestProducersMachine = ProducersMachine.TestCase
