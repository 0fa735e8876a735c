"""The headers that control how a message is processed, and those that record the origin of a dead letter.

All values are text. If a header occurs more than once, the last value applies, as with Kafka's `lastHeader`.
Reading a header never fails: a malformed value is treated as absent (`priority_of` and the like), because an error
would block delivery of the whole partition. Interfaces that accept a value from a user validate it with the functions
that raise (`check_priority`, and those of `model.durations`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from uuid import UUID

import msgspec

from headrace.model.errors import InvalidRecord

Headers = Sequence[tuple[str, bytes | None]]

TAGS = "headrace-tags"
"""Tags for filters, separated by commas. Tags after the first `TAGS_MAX` are ignored."""
TAGS_MAX = 100
PRIORITY = "headrace-priority"
"""0 (lowest) to 9."""
DELIVER_AT = "headrace-deliver-at"
"""Milliseconds since 1970, or RFC 3339."""
DELAY = "headrace-delay"
"""A duration, or a delay level such as level3."""
REPEAT = "headrace-repeat"
"""`every <duration>`, or a cron expression of five fields."""
EXPIRES_AT = "headrace-expires-at"
"""Milliseconds since 1970, or RFC 3339."""
TTL = "headrace-ttl"
"""A duration, counted from the message's timestamp."""
DEDUP_ID = "headrace-dedup-id"
DEDUP_DIGEST = "headrace-dedup-digest"
"""Binds a dedup id to its content: a message with the same id and another digest is rejected instead of dropped."""
DEDUP_ID_REUSED = f"its {DEDUP_ID} was used before for a message with different content"
REPLY_TO = "headrace-reply-to"
CORRELATION_ID = "headrace-correlation-id"

DEAD_REASON = "headrace-dead-reason"
DEAD_ATTEMPTS = "headrace-dead-attempts"
DEAD_SUBSCRIPTION = "headrace-dead-subscription"
DEAD_TOPIC = "headrace-dead-topic"
DEAD_TOPIC_ID = "headrace-dead-topic-id"
"""A topic name can be reused: a dead letter belongs to the topic that had the name when the message was dead-lettered.
"""
DEAD_PARTITION = "headrace-dead-partition"
DEAD_OFFSET = "headrace-dead-offset"
DEAD_AT = "headrace-dead-at"
DEAD_DEDUP_ID = "headrace-dead-dedup-id"
"""The dedup id of the original message; the dead letter has a dedup id of its own."""
DEAD_LETTER_HEADERS = (
    *(DEAD_REASON, DEAD_ATTEMPTS, DEAD_SUBSCRIPTION, DEAD_TOPIC, DEAD_TOPIC_ID, DEAD_PARTITION, DEAD_OFFSET, DEAD_AT),
    *(DEAD_DEDUP_ID, DEDUP_ID),
)
"""The headers that a dead letter has in addition to, or instead of, those of the original message."""
REDRIVEN = "headrace-redriven"
"""How many times the message was redriven from the dead-letter topic."""

ORIGIN_PREFIX = "headrace-origin-"
ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET = (ORIGIN_PREFIX + name for name in ("topic", "partition", "offset"))
"""The original of a replayed record."""

RESERVED_PREFIX = "headrace-"


class HeaderSetter(Enum):
    """Which component may set a reserved header, that is, one whose name begins with `headrace-`."""

    CLIENT = "any client of any protocol: it controls how the message itself is processed"
    TRUSTED_CLIENT = "clients of the Kafka listener; REST sets it from a request parameter that it validates"
    BROKER = "the broker and Headrace's own tools: it records what happened to a message"


RESERVED_HEADERS: Mapping[str, HeaderSetter] = {
    **dict.fromkeys((TAGS, PRIORITY, TTL, EXPIRES_AT, CORRELATION_ID), HeaderSetter.CLIENT),
    **dict.fromkeys((DELAY, DELIVER_AT, REPEAT, DEDUP_ID, DEDUP_DIGEST, REPLY_TO), HeaderSetter.TRUSTED_CLIENT),
    **dict.fromkeys((*DEAD_LETTER_HEADERS[:-1], REDRIVEN), HeaderSetter.BROKER),
    **dict.fromkeys((ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET), HeaderSetter.BROKER),
}
"""Reserved names that are not listed are kept for later versions: REST rejects them as well."""


def is_free_to_set(name: str) -> bool:
    """Whether an untrusted client may set a header of this name."""
    name = name.lower()
    return not name.startswith(RESERVED_PREFIX) or RESERVED_HEADERS.get(name) is HeaderSetter.CLIENT


PRIORITY_DEFAULT = 4  # as in JMS
_DIGITS_MAX = 18
_ITEM_SEPARATOR = b"\0"  # never occurs in an HTTP header, and therefore not in the key of a request


class InvalidHeader(InvalidRecord):
    """A reserved header has an invalid value."""


