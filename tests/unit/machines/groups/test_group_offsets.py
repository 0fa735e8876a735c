"""A committed offset is returned until it is deleted or expires."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.machines.groups.group_offsets import (
    CommittedOffset,
    GroupOffsets,
    OffsetCommitted,
    OffsetForgotten,
)
from headrace.machines.groups.group_state import OffsetRetention
from headrace.model.errors import OffsetMetadataTooLarge
from headrace.model.ids import ZERO_ID

WEEK_MS = 7 * 24 * 3_600_000
BY_COMMIT = OffsetRetention(None, frozenset())


@pytest.fixture
def offsets() -> GroupOffsets:
    return GroupOffsets()


def committed(
    offsets: GroupOffsets,
    group_id: str = "g",
    topic: str = "t",
    partition: int = 0,
    offset: int = 5,
    now_ms: int = 1_000,
    **more: Any,
) -> OffsetCommitted:
    event = offsets.commit(group_id, topic, partition, offset, now_ms=now_ms, **more)
    offsets.apply(event)
    return event


def test_a_commit_changes_nothing_until_it_is_applied(offsets: GroupOffsets) -> None:
    event = offsets.commit("g", "t", 0, 5, now_ms=1_000)
    assert offsets.fetch("g", "t", 0) is None
    offsets.apply(event)
    assert offsets.fetch("g", "t", 0) == CommittedOffset(5, -1, "", 1_000, -1, ZERO_ID)


def test_committed_offsets_are_restored(offsets: GroupOffsets) -> None:
    committed(offsets, leader_epoch=3, metadata="note", retention_ms=500)
    assert offsets.fetch("g", "t", 0) == CommittedOffset(5, 3, "note", 1_000, 1_500, ZERO_ID)


def test_no_metadata_is_empty_metadata(offsets: GroupOffsets) -> None:
    assert committed(offsets, metadata=None).committed.metadata == ""


def test_the_last_commit_counts_even_if_it_goes_back(offsets: GroupOffsets) -> None:
    committed(offsets, offset=9)
    committed(offsets, offset=4)
    found = offsets.fetch("g", "t", 0)
    assert found is not None
    assert found.offset == 4


def test_groups_topics_and_partitions_do_not_mix(offsets: GroupOffsets) -> None:
    committed(offsets, "g", "t", 0, offset=1)
    committed(offsets, "g", "t", 1, offset=2)
    committed(offsets, "g", "u", 0, offset=3)
    committed(offsets, "h", "t", 0, offset=4)
    assert [(t, p, c.offset) for t, p, c in offsets.fetch_all("g")] == [("t", 0, 1), ("t", 1, 2), ("u", 0, 3)]
    assert offsets.groups() == {"g", "h"}
    assert list(offsets.fetch_all("nobody")) == []


def test_metadata_that_is_too_long_is_rejected() -> None:
    offsets = GroupOffsets(metadata_bytes_max=4)
    offsets.commit("g", "t", 0, 5, now_ms=0, metadata="1234")
    with pytest.raises(OffsetMetadataTooLarge):
        offsets.commit("g", "t", 0, 5, now_ms=0, metadata="12345")


def test_an_offset_counts_only_for_the_topic_that_it_was_committed_for(offsets: GroupOffsets) -> None:
    old, new = UUID(int=1), UUID(int=2)
    committed(offsets, topic_id=old)
    assert offsets.fetch("g", "t", 0, old) is not None
    assert offsets.fetch("g", "t", 0, new) is None
    assert offsets.fetch("g", "t", 0) is not None


def test_an_offset_without_a_topic_id_counts_for_the_name(offsets: GroupOffsets) -> None:
    committed(offsets)
    assert offsets.fetch("g", "t", 0, UUID(int=1)) is not None


def test_a_deleted_offset_is_removed_and_an_unknown_one_needs_no_tombstone(offsets: GroupOffsets) -> None:
    committed(offsets)
    event = offsets.forget("g", "t", 0)
    assert event == OffsetForgotten("g", "t", 0)
    offsets.apply(event)
    assert not offsets.has_offsets("g")
    assert offsets.forget("g", "t", 0) is None
    offsets.apply(event)


def test_a_group_that_is_deleted_loses_all_its_offsets(offsets: GroupOffsets) -> None:
    committed(offsets, "g", "t", 0)
    committed(offsets, "g", "u", 1)
    committed(offsets, "h", "t", 0)
    for event in offsets.forget_group("g"):
        offsets.apply(event)
    assert offsets.groups() == {"h"}


def test_a_topic_that_is_deleted_loses_its_offsets_in_every_group(offsets: GroupOffsets) -> None:
    committed(offsets, "g", "t", 0)
    committed(offsets, "g", "u", 0)
    committed(offsets, "h", "t", 3)
    events = offsets.forget_topic("t")
    assert events == [OffsetForgotten("g", "t", 0), OffsetForgotten("h", "t", 3)]
    for event in events:
        offsets.apply(event)
    assert [(t, p) for t, p, _ in offsets.fetch_all("g")] == [("u", 0)]


def test_offsets_of_simple_consumers_expire_by_their_commit(offsets: GroupOffsets) -> None:
    committed(offsets, partition=0, now_ms=1_000)
    committed(offsets, partition=1, now_ms=2_000)
    assert offsets.expired("g", BY_COMMIT, 999 + WEEK_MS) == []
    assert offsets.expired("g", BY_COMMIT, 1_000 + WEEK_MS) == [OffsetForgotten("g", "t", 0)]


def test_offsets_of_an_empty_group_expire_together(offsets: GroupOffsets) -> None:
    committed(offsets, partition=0, now_ms=1_000)
    committed(offsets, partition=1, now_ms=2_000)
    emptied = OffsetRetention(5_000, frozenset())
    assert offsets.expired("g", emptied, 4_999 + WEEK_MS) == []
    assert len(offsets.expired("g", emptied, 5_000 + WEEK_MS)) == 2


def test_offsets_of_subscribed_topics_are_kept(offsets: GroupOffsets) -> None:
    committed(offsets, topic="t")
    committed(offsets, topic="u")
    retention = OffsetRetention(None, frozenset({"t"}))
    assert offsets.expired("g", retention, 10 * WEEK_MS) == [OffsetForgotten("g", "u", 0)]


def test_a_group_may_keep_all_its_offsets(offsets: GroupOffsets) -> None:
    committed(offsets)
    assert offsets.expired("g", None, 10 * WEEK_MS) == []


def test_a_commit_may_have_its_own_retention(offsets: GroupOffsets) -> None:
    committed(offsets, now_ms=1_000, retention_ms=10)
    assert offsets.expired("g", BY_COMMIT, 1_009) == []
    assert offsets.expired("g", OffsetRetention(500, frozenset()), 1_010) == [OffsetForgotten("g", "t", 0)]


keys = st.tuples(st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 2))


class OffsetsMachine(RuleBasedStateMachine):
    """Against a plain dictionary, and against a replay of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = GroupOffsets()
        self.model: dict[tuple[str, str, int], CommittedOffset] = {}
        self.log: list[OffsetCommitted | OffsetForgotten] = []
        self.now_ms = 0

    def append(self, event: OffsetCommitted | OffsetForgotten) -> None:
        self.log.append(event)
        self.offsets.apply(event)

    @rule(key=keys, offset=st.integers(0, 100))
    def commit(self, key: tuple[str, str, int], offset: int) -> None:
        self.now_ms += 1
        event = self.offsets.commit(*key, offset, now_ms=self.now_ms)
        self.append(event)
        self.model[key] = event.committed

    @rule(key=keys)
    def forget(self, key: tuple[str, str, int]) -> None:
        event = self.offsets.forget(*key)
        assert (event is None) == (key not in self.model)
        if event is not None:
            self.append(event)
            del self.model[key]

    @rule(topic=st.sampled_from("tu"))
    def a_topic_is_deleted(self, topic: str) -> None:
        for event in self.offsets.forget_topic(topic):
            self.append(event)
        self.model = {key: value for key, value in self.model.items() if key[1] != topic}

    @rule(group_id=st.sampled_from("gh"), age_ms=st.integers(0, 20))
    def offsets_expire(self, group_id: str, age_ms: int) -> None:
        for event in self.offsets.expired(group_id, BY_COMMIT, self.now_ms, age_ms):
            self.append(event)
        self.model = {
            key: value
            for key, value in self.model.items()
            if key[0] != group_id or self.now_ms - value.commit_timestamp_ms < age_ms
        }

    @staticmethod
    def contents(offsets: GroupOffsets) -> dict[tuple[str, str, int], CommittedOffset]:
        return {(g, t, p): value for g in offsets.groups() for t, p, value in offsets.fetch_all(g)}

    @invariant()
    def the_offsets_are_those_of_the_model(self) -> None:
        assert self.contents(self.offsets) == self.model
        assert self.offsets.groups() == {key[0] for key in self.model}

    @invariant()
    def replaying_the_log_rebuilds_the_offsets(self) -> None:
        replica = GroupOffsets()
        for event in self.log:
            replica.apply(event)
        assert self.contents(replica) == self.contents(self.offsets)


OffsetsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestOffsetsMachine = OffsetsMachine.TestCase
