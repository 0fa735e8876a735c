"""A floor and a bitmap agree with a set of offsets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.queues.settled_offsets import SettledOffsets, first_absent, new_bitmap, present_ranges

START = 65_536 - 20  # uses two containers of the bitmap
END = START + 60
ranges = st.lists(
    st.tuples(st.integers(START - 5, END - 1), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))), max_size=20
)


def settled_by(added: list[tuple[int, int]]) -> tuple[SettledOffsets, set[int]]:
    settled = SettledOffsets(START)
    model = set(range(START))
    for first, last in added:
        settled.add(first, last)
        model.update(range(first, last + 1))
    return settled, model


@given(ranges)
def test_settled_offsets_behave_like_a_set(added: list[tuple[int, int]]) -> None:
    settled, model = settled_by(added)
    assert settled.floor == next(offset for offset in range(START, END + 20) if offset not in model)
    assert all((offset in settled) == (offset in model) for offset in range(START - 9, END + 20))
    assert len(settled) == sum(offset > settled.floor for offset in model)


@given(ranges, st.integers(START - 5, END), st.integers(START - 5, END + 20))
def test_unsettled_offsets_are_returned_as_ranges(added: list[tuple[int, int]], first: int, end: int) -> None:
    settled, model = settled_by(added)
    found = list(settled.unsettled(first, end))
    assert [offset for one in found for offset in range(one.first, one.last + 1)] == [
        offset for offset in range(first, end) if offset not in model
    ]
    assert all(before.last + 1 < after.first for before, after in pairwise(found))
    assert settled.count_unsettled(end) == sum(offset not in model for offset in range(START, end))


@given(ranges, st.sampled_from([1, 40, 10_000]))
def test_the_slices_together_are_the_same_set(added: list[tuple[int, int]], bytes_max: int) -> None:
    settled, model = settled_by(added)
    copy = SettledOffsets(settled.floor)
    for piece in settled.slices(bytes_max):
        copy.add_slice(piece)
    assert all((offset in copy) == (offset in model) for offset in range(START - 9, END + 20))
    assert (copy.floor, copy.end, len(copy)) == (settled.floor, settled.end, len(settled))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 48, 49, 65_536, 1_000_000])
def test_the_end_of_a_run_of_any_length_is_found(length: int) -> None:
    bitmap = new_bitmap()
    bitmap.add_range(1_000, 1_000 + length)
    bitmap.add_range(1_001 + length, 1_050 + length)
    assert first_absent(bitmap, 1_000) == 1_000 + length
    assert first_absent(bitmap, 1_000 + length) == 1_000 + length
    assert list(present_ranges(bitmap, 0, 2_000_000)) == [(1_000, 999 + length), (1_001 + length, 1_049 + length)]


def test_a_slice_respects_the_size_limit() -> None:
    settled = SettledOffsets()
    for offset in range(1, 1_000_000, 7):
        settled.add(offset, offset)
    pieces = list(settled.slices(40_000))
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= 40_000


def test_an_offset_that_is_removed_is_unsettled_and_all_others_stay_settled() -> None:
    settled = SettledOffsets(0)
    settled.add(0, 99)
    settled.add(200, 299)
    for offset in (50, 20, 250):
        settled.remove(offset)
    assert settled.floor == 20
    assert list(settled.unsettled(0, 300)) == [(20, 20), (50, 50), (100, 199), (250, 250)]
    assert [settled.next_unsettled(offset) for offset in (0, 21, 51, 120, 200, 251)] == [20, 50, 100, 120, 250, 300]
    for offset in (20, 50):
        settled.add(offset, offset)
    assert (settled.floor, len(settled)) == (100, 99)


def test_removing_an_offset_far_below_the_floor_takes_little_memory() -> None:
    settled = SettledOffsets(0)
    settled.add(0, 1_000_000_000)
    settled.remove(5)
    assert sum(map(len, settled.slices(1 << 30))) < 1 << 20
    settled.add(5, 5)
    assert (settled.floor, len(settled)) == (1_000_000_001, 0)