class DeadLetterOrigin(msgspec.Struct, frozen=True, gc=False):
    """The origin of a dead letter and its reason. `topic_id` is None if an earlier version wrote the dead letter."""

    reason: str
    attempts: int
    subscription: str
    topic: str
    partition: int
    offset: int
    at_ms: int
    topic_id: UUID | None = None


def header_value(headers: Headers, name: str) -> bytes | None:
    for found, value in reversed(headers):
        if found == name:
            return value
    return None


def header_text(headers: Headers, name: str) -> str | None:
    """Return the value as text; bytes that are not UTF-8 are replaced."""
    value = header_value(headers, name)
    return None if value is None else value.decode("utf-8", "replace")


def dedup_id_of_item(key: bytes, index: int) -> bytes:
    """Return the dedup id of one message of a batch request, which has one key for all its messages."""
    return b"%b%b%d" % (key, _ITEM_SEPARATOR, index)


def dedup_key_of(dedup_id: bytes) -> bytes | None:
    """Return the key of the batch request of a message, or None if it was not sent in a batch request."""
    key, separator, _ = dedup_id.rpartition(_ITEM_SEPARATOR)
    return key if separator else None


def priority_of(headers: Headers) -> int:
    text = header_text(headers, PRIORITY)
    if text is None:
        return PRIORITY_DEFAULT
    try:
        return check_priority(text)
    except InvalidHeader:
        return PRIORITY_DEFAULT


def expires_ms_of(headers: Headers, arrived_ms: int) -> int | None:
    """Return when the message expires: the earlier time if both headers are set."""
    # Imported only where a subscription has expiry enabled: keeps startup fast.
    from headrace.model.durations import InvalidDuration, InvalidTime, parse_duration, parse_time

    ends: list[int] = []
    with suppress(InvalidTime):
        if (text := header_text(headers, EXPIRES_AT)) is not None:
            ends.append(parse_time(text))
    with suppress(InvalidDuration):
        if (text := header_text(headers, TTL)) is not None:
            ends.append(arrived_ms + parse_duration(text))
    return min(ends, default=None)


def tags_of(headers: Headers) -> frozenset[str]:
    text = header_text(headers, TAGS)
    if not text:
        return frozenset()
    parts = text.split(",", TAGS_MAX)[:TAGS_MAX]
    return frozenset(tag for part in parts if (tag := part.strip()))


def redrive_count_of(headers: Headers) -> int:
    return _number(headers, REDRIVEN, 0)


def dead_letter_origin(headers: Headers) -> DeadLetterOrigin | None:
    """Return None if the message is not a dead letter, or does not identify the original message."""
    topic = header_text(headers, DEAD_TOPIC)
    partition, offset = _number(headers, DEAD_PARTITION, -1), _number(headers, DEAD_OFFSET, -1)
    if topic is None or partition < 0 or offset < 0:
        return None
    return DeadLetterOrigin(
        header_text(headers, DEAD_REASON) or "",
        _number(headers, DEAD_ATTEMPTS, 0),
        header_text(headers, DEAD_SUBSCRIPTION) or "",
        topic,
        partition,
        offset,
        _number(headers, DEAD_AT, 0),
        _uuid(headers, DEAD_TOPIC_ID),
    )


def with_dead_letter_headers(headers: Headers, death: DeadLetterOrigin) -> list[tuple[str, bytes | None]]:
    """Return the headers of the dead letter of a message with the given headers."""
    dead_letter_headers = {
        DEAD_REASON: death.reason,
        DEAD_ATTEMPTS: str(death.attempts),
        DEAD_SUBSCRIPTION: death.subscription,
        DEAD_TOPIC: death.topic,
        DEAD_PARTITION: str(death.partition),
        DEAD_OFFSET: str(death.offset),
        DEAD_AT: str(death.at_ms),
    }
    if death.topic_id is not None:
        dead_letter_headers[DEAD_TOPIC_ID] = str(death.topic_id)
    return with_headers(without(headers, [DEAD_TOPIC_ID]), dead_letter_headers)


def with_headers(headers: Headers, values: Mapping[str, str]) -> list[tuple[str, bytes | None]]:
    """Return the headers with these values instead of any earlier ones of the same names."""
    kept = without(headers, values)
    kept.extend((name, text.encode("utf-8", "replace")) for name, text in values.items())
    return kept


def without(headers: Headers, names: Collection[str]) -> list[tuple[str, bytes | None]]:
    return [(name, value) for name, value in headers if name not in names]


def check_priority(text: str) -> int:
    if len(text) != 1 or text not in "0123456789":
        raise InvalidHeader(f"{PRIORITY} must be a digit from 0 to 9, not '{text}'")
    return int(text)


def _uuid(headers: Headers, name: str) -> UUID | None:
    text = header_text(headers, name)
    with suppress(ValueError):
        return None if text is None else UUID(text)
    return None


def _number(headers: Headers, name: str, default: int) -> int:
    text = header_text(headers, name)
    if text is None or not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        return default  # int() alone would also accept "1_000" and thousands of digits
    return int(text)
