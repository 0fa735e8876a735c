"""Convert what an application publishes into key, value and headers of a record.

- `bytes` are written as they are, text as UTF-8 with the header `content-type: text/plain`.
- Everything else is written as JSON without a content type: dataclasses, msgspec Structs, pydantic models, dicts,
  lists, numbers, dates.
- None is a message without a value, which deletes its key in a compacted topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.client.produce.producer import Header
from headrace.client.queues.schedule import When
from headrace.model.errors import InvalidRequest
from headrace.model.message_headers import DEDUP_ID, PRIORITY, TAGS, TTL, InvalidHeader, check_priority
from headrace.model.names import delayed_topic
from headrace.sdk.arguments import check_count, check_name, check_topic
from headrace.sdk.errors import NotEncodable
from headrace.sdk.times import Duration, Time, duration_ms, time_ms

CONTENT_TYPE = "content-type"
TEXT = b"text/plain"

Headers = Mapping[str, str | bytes]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for `publish_many`; the fields are the parameters of `publish`."""

    value: Any
    key: str | bytes | None = None
    headers: Headers | None = None
    delay: Duration | None = None
    deliver_at: Time | None = None
    repeat: str | None = None
    priority: int | None = None
    ttl: Duration | None = None
    dedup_id: str | None = None
    tags: Iterable[str] = ()
    partition: int | None = None


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message for the producer. `delayed_for`: the target topic of a delayed message. `partitioning_key`: chooses the
    partition of a message without a key."""

    topic: str
    delayed_for: str | None
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    partition: int | None
    partitioning_key: bytes | None


def outgoing_message(topic: str, message: NewMessage) -> OutgoingMessage:
    """Raises `HeadraceError`s for invalid messages."""
    check_topic(topic)
    if message.partition is not None:
        check_count("partition", message.partition, 0)
    value, headers = encode_body(message.value, message.headers)
    headers += _delivery_headers(message)
    when = _when(message)
    if when is not None:
        headers += when.headers()
    key = encode_key(message.key)
    # Each partition has its own dedup window, so a repeated id must go to the same partition.
    partitioning_key = message.dedup_id.encode() if message.dedup_id is not None and key is None else None
    return OutgoingMessage(
        topic if when is None else delayed_topic(topic),
        None if when is None else topic,
        value,
        key,
        headers,
        message.partition,
        partitioning_key,
    )


def encode_body(value: Any, headers: Headers | None = None) -> tuple[bytes | None, list[Header]]:
    """The bytes of a value, and the headers, including the content type of text."""
    encoded = _encode_headers({} if headers is None else headers)
    body, content_type = _encode_value(value)
    if content_type is not None and not any(name.lower() == CONTENT_TYPE for name, _ in encoded):
        encoded.append((CONTENT_TYPE, content_type))
    return body, [*encoded]


def encode_key(key: str | bytes | None) -> bytes | None:
    if isinstance(key, str):
        return key.encode()
    if key is None or isinstance(key, bytes):
        return key
    raise NotEncodable(f"a key is text or bytes, not {key!r}; write key=str(...)")


def _encode_headers(headers: Headers) -> list[tuple[str, bytes]]:
    if not isinstance(headers, Mapping):
        raise InvalidHeader(f"headers={headers!r} is not valid; use a dict of names and values")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str | bytes):
            raise InvalidHeader(f"the header {name!r} cannot be {value!r}; names are text, values are text or bytes")
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers.items()]


def _encode_value(value: Any) -> tuple[bytes | None, bytes | None]:
    """The bytes, and the content type of text."""
    if value is None:
        return None, None
    if isinstance(value, bytes):
        return value, None
    if isinstance(value, bytearray | memoryview):
        return bytes(value), None
    if isinstance(value, str):
        return value.encode(), TEXT
    try:
        return msgspec.json.encode(value, enc_hook=_plain), None
    except (TypeError, ValueError, RecursionError) as error:
        raise NotEncodable(
            f"cannot write a {type(value).__name__} as JSON ({error}); publish bytes, text, a dataclass, a model, or "
            "another value with a JSON form"
        ) from error


def _plain(value: Any) -> Any:
    """Convert a value that msgspec does not know."""
    dump = getattr(value, "model_dump", None)  # a pydantic model
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return dump(mode="json")


def _delivery_headers(message: NewMessage) -> list[Header]:
    headers: list[Header] = []
    if message.priority is not None:
        check_priority(str(message.priority))
        headers.append((PRIORITY, str(message.priority).encode()))
    if message.ttl is not None:
        headers.append((TTL, b"%dms" % duration_ms(message.ttl)))
    if message.dedup_id is not None:
        check_name("dedup_id", message.dedup_id)
        headers.append((DEDUP_ID, message.dedup_id.encode()))
    if isinstance(message.tags, str):
        raise InvalidHeader(f'tags are several words; write tags=["{message.tags}"]')
    tags = list(message.tags)
    if tags:
        if any(not isinstance(tag, str) or "," in tag or not tag.strip() for tag in tags):
            raise InvalidHeader(f"a tag is a word without commas; {tags} has one that is not")
        headers.append((TAGS, ",".join(tags).encode()))
    return headers


def _when(message: NewMessage) -> When | None:
    if message.delay is None and message.deliver_at is None and message.repeat is None:
        return None
    if message.repeat is not None:
        check_name("repeat", message.repeat)
    if message.delay is not None and message.deliver_at is not None:
        raise InvalidRequest("delay and deliver_at cannot be combined; set one of them")
    return When(
        None if message.deliver_at is None else time_ms(message.deliver_at),
        None if message.delay is None else duration_ms(message.delay),
        message.repeat,
    )
