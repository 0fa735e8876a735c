"""Raw Kafka requests, for input that no client library sends.

The encoding is kio's, so that tests do not depend on the codec under test. Messages are built from plain values: nested
structures are dicts, and omitted fields have valid defaults.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import socket
import time
import types
import typing
import uuid
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.integration.process import PATIENCE_SECONDS

SERVED = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    32: (1, 4),
    33: (0, 2),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    60: (0, 2),
    75: (0, 0),
}
"""API key -> the versions that a broker must serve: the ranges of Kafka 4.3."""


class RawConnection:
    """One TCP connection that sends arbitrary bytes."""

    def __init__(
        self, address: str, timeout_seconds: float = PATIENCE_SECONDS, *, source: tuple[str, int] | None = None
    ) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout_seconds, source)
        self._correlation_id = 0

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send one request and return the decoded response."""
        self._correlation_id += 1
        self.send_frame(encode_request(api_key, version, self._correlation_id, **fields))
        return decode_response(api_key, version, self._correlation_id, self.receive_frame())

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(len(payload).to_bytes(4, "big") + payload)

    def receive_frame(self) -> bytes:
        return self._receive(int.from_bytes(self._receive(4), "big"))

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the stream; return False if any byte arrives instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = self.socket.recv(size - len(received))
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            received += piece
        return bytes(received)


def connect_in_a_tight_loop(address: str) -> RawConnection:
    """The first connection that a port takes, of a broker that is about to start.

    From another loopback address: a connection to a port that nobody has taken yet may be given that very port as its
    own, connect to itself, and keep the broker from it.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return RawConnection(address, source=("127.0.0.2", 0))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"no process listens on {address}"


def encode_request(api_key: int, version: int, correlation_id: int = 1, **fields: Any) -> bytes:
    """Encode header and body, without the length."""
    schema: Any = load_request_schema(api_key, version)
    header = build(
        schema.__header_schema__,
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id="raw",
    )
    return _encode(header) + _encode(build(schema, **fields))


def decode_response(api_key: int, version: int, correlation_id: int, frame: bytes) -> Any:
    schema: Any = load_response_schema(api_key, version)
    header, header_size = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation_id
    message, size = entity_reader(schema)(frame, header_size)
    assert header_size + size == len(frame), "bytes are left behind the response"
    return message


def request_versions(api_key: int) -> list[int]:
    """Return the versions of a request that kio supports."""
    versions = schema_name_map[api_key_map[api_key]]
    return sorted(version for version, kinds in versions.items() if EntityType.request in kinds)


def build(schema: Any, **fields: Any) -> Any:
    """Build an entity of the schema: nested ones from dicts, omitted fields with valid defaults."""
    hints = typing.get_type_hints(schema)
    known = {field.name for field in dataclasses.fields(schema)}
    assert fields.keys() <= known, f"{schema.__name__} has no {fields.keys() - known}"
    values = {}
    for field in dataclasses.fields(schema):
        if field.name in fields:
            values[field.name] = _shape(hints[field.name], fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _harmless(hints[field.name])
    return schema(**values)


def _shape(hint: Any, value: Any) -> Any:
    """Convert dicts and lists to the type of the field, and ints to time spans."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    hint = next(option for option in options if option is not type(None))
    if isinstance(value, (list, tuple)):
        return tuple(_shape(typing.get_args(hint)[0], element) for element in value)
    if isinstance(value, dict):
        return build(hint, **value)
    if "Timedelta" in str(hint) and isinstance(value, int):
        return datetime.timedelta(milliseconds=value)
    return value


def _harmless(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return (build(element) if dataclasses.is_dataclass(element) else _harmless(element),)
    plain = ((bool, False), (int, 0), (float, 0.0), (str, "x"), (bytes, b"x"), (uuid.UUID, uuid.UUID(int=1)))
    for kind, value in plain:
        if issubclass(hint, kind):
            return value
    if "Timedelta" in str(hint):
        return datetime.timedelta()
    assert dataclasses.is_dataclass(hint), hint
    return build(hint)


def _encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()
