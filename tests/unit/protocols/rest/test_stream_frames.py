"""Settle frames of a WebSocket stream, and the errors for invalid ones."""

from __future__ import annotations

import msgspec
import pytest

from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.client.queues.settling import ACK, EXTEND, NACK, REJECT, FailedSettlement
from headrace.http.problems import Problem
from headrace.model.errors import InvalidRecordState
from headrace.model.ids import MessageId
from headrace.protocols.rest.streams import error_frame, failed_receipts_frame, read_frame

A, B = (f"jobs:0:{offset}/1/2/me" for offset in (4, 5))


@pytest.mark.parametrize(
    ("text", "how", "count", "delay_ms", "lease_ms", "reason"),
    [
        (f'{{"ack": "{A}"}}', ACK, 1, -1, -1, None),
        (f'{{"ack": ["{A}", "{B}"]}}', ACK, 2, -1, -1, None),
        (f'{{"ack": ["{A}", "{B}"]}}'.encode(), ACK, 2, -1, -1, None),
        (f'{{"nack": "{A}"}}', NACK, 1, -1, -1, None),
        (f'{{"nack": "{A}", "delay": "5s", "reason": "busy"}}', NACK, 1, 5000, -1, "busy"),
        (f'{{"nack": "{A}", "delay": 0.5}}', NACK, 1, 500, -1, None),
        (f'{{"reject": "{A}", "reason": "broken"}}', REJECT, 1, -1, -1, "broken"),
        (f'{{"extend": "{A}", "lease": "1m"}}', EXTEND, 1, -1, 60_000, None),
        ('{"ack": []}', ACK, 0, -1, -1, None),
    ],
)
def test_a_frame_settles_messages(
    text: str | bytes, how: int, count: int, delay_ms: int, lease_ms: int, reason: str | None
) -> None:
    receipts, item, refused = read_frame(text, ["jobs"])
    assert len(receipts) == count
    assert (item.how, item.delay_ms, item.lease_ms, item.reason, refused) == (how, delay_ms, lease_ms, reason, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ack",
        "[]",
        "{}",
        '{"ack": 1}',
        '{"ack": "x", "nack": "y"}',
        '{"act": "x"}',
        '{"nack": "x", "delay": "soon"}',
        b'{"ack": "\xff"}',
        "[" * 100_000,
        '{"ack": [' + '"x",' * 10_000 + '"x"]}',
    ],
)
def test_an_invalid_frame_is_a_problem_with_a_next_step(text: str | bytes) -> None:
    with pytest.raises(Problem) as problem:
        read_frame(text, ["jobs"])
    failures = msgspec.json.decode(error_frame(problem.value))
    assert failures["error"].keys() == {"code", "message", "next"}
    assert all(failures["error"].values())


def test_invalid_receipts_of_a_frame_do_not_affect_others() -> None:
    text = msgspec.json.encode({"ack": [A, "nonsense", "secrets:0:1/1/2/me"]})
    receipts, _, refused = read_frame(text, ["jobs"])
    assert [str(receipt) for receipt in receipts] == [A]
    assert [one.receipt for one in refused] == ["nonsense", "secrets:0:1/1/2/me"]
    lost = FailedSettlement(LeaseReceipt(MessageId("jobs", 0, 4), 1, 2, "me"), InvalidRecordState("it is over"))
    failures = msgspec.json.decode(failed_receipts_frame([*refused, lost]))["refused"]
    assert [one["code"] for one in failures] == ["invalid_request", "invalid_request", "lease_lost"]
    assert failures[2] == {"receipt": A, "code": "lease_lost", "message": "it is over"}
