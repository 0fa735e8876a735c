"""The request of a webhook, and the meaning of its response."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from tests.unit.push.push_support import push_of

from headrace.client.queues.leased_messages import LeasedMessage, LeaseReceipt
from headrace.model.ids import MessageId
from headrace.push.webhook import AcknowledgeType, outcome_of, retry_seconds, webhook_headers


def message(
    value: bytes | None = b"{}",
    key: bytes | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    attempt: int = 1,
) -> LeasedMessage:
    receipt = LeaseReceipt(MessageId("orders", 2, 17), attempt, 3, "member")
    return LeasedMessage(receipt, 1_700_000_000_123, key, value, headers, 0)


def sent(one: LeasedMessage, **push: object) -> dict[str, str]:
    return dict(webhook_headers(push_of(**push), one, 1_700_000_001))


def test_everything_except_the_value_is_in_headers() -> None:
    headers = sent(message(b"x", b"c-42", (("type", b"order"), ("trace", None)), 3), subscription="bill ing")
    signature = headers.pop("Headrace-Signature")
    assert headers == {
        "Content-Type": "application/octet-stream",
        "Headrace-Message-Id": "orders:2:17",
        "Headrace-Topic": "orders",
        "Headrace-Subscription": "bill%20ing",
        "Headrace-Attempt": "3",
        "Headrace-Timestamp": "1700000000123",
        "Headrace-Key": "c-42",
        "Headrace-Header-type": "order",
    }
    signed = hmac.new(b"s3cret", b"1700000001.orders:2:17.x", hashlib.sha256).hexdigest()
    assert signature == f"t=1700000001,v1={signed}"


def test_without_a_secret_nothing_is_signed() -> None:
    assert "Headrace-Signature" not in sent(message(), secret="")


def test_bytes_that_a_header_cannot_contain_are_percent_encoded() -> None:
    headers = sent(message(key=b"a%\r\nx\xff", headers=(("na me:", "grün\n".encode()),)))
    assert headers["Headrace-Key"] == "a%25%0D%0Ax%FF"
    assert headers["Headrace-Header-na%20me%3A"] == "gr%C3%BCn%0A"
    assert all(value.isascii() and value.isprintable() for pair in headers.items() for value in pair)


@pytest.mark.parametrize(
    ("value", "headers", "content_type"),
    [
        (b'{"a": [1]}', (), "application/json"),
        (b"42", (), "application/json"),
        (b'{"a": ', (), "application/octet-stream"),
        (b'"\xff"', (), "application/octet-stream"),
        (b"[" * 100_000, (), "application/octet-stream"),
        (None, (), "application/octet-stream"),
        (b"<a/>", (("content-type", b"text/xml; charset=utf-8"),), "text/xml; charset=utf-8"),
        (b"<a/>", (("Content-Type", b"text/xml\r\nx: y"),), "application/octet-stream"),
    ],
)
def test_the_content_type_is_that_of_the_message_or_is_detected(
    value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], content_type: str
) -> None:
    assert sent(message(value, headers=headers))["Content-Type"] == content_type


@pytest.mark.parametrize(
    ("status", "verdict", "is_healthy"),
    [
        (200, AcknowledgeType.ACK, True),
        (204, AcknowledgeType.ACK, True),
        (302, AcknowledgeType.NACK, False),
        (400, AcknowledgeType.NACK, True),
        (401, AcknowledgeType.NACK, False),
        (404, AcknowledgeType.NACK, False),
        (408, AcknowledgeType.NACK, False),
        (409, AcknowledgeType.NACK, True),
        (410, AcknowledgeType.REJECT, True),
        (422, AcknowledgeType.NACK, True),
        (425, AcknowledgeType.NACK, False),
        (429, AcknowledgeType.NACK, False),
        (500, AcknowledgeType.NACK, False),
        (503, AcknowledgeType.NACK, False),
    ],
)
def test_a_status_concerns_the_message_or_its_receiver(status: int, verdict: AcknowledgeType, is_healthy: bool) -> None:
    outcome = outcome_of(status, None)
    assert (outcome.verdict, outcome.is_healthy, outcome.delay_seconds) == (verdict, is_healthy, None)
    assert bool(outcome.error) is (verdict is not AcknowledgeType.ACK)


@pytest.mark.parametrize(
    ("status", "retry_after", "delay"),
    [
        (429, "7", 7.0),
        (503, "120", 120.0),
        (503, "999999", 3600.0),
        (500, "7", None),
        (503, "soon", None),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (429, "-1", None),
    ],
)
def test_retry_after_sets_the_delay(status: int, retry_after: str, delay: float | None) -> None:
    assert outcome_of(status, retry_after).delay_seconds == delay


def test_the_back_off_grows_unless_the_subscription_sets_it() -> None:
    waits = [retry_seconds(push_of(), attempt, 0.0) for attempt in (1, 2, 3, 7, 1000)]
    assert waits == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert retry_seconds(push_of(), 1, 1.0) == pytest.approx(0.9)
    assert retry_seconds(push_of(backoff_ms=5000), 1, 0.0) is None
