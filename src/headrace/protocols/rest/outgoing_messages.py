"""Convert published messages, with their properties from HTTP headers or batch items, to records.

All messages are validated before any is written: a batch with an invalid message is rejected as a whole.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.http.problems import Problem
from headrace.machines.delays.due_time import parse_repeat
from headrace.model.errors import HeadraceError
from headrace.model.message_headers import (
    DEDUP_DIGEST,
    DEDUP_ID,
    DELAY,
    DELIVER_AT,
    PRIORITY,
    REPEAT,
    TAGS,
    TTL,
    dedup_id_of_item,
    is_free_to_set,
)
from headrace.protocols.rest.bodies import CONTENT_TYPE, Duration, duration_ms, invalid_parameter, is_json, time_ms
from headrace.wire.batches.batch import BatchRecord

RESERVED_PREFIX = "headrace-"
_HEADER_PREFIX = "headrace-header-"
_DEDUP_ID_LENGTH_MAX = 255
_DIGEST_BYTES = 8
_FORM_SINGLE, _FORM_BATCH = b"", b"batch"
MESSAGES_MAX = 10_000
HEADERS_MAX = 1_000
"""Per message, because one message is converted without yielding to the event loop."""
_FORM = "application/x-www-form-urlencoded"  # curl's default content type


T = TypeVar("T")
Messages = Annotated[list[T], Meta(min_length=1, max_length=MESSAGES_MAX)]


class Idempotency(msgspec.Struct, frozen=True, gc=False):
    """The Idempotency-Key of a request as stored with its messages. `digest` is that of the content of the request."""

    dedup_id: bytes
    digest: bytes

    def of(self, index: int) -> Idempotency:
        """Return that of one message of a batch."""
        return Idempotency(dedup_id_of_item(self.dedup_id, index), self.digest)


def idempotency_of(
    request_headers: Mapping[str, str], body: bytes, token_id: str, *, is_batch: bool = False
) -> Idempotency | None:
    """Return the key of a request, or raise `Problem` 422. The key is bound to the token, so that a client can neither
    see nor suppress messages of another. It is bound to the content as well: reuse of a key for other content is an
    error of the client, which silently dropping the message would hide."""
    key = request_headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= _DEDUP_ID_LENGTH_MAX:
        raise invalid_parameter("Idempotency-Key", f"it must have 1 to {_DEDUP_ID_LENGTH_MAX} characters")
    message_key = request_headers.get("headrace-key", "").encode("latin-1")
    # Distinguish a batch from a single message: both may have the same body.
    form = _FORM_BATCH if is_batch else _FORM_SINGLE
    digest = blake2b(b"%d " % len(message_key) + message_key, digest_size=_DIGEST_BYTES, person=form)
    digest.update(body)
    scoped = f"{token_id}/{key}" if token_id else key
    return Idempotency(scoped.encode("latin-1"), digest.hexdigest().encode())


class OutgoingBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of a batch, with its value as JSON in `value` or as bytes in `value_base64`. Without either the value
    is null, which deletes the key in a compacted topic."""

    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    repeat: str | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=9)] | UnsetType = UNSET
    ttl: Duration | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class _ValueOnlyBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    value: msgspec.Raw


class _ValueOnlyBatch(msgspec.Struct, forbid_unknown_fields=True):
    messages: Messages[_ValueOnlyBody]


_PLAIN = msgspec.json.Decoder(_ValueOnlyBatch)


class OutgoingRecord(msgspec.Struct, gc=False):
    """A record and its partition. A record with `due_ms` is delayed until then in a co-located topic."""

    record: BatchRecord
    partition: int | None = None
    due_ms: int | None = None
    dedup_id: bytes | None = None


def record_from_body(item: OutgoingBody, now_ms: int, idempotency: Idempotency | None) -> OutgoingRecord:
    """Convert an item of a batch, or raise `Problem` 422."""
    headers: list[tuple[str, bytes | None]] = []
    if item.headers is not UNSET:
        if len(item.headers) > HEADERS_MAX:
            raise invalid_parameter(
                "headers", f"a message may have up to {HEADERS_MAX} headers, not {len(item.headers)}"
            )
        for name, value in item.headers.items():
            _check_settable(name)
            headers.append((name, value.encode()))
    if item.content_type is not UNSET and not is_json(item.content_type):
        headers.append((CONTENT_TYPE, item.content_type.encode()))
    if item.priority is not UNSET:
        headers.append((PRIORITY, b"%d" % item.priority))
    if item.ttl is not UNSET:
        headers.append((TTL, b"%dms" % duration_ms(item.ttl, "ttl")))
    if item.tags is not UNSET:
        headers.append((TAGS, ",".join(item.tags).encode()))
    due_ms = None
    if item.delay is not UNSET or item.deliver_at is not UNSET or item.repeat is not UNSET:
        due_ms = _schedule(headers, item.delay, item.deliver_at, item.repeat, now_ms)
    record = BatchRecord(None if item.key is UNSET else item.key.encode(), _value_of(item), headers, now_ms)
    return _outgoing_record(record, None if item.partition is UNSET else item.partition, due_ms, idempotency)


