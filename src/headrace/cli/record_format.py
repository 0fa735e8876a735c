"""The formats of a record on the command line: JSON, and the format string of `consume -f`.

`consume --json` writes and `produce --json` reads:

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1794784389824,
     "key": "c-42", "value": "...", "headers": [["name", "value"]]}

Bytes that are valid UTF-8 are strings, others {"base64": "..."}; null is null. On input, a value of any other JSON type
is serialized as JSON, and topic, partition, offset and timestamp are ignored.

The fields of a format string:

    %t topic  %p partition  %o offset  %T timestamp (ms)  %k key  %s value  %h headers (a=1,b=2)
    %K length of the key  %S length of the value  %% a percent sign  \\n \\t \\r \\0 \\\\ as usual
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
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


Printer = Callable[[ConsumedRecord], bytes]

_TOKEN = re.compile(r"[%\\].?|[^%\\]+", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: dict[str, bytes | Printer] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "%": b"%",
}


def compile_format(text: str) -> Printer:
    """Compile to a function that formats a record as bytes; raise ValueError for an unknown field."""
    pieces = [_piece(token) for token in _TOKEN.findall(text)]
    return lambda record: b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)


def _piece(token: str) -> bytes | Printer:
    sign, name = token[0], token[1:]
    if sign == "%":
        if name not in _FIELDS:
            raise ValueError(f"unknown field %{name}; known are {' '.join('%' + known for known in _FIELDS)}")
        return _FIELDS[name]
    if sign == "\\":
        if name not in _ESCAPES:
            raise ValueError(f"unknown escape \\{name}; known are {' '.join(chr(92) + known for known in _ESCAPES)}")
        return _ESCAPES[name]
    return token.encode()
