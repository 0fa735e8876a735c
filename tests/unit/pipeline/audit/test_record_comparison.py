"""The differences turn the expected sequence into the found one; one edit is one difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.audit.record_comparison import (
    Difference,
    RecordDigest,
    align,
    compare_by_content,
    compare_by_identity,
    differing_fields,
    longest_increasing_subsequence,
)

Compare = Callable[[Sequence[RecordDigest], Sequence[RecordDigest]], list[Difference]]

CONTENTS = st.lists(st.integers(0, 6), max_size=30)
DISTINCT = st.integers(1, 40).map(lambda count: list(range(count)))


def entry(number: int, *, at: int = 0, value: bytes | None = None) -> RecordDigest:
    return RecordDigest(at, None, b"k%d" % number, b"v%d" % number if value is None else value)


def entries(numbers: Sequence[int]) -> list[RecordDigest]:
    return [entry(number, at=at) for at, number in enumerate(numbers)]


def identified(numbers: Sequence[int]) -> list[RecordDigest]:
    """Records of a source: each number is an identity."""
    return [RecordDigest(at, number, b"k", b"v%d" % number) for at, number in enumerate(numbers)]


def explained(
    expected: Sequence[RecordDigest], found: Sequence[RecordDigest], differences: Sequence[Difference]
) -> list[object]:
    """The expected contents after applying the differences."""
    gone = {d.expected for d in differences if d.kind in {"lost", "reordered"}}
    changed = {d.expected: d.found for d in differences if d.kind == "altered" and d.expected not in gone}
    came = {d.found for d in differences if d.kind in {"duplicated", "foreign", "reordered"}}
    stayed = [
        found[changed[i] or 0].content if i in changed else one.content
        for i, one in enumerate(expected)
        if i not in gone
    ]
    rest = iter(stayed)
    built: list[object] = [found[j].content if j in came else next(rest) for j in range(len(came) + len(stayed))]
    return built


@given(CONTENTS, CONTENTS)
def test_aligned_items_are_equal_and_in_order(expected: list[int], found: list[int]) -> None:
    for edits_max in (0, 3, 1000):
        pairs = align(expected, found, edits_max)
        assert all(expected[i] == found[j] for i, j in pairs)
        assert pairs == sorted(pairs)
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)


@given(CONTENTS, CONTENTS)
def test_the_maximum_number_of_items_is_aligned(expected: list[int], found: list[int]) -> None:
    best = [[0] * (len(found) + 1) for _ in range(len(expected) + 1)]
    for i, one in enumerate(expected):
        for j, other in enumerate(found):
            best[i + 1][j + 1] = best[i][j] + 1 if one == other else max(best[i][j + 1], best[i + 1][j])
    assert len(align(expected, found)) == best[-1][-1]


@given(st.permutations(range(12)))
def test_the_longest_increasing_subsequence_is_increasing_and_longest(values: list[int]) -> None:
    rise = [values[index] for index in longest_increasing_subsequence(values)]
    assert rise == sorted(set(rise))
    lengths: list[int] = []
    for index, value in enumerate(values):
        lengths.append(1 + max((lengths[i] for i in range(index) if values[i] < value), default=0))
    assert len(rise) == max(lengths)


@given(CONTENTS, CONTENTS)
def test_by_content_the_differences_explain_everything(expected: list[int], found: list[int]) -> None:
    left, right = entries(expected), entries(found)
    differences = compare_by_content(left, right)
    assert explained(left, right, differences) == [one.content for one in right]
    for one in differences:
        if one.kind == "duplicated":
            assert one.found is not None
            assert found[one.found] in expected
        if one.kind == "foreign":
            assert one.found is not None
            assert found[one.found] not in expected


@given(DISTINCT, st.data())
def test_by_identity_the_differences_explain_everything(expected: list[int], data: st.DataObject) -> None:
    left = identified(expected)
    found = data.draw(st.lists(st.integers(0, len(expected) + 3), max_size=40))
    right = [
        RecordDigest(at, number, b"k", b"v%d" % number if data.draw(st.booleans()) else b"other")
        for at, number in enumerate(found)
    ]
    differences = compare_by_identity(left, right)
    assert explained(left, right, differences) == [one.content for one in right]


@given(CONTENTS)
@pytest.mark.parametrize("compare", [compare_by_content, compare_by_identity])
def test_equal_sequences_have_no_difference(compare: Compare, numbers: list[int]) -> None:
    sequence = entries(numbers) if compare is compare_by_content else identified(range(len(numbers)))
    assert compare(sequence, list(sequence)) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_one_lost_record_is_one_difference_also_among_equal_ones(numbers: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(numbers) - 1))
    [difference] = compare_by_content(entries(numbers), entries(numbers[:at] + numbers[at + 1 :]))
    assert difference.kind == "lost"
    assert difference.expected is not None
    lost = difference.expected
    # Of a run of equal records nobody can tell which one is gone.
    assert set(numbers[min(lost, at) : max(lost, at) + 1]) == {numbers[at]}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_one_duplicated_record_is_one_difference_at_any_position(numbers: list[int], data: st.DataObject) -> None:
    copied, at = data.draw(st.integers(0, len(numbers) - 1)), data.draw(st.integers(0, len(numbers)))
    [difference] = compare_by_content(entries(numbers), entries([*numbers[:at], numbers[copied], *numbers[at:]]))
    assert difference.kind == "duplicated"
    assert difference.expected is not None
    assert numbers[difference.expected] == numbers[copied]


@given(DISTINCT, st.data())
@pytest.mark.parametrize("compare", [compare_by_content, compare_by_identity])
def test_one_moved_record_is_one_difference(compare: Compare, numbers: list[int], data: st.DataObject) -> None:
    found = list(numbers)
    moved = found.pop(data.draw(st.integers(0, len(numbers) - 1)))
    found.insert(data.draw(st.integers(0, len(found))), moved)
    make = entries if compare is compare_by_content else identified
    differences = compare(make(numbers), make(found))
    if found == numbers:
        assert differences == []
        return
    [difference] = differences
    assert difference.kind == "reordered"
    assert difference.expected is not None
    # Of two neighbours that changed places either may be called the moved one.
    assert difference.expected == moved or abs(numbers.index(moved) - found.index(moved)) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_one_altered_record_is_one_difference_with_the_fields(numbers: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(numbers) - 1))
    found = entries(numbers)
    found[at] = entry(numbers[at], at=at, value=b"altered")
    assert compare_by_content(entries(numbers), found) == [Difference("altered", at, at, ("value",))]


def test_several_faults_in_one_partition_are_all_reported() -> None:
    numbers = list(range(100))
    found = [one for one in entries(numbers) if one.key not in {b"k10", b"k40"}]  # 10 lost, 40 moved to the end
    found[49] = entry(51, value=b"altered")
    found.insert(70, entry(3))
    found.append(entry(40))
    named = {(d.kind, d.expected, d.fields) for d in compare_by_content(entries(numbers), found)}
    assert named == {
        ("lost", 10, ()),
        ("reordered", 40, ()),
        ("altered", 51, ("value",)),
        ("duplicated", 3, ()),
    }


def test_an_altered_record_is_distinguished_from_a_lost_neighbour() -> None:
    lost, altered = entry(1), entry(2)
    found = [entry(0), entry(2, value=b"altered"), entry(3)]
    differences = compare_by_content([entry(0), lost, altered, entry(3)], found)
    assert {(d.kind, d.expected) for d in differences} == {("lost", 1), ("altered", 2)}


def test_by_identity_a_late_copy_is_the_duplicate() -> None:
    found = identified([0, 1, 2, 3, 1, 4])
    assert compare_by_identity(identified(range(5)), found) == [Difference("duplicated", 1, 4)]


def test_by_identity_an_early_copy_is_the_duplicate() -> None:
    found = identified([3, 0, 1, 2, 3, 4])
    assert compare_by_identity(identified(range(5)), found) == [Difference("duplicated", 3, 0)]


def test_by_identity_the_unchanged_copy_is_the_record() -> None:
    found = [*identified([0, 1]), RecordDigest(2, 1, b"k", b"other"), RecordDigest(3, 2, b"k", b"v2")]
    assert compare_by_identity(identified(range(3)), found) == [Difference("duplicated", 1, 2, ("value",))]


def test_by_identity_a_record_without_identity_is_foreign() -> None:
    found = [*identified([0]), RecordDigest(1, None, b"k", b"v1"), *identified([1])]
    assert compare_by_identity(identified(range(2)), found) == [Difference("foreign", None, 1)]


def test_differing_fields_are_named() -> None:
    one = RecordDigest(0, None, b"k", b"v", (("a", b"1"), ("b", b"2")), 5)
    assert differing_fields(one, RecordDigest(9, 3, b"k", b"v", (("a", b"1"), ("b", b"2")), 5)) == ()
    assert differing_fields(one, RecordDigest(0, None, None, b"w", (("a", b"1"), ("b", b"3")), 6)) == (
        *("key", "value", "timestamp"),
        "header b",
    )
    assert differing_fields(one, RecordDigest(0, None, b"k", b"v", (("b", b"2"), ("a", b"1")), 5)) == (
        "order of headers",
    )


def test_sequences_without_common_items_are_compared_fast() -> None:
    differences = compare_by_content(entries(range(3000)), entries(range(5000, 9000)))
    assert len(differences) == 4000
    assert sum(d.kind == "altered" for d in differences) == 3000
