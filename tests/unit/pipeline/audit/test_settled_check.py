"""The check of settled messages and dead letters against the acks log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64
from tests.unit.pipeline.audit.audit_support import InMemorySources, Row, events, row, rows

from headrace.model.message_headers import DeadLetterOrigin as DeathHeaders
from headrace.model.message_headers import with_dead_letter_headers
from headrace.pipeline.audit.findings import LISTED_MAX, AuditFinding, findings_of, result_of_check, results_table
from headrace.pipeline.audit.log_check import find_disorder
from headrace.pipeline.audit.record_comparison import Difference, RecordDigest
from headrace.pipeline.audit.settled_check import (
    AuditedDeadLetter,
    SettledPart,
    SettledTask,
    SubscriptionLedger,
    capped,
    check_settled,
    dead_letter_findings,
    read_dead_letters,
    runs,
)
from headrace.pipeline.spark_tasks import PartitionRange, TopicSource
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Failed,
    Redriven,
    Settled,
    SettledHow,
    SnapshotEvent,
    Sought,
)

ORDERS = TopicSource("nowhere:1", "orders")
COUNT = 10


def settled(how: SettledHow, *ranges: tuple[int, int], at: int = 2) -> Settled:
    return Settled(at=at, how=how, ranges=ranges)


ALL: list[AcksEvent] = [Created(at=1, floor=0), settled("ack", (0, 9))]


def checked(
    told: Sequence[AcksEvent],
    messages: Sequence[Row] | None = None,
    letters: Mapping[int, frozenset[int]] | None = None,
    acks_start: int = 0,
    until_ms: int | None = None,
) -> SettledPart:
    log = events(*(("billing", event) for event in told), ("shipping", Created(at=1, floor=0)))
    held = {("orders", 0): list(rows(0, COUNT) if messages is None else messages), ("__acks.orders", 0): log}
    task = SettledTask(ORDERS, "billing", 0, 0, COUNT, COUNT, acks_start, len(log), until_ms)
    return check_settled(InMemorySources(held), letters or {}, task)


def named(part: SettledPart) -> list[tuple[str, int | None, int | None, int]]:
    return [(one.kind, one.offset, one.last, one.count) for one in part.findings]


def test_messages_settled_once_pass() -> None:
    part = checked(ALL)
    assert (part.judged, part.findings, part.exists) == (COUNT, [], True)


def test_unsettled_messages_are_lost_with_their_failed_deliveries() -> None:
    part = checked(
        [
            Created(at=1, floor=0),
            settled("ack", (0, 2), (5, 9)),
            Failed(at=3, first=3, last=3, attempts=2, due_ms=9),
        ]
    )
    assert named(part) == [("lost", 3, 4, 2)]
    assert part.findings[0].detail == "is not settled for billing; deliveries that failed: 2"


def test_messages_before_the_start_of_the_subscription_are_ignored() -> None:
    assert checked([Created(at=1, floor=6), settled("ack", (6, 9))]).findings == []


def test_messages_settled_twice_are_duplicated() -> None:
    assert named(checked([*ALL, settled("ack", (4, 5)), settled("dead", (7, 7))])) == [
        ("duplicated", 4, 5, 2),
        ("duplicated", 7, 7, 1),
    ]


def test_an_expired_range_does_not_settle_messages_twice() -> None:
    assert checked([Created(at=1, floor=0), settled("ack", (3, 4)), settled("expired", (0, 9))]).findings == []


def test_messages_after_a_seek_must_be_settled_again() -> None:
    assert named(checked([*ALL, Sought(at=3, floor=4)])) == [("lost", 4, 9, 6)]
    assert checked([*ALL, Sought(at=3, floor=4), settled("ack", (4, 9))]).findings == []


def test_settled_offsets_that_never_existed_are_foreign() -> None:
    assert named(checked([*ALL, settled("ack", (10, 12))])) == [("foreign", 10, 12, 3)]


def test_gaps_of_the_topic_need_not_be_settled() -> None:
    messages = [one for one in rows(0, COUNT) if one["offset"] not in {3, 4}]
    assert checked([Created(at=1, floor=0), settled("ack", (0, 2), (5, 9))], messages).findings == []


def test_messages_within_the_grace_period_are_not_checked() -> None:
    told: list[AcksEvent] = [Created(at=1, floor=0), settled("ack", (0, 7))]
    assert checked(told, until_ms=1_700_000_000_008).findings == []
    assert named(checked(told, until_ms=1_700_000_000_009)) == [("lost", 8, 8, 1)]


def test_a_trimmed_log_begins_with_a_snapshot() -> None:
    above = BitMap64([5, 6]).serialize()
    first = SnapshotEvent(at=1, id=7, part=1, parts=2, subscriptions=2, floor=4)
    second = SnapshotEvent(at=1, id=7, part=2, parts=2, subscriptions=2, floor=4, settled=above)
    told: list[AcksEvent] = [settled("ack", (0, 1)), first, second, settled("ack", (4, 4), (7, 8))]
    assert named(checked(told, acks_start=1)) == [("lost", 9, 9, 1)]
    assert not checked([first], acks_start=0).exists


def test_a_snapshot_of_a_known_state_changes_nothing() -> None:
    snapshot = SnapshotEvent(at=1, id=7, part=1, parts=1, subscriptions=2, floor=10)
    assert named(checked([*ALL, snapshot, settled("ack", (4, 5))])) == [("duplicated", 4, 5, 2)]


def test_a_deleted_subscription_does_not_exist() -> None:
    assert not checked([*ALL, Deleted(at=3)]).exists
    assert not checked([]).exists


# Dead letters


def letter(offset: int, *, value: bytes | None = None, at: int = 0) -> Row:
    origin = row(offset)
    headers = [(one["key"], one["value"]) for one in origin["headers"]]
    told = with_dead_letter_headers(headers, DeathHeaders("no good", 5, "billing", "orders", 0, offset, 99))
    return origin | {
        "offset": at,
        "value": origin["value"] if value is None else value,
        "headers": [{"key": name, "value": content} for name, content in told],
    }


def judged(told: Sequence[AcksEvent], dead: list[Row], *, are_complete: bool = True) -> list[AuditFinding]:
    shelf = InMemorySources({("orders.dlq", 0): dead})
    range_ = PartitionRange(0, 0, len(dead))
    found = read_dead_letters(shelf, "orders", "billing", (TopicSource("nowhere:1", "orders.dlq"), range_))
    assert found.records == len(dead)
    letters: list[AuditedDeadLetter] = list(found.letters)
    part = checked(told, letters={0: frozenset(one.offset for one in letters)})
    return list(dead_letter_findings("orders", [part], letters, are_complete=are_complete))


DIED: list[AcksEvent] = [Created(at=1, floor=0), settled("ack", (0, 2), (4, 9)), settled("dead", (3, 3))]


def test_dead_messages_are_in_the_dead_letter_topic() -> None:
    assert judged(DIED, [letter(3)]) == []


def test_a_missing_dead_letter_is_lost_unless_some_were_removed() -> None:
    [finding] = judged(DIED, [])
    assert (finding.kind, finding.offset, finding.detail) == (
        "lost",
        3,
        "became a dead letter, but is not in orders.dlq",
    )
    assert judged(DIED, [], are_complete=False) == []


def test_a_dead_letter_that_differs_from_its_message_is_altered() -> None:
    [finding] = judged(DIED, [letter(3, value=b"other")])
    assert (finding.kind, finding.offset, finding.found) == ("altered", 3, 0)


def test_a_second_dead_letter_is_a_duplicate() -> None:
    [finding] = judged(DIED, [letter(3), letter(3, at=1)])
    assert (finding.kind, finding.offset, finding.found) == ("duplicated", 3, 1)


def test_a_dead_letter_of_an_acked_message_is_foreign() -> None:
    [finding] = judged(ALL, [letter(3)])
    assert (finding.kind, finding.offset) == ("foreign", 3)
    assert finding.detail == "is in orders.dlq, although it was settled by ack"


def test_a_redriven_message_may_be_settled_again() -> None:
    redriven: list[AcksEvent] = [*DIED, Redriven(at=3, messages=[(3, 1)])]
    assert named(checked(redriven)) == [("lost", 3, 3, 1)]
    acked: list[AcksEvent] = [*redriven, settled("ack", (3, 3))]
    assert checked(acked).findings == []
    assert judged(acked, [letter(3)]) == []
    dead_again: list[AcksEvent] = [*redriven, settled("dead", (3, 3))]
    assert judged(dead_again, [letter(3), letter(3, at=1)]) == []


def test_a_message_below_the_floor_of_a_snapshot_can_be_redriven() -> None:
    snapshot = SnapshotEvent(at=1, id=7, part=1, parts=1, subscriptions=2, floor=10)
    told: list[AcksEvent] = [settled("ack", (0, 1)), snapshot, Redriven(at=3, messages=[(3, 1)])]
    assert named(checked(told, acks_start=1)) == [("lost", 3, 3, 1)]
    told.append(settled("ack", (3, 3)))
    assert checked(told, acks_start=1).findings == []
    assert (
        list(
            dead_letter_findings(
                "orders", [checked(told, letters={0: frozenset({3})}, acks_start=1)], [], are_complete=True
            )
        )
        == []
    )


def test_dead_letters_of_other_subscriptions_do_not_count() -> None:
    other = letter(3)
    other["headers"] = [
        one | {"value": b"shipping"} if one["key"] == "headrace-dead-subscription" else one for one in other["headers"]
    ]
    assert [one.kind for one in judged(DIED, [other])] == ["lost"]


# Ledgers


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=20))
def test_a_ledger_counts_newly_settled_messages(ranges: list[tuple[int, int]]) -> None:
    ledger, known = SubscriptionLedger(), set(range(3))
    ledger.apply(Created(at=0, floor=3))
    for first, more in ranges:
        event = settled("ack", (first, first + more))
        new = set(range(first, first + more + 1)) - known
        assert ledger.newly_settled(event) == len(new)
        ledger.apply(event)
        known |= new
        assert ledger.settled_count(0, 40) == len(known)


def test_runs_start_at_the_given_offset() -> None:
    assert list(runs(BitMap64())) == []
    assert list(runs(BitMap64([1, 2, 5, 6, 7]), 6)) == [(6, 7)]


# Findings


def test_offsets_out_of_order_are_distinguished_from_repeated_ones() -> None:
    present, findings = find_disorder("orders", 0, [[0, 1, 4], [3, 4, 9]])
    assert sorted(present) == [0, 1, 3, 4, 9]
    assert [(one.kind, one.offset) for one in findings] == [("reordered", 3), ("duplicated", 4)]


def test_neighbours_with_the_same_difference_are_one_finding() -> None:
    entries = [RecordDigest(offset, None, b"k", b"v%d" % offset) for offset in range(10, 20)]
    differences = [Difference("lost", number, None) for number in (2, 3, 4, 7)]
    findings = findings_of("orders", 1, entries, [], differences)
    assert [(one.offset, one.last, one.count) for one in findings] == [(12, 14, 3), (17, None, 1)]
    assert findings[0].line == "lost        orders[1] 12-14 (3 records)  is missing"


def test_findings_beyond_the_limit_are_counted() -> None:
    many = [AuditFinding("lost", "orders", 0, offset, detail="gone") for offset in range(LISTED_MAX + 5)]
    kept = capped(many)
    assert sum(one.count for one in kept) == LISTED_MAX + 5
    verdict = result_of_check("a check", 7, many)
    assert verdict.counts == {"lost": LISTED_MAX + 5}
    assert len(verdict.findings) == LISTED_MAX
    lines = results_table([verdict])
    assert lines[0] == f"a check: {LISTED_MAX + 5} lost (7 records)"
    assert lines[-1] == "  ... and more, which findings.json lists"
    assert len(lines) == 22


@pytest.mark.parametrize(
    ("finding", "line"),
    [
        (AuditFinding("foreign", "t", 0, found=4), "foreign     t[0] at 4"),
        (AuditFinding("reordered", "t", 0, 3, found=9, detail="x"), "reordered   t[0] 3 -> 9  x"),
    ],
)
def test_a_finding_is_one_line(finding: AuditFinding, line: str) -> None:
    assert finding.line == line
