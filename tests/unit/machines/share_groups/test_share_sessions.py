"""Share sessions are opened, counted, closed and limited, and no partition starves."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.machines.share_groups.share_sessions import ShareSession, ShareSessions
from headrace.model.errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

T = UUID(int=1)


def opened(sessions: ShareSessions, member: str = "m") -> ShareSession:
    return sessions.begin_fetch("g", member, 0, settles=False)


def test_a_session_counts_fetches_and_acknowledgements() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    assert sessions.begin_fetch("g", "m", 1, settles=True) is session
    assert sessions.begin_acknowledge("g", "m", 2) is session
    assert sessions.begin_fetch("g", "m", 3, settles=False) is session
    assert session.epoch == 4


def test_a_duplicate_or_early_request_is_rejected_and_not_counted() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    sessions.begin_fetch("g", "m", 1, settles=False)
    for epoch in (1, 3):
        with pytest.raises(InvalidShareSessionEpoch):
            sessions.begin_fetch("g", "m", epoch, settles=False)
        with pytest.raises(InvalidShareSessionEpoch):
            sessions.begin_acknowledge("g", "m", epoch)
    assert session.epoch == 2


@pytest.mark.parametrize("epoch", [1, -1])
def test_an_unknown_session_is_rejected(epoch: int) -> None:
    with pytest.raises(ShareSessionNotFound):
        ShareSessions().begin_fetch("g", "m", epoch, settles=False)
    with pytest.raises(ShareSessionNotFound):
        ShareSessions().begin_acknowledge("g", "m", epoch)


def test_an_opening_request_with_acknowledgements_is_rejected_and_keeps_the_old_session() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    with pytest.raises(InvalidRequest):
        sessions.begin_fetch("g", "m", 0, settles=True)
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.begin_acknowledge("g", "m", 0)
    assert sessions.is_present(session)


def test_a_closed_session_is_removed() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    assert sessions.begin_acknowledge("g", "m", -1) is session
    sessions.end(session)
    assert session.is_over
    assert not sessions._sessions


def test_a_new_session_keeps_the_touched_partitions() -> None:
    sessions = ShareSessions()
    replaced_member = opened(sessions)
    replaced_member.add((T, 0))
    session = opened(sessions)
    assert not sessions.is_present(replaced_member)
    assert not replaced_member.is_over
    assert not session.partitions
    assert list(session.touched) == [(T, 0)]


def test_at_the_session_limit_a_member_can_replace_its_own_session() -> None:
    sessions = ShareSessions(sessions_max=2)
    first, _ = opened(sessions, "m1"), opened(sessions, "m2")
    with pytest.raises(ShareSessionLimitReached):
        opened(sessions, "m3")
    opened(sessions, "m2")
    sessions.end(first)
    opened(sessions, "m3")


def test_each_request_begins_with_a_different_partition() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    assert session.in_rotation() == []
    for index in range(3):
        session.add((T, index))
    first = set()
    for epoch in range(1, 4):
        sessions.begin_fetch("g", "m", epoch, settles=False)
        turn = session.in_rotation()
        assert sorted(turn) == [(T, 0), (T, 1), (T, 2)]
        first.add(turn[0])
    assert len(first) == 3
    session.forget((T, 1))
    session.forget((T, 9))
    assert sorted(session.in_rotation()) == [(T, 0), (T, 2)]
    assert (T, 1) in session.touched


def test_the_epoch_wraps_to_one() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    session.epoch = 2**31 - 1
    sessions.begin_fetch("g", "m", 2**31 - 1, settles=False)
    assert session.epoch == 1
