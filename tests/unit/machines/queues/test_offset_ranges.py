"""An interval map agrees with a map of single offsets; outdated deadlines do not accumulate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.queues.delivery_failures import Deadlines
from headrace.machines.queues.leases import Lease, Leases
from headrace.machines.queues.offset_ranges import IntervalMap, OffsetInterval


class Coloured(OffsetInterval):
    colour: int


steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "cut"]), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=25
)


def coloured_by(steps: list[tuple[str, int, int]]) -> tuple[IntervalMap[Coloured], dict[int, int]]:
    spans: IntervalMap[Coloured] = IntervalMap()
    model: dict[int, int] = {}
    for colour, (verb, first, length) in enumerate(steps):
        last = first + length
        removed = {o: one.colour for one in spans.cut(first, last) for o in range(one.first, one.last + 1)}
        assert removed == {offset: model.pop(offset) for offset in range(first, last + 1) if offset in model}
        if verb == "put":
            spans.put(Coloured(first, last, colour))
            model.update(dict.fromkeys(range(first, last + 1), colour))
    return spans, model


@given(steps)
def test_each_offset_has_the_range_that_was_put_last(steps: list[tuple[str, int, int]]) -> None:
    spans, model = coloured_by(steps)
    for offset in range(60):
        span = spans.at(offset)
        assert (None if span is None else span.colour) == model.get(offset)
    assert spans.offset_count == len(model)
    assert [offset for one in spans for offset in range(one.first, one.last + 1)] == sorted(model)


@given(steps, st.integers(0, 60), st.integers(0, 30))
def test_ranges_and_gaps_cover_everything(steps: list[tuple[str, int, int]], first: int, length: int) -> None:
    spans, model = coloured_by(steps)
    last = first + length
    found = spans.overlapping(first, last)
    assert [one.first for one in found] == sorted(one.first for one in found)
    covered = {offset for one in found for offset in range(one.first, one.last + 1)}
    assert covered & set(range(first, last + 1)) == set(model) & set(range(first, last + 1))
    gaps = [offset for low, high in spans.gaps(first, last) for offset in range(low, high + 1)]
    assert gaps == [offset for offset in range(first, last + 1) if offset not in model]


def test_a_deadline_is_returned_once_it_has_passed_until_it_is_set_again() -> None:
    times = {1: 10, 2: 20}
    deadlines = Deadlines(times.get)
    for key, at_ms in times.items():
        deadlines.set(at_ms, key)
    assert deadlines.next_ms() == 10
    assert deadlines.passed(9) == []
    assert deadlines.passed(20) == [1, 2]
    assert deadlines.passed(20) == [1, 2]
    times[1] = 30
    deadlines.set(30, 1)
    assert deadlines.passed(20) == [2]
    del times[2]
    assert deadlines.next_ms() == 30


def test_outdated_deadlines_do_not_accumulate() -> None:
    times: dict[int, int] = {}
    deadlines = Deadlines(times.get)
    for number in range(100_000):
        times[number] = 1_000_000 + number
        deadlines.set(times[number], number)
        times.pop(number - 10, None)
    assert len(deadlines._heap) < 2_000
    assert deadlines.next_ms() == 1_000_000 + 100_000 - 10


def test_the_rest_after_a_cut_keeps_its_entry_and_deadline() -> None:
    leases = Leases()
    leases.put(Lease(0, 99, "worker", 1, until_ms=1000))
    for offset in range(99):
        assert leases.cut(offset, offset) == [Lease(offset, offset, "worker", 1, until_ms=1000)]
    assert list(leases) == [Lease(99, 99, "worker", 1, until_ms=1000)]
    assert leases.offset_count == 1
    assert len(leases.ends._heap) == 1
