from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.metadata import TopicPartition
from headrace.spark.offsets import PlannedRange, StreamOffset, share_limit, split_ranges

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_the_same_offsets_are_the_same_text() -> None:
    many = {TopicPartition("t", number): number for number in (10, 2, 0)}
    forward = StreamOffset(many, {"t": "x"})
    backward = StreamOffset(dict(reversed(many.items())), {"t": "x"})
    assert json.dumps(forward.to_dict()) == json.dumps(backward.to_dict())
    assert list(forward.to_dict()["t"]) == ["0", "2", "10"]


def test_offsets_round_trip() -> None:
    offset = StreamOffset({A: 5, B: 0}, {"a": "id-of-a"})
    assert StreamOffset.from_dict(json.loads(json.dumps(offset.to_dict()))) == offset


def test_offsets_without_ids_have_kafkas_form() -> None:
    assert StreamOffset({A: 5}).to_dict() == {"a": {"0": 5}}


def test_a_limit_is_shared_in_proportion() -> None:
    assert share_limit({A: 0, B: 100}, {A: 300, B: 200}, 40) == {A: 30, B: 110}


def test_a_small_partition_is_not_starved() -> None:
    assert share_limit({A: 0, B: 0}, {A: 1000, B: 1}, 10) == {A: 9, B: 1}


def test_a_limit_above_the_available_records_changes_nothing() -> None:
    assert share_limit({A: 0, B: 7}, {A: 3, B: 7}, 1000) == {A: 3, B: 7}


def test_a_partition_that_moved_backwards_is_unchanged() -> None:
    assert share_limit({A: 10, B: 0}, {A: 5, B: 100}, 10) == {A: 5, B: 10}


sizes = st.lists(st.integers(0, 50), max_size=6)


@given(sizes, st.integers(1, 200))
def test_a_shared_limit_makes_progress_within_the_bounds(lengths: list[int], limit: int) -> None:
    begin = {TopicPartition("t", number): 100 for number in range(len(lengths))}
    end = {TopicPartition("t", number): 100 + length for number, length in enumerate(lengths)}
    shared = share_limit(begin, end, limit)
    read = [shared[target] - begin[target] for target in end]
    assert all(0 <= taken <= length for taken, length in zip(read, lengths, strict=True))
    assert sum(read) <= limit + len(lengths)
    assert all(taken > 0 for taken, length in zip(read, lengths, strict=True) if length)


@given(sizes, st.none() | st.integers(1, 30), st.none() | st.integers(1, 30))
def test_split_ranges_have_the_same_offsets(
    lengths: list[int], pieces_min: int | None, records_max: int | None
) -> None:
    whole = [PlannedRange("t", number, 7, 7 + length, "id") for number, length in enumerate(lengths)]
    pieces = split_ranges(whole, pieces_min=pieces_min, records_max=records_max)
    offsets = [(piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert offsets == [(one.partition, offset) for one in whole for offset in range(one.start, one.end)]
    assert all(piece.size and piece.topic_id == "id" for piece in pieces)
    assert records_max is None or all(piece.size <= records_max for piece in pieces)
    assert len(pieces) >= min(pieces_min or 0, sum(lengths))


def test_the_largest_ranges_are_split_first() -> None:
    pieces = split_ranges([PlannedRange("t", 0, 0, 90), PlannedRange("t", 1, 0, 10)], pieces_min=4)
    assert [(piece.partition, piece.start, piece.end) for piece in pieces] == [
        (0, 0, 30),
        (0, 30, 60),
        (0, 60, 90),
        (1, 0, 10),
    ]
