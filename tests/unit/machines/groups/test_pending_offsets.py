"""Offsets in transactions take effect at the commit, ordered by their position in the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.machines.groups.group_offsets import GroupOffsets, OffsetCommitted, OffsetForgotten

T1, T2 = (0, 101), (0, 102)


def event(offsets: GroupOffsets, offset: int, partition: int = 0) -> OffsetCommitted:
    return offsets.commit("g", "t", partition, offset, now_ms=0)


def offset_of(offsets: GroupOffsets, partition: int = 0) -> int | None:
    found = offsets.fetch("g", "t", partition)
    return None if found is None else found.offset


def test_a_pending_offset_is_not_seen_before_its_transaction_commits() -> None:
    offsets = GroupOffsets()
    offsets.apply(event(offsets, 1))
    offsets.add_pending(T1, event(offsets, 2))
    assert offset_of(offsets) == 1
    assert offsets.is_pending("g", "t", 0)
    assert [one.committed.offset for one in offsets.end_transaction(T1, is_commit=True)] == [2]
    assert offset_of(offsets) == 2
    assert not offsets.is_pending("g", "t", 0)


def test_an_aborted_transaction_leaves_nothing_behind() -> None:
    offsets = GroupOffsets()
    offsets.add_pending(T1, event(offsets, 2))
    assert offsets.has_offsets("g")
    assert offsets.end_transaction(T1, is_commit=False) == []
    assert not offsets.has_offsets("g")
    assert not offsets.is_pending("g", "t", 0)


def test_a_commit_that_came_later_in_the_log_stays() -> None:
    offsets = GroupOffsets()
    offsets.add_pending(T1, event(offsets, 2))
    offsets.apply(event(offsets, 3))
    offsets.end_transaction(T1, is_commit=True)
    assert offset_of(offsets) == 3


def test_a_marker_without_commits_changes_nothing() -> None:
    assert GroupOffsets().end_transaction(T1, is_commit=True) == []


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "forget", "pend", "commit", "abort"]), st.integers(0, 2), st.integers(0, 1)),
    max_size=30,
)


@given(steps)
def test_the_last_record_of_a_key_wins_among_those_that_count(log: list[tuple[str, int, int]]) -> None:
    offsets = GroupOffsets()
    records: list[tuple[int, int, int | None, int | None]] = []  # place, partition, offset, transaction
    outcomes: dict[int, list[tuple[int, bool]]] = {0: [], 1: []}
    for place, (kind, partition, which) in enumerate(log):
        transaction = (T1, T2)[which]
        if kind == "plain":
            offsets.apply(event(offsets, place, partition))
            records.append((place, partition, place, None))
        elif kind == "forget":
            offsets.apply(OffsetForgotten("g", "t", partition))
            records.append((place, partition, None, None))
        elif kind == "pend":
            offsets.add_pending(transaction, event(offsets, place, partition))
            records.append((place, partition, place, which))
        else:
            offsets.end_transaction(transaction, is_commit=kind == "commit")
            outcomes[which].append((place, kind == "commit"))
    for partition in range(3):
        counting = [
            offset
            for place, at, offset, which in records
            if at == partition and (which is None or next((won for end, won in outcomes[which] if end > place), False))
        ]
        assert offset_of(offsets, partition) == (counting[-1] if counting else None)
