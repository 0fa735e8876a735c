"""The JSON format of a record, used by both `consume --json` and `produce --json`.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1794784389824,
     "key": "c-42", "value": "...", "headers": [["name", "value"]]}

Bytes that are valid UTF-8 are strings, others {"base64": "..."}; null is null. On input, a value of any other JSON type
is serialized as JSON, and topic, partition, offset and timestamp are ignored.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.client.fetch.fetched_records import ConsumedRecord


class RecordEnvelope(NamedTuple):
    """The fields that are read from an object."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def envelope_of(record: ConsumedRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[name, _to_json(value)] for name, value in record.headers],
    }


def read_envelope(line: bytes) -> RecordEnvelope:
    """Parse a line, or raise ValueError with a message for the user."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, dict) or "value" not in found:
        raise ValueError('it must be an object with a "value"')
    headers = found.get("headers") or []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ValueError('"headers" must be an object or a list of [name, value]')
    return RecordEnvelope(
        _to_bytes(found["value"]),
        _to_bytes(found.get("key")),
        [(name, _to_bytes(value)) for name, value in pairs],
    )


def _to_json(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _to_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"invalid base64: {error}") from None
    return msgspec.json.encode(value)
