"""What a webhook is sent for a message, and what its answer means. No input and output here.

The body is the message's value as it is; everything else stands in headers, and what a header cannot hold is written
as %XX. The signature covers time, id and body, so that nothing can be forged, nor sent again later without being
noticed.

An answer says two things: what becomes of the message, and whether the receiver is well. 2xx is done. Everything else
is tried again, as often as the subscription delivers a message, but for 410: nobody wants it, ever. Where nobody was
there to be asked the message was not delivered, and it does not count as a delivery.
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
_PLAIN = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"  # in the value of a header
_MEDIA_TYPE = re.compile(rb"[\w.+-]+/[\w.+-]+(?:; *[\w.+-]+=[\w.+:-]+)*")
_SECONDS = re.compile(r"[0-9]{1,9}")
_GONE = 410
_MESSAGE_ERRORS = frozenset({400, 406, 409, 411, 413, 414, 415, 416, 417, 418, 422, 428, 431, 451, _GONE})
"""Statuses that speak of what was sent; all others but success are taken as the receiver's trouble."""
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
    """`delay_seconds` is what the receiver has asked for. `is_healthy`: the receiver works, whatever it says of this
    message."""

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
    """Nobody was there."""
    return DeliveryOutcome(AcknowledgeType.UNDELIVERED, is_healthy=False, error=error)


def unanswered_outcome(error: str) -> DeliveryOutcome:
    """It was sent, and no answer came."""
    return DeliveryOutcome(AcknowledgeType.NACK, is_healthy=False, error=error)


def retry_seconds(push: DescribedPush, attempt: int, chance: float) -> float | None:
    """How long a message waits that failed; None leaves it to the subscription, which says so."""
    if push.backoff_ms:
        return None
    wait = min(_BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt - 1, _GROWTHS_MAX), _BACKOFF_MAX_SECONDS)
    return wait * (1 - 0.1 * chance)


def webhook_headers(push: DescribedPush, message: LeasedMessage, now_seconds: int) -> Sequence[Header]:
    """All but those that the connection needs."""
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
