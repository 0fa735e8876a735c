"""The request that a webhook receives for a message, and the meaning of its response. Pure.

- The body is the unchanged value of the message; everything else is in headers, percent-encoded where necessary.
- The signature covers time, message id and body, so a receiver detects forged and replayed requests.
- A response determines how the message is settled, and whether the receiver counts as healthy. 2xx acks the message,
  410 rejects it, every other status nacks it: it is delivered again up to the delivery limit of the subscription.
- If no connection could be made the message was not delivered, and no delivery attempt is counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from hmac import HMAC
from urllib.parse import quote

import msgspec

from headrace.client.queues.leased_messages import LeasedMessage
from headrace.wire.messages.queues import DescribedPush

Header = tuple[str, str]

_RAW = msgspec.json.Decoder(msgspec.Raw)
_OCTETS, _JSON = "application/octet-stream", "application/json"
_CONTENT_TYPE = "content-type"
_PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"  # not escaped in a header value
_MEDIA_TYPE = re.compile(rb"[\w.+-]+/[\w.+-]+(?:; *[\w.+-]+=[\w.+:-]+)*")
_SECONDS = re.compile(r"[0-9]{1,9}")
_GONE = 410
_MESSAGE_ERRORS = frozenset({400, 406, 409, 411, 413, 414, 415, 416, 417, 418, 422, 428, 431, 451, _GONE})
"""Statuses that are caused by the message. All others, except success, count as failures of the receiver."""
_OVERLOAD_STATUSES = frozenset({429, 503})
_RETRY_AFTER_SECONDS_MAX = 3600.0
_BACKOFF_FIRST_SECONDS = 1.0
_BACKOFF_MAX_SECONDS = 60.0
_GROWTHS_MAX = 16


class AcknowledgeType(Enum):
    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    UNDELIVERED = "undelivered"


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """`delay_seconds` is what the receiver asks for. `is_healthy`: the receiver works, whatever the
    status of this message."""

    verdict: AcknowledgeType
    is_healthy: bool
    error: str = ""
    delay_seconds: float | None = None


def outcome_of(status: int, retry_after: str | None) -> DeliveryOutcome:
    if 200 <= status < 300:
        return DeliveryOutcome(AcknowledgeType.ACK, is_healthy=True)
    if 300 <= status < 400:
        return DeliveryOutcome(
            AcknowledgeType.NACK, is_healthy=False, error=f"HTTP {status}: redirects are not followed"
        )
    verdict = AcknowledgeType.REJECT if status == _GONE else AcknowledgeType.NACK
    delay = None
    if status in _OVERLOAD_STATUSES and retry_after is not None and _SECONDS.fullmatch(retry_after):
        delay = min(float(retry_after), _RETRY_AFTER_SECONDS_MAX)
    return DeliveryOutcome(verdict, is_healthy=status in _MESSAGE_ERRORS, error=f"HTTP {status}", delay_seconds=delay)


def undelivered_outcome(error: str) -> DeliveryOutcome:
    """No connection could be made."""
    return DeliveryOutcome(AcknowledgeType.UNDELIVERED, is_healthy=False, error=error)


def unanswered_outcome(error: str) -> DeliveryOutcome:
    """The request was sent, and no response arrived."""
    return DeliveryOutcome(AcknowledgeType.NACK, is_healthy=False, error=error)


def retry_seconds(push: DescribedPush, attempt: int, chance: float) -> float | None:
    """The delay before the next attempt; None if the subscription configures it."""
    if push.backoff_ms:
        return None
    wait = min(_BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt - 1, _GROWTHS_MAX), _BACKOFF_MAX_SECONDS)
    return wait * (1 - 0.1 * chance)


def webhook_headers(push: DescribedPush, message: LeasedMessage, now_seconds: int) -> Sequence[Header]:
    """All headers except those that the connection needs."""
    body = message.value or b""
    content_type: str | None = None
    more: list[Header] = []
    for name, value in message.headers:
        if name.lower() == _CONTENT_TYPE and value is not None and _MEDIA_TYPE.fullmatch(value):
            content_type = value.decode()
        elif value is not None:
            more.append((f"Headrace-Header-{quote(name, safe='', errors='surrogateescape')}", _shown(value)))
    headers = [
        ("Content-Type", content_type or (_JSON if _is_json(body) else _OCTETS)),
        ("Headrace-Message-Id", str(message.id)),
        ("Headrace-Topic", message.id.topic),
        ("Headrace-Subscription", _shown(push.subscription.encode())),
        ("Headrace-Attempt", str(message.attempt)),
        ("Headrace-Timestamp", str(message.timestamp_ms)),
    ]
    if message.key is not None:
        headers.append(("Headrace-Key", _shown(message.key)))
    if push.secret:
        headers.append(("Headrace-Signature", signature(push.secret, now_seconds, str(message.id), body)))
    return [*headers, *more]


def signature(secret: str, at_seconds: int, message_id: str, body: bytes) -> str:
    signed = b"%d.%b.%b" % (at_seconds, message_id.encode(), body)
    return f"t={at_seconds},v1={HMAC(secret.encode(), signed, sha256).hexdigest()}"


def _shown(value: bytes) -> str:
    return quote(value, safe=_PLAIN)


def _is_json(body: bytes) -> bool:
    try:
        body.decode()
        _RAW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
