"""Request and response bodies: parse JSON, durations and times, and represent messages.

A value is stored as it was sent. Responses contain it as JSON if it is JSON text, as a string if its content type is
`text/*`, else in base64. Times are RFC 3339 in UTC with milliseconds; durations are those of `model.durations`, or
numbers of seconds.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.http.message import Request
from headrace.http.problems import Problem
from headrace.model.durations import DURATION_MS_MAX, TIME_MS_MAX, parse_duration, parse_time
from headrace.model.errors import HeadraceError

T = TypeVar("T")
Headers = Sequence[tuple[str, bytes | None]]

CONTENT_TYPE = "content-type"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RAW = msgspec.json.Decoder(msgspec.Raw)
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Duration = Annotated[str, Meta(description="500ms, 90s, 15m, 2h, 1h30m, PT90S")] | Annotated[float, Meta(ge=0)]
"""A number is in seconds."""


class MessageBody(msgspec.Struct, kw_only=True):
    """A message of a topic. It has `value` (JSON or text) or `value_base64`, or neither if its value is null; likewise
    for the key."""

    message_id: str
    value: Any = UNSET
    value_base64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    headers: dict[str, str | None] = {}
    published_at: str


def message_body(message_id: str, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> Any:
    body = MessageBody(message_id=message_id, published_at=rfc3339_time(timestamp_ms), headers=header_fields(headers))
    body.value, body.value_base64 = value_fields(value, headers)
    body.key, body.key_base64 = key_fields(key)
    return body


def value_fields(value: bytes | None, headers: Headers) -> tuple[Any, str | UnsetType]:
    """Return `value` and `value_base64`, at most one of which is set. JSON is returned as `msgspec.Raw`."""
    if value is None:
        return UNSET, UNSET
    content_type = content_type_of(headers)
    if content_type is None or is_json(content_type):
        raw = json_text(value)
        if raw is not None:
            return raw, UNSET
    elif content_type.startswith("text/"):
        try:
            return value.decode(), UNSET
        except UnicodeDecodeError:
            pass
    return UNSET, b64encode(value).decode()


def key_fields(key: bytes | None) -> tuple[str | UnsetType, str | UnsetType]:
    """Return `key` and `key_base64`, at most one of which is set."""
    if key is None:
        return UNSET, UNSET
    try:
        return key.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, b64encode(key).decode()


def header_fields(headers: Headers) -> dict[str, str | None]:
    """Return the last header of each name; bytes that are not UTF-8 become replacement characters."""
    return {printable(name): None if value is None else value.decode("utf-8", "replace") for name, value in headers}


def printable(text: str) -> str:
    """Replace surrogates: header names may contain bytes that are not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def content_type_of(headers: Headers) -> str | None:
    for name, value in headers:
        if name == CONTENT_TYPE and value is not None:
            return value.decode("latin-1").lower()
    return None


def is_json(content_type: str) -> bool:
    """Whether the media type is `application/json` or ends with `+json`."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def json_text(value: bytes) -> msgspec.Raw | None:
    """Return the value if it is JSON text, else None."""
    try:
        return parse_json_text(value)
    except JSON_ERRORS:
        return None


def parse_json_text(value: bytes) -> msgspec.Raw:
    """Return the value if it is JSON text, else raise one of `JSON_ERRORS`."""
    if not value.isascii():
        value.decode()
    return _RAW.decode(value)


# Parsing requests


def parse_body(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """Parse a JSON body. Raise `Problem` 400 with the position for malformed JSON, 422 with the path for a wrong
    structure, and 415 for another content type."""
    content_type = request.headers.get(CONTENT_TYPE)
    if content_type is not None and not is_json(content_type):
        raise Problem(
            415,
            "unsupported_media_type",
            f"the content type is {content_type[:100]!r}, but JSON is expected",
            "send it with content-type: application/json",
        )
    try:
        return decoder.decode(request.body)
    except msgspec.ValidationError as error:
        raise Problem(
            422, "invalid_body", f"the body has an invalid structure: {error}", "see GET /openapi.json for its schema"
        ) from None
    except JSON_ERRORS as error:
        raise invalid_json(request.body, error) from None


def invalid_json(body: bytes, error: Exception) -> Problem:
    if isinstance(error, UnicodeDecodeError):
        reason = f"it is not UTF-8: {error.reason}"
    elif isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    else:
        reason = str(error)
        if "(byte" not in reason:
            reason += f" (byte {len(body)})"
    return Problem(400, "malformed_json", f"the body is not valid JSON: {reason}", "correct the JSON and send it again")


def invalid_parameter(what: str, why: str, next_step: str = "see GET /openapi.json") -> Problem:
    """Return the problem of a parameter or header with an invalid value."""
    return Problem(422, "invalid_parameter", f"{what}: {why}", next_step)


def duration_ms(value: str | float, what: str) -> int:
    """Parse `"5s"`, `"5"` or `5` to milliseconds."""
    text = value if isinstance(value, str) else repr(value)
    try:
        seconds = float(text)
    except ValueError:
        try:
            return parse_duration(text)
        except HeadraceError as error:
            raise invalid_parameter(what, error.message, "use 500ms, 90s, 15m or 2h, or a number of seconds") from None
    if not 0 <= seconds * 1000 <= DURATION_MS_MAX:
        raise invalid_parameter(what, f"{text[:40]} is not a number of seconds", "use 500ms, 90s, 15m or 2h")
    return round(seconds * 1000)


def time_ms(value: str | int, what: str) -> int:
    try:
        return parse_time(str(value))
    except HeadraceError as error:
        raise invalid_parameter(what, error.message, "use the format 2027-01-01T09:00:00Z") from None


def integer_parameter(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Parse an integer query parameter."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and low <= int(text) <= high):
        raise invalid_parameter(name, f"{text[:40]!r} is not a number from {low} to {high}")
    return int(text)


def boolean_parameter(query: Mapping[str, str], name: str) -> bool:
    """Parse a boolean query parameter, which is false by default."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise invalid_parameter(name, f"{text[:40]!r} is not a boolean", "use true or false")
    return text == "true"


def rfc3339_time(time_ms_: int) -> str:
    """Format a time as RFC 3339 in UTC with milliseconds."""
    moment = _EPOCH + timedelta(milliseconds=min(max(time_ms_, 0), TIME_MS_MAX))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
