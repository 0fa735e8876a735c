"""Any order of messages, events and time: the delay index agrees with a plain dict."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.machines.delays.delay_index import DelayIndex, DueMessage
from headrace.testkit.clock import START_MS
from headrace.wire.state_records.delayed_records import (
    Cancelled,
    DelayedEvent,
    Dropped,
    Released,
    Releasing,
    Rescheduled,
)

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
spans = st.one_of(
    st.integers(-1000, 3 * MINUTE_MS), st.integers(0, 5 * HOUR_MS), st.integers(0, 300 * DAY_MS), st.just(0)
)
picks = st.integers(0, 50)


class DelaysMachine(RuleBasedStateMachine):
    """With small slices and little patience for stale entries, so that both show."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("headrace.machines.delays.delay_index._OPENED_AT_ONCE", 3)
        self.patch.setattr("headrace.machines.delays.delay_index._STALE_MIN", 2)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize()
    def begin(self) -> None:
        self.now_ms = START_MS
        self.delays = DelayIndex(0, self.now_ms)
        self.waiting: dict[int, int] = {}
        self.undecided: dict[int, dict[int, int]] = {}
        self.open: list[tuple[int, list[int]]] = []
        self.past: list[tuple[str, int, int, int | DelayedEvent]] = []
        self.next_offset = 0

    def offset(self) -> int:
        self.next_offset += 1
        self.delays.replayed_to = self.next_offset
        return self.next_offset - 1

    def pick(self, pick: int) -> int:
        return sorted(self.waiting)[pick % len(self.waiting)]

    def write(self, event: DelayedEvent) -> int:
        offset = self.offset()
        self.delays.apply(event, offset)
        self.past.append(("event", offset, 0, event))
        return offset

    @rule(span=spans, count=st.integers(1, 20))
    def messages_arrive(self, span: int, count: int) -> None:
        for step in range(count):
            offset, due_ms = self.offset(), max(self.now_ms + span + step * 7, 0)
            self.delays.add(offset, due_ms)
            self.waiting[offset] = due_ms
            self.past.append(("add", offset, 0, due_ms))

    @rule(span=spans, producer=st.integers(1, 2))
    def transactional_message_arrives(self, span: int, producer: int) -> None:
        offset, due_ms = self.offset(), max(self.now_ms + span, 0)
        self.delays.hold(producer, offset, due_ms)
        self.undecided.setdefault(producer, {})[offset] = due_ms
        self.past.append(("hold", offset, producer, due_ms))

    @rule(producer=st.integers(1, 2), is_commit=st.booleans())
    def a_transaction_ends(self, producer: int, is_commit: bool) -> None:
        offset = self.offset()
        self.delays.decide(producer, is_commit=is_commit)
        self.past.append(("decide", offset, producer, int(is_commit)))
        held = self.undecided.pop(producer, {})
        if is_commit:
            self.waiting.update(held)

    @precondition(lambda self: self.waiting)
    @rule(pick=picks, drops=st.booleans())
    def message_is_cancelled(self, pick: int, drops: bool) -> None:
        offset = self.pick(pick)
        self.write(Dropped(0, [offset], "because") if drops else Cancelled(0, [offset]))
        del self.waiting[offset]

    @precondition(lambda self: self.waiting)
    @rule(pick=picks, span=spans)
    def message_is_rescheduled(self, pick: int, span: int) -> None:
        offset, due_ms = self.pick(pick), max(self.now_ms + span, 0)
        self.write(Rescheduled(0, offset, due_ms))
        self.waiting[offset] = due_ms

    @precondition(lambda self: len(self.waiting) > 1)
    @rule(pick=picks)
    def message_is_rescheduled_to_another_due_time_and_back(self, pick: int) -> None:
        offset, other = self.pick(pick), self.pick(pick + 1)
        due_ms = self.waiting[offset]
        self.write(Rescheduled(0, offset, self.waiting[other]))
        self.write(Rescheduled(0, offset, due_ms))

    @rule(
        span=st.sampled_from([0, 10, 1000, MINUTE_MS, HOUR_MS, 3 * DAY_MS, 70 * DAY_MS]),
        count_max=st.integers(1, 30),
        puts_back=st.booleans(),
        again=st.booleans(),
    )
    def time_passes(self, span: int, count_max: int, puts_back: bool, again: bool) -> None:
        self.now_ms += span
        taken: list[DueMessage] = []
        while not taken:
            next_producer = self.delays.next_ms()
            taken = self.delays.take(self.now_ms, count_max)
            if next_producer is None or next_producer > self.now_ms:
                assert not taken
                break
        expected = sorted(
            DueMessage(due_ms, offset) for offset, due_ms in self.waiting.items() if due_ms <= self.now_ms
        )
        if not taken:
            assert not expected
            return
        assert taken == sorted(set(taken)), "each once, the longest due first"
        assert set(taken) <= set(expected), "nothing comes before its time, or without waiting for it"
        if self.delays.next_ms() != 0:
            assert taken == expected[: len(taken)]
            assert len(taken) == min(count_max, len(expected))
        if puts_back:
            for due in taken:
                self.delays.put_back(due)
        else:
            offsets = [due.offset for due in taken]
            repeats = [(offset, self.now_ms + 500) for offset in offsets[::2]] if again else []
            offset = self.write(Releasing(0, 0, 0, 0, offsets, repeats))
            self.open.append((offset, offsets))
            for one in offsets:
                del self.waiting[one]
            self.waiting.update(repeats)

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def releases_complete(self, pick: int) -> None:
        done = self.open[pick % len(self.open)][0]
        self.write(Released(0, done))
        self.open = [one for one in self.open if one[0] > done]

    @rule()
    def first_due_time_matches_the_model(self) -> None:
        first_ms = self.delays.first_ms()
        if first_ms is not None:
            assert first_ms in self.waiting.values()
            if self.delays.next_ms() != 0:  # else some that may be due before it are still to be opened
                assert first_ms == min(self.waiting.values())

    @rule()
    def index_is_swept(self) -> None:
        self.delays.sweep()

    @rule()
    def completed_entries_are_cleaned(self) -> None:
        over = self.delays.over(0)
        self.past = [one for one in self.past if one[0] == "decide" or one[1] not in over]  # markers stay anyway

    @rule()
    def log_is_replayed(self) -> None:
        self.delays = DelayIndex(0, self.now_ms)
        for kind, offset, producer, what in self.past:
            if kind == "event":
                assert not isinstance(what, int)
                self.delays.apply(what, offset)
            else:
                assert isinstance(what, int)
                if kind == "add":
                    self.delays.add(offset, what)
                elif kind == "hold":
                    self.delays.hold(producer, offset, what)
                else:
                    self.delays.decide(producer, is_commit=bool(what))
        self.delays.replayed_to = self.next_offset

    @invariant()
    def waiting_messages_match_the_model(self) -> None:
        assert len(self.delays) == len(self.waiting)
        assert all(offset in self.delays for offset in self.waiting)
        assert [release.offset for release in self.delays.open] == [offset for offset, _ in self.open]

    @invariant()
    def floor_is_the_lowest_needed_offset(self) -> None:
        needed = [self.next_offset, *self.waiting, *(offset for held in self.undecided.values() for offset in held)]
        needed += [offset for one, offsets in self.open for offset in (one, *offsets)]
        assert self.delays.floor == min(needed)

    @invariant()
    def needed_offsets_are_not_completed(self) -> None:
        needed = {*self.waiting, *(offset for held in self.undecided.values() for offset in held)}
        needed |= {offset for one, offsets in self.open for offset in (one, *offsets)}
        assert not needed & set(self.delays.over(0))

    @invariant()
    def pages_list_messages_by_due_time(self) -> None:
        expected = sorted(DueMessage(due_ms, offset) for offset, due_ms in self.waiting.items())
        found: list[DueMessage] = []
        while page := self.delays.page(found[-1] if found else DueMessage(-1, -1), 7):
            found += page
        assert found == expected


