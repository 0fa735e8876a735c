"""The due time of a message follows from its headers alone."""

from __future__ import annotations

import pytest

from headrace.machines.delays.delay_index import DelayIndex, DueMessage, replay
from headrace.machines.delays.due_time import due_time_ms, released_headers
from headrace.model.durations import TIME_MS_MAX
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, Marker, build_batch, build_marker
from headrace.wire.state_records.delayed_records import Cancelled, build_event

SENT_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("deliver_at", "delay", "repeat", "expected_ms"),
    [
        (None, None, None, 0),
        (b"5", None, None, 5),
        (b"5", b"10s", b"every 1s", 5),
        (None, b"10s", b"every 1s", SENT_MS + 10_000),
        (None, None, b"every 1s", SENT_MS + 1000),
        (None, None, b"0 0 * * *", 1_700_006_400_000),
        (b"tomorrow", None, None, 0),
        (b"tomorrow", b"10s", None, SENT_MS + 10_000),
        (None, b"soon", b"every 1s", 0),
        (None, None, b"often", 0),
        (b"", b"", b"", 0),
        (b"\xff", b"\xff", b"\xff", 0),
        (None, b"300000d", None, SENT_MS + 300_000 * 86_400_000),
    ],
)
def test_the_headers_determine_the_due_time(
    deliver_at: bytes | None, delay: bytes | None, repeat: bytes | None, expected_ms: int
) -> None:
    assert due_time_ms((7, SENT_MS, deliver_at, delay, repeat)) == min(expected_ms, TIME_MS_MAX)


def test_a_message_without_a_timestamp_is_delayed_from_the_beginning_of_time() -> None:
    assert due_time_ms((7, -1, None, b"10s", None)) == 10_000


def test_only_valid_delay_headers_are_removed() -> None:
    headers = [("a", b"1"), ("headrace-delay", b"10s"), ("headrace-repeat", b"often"), ("headrace-delayed-id", b"x")]
    assert released_headers(headers, "id") == [
        ("a", b"1"),
        ("headrace-repeat", b"often"),
        ("headrace-delayed-id", b"id"),
    ]


def record(value: bytes, **headers: bytes) -> BatchRecord:
    named = [(f"headrace-{name.replace('_', '-')}", text) for name, text in headers.items()]
    return BatchRecord(value=value, headers=named, timestamp_ms=SENT_MS)


def test_a_log_is_read_from_the_middle_of_a_batch() -> None:
    data = bytes(build_batch([record(b"%d" % n, delay=b"%ds" % n) for n in range(5)], base_offset=10))
    delays = DelayIndex(12, SENT_MS)
    replay(delays, data, 0)
    assert delays.page(DueMessage(-1, -1), 10) == [DueMessage(SENT_MS + n * 1000, 10 + n) for n in range(2, 5)]
    assert delays.replayed_to == 15


def test_own_events_are_passed_over_when_they_are_read_again() -> None:
    data = bytes(build_batch([record(b"a", delay=b"1s"), record(b"b", delay=b"2s")]))
    for number, offset in enumerate((0, 1)):
        event = build_event(Cancelled(SENT_MS, [offset]))
        event[:8] = (2 + number).to_bytes(8, "big")
        data += bytes(event)
    delays = DelayIndex(0, SENT_MS)
    replay(delays, data, 3)
    assert (delays.replayed_to, len(delays), 1 in delays) == (4, 1, True)


def test_messages_of_a_transaction_wait_for_its_marker() -> None:
    held = bytes(build_batch([record(b"a", delay=b"1s")], producer_id=5, producer_epoch=0, base_sequence=0,
                             attributes=TRANSACTIONAL))  # fmt: skip
    for is_commit in (True, False):
        delays = DelayIndex(0, SENT_MS)
        replay(delays, held, 0)
        assert (len(delays), delays.floor) == (0, 0)
        marker = build_marker(5, 0, Marker(is_commit, 0), SENT_MS)
        marker[:8] = (1).to_bytes(8, "big")
        replay(delays, bytes(marker), 0)
        assert (len(delays), delays.floor) == ((1, 0) if is_commit else (0, 2))
