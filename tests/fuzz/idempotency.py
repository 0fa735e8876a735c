"""A model of publishing with an Idempotency-Key: a request is stored once, and another one with the same key is not.

The model covers requests whose messages all go to the partition of the key, in topics as the fuzzer creates them.
Within the window, the same content gets the first response, and other content is an error that stores
nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from tests.fuzz.rest_requests import BATCH, JSON

from headrace.broker.broker import Broker
from headrace.broker.topic import Topic
from headrace.http.message import Request

WINDOW_MS = 60_000
CONFIGS = {"dedup.window.ms": str(WINDOW_MS)}
_MARGIN_MS = 5_000
_ROUTING = ("key", "partition", "delay", "deliver_at", "repeat")
_KEY = "idempotency-key"


class _First(NamedTuple):
    content: tuple[bool, bytes]
    response: bytes
    at_ms: int


class _Asked(NamedTuple):
    topic_id: UUID
    key: tuple[str, UUID, str]
    content: tuple[bool, bytes]
    offsets: list[int]
    at_ms: int


class IdempotencyModel:
    def __init__(self, broker: Broker, now_ms: Any) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._first: dict[tuple[str, UUID, str], _First] = {}
        self._unknown_member: set[UUID] = set()
        """Topics whose configuration has changed, so that the model does not know their dedup state."""
        self.rejected = self.repeated = 0

    def before(self, request: Request) -> _Asked | None:
        """Return the input of `after`, or None for a request that the model does not cover."""
        self._unknown_member.update(one.id for one in self._broker.catalogue if one.record.configs != CONFIGS)
        parts = request.path.split("/")
        if request.method != "POST" or parts[:2] != ["", "topics"] or parts[3:] != ["messages"]:
            return None
        topic = self._broker.catalogue.find(parts[2])
        key = request.headers.get(_KEY)
        if topic is None or topic.id in self._unknown_member or key is None or not _is_routed_by_its_key(request):
            return None
        is_batch = request.headers.get("content-type", "").startswith(BATCH)
        token = request.headers.get("authorization", "")
        return _Asked(topic.id, (token, topic.id, key), (is_batch, request.body), _offsets(topic), int(self._now_ms()))

    def after(self, requested: _Asked, status: int, response: bytes) -> str | None:
        """Return what is wrong, or None."""
        topic = self._broker.catalogue.find_by_id(requested.topic_id)
        if topic is None:
            return None
        first = self._first.get(requested.key)
        if first is None or requested.at_ms - first.at_ms >= WINDOW_MS - _MARGIN_MS:
            if status == 201:
                self._first[requested.key] = _First(requested.content, response, requested.at_ms)
            elif status == 207:
                self._unknown_member.add(requested.topic_id)
            return None
        if requested.content == first.content:
            self.repeated += 1
            if (status, response) != (201, first.response):
                return f"a repetition got {status} {response!r}, the first request {first.response!r}"
            return None
        self.rejected += 1
        if status < 400:
            return f"a reused key got {status} {response!r}; the first content was {first.content!r}"
        if _offsets(topic) != requested.offsets:
            return f"a reused key stored something: {requested.offsets} became {_offsets(topic)}"
        return None


def _offsets(topic: Topic) -> list[int]:
    return [topic.led[index].log.end_offset for index in sorted(topic.led)]


def _is_routed_by_its_key(request: Request) -> bool:
    headers = request.headers
    if any(f"headrace-{name.replace('_', '-')}" in headers for name in _ROUTING) or request.query:
        return False
    if not headers.get("content-type", "").startswith(BATCH):
        return headers.get("content-type") == JSON
    try:
        messages = msgspec.json.decode(request.body)["messages"]
        return all(not any(name in message for name in _ROUTING) for message in messages)
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        return False
