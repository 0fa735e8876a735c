"""Every rule finds its own planted anomaly and no other, and nothing in a correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.testkit.anomalies import RULES, find_anomalies
from headrace.testkit.history import History, SendOperation

GROUP = "billing"


def orderly() -> History:
    """Two writers, a reader, a group with two members; one send got no response and one never happened."""
    history = History()
    for offset, (writer, value) in enumerate((("w1", b"a"), ("w2", b"b"), ("w1", b"c"))):
        acknowledge(history, writer, value, offset)
    history.begin_send("w2", 0, b"unanswered, but written")
    history.begin_send("w2", 0, b"unanswered, and lost")
    acknowledge(history, "w1", b"e", 4)
    acknowledge(history, "w1", b"elsewhere", 0, partition=1)
    log = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"unanswered, but written"), (4, b"e")]
    poll(history, "reader", log[:2])
    poll(history, "reader", log[2:4])
    poll(history, "m1", log[:2], GROUP)
    fetch_offset(history, -1)
    commit(history, "m1", 2)
    fetch_offset(history, 2)
    poll(history, "m2", log[2:], GROUP)
    history.begin_commit("m2", GROUP, 0, 5)
    fetch_offset(history, 2)
    fetch_offset(history, 5)
    history.final = {0: log, 1: [(0, b"elsewhere")]}
    return history


def acknowledge(history: History, writer: str, value: bytes, offset: int, partition: int = 0) -> SendOperation:
    send = history.begin_send(writer, partition, value)
    history.end_send(send, offset)
    return send


def poll(history: History, client: str, records: list[tuple[int, bytes]], group: str = "", partition: int = 0) -> None:
    history.record_poll(client, [(partition, offset, value) for offset, value in records], group)


def commit(history: History, client: str, offset: int) -> None:
    history.end_commit(history.begin_commit(client, GROUP, 0, offset))


def fetch_offset(history: History, offset: int) -> None:
    history.end_offset_fetch(history.begin_offset_fetch("watcher", GROUP, 0), offset)


def one_place_holds_two_values(history: History) -> None:
    history.begin_send("w2", 0, b"b2")
    poll(history, "another", [(1, b"b2")])


def an_acknowledged_value_is_read_past_and_gone(history: History) -> None:
    send = acknowledge(history, "w3", b"gone", 3, partition=2)
    acknowledge(history, "w3", b"after", 4, partition=2)
    history.final[2] = [(4, b"after")]
    assert send.is_ok


def an_acknowledged_value_is_not_in_the_log(history: History) -> None:
    acknowledge(history, "w3", b"late", 5)


def a_value_that_was_read_is_not_in_the_log(history: History) -> None:
    history.begin_send("w2", 0, b"dirty")
    poll(history, "reader", [(4, b"e"), (5, b"dirty")])


def a_retried_value_lies_in_the_log_twice(history: History) -> None:
    history.final[0].append((5, b"a"))


def nobody_sent_it(history: History) -> None:
    history.final[0].append((5, b"noise"))


def it_was_sent_to_another_partition(history: History) -> None:
    history.begin_send("w2", 1, b"astray")
    history.final[0].append((5, b"astray"))


def the_reader_is_taken_back(history: History) -> None:
    poll(history, "reader", [(2, b"c")])


def the_reader_is_taken_past_something(history: History) -> None:
    acknowledge(history, "w1", b"f", 5)
    history.final[0].append((5, b"f"))
    poll(history, "reader", [(5, b"f")])


def a_member_is_taken_back_within_a_poll(history: History) -> None:
    poll(history, "m1", [(1, b"b"), (0, b"a")], GROUP)


def a_producers_second_send_lies_before_its_first(history: History) -> None:
    first, second = (history.begin_send("w3", 3, value) for value in (b"x", b"y"))
    history.end_send(second, 0)
    history.end_send(first, 1)
    history.final[3] = [(0, b"y"), (1, b"x")]


def a_send_lies_before_one_that_was_acknowledged_before_it_began(history: History) -> None:
    acknowledge(history, "w3", b"x", 1, partition=3)
    acknowledge(history, "w4", b"y", 0, partition=3)
    history.final[3] = [(0, b"y"), (1, b"x")]


def an_acknowledged_commit_is_undone(history: History) -> None:
    commit(history, "m2", 5)
    fetch_offset(history, 2)


def a_commit_that_was_found_is_undone(history: History) -> None:
    fetch_offset(history, 2)  # 5 was found before


def an_acknowledged_commit_is_forgotten(history: History) -> None:
    fetch_offset(history, -1)


def an_offset_is_found_that_nobody_committed(history: History) -> None:
    fetch_offset(history, 3)


def the_group_commits_past_what_its_members_were_given(history: History) -> None:
    acknowledge(history, "w1", b"f", 5)
    history.final[0].append((5, b"f"))
    history.begin_commit("m2", GROUP, 0, 6)


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
    (one_place_holds_two_values, {"inconsistent offset"}),
    (an_acknowledged_value_is_read_past_and_gone, {"lost write", "unseen"}),
    (an_acknowledged_value_is_not_in_the_log, {"unseen"}),
    (a_value_that_was_read_is_not_in_the_log, {"vanished"}),
    (a_retried_value_lies_in_the_log_twice, {"duplicate"}),
    (nobody_sent_it, {"unexpected"}),
    (it_was_sent_to_another_partition, {"unexpected"}),
    (the_reader_is_taken_back, {"nonmonotonic poll"}),
    (the_reader_is_taken_past_something, {"nonmonotonic poll"}),
    (a_member_is_taken_back_within_a_poll, {"nonmonotonic poll"}),
    (a_producers_second_send_lies_before_its_first, {"nonmonotonic send"}),
    (a_send_lies_before_one_that_was_acknowledged_before_it_began, {"real-time order"}),
    (an_acknowledged_commit_is_undone, {"commit lost"}),
    (a_commit_that_was_found_is_undone, {"commit lost"}),
    (an_acknowledged_commit_is_forgotten, {"commit lost"}),
    (an_offset_is_found_that_nobody_committed, {"commit lost"}),
    (the_group_commits_past_what_its_members_were_given, {"group skip"}),
]


def test_an_orderly_history_has_no_anomaly() -> None:
    assert find_anomalies(orderly()) == []


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=lambda planted: getattr(planted, "__name__", ""))
def test_a_planted_anomaly_is_found(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = orderly()
    plant(history)
    found = find_anomalies(history)
    assert {anomaly.kind for anomaly in found} == kinds
    assert all(anomaly.kind in str(anomaly) for anomaly in found)


def test_every_rule_has_its_planted_anomaly() -> None:
    assert len(set().union(*(kinds for _, kinds in PLANTED))) == len(RULES)


def test_a_send_without_a_response_may_be_in_the_log_or_not() -> None:
    for final in ([], [(0, b"x")]):
        history = History()
        history.begin_send("w", 0, b"x")
        history.final = {0: list(final)}
        assert find_anomalies(history) == []


def test_a_commit_without_a_response_may_take_effect_at_any_time() -> None:
    history = History()
    poll(history, "m", [(0, b"x"), (1, b"y")], GROUP)
    for value in (b"x", b"y"):
        history.begin_send("w", 0, value)
    history.final = {0: [(0, b"x"), (1, b"y")]}
    history.begin_commit("m", GROUP, 0, 1)
    commit(history, "m", 2)
    fetch_offset(history, 2)
    fetch_offset(history, 1)  # the first one was only slow
    assert find_anomalies(history) == []


def test_overlapping_sends_may_lie_in_any_order() -> None:
    history = History()
    first, second = history.begin_send("w1", 0, b"x"), history.begin_send("w2", 0, b"y")
    history.end_send(first, 1)
    history.end_send(second, 0)
    history.final = {0: [(0, b"y"), (1, b"x")]}
    assert find_anomalies(history) == []


def test_records_that_were_deleted_on_purpose_are_not_lost() -> None:
    history = History()
    for offset, value in enumerate((b"a", b"b", b"c", b"d")):
        acknowledge(history, "w", value, offset)
    acknowledge(history, "w", b"without offset", -1)
    poll(history, "reader", [(0, b"a")])
    poll(history, "reader", [(3, b"d")])
    poll(history, "m", [(3, b"d")], GROUP)
    commit(history, "m", 4)
    history.final = {0: [(3, b"d")]}
    assert {anomaly.kind for anomaly in find_anomalies(history)} == {
        *("lost write", "unseen", "vanished", "nonmonotonic poll", "group skip")
    }
    history.deleted = {0: 2}
    assert {anomaly.kind for anomaly in find_anomalies(history)} == {
        "lost write",
        "unseen",
        "nonmonotonic poll",
        "group skip",
    }
    history.deleted = {0: 3}
    assert find_anomalies(history) == []


def test_a_history_has_a_digest_of_all_that_is_in_it() -> None:
    digests = {orderly().digest}
    assert digests == {orderly().digest}
    for plant, _ in PLANTED:
        history = orderly()
        plant(history)
        digests.add(history.digest)
    assert len(digests) == len(PLANTED) + 1
