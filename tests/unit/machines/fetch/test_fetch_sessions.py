"""Incremental fetch sessions: epochs, slots, and responses that contain only changed partitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.machines.fetch.fetch_sessions import FetchEntry, FetchSession, FetchSessions
from headrace.model.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdMismatch,
    HeadraceError,
    InvalidFetchSessionEpoch,
)
from headrace.model.ids import ZERO_ID

TOPIC = UUID(int=1)
EVICT_MS = 120_000


def numbers() -> Callable[[], int]:
    return count(1).__next__


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(numbers(), slots_max=2)


def begin(
    sessions: FetchSessions,
    session_id: int = 0,
    epoch: int = 0,
    *,
    partitions: int = 1,
    now_ms: int = 0,
    ids: bool = True,
    privileged: bool = False,
) -> FetchSession:
    session = sessions.begin(
        session_id, epoch, uses_topic_ids=ids, size=partitions, now_ms=now_ms, privileged=privileged
    )
    if session.full:
        for partition in range(partitions):
            session.put(TOPIC, "t", partition, 0, 1_000)
    return session


def ready(session: FetchSession) -> list[int]:
    return [entry.partition for entry in session.ready]


def test_epoch_zero_opens_a_session_and_returns_every_partition(sessions: FetchSessions) -> None:
    session = begin(sessions, partitions=3)
    assert (session.id, session.epoch, session.full) == (1, 1, True)
    assert ready(session) == [0, 1, 2]
    assert len(sessions) == 1
    assert sum(len(session.entries) for session in sessions._sessions.values()) == 3


def test_each_fetch_carries_the_next_epoch(sessions: FetchSessions) -> None:
    opened = begin(sessions)
    for epoch in (1, 2, 3):
        session = begin(sessions, opened.id, epoch)
        assert session is opened
        assert (session.epoch, session.full) == (epoch + 1, False)


def test_the_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    session = begin(sessions)
    session.epoch = 2**31 - 1
    assert begin(sessions, session.id, 2**31 - 1).epoch == 1


@pytest.mark.parametrize("epoch", [1, 3])
def test_any_other_epoch_is_rejected_and_changes_nothing(sessions: FetchSessions, epoch: int) -> None:
    session = begin(sessions)
    begin(sessions, session.id, 1)
    with pytest.raises(InvalidFetchSessionEpoch):
        begin(sessions, session.id, epoch)
    assert session.epoch == 2


def test_an_unknown_session_is_rejected(sessions: FetchSessions) -> None:
    with pytest.raises(FetchSessionIdNotFound):
        begin(sessions, 99, 1)
    with pytest.raises(FetchSessionIdNotFound):
        begin(sessions, 0, 1)


def test_names_and_ids_do_not_mix_in_a_session(sessions: FetchSessions) -> None:
    session = begin(sessions, ids=True)
    with pytest.raises(FetchSessionTopicIdMismatch) as error:
        begin(sessions, session.id, 1, ids=False)
    assert error.value.code == FetchSessionTopicIdMismatch.code


def test_the_final_epoch_closes_the_session_and_fetches_without_one(sessions: FetchSessions) -> None:
    session = begin(sessions)
    sessionless = begin(sessions, session.id, -1)
    assert (sessionless.id, sessionless.full, sessionless.closed) == (0, True, False)
    assert (session.id, session.closed) == (0, True)
    assert len(sessions) == 0


def test_opening_again_closes_the_session_that_is_named(sessions: FetchSessions) -> None:
    first = begin(sessions)
    second = begin(sessions, first.id, 0)
    assert first.closed
    assert second.id == 2
    assert len(sessions) == 1


def test_a_session_id_is_never_zero_and_never_reused() -> None:
    sessions = FetchSessions(iter([0, 7, 7, 0, 8]).__next__)
    assert begin(sessions).id == 7
    assert begin(sessions).id == 8


def test_partitions_are_added_updated_and_forgotten(sessions: FetchSessions) -> None:
    session = begin(sessions, partitions=2)
    begin(sessions, session.id, 1)
    entry = session.put(TOPIC, "t", 1, 50, 2_000, 4, 3, 10)
    assert len(session.entries) == 2
    assert (entry.fetch_offset, entry.max_bytes, entry.current_leader_epoch) == (50, 2_000, 4)
    assert (entry.last_fetched_epoch, entry.log_start_offset) == (3, 10)
    gone = session.forget(TOPIC, "t", 0)
    assert gone is not None
    assert gone.partition == 0
    assert session.forget(TOPIC, "t", 0) is None
    gone.mark_ready()
    assert ready(session) == [1]


def test_a_session_by_name_knows_topics_by_name(sessions: FetchSessions) -> None:
    session = begin(sessions, ids=False, partitions=0)
    session.put(ZERO_ID, "t", 0, 0, 1_000)
    session.put(ZERO_ID, "u", 0, 0, 1_000)
    assert len(session.entries) == 2
    assert session.forget(ZERO_ID, "t", 0) is not None


def test_a_session_that_lost_its_last_partition_is_closed(sessions: FetchSessions) -> None:
    session = begin(sessions)
    begin(sessions, session.id, 1)
    session.forget(TOPIC, "t", 0)
    sessions.close_if_empty(session)
    assert (session.id, len(sessions)) == (0, 0)


def test_a_session_may_begin_without_partitions(sessions: FetchSessions) -> None:
    session = begin(sessions, partitions=0)
    sessions.close_if_empty(session)
    assert session.id == 1


def test_idle_partitions_are_not_read_until_they_advance(sessions: FetchSessions) -> None:
    session = begin(sessions, partitions=3)
    for entry in list(session.ready):
        entry.mark_idle()
    assert ready(session) == []
    middle = session.entries[TOPIC, 1]
    middle.mark_ready()
    middle.mark_ready()
    assert ready(session) == [1]
    assert middle in middle.session.ready


def test_the_clients_new_position_makes_a_partition_ready(sessions: FetchSessions) -> None:
    session = begin(sessions, partitions=2)
    session.entries[TOPIC, 0].mark_idle()
    session.put(TOPIC, "t", 0, 9, 1_000)
    assert ready(session) == [1, 0]


def test_a_served_partition_moves_to_the_end_of_the_order(sessions: FetchSessions) -> None:
    session = begin(sessions, partitions=3)
    session.entries[TOPIC, 0].record_response(10, 0, has_records=True)
    assert ready(session) == [1, 2, 0]
    session.entries[TOPIC, 1].record_response(10, 0, has_records=False)
    assert ready(session) == [1, 2, 0]


class TestWhatAnIncrementalAnswerNames:
    @pytest.fixture
    def entry(self, sessions: FetchSessions) -> FetchEntry:
        session = begin(sessions)
        (entry,) = session.ready
        assert entry.record_response(10, 0, has_records=False), "the opening answer names everything"
        begin(sessions, session.id, 1)
        return entry

    def test_not_what_the_client_knows(self, entry: FetchEntry) -> None:
        assert not entry.record_response(10, 0, has_records=False)

    def test_records(self, entry: FetchEntry) -> None:
        assert entry.record_response(10, 0, has_records=True)

    def test_a_moved_high_watermark_once(self, entry: FetchEntry) -> None:
        assert entry.record_response(11, 0, has_records=False)
        assert not entry.record_response(11, 0, has_records=False)

    def test_a_moved_log_start_once(self, entry: FetchEntry) -> None:
        assert entry.record_response(10, 5, has_records=False)
        assert not entry.record_response(10, 5, has_records=False)

    def test_an_error_each_time_and_its_end(self, entry: FetchEntry) -> None:
        assert entry.record_response(10, 0, 6, has_records=False)
        assert entry.record_response(10, 0, 6, has_records=False)
        assert entry.record_response(10, 0, has_records=False)
        assert not entry.record_response(10, 0, has_records=False)

    def test_a_diverging_epoch_each_time_and_then_what_the_client_discarded(self, entry: FetchEntry) -> None:
        assert entry.record_response(10, 0, has_records=False, diverges=True)
        assert entry.record_response(10, 0, has_records=False, diverges=True)
        assert entry.record_response(10, 0, has_records=False)
        assert not entry.record_response(10, 0, has_records=False)

    def test_everything_again_to_a_client_in_a_new_leader_epoch(self, entry: FetchEntry) -> None:
        for leader_epoch in (4, 5):
            entry.session.put(TOPIC, "t", 0, 0, 1_000, leader_epoch)
            assert entry.record_response(10, 0, has_records=False)
            entry.session.put(TOPIC, "t", 0, 9, 1_000, leader_epoch)
            assert not entry.record_response(10, 0, has_records=False)


class TestSlots:
    def test_a_fetch_has_no_session_when_all_slots_are_used(self, sessions: FetchSessions) -> None:
        kept = [begin(sessions), begin(sessions)]
        session = begin(sessions, partitions=5)
        assert (session.id, session.full, session.epoch) == (0, True, -1)
        assert not any(other.closed for other in kept)

    def test_the_least_recently_used_session_is_evicted(self, sessions: FetchSessions) -> None:
        first, second = begin(sessions, now_ms=0), begin(sessions, now_ms=1)
        begin(sessions, first.id, 1, now_ms=2)
        assert begin(sessions, now_ms=EVICT_MS + 1).id == 0
        assert begin(sessions, now_ms=EVICT_MS + 2).id == 3
        assert second.closed
        assert not first.closed

    def test_a_larger_session_evicts_the_smallest_of_the_old_ones(self, sessions: FetchSessions) -> None:
        small, large = begin(sessions, partitions=2), begin(sessions, partitions=9)
        for session, epoch in ((small, 1), (large, 1)):
            begin(sessions, session.id, epoch, now_ms=EVICT_MS)
        now_ms = EVICT_MS + 1
        assert begin(sessions, partitions=3, now_ms=now_ms).id == 3
        assert small.closed
        assert not large.closed

    def test_a_session_of_the_same_size_does_not(self, sessions: FetchSessions) -> None:
        for _ in range(2):
            session = begin(sessions, partitions=2)
            begin(sessions, session.id, 1, now_ms=EVICT_MS)
        assert begin(sessions, partitions=2, now_ms=EVICT_MS + 1).id == 0

    def test_a_follower_evicts_a_young_consumer(self, sessions: FetchSessions) -> None:
        consumer = begin(sessions, partitions=9)
        begin(sessions, partitions=9, privileged=True)
        assert begin(sessions, partitions=1, privileged=True, now_ms=1).id == 3
        assert consumer.closed
        assert begin(sessions, partitions=9, now_ms=2).id == 0, "but a consumer evicts no follower"

    def test_an_unsuccessful_eviction_search_is_not_repeated_at_once(self, sessions: FetchSessions) -> None:
        for _ in range(2):
            session = begin(sessions, partitions=2)
            begin(sessions, session.id, 1, now_ms=EVICT_MS)
        assert begin(sessions, partitions=1, now_ms=EVICT_MS + 1).id == 0
        assert begin(sessions, partitions=3, now_ms=EVICT_MS + 1_000).id == 0
        assert begin(sessions, partitions=3, now_ms=EVICT_MS + 1_001).id == 3


class FetchSessionsMachine(RuleBasedStateMachine):
    """Any order of openings, fetches and forgettings, against a map of what each client believes."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = FetchSessions(numbers(), slots_max=3)
        self.believed: dict[int, tuple[FetchSession, int, set[int]]] = {}
        self.now_ms = 0

    def settle(self) -> None:
        """Clients learn of an evicted session from the next response."""
        self.believed = {id_: belief for id_, belief in self.believed.items() if not belief[0].closed}

    @rule(partitions=st.integers(0, 5), privileged=st.booleans())
    def client_opens_session(self, partitions: int, privileged: bool) -> None:
        session = begin(self.sessions, partitions=partitions, privileged=privileged, now_ms=self.now_ms)
        if session.id:
            self.believed[session.id] = (session, 1, set(range(partitions)))
        self.settle()

    @rule(pick=st.integers(0, 2), add=st.sets(st.integers(0, 6)), drop=st.sets(st.integers(0, 6)))
    def client_fetches(self, pick: int, add: set[int], drop: set[int]) -> None:
        if pick >= len(self.believed):
            return
        session_id = list(self.believed)[pick]
        _, epoch, partitions = self.believed[session_id]
        session = begin(self.sessions, session_id, epoch, now_ms=self.now_ms)
        for partition in add:
            session.put(TOPIC, "t", partition, 1, 1_000)
        for partition in drop:
            session.forget(TOPIC, "t", partition)
        partitions = (partitions | add) - drop
        assert {entry.partition for entry in session.entries.values()} == partitions
        self.sessions.close_if_empty(session)
        assert session.closed == (not partitions)
        self.believed[session_id] = (session, epoch + 1, partitions)
        self.settle()

    @rule(pick=st.integers(0, 2), partition=st.integers(0, 6), has_records=st.booleans(), idle=st.booleans())
    def a_partition_is_served(self, pick: int, partition: int, has_records: bool, idle: bool) -> None:
        if pick < len(self.believed):
            session = list(self.believed.values())[pick][0]
            entry = session.entries.get((TOPIC, partition))
            if entry is not None:
                entry.record_response(1, 0, has_records=has_records)
                if idle:
                    entry.mark_idle()

    @rule(session_id=st.integers(0, 20), epoch=st.integers(1, 5))
    def a_stale_fetch_changes_nothing(self, session_id: int, epoch: int) -> None:
        belief = self.believed.get(session_id)
        if belief is not None and belief[1] == epoch:
            return
        with pytest.raises(HeadraceError):
            begin(self.sessions, session_id, epoch)

    @rule(elapsed_ms=st.sampled_from([1, 1_000, EVICT_MS]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms

    @invariant()
    def clients_and_cache_agree(self) -> None:
        assert len(self.sessions) == len(self.believed) <= 3
        cached = sum(len(session.entries) for session in self.sessions._sessions.values())
        assert cached == sum(len(belief[2]) for belief in self.believed.values())
        for session_id, (session, epoch, _) in self.believed.items():
            assert (session.id, session.epoch) == (session_id, epoch)
            assert all(session.entries[TOPIC, entry.partition] is entry for entry in session.ready)


FetchSessionsMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestFetchSessionsMachine = FetchSessionsMachine.TestCase
