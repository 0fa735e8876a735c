"""Headers of requests and responses, which follow the length of the frame.

    request:   api_key i16, api_version i16, correlation_id i32, client_id string, [tags if flexible]
    response:  correlation_id i32, [tags if flexible, but never for ApiVersions]

The client id has an int16 length in all versions, including flexible ones.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from headrace.model.errors import MalformedFrame
from headrace.wire.apis import APIS, Api
from headrace.wire.codec.primitives import skip_tags

_REQUEST = Struct(">hhih")
_CORRELATION = Struct(">i")
_CORRELATION_TAGGED = Struct(">iB")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(buffer: memoryview) -> tuple[RequestHeader, int]:
    """Return the header and the position of the body.

    The header of an unsupported version is parsed as well, because ApiVersions requires a response to it. Then the
    position may be wrong, and the body must not be parsed.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(buffer)
        position = 10
        client_id = None
        if length >= 0:
            position += length
            if position > len(buffer):
                raise MalformedFrame(f"the client id has {length} bytes, but only {len(buffer) - 10} remain")
            client_id = str(buffer[10:position], "utf-8")
        elif length != -1:
            raise MalformedFrame(f"invalid client id length {length}")
        header = RequestHeader(api_key, api_version, correlation_id, client_id)
        api = APIS.get(api_key)
        if api is not None and api.flexible_since <= api_version <= api.max_version:
            tags = buffer[position]
            position += 1
            if tags:
                position = skip_tags(buffer, position, tags, len(buffer))
    except (IndexError, struct_error):
        raise MalformedFrame("the request ends inside its header") from None
    except UnicodeDecodeError:
        raise MalformedFrame("the client id is not UTF-8") from None
    return header, position


def encode_response_header(correlation_id: int, tagged: bool) -> bytes:
    return _CORRELATION_TAGGED.pack(correlation_id, 0) if tagged else _CORRELATION.pack(correlation_id)


def encode_request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    data = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(data)
    tags = b"\0" if api.request_header_version(version) == 2 else b""
    return _REQUEST.pack(api.key, version, correlation_id, length) + data + tags


def parse_response_header(buffer: memoryview, tagged: bool) -> tuple[int, int]:
    """Return the correlation id and the position of the body."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buffer)
        position = 4
        if tagged:
            position = skip_tags(buffer, 5, buffer[4], len(buffer))
    except (IndexError, struct_error):
        raise MalformedFrame("the response ends inside its header") from None
    return correlation_id, position
