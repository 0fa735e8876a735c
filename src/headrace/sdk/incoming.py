"""What applications receive: replies to requests, (in `messages`) leased messages and (in `streams`) records.

All are read in the same way: `value` is the bytes, `text` and `json()` decode them, `headers` are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

import msgspec

from headrace.model.errors import InvalidRecord
from headrace.model.ids import MessageId
from headrace.sdk.times import time_of

T = TypeVar("T")
RawHeaders = Sequence[tuple[str, bytes | None]]


class Undecodable(InvalidRecord):
    """The value cannot be decoded as requested."""


class Payload:
    """A value and its headers."""

    __slots__ = ("raw_headers", "value")

    def __init__(self, value: bytes | None, raw_headers: RawHeaders) -> None:
        self.value = value
        self.raw_headers = raw_headers

    @property
    def text(self) -> str:
        """The value as text; empty if there is none. Raises `Undecodable` if it is not UTF-8."""
        try:
            return (self.value or b"").decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"the value of {self._name} is not text: {error}") from error

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:  # noqa: A002 - as msgspec calls it
        """The value decoded from JSON: as plain values, or as a `type` (a dataclass, a Struct, a model, `list[int]`).
        Raises `Undecodable` if it is not JSON, or does not match the type."""
        try:
            validate = getattr(type, "model_validate_json", None)  # a pydantic model
            if validate is not None:
                return validate(self.value or b"")
            return msgspec.json.decode(self.value or b"", type=type)
        except ValueError as error:
            raise Undecodable(f"the value of {self._name} cannot be read: {error}") from error

    @property
    def headers(self) -> dict[str, str]:
        """The last header of each name, as text; `raw_headers` has all of them as bytes."""
        return {name: (value or b"").decode("utf-8", "replace") for name, value in self.raw_headers}

    @property
    def _name(self) -> str:
        return "the reply"


class Reply(Payload):
    """The reply to a request."""


class Received(Payload):
    """A message with its position in a topic."""

    __slots__ = ("id", "raw_key", "timestamp_ms")

    def __init__(
        self, message_id: MessageId, timestamp_ms: int, key: bytes | None, value: bytes | None, raw_headers: RawHeaders
    ) -> None:
        super().__init__(value, raw_headers)
        self.id = message_id
        self.raw_key = key
        self.timestamp_ms = timestamp_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def key(self) -> str | None:
        """The key as text; `raw_key` has the bytes."""
        return None if self.raw_key is None else self.raw_key.decode("utf-8", "replace")

    @property
    def topic(self) -> str:
        return self.id.topic

    @property
    def partition(self) -> int:
        return self.id.partition

    @property
    def offset(self) -> int:
        return self.id.offset

    @property
    def published_at(self) -> datetime:
        return time_of(self.timestamp_ms)

    @property
    def _name(self) -> str:
        return str(self.id)
