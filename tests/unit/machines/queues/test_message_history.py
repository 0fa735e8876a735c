"""How many deliveries a message took, from the events of an acks log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.machines.queues.message_history import MessageHistory
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Failed,
    Redriven,
    Settled,
    SettledHow,
    SnapshotEvent,
    Sought,
)

FAILED_TWICE = [Failed(1, 3, 9, 1, 10, "busy"), Failed(2, 5, 5, 2, 20, "busy")]


def attempts(events: Sequence[AcksEvent], *, is_beginning: bool = True) -> int:
    """The attempts of message 5 at its last event."""
    history = MessageHistory([4, 5], is_beginning=is_beginning)
    for event in events:
        history.take("a", event)
        history.take("b", Settled(9, "ack", [(0, 100)]))
    return history.last_events["a", 5].attempts


def snapshot(part: int = 1, failed: Sequence[tuple[int, int, int, int, str, bool]] = ()) -> SnapshotEvent:
    return SnapshotEvent(3, 1, part, 2, 1, 0, failed=failed)


def test_an_acked_message_took_one_delivery_more_than_it_failed() -> None:
    assert attempts([Created(0, 0), Settled(3, "ack", [(0, 9)])]) == 1
    assert attempts([Created(0, 0), *FAILED_TWICE, Settled(3, "ack", [(0, 9)])]) == 3


@pytest.mark.parametrize("how", ["dead", "discarded"])
def test_the_last_delivery_of_a_dying_message_counts_once(how: SettledHow) -> None:
    dying = Failed(3, 5, 5, 3, 30, "busy", is_dying=True)
    assert attempts([*FAILED_TWICE, dying, Settled(3, how, [(5, 5)])]) == 3


@pytest.mark.parametrize("how", ["reject", "discarded"])
def test_without_dead_letters_the_last_delivery_has_no_failure_event(how: SettledHow) -> None:
    assert attempts([*FAILED_TWICE, Settled(3, how, [(5, 5)])]) == 3


@pytest.mark.parametrize(("how", "count"), [("expired", 2), ("filtered", 2), ("gap", 2)])
def test_a_settlement_without_delivery_is_no_attempt(how: SettledHow, count: int) -> None:
    assert attempts([*FAILED_TWICE, Settled(3, how, [(5, 5)])]) == count
    assert attempts([Settled(3, how, [(5, 5)])]) == 0


def test_a_seek_starts_the_count_again() -> None:
    assert attempts([*FAILED_TWICE, Sought(3, 0), Settled(4, "ack", [(5, 5)])]) == 1


def test_a_redrive_starts_the_count_again() -> None:
    dead = Settled(3, "dead", [(5, 5)])
    assert attempts([*FAILED_TWICE, dead, Redriven(4, [(5, 1)]), Settled(5, "ack", [(5, 5)])]) == 1
    assert attempts([dead, Redriven(4, [(4, 1), (5, 1)]), Settled(5, "ack", [(5, 5)])], is_beginning=False) == 1


def test_a_snapshot_replaces_deleted_failures() -> None:
    settled = Settled(4, "ack", [(5, 5)])
    failed = [(3, 9, 2, 20, "busy", False)]
    assert attempts([snapshot(failed=failed), settled], is_beginning=False) == 3
    assert attempts([snapshot(), settled], is_beginning=False) == 1


def test_the_count_is_unknown_if_earlier_events_were_deleted() -> None:
    settled = Settled(4, "ack", [(5, 5)])
    assert attempts([settled], is_beginning=False) == 0
    assert attempts([settled, snapshot()], is_beginning=False) == 0
    assert attempts([snapshot(part=2), settled], is_beginning=False) == 0
    assert attempts([*FAILED_TWICE, settled], is_beginning=False) == 3, "a failure contains the number"