def record_from_headers(
    request_headers: Mapping[str, str], value: bytes, now_ms: int, idempotency: Idempotency | None = None
) -> OutgoingRecord:
    """Convert a request whose body is the value of a single message, or raise `Problem` 422."""
    headers: list[tuple[str, bytes | None]] = []
    content_type = request_headers.get(CONTENT_TYPE)
    if content_type is not None and not is_json(content_type) and not content_type.startswith(_FORM):
        headers.append((CONTENT_TYPE, content_type.encode("latin-1")))
    reserved: dict[str, str] = {}
    for name, text in request_headers.items():
        if name.startswith(RESERVED_PREFIX):
            if name.startswith(_HEADER_PREFIX):
                header_name = name[len(_HEADER_PREFIX) :]
                _check_settable(header_name)
                headers.append((header_name, text.encode("latin-1")))
            else:
                reserved[name] = text
    record = BatchRecord(None, value, headers, now_ms)
    if not reserved and idempotency is None:
        return OutgoingRecord(record)
    partition, due_ms = _apply_reserved_headers(reserved, record, headers, now_ms)
    return _outgoing_record(record, partition, due_ms, idempotency)


def _apply_reserved_headers(
    reserved: dict[str, str], record: BatchRecord, headers: list[tuple[str, bytes | None]], now_ms: int
) -> tuple[int | None, int | None]:
    """Apply the Headrace-* request headers to the record; return the partition and the due time."""
    key, partition = reserved.pop("headrace-key", None), reserved.pop("headrace-partition", None)
    if key is not None:
        record.key = key.encode("latin-1")
    if partition is not None and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise invalid_parameter("Headrace-Partition", f"{partition[:40]!r} is not a number")
    priority, ttl, tags = reserved.pop(PRIORITY, None), reserved.pop(TTL, None), reserved.pop(TAGS, None)
    if priority is not None:
        if len(priority) != 1 or priority not in "0123456789":
            raise invalid_parameter("Headrace-Priority", f"{priority[:40]!r} is not a digit from 0 to 9")
        headers.append((PRIORITY, priority.encode()))
    if ttl is not None:
        headers.append((TTL, b"%dms" % duration_ms(ttl, "Headrace-Ttl")))
    if tags is not None:
        headers.append((TAGS, tags.encode("latin-1")))
    delay, deliver_at, repeat = (reserved.pop(name, UNSET) for name in (DELAY, DELIVER_AT, REPEAT))
    if reserved:
        name = next(iter(reserved))
        raise invalid_parameter(name, "unknown header", f"to set a header of the message use {_HEADER_PREFIX}NAME")
    due_ms = _schedule(headers, delay, deliver_at, repeat, now_ms, "Headrace-Delay", "Headrace-Deliver-At")
    return None if partition is None else int(partition), due_ms


def _schedule(
    headers: list[tuple[str, bytes | None]],
    delay: str | float | UnsetType,
    deliver_at: str | UnsetType,
    repeat: str | UnsetType,
    now_ms: int,
    delay_name: str = "delay",
    deliver_at_name: str = "deliver_at",
) -> int | None:
    """Set the headers for the due time and return it; None if the message is not delayed."""
    delay_ms = None if delay is UNSET else duration_ms(delay, delay_name)
    deliver_at_ms = None if deliver_at is UNSET else time_ms(deliver_at, deliver_at_name)
    if delay_ms is not None and deliver_at_ms is not None:
        raise invalid_parameter("delay", "delay and deliver_at exclude each other", "send only one of them")
    due_ms = deliver_at_ms
    if delay_ms is not None:
        due_ms = now_ms + delay_ms
        if delay_ms or repeat is not UNSET:
            headers.append((DELAY, b"%dms" % delay_ms))
    elif deliver_at_ms is not None:
        headers.append((DELIVER_AT, b"%d" % deliver_at_ms))
    if repeat is UNSET:
        return None if delay_ms == 0 else due_ms
    try:
        first_ms = parse_repeat(repeat).next_ms(now_ms, now_ms)
        headers.append((REPEAT, repeat.encode()))
    except (HeadraceError, UnicodeEncodeError) as error:
        reason = error.message if isinstance(error, HeadraceError) else "it is not valid text"
        raise invalid_parameter("repeat", reason, "use `every 10s`, or a cron expression with five fields") from None
    if due_ms is None and first_ms is None:
        raise invalid_parameter("repeat", f"{repeat!r} never occurs", "use a date that exists")
    return first_ms if due_ms is None else due_ms


def _outgoing_record(
    record: BatchRecord, partition: int | None, due_ms: int | None, idempotency: Idempotency | None
) -> OutgoingRecord:
    if idempotency is None:
        return OutgoingRecord(record, partition, due_ms)
    record.headers = [*record.headers, (DEDUP_ID, idempotency.dedup_id), (DEDUP_DIGEST, idempotency.digest)]
    return OutgoingRecord(record, partition, due_ms, idempotency.dedup_id)


def _check_settable(name: str) -> None:
    """Raise `Problem` 422 for a message header that other components trust, such as the reply topic."""
    if not is_free_to_set(name):
        raise Problem(
            422,
            "reserved_header",
            f"the header {name[:100]} cannot be set over REST: names that begin with {RESERVED_PREFIX} are reserved",
            "use another name; for delays and idempotency there are separate parameters",
        )


def _value_of(item: OutgoingBody) -> bytes | None:
    raw = bytes(item.value)
    if item.value_base64 is UNSET:
        return raw or None
    if raw:
        raise invalid_parameter("value", "value and value_base64 exclude each other")
    try:
        return b64decode(item.value_base64, validate=True)
    except (Base64Error, ValueError):
        raise invalid_parameter("value_base64", "it is not valid base64") from None


def values_only(body: bytes) -> list[bytes] | None:
    """Fast path: return the values of a batch whose messages have no other properties, else None."""
    try:
        return [bytes(item.value) for item in _PLAIN.decode(body).messages]
    except (msgspec.DecodeError, RecursionError):
        return None  # or malformed, which the general parser reports
