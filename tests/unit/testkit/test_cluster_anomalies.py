"""Every rule for clusters and replicas finds its own planted anomaly and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.testkit.anomalies import find_copy_anomalies, find_replicated_anomalies
from headrace.testkit.history import History, ReplicaContents

END, START = "high watermark", "log start"


def replicated() -> History:
    """Two records on three replicas, the last of which does not know yet that the second is committed."""
    history = History()
    for offset, value in enumerate((b"a", b"b")):
        history.end_send(history.begin_send("w", 0, value), offset)
        mark(history, END, offset + 1)
    mark(history, START, 0)
    history.final = {0: [(0, b"a"), (1, b"b")]}
    batches = ((0, b"<a>"), (1, b"<b>"))
    history.replicas = {
        0: {
            1: ReplicaContents(2, batches),
            2: ReplicaContents(2, batches),
            3: ReplicaContents(1, (*batches[:1], (1, b"<?>"))),
        }
    }
    return history


def mark(history: History, what: str, offset: int) -> None:
    history.end_mark(history.begin_mark("surveyor", what, 0), offset)


def a_replica_holds_other_bytes(history: History) -> None:
    history.replicas[0][2] = ReplicaContents(2, ((0, b"<a>"), (1, b"<x>")))


def a_replica_lacks_a_batch(history: History) -> None:
    history.replicas[0][2] = ReplicaContents(2, ((0, b"<a>"),))


def the_readable_end_goes_back(history: History) -> None:
    mark(history, END, 1)


def the_start_goes_back(history: History) -> None:
    mark(history, START, 2)
    mark(history, START, 1)


def test_an_orderly_history_has_no_anomaly() -> None:
    assert find_replicated_anomalies(replicated()) == []


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (a_replica_holds_other_bytes, "diverged"),
        (a_replica_lacks_a_batch, "diverged"),
        (the_readable_end_goes_back, "mark back"),
        (the_start_goes_back, "mark back"),
    ],
)
def test_a_planted_anomaly_of_replicas_is_found(plant: Callable[[History], None], kind: str) -> None:
    history = replicated()
    plant(history)
    assert {anomaly.kind for anomaly in find_replicated_anomalies(history)} == {kind}


def test_overlapping_requests_may_return_older_offsets() -> None:
    history = replicated()
    slow = history.begin_mark("another", END, 0)
    mark(history, END, 3)
    history.end_mark(slow, 2)
    assert find_replicated_anomalies(history) == []


def test_replicas_may_begin_at_different_offsets() -> None:
    history = replicated()
    history.replicas[0][2] = ReplicaContents(2, ((1, b"<b>"),))
    assert find_replicated_anomalies(history) == []


def copied() -> History:
    """The same two, each copied at the second attempt. Markers and what was aborted leave gaps."""
    copy = History(has_gaps=True)
    copy.aborted = {b"a|1", b"b|3"}
    copy.final = {0: [(2, b"a|2"), (6, b"b|4")]}
    copy.record_poll("reader", [(0, 2, b"a|2")])
    copy.record_poll("reader", [(0, 6, b"b|4")])
    return copy


def original(value: bytes) -> bytes:
    return value.partition(b"|")[0]


def a_reader_is_given_what_was_aborted(copy: History) -> None:
    copy.final[0].insert(0, (0, b"z|1"))
    copy.aborted.add(b"z|1")


def a_record_is_copied_twice(copy: History) -> None:
    copy.final[0].append((8, b"b|5"))


def a_record_is_not_copied(copy: History) -> None:
    del copy.final[0][0]
    copy.polls.clear()


def records_change_places(copy: History) -> None:
    copy.final[0] = [(2, b"b|4"), (6, b"a|2")]
    copy.polls.clear()


def a_reader_is_taken_back(copy: History) -> None:
    copy.record_poll("reader", [(0, 2, b"a|2")])


def test_an_orderly_copy_has_no_anomaly() -> None:
    assert find_copy_anomalies(replicated(), copied(), original) == []


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (a_reader_is_given_what_was_aborted, "aborted read"),
        (a_record_is_copied_twice, "copied twice"),
        (a_record_is_not_copied, "not copied"),
        (records_change_places, "copied out of order"),
        (a_reader_is_taken_back, "nonmonotonic poll"),
    ],
)
def test_a_planted_anomaly_of_a_copy_is_found(plant: Callable[[History], None], kind: str) -> None:
    copy = copied()
    plant(copy)
    assert {anomaly.kind for anomaly in find_copy_anomalies(replicated(), copy, original)} == {kind}