TestDelays = DelaysMachine.TestCase
TestDelays.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_message_is_released_however_far_in_the_future_it_is_due() -> None:
    delays = DelayIndex(0, START_MS)
    dues = [
        START_MS + span for span in (0, 1, MINUTE_MS, 59 * MINUTE_MS, HOUR_MS, DAY_MS, 64 * DAY_MS, 40_000 * DAY_MS)
    ]
    for offset, due_ms in enumerate(dues):
        delays.add(offset, due_ms)
    came: list[tuple[int, int]] = []
    now_ms, steps = START_MS, 0
    while len(came) < len(dues):
        next_producer = delays.next_ms()
        assert next_producer is not None
        now_ms, steps = max(next_producer, now_ms), steps + 1
        came += [(due.offset, now_ms) for due in delays.take(now_ms, 10)]
    assert came == list(enumerate(dues)), "and not a millisecond too late"
    assert steps < 100, "without looking every minute"


def test_entries_of_cancelled_messages_are_swept_away() -> None:
    delays = DelayIndex(0, START_MS)
    for offset in range(50_000):
        delays.add(offset, START_MS + DAY_MS + offset * 100)
        delays.apply(Cancelled(0, [offset]), offset)
    assert delays._entries == 50_000
    for _ in range(100):
        delays.sweep()
    assert delays._entries < 10_000


def test_much_that_is_opened_at_once_is_opened_in_slices() -> None:
    delays = DelayIndex(0, START_MS)
    due_ms = START_MS + 3 * MINUTE_MS
    for offset in range(20_000):
        delays.add(offset, due_ms)
    looks = 0
    while (next_producer := delays.next_ms()) is not None and next_producer < due_ms:
        assert delays.take(max(next_producer, due_ms - MINUTE_MS), 10) == []
        looks += 1
    assert looks >= 4
    assert len(delays.take(due_ms, 30_000)) == 20_000
