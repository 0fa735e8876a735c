"""Byte ranges behave like sets of bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.segments.segment import ByteRanges

BYTES = 40
steps = st.lists(st.tuples(st.sampled_from(["add", "cut"]), st.integers(0, BYTES), st.integers(0, BYTES)))


@given(steps, st.integers(0, BYTES), st.integers(0, BYTES))
def test_ranges_are_a_set_of_bytes(steps: list[tuple[str, int, int]], start: int, end: int) -> None:
    ranges, model = ByteRanges(), set[int]()
    for action, low, high in steps:
        if action == "add":
            ranges.add(low, high)
            model |= set(range(low, high))
        else:
            ranges.cut(low)
            model -= set(range(low, BYTES + 1))
    assert {byte for low, high in pairs(ranges) for byte in range(low, high)} == model
    if start < end:
        assert ranges.covers(start, end) == model.issuperset(range(start, end))
    gap = ranges.first_gap(end)
    missing = [byte for byte in range(end) if byte not in model]
    if gap is None:
        assert not missing
    else:
        assert gap[0] == missing[0]
        assert set(range(*gap)) <= set(missing)
        assert gap[1] == end or gap[1] in model


def pairs(ranges: ByteRanges) -> list[tuple[int, int]]:
    return list(zip(ranges._bounds[::2], ranges._bounds[1::2], strict=True))


def test_touching_ranges_become_one() -> None:
    ranges = ByteRanges()
    ranges.add(0, 10)
    ranges.add(20, 30)
    ranges.add(10, 20)
    assert pairs(ranges) == [(0, 30)]
