"""One TCP connection to one broker, with many requests in flight.

    frame = size i32 | correlation id i32 | [tags] | body

- Responses come in the order of the requests, so a request that reaches its deadline delays all later ones. The
  connection is closed then, and the caller dials again. The response to a cancelled call is dropped.
- There is no task per connection: the event loop calls back when the socket is readable or writable.
- Small frames are copied out of one reused buffer. A large frame that has not arrived completely gets its own memory
  and is received into it directly. The bytes of a frame are never overwritten, so views of its records stay valid.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace import __version__
from headrace.client.connections.transport import VersionRange
from headrace.client.errors import ConnectionLost, MalformedResponse, Unreachable, VersionMismatch
from headrace.model.errors import HeadraceError, MalformedFrame, RequestTimedOut, UnsupportedVersion
from headrace.runtime.network import ByteStream, Network
from headrace.wire.apis import API_VERSIONS, APIS, Api
from headrace.wire.codec.codec import decode, encode
from headrace.wire.codec.header import encode_request_header, parse_response_header
from headrace.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse

_BUFFER_SIZE = 128 * 1024
_FRAME_SIZE_MAX = 512 * 1024 * 1024


class ResponseFrameReader:
    """Splits a byte stream into frames. Call `receive` once whenever the stream is readable."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = bytearray(_BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0

    def receive(self) -> list[memoryview]:
        """The frames (without their length) that one read completed. Raises BlockingIOError when there is nothing to
        read, EOFError when the peer has closed."""
        if self._large is not None:
            return self._receive_large(self._large)
        count = self._stream.receive_into(self._view[self._filled :])
        if count == 0:
            raise EOFError
        self._filled += count
        return self._split_frames()

    def _receive_large(self, frame: memoryview) -> list[memoryview]:
        count = self._stream.receive_into(frame[self._large_filled :])
        if count == 0:
            raise EOFError
        self._large_filled += count
        if self._large_filled < len(frame):
            return []
        self._large = None
        return [frame]

    def _split_frames(self) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        while self._filled - position >= 4:
            size = int.from_bytes(self._view[position : position + 4], "big", signed=True)
            if not 4 <= size <= _FRAME_SIZE_MAX:
                raise MalformedResponse(
                    f"{self._stream.peer} announced a frame of {size} bytes; is this a Kafka listener?"
                )
            end = position + 4 + size
            if end > self._filled:
                if size > _BUFFER_SIZE // 2:
                    self._start_large(position + 4, size)
                    position = self._filled
                break
            frames.append(memoryview(bytes(self._view[position + 4 : end])))
            position = end
        rest = self._filled - position
        if position and rest:
            self._buffer[:rest] = self._buffer[position : self._filled]
        self._filled = rest
        return frames

    def _start_large(self, position: int, size: int) -> None:
        self._large = memoryview(bytearray(size))
        self._large_filled = self._filled - position
        self._large[: self._large_filled] = self._view[position : self._filled]


_CHUNKS_PER_SEND = 64
_READS_PER_WAKE = 16


@dataclass(slots=True)
class _InFlightRequest:
    correlation_id: int
    api: Api
    version: int
    response: asyncio.Future[Any]


class TcpTransport:
    """A Transport over one byte stream. Created by `TcpDialer`, which also negotiates the versions."""

    def __init__(self, stream: ByteStream, client_id: str) -> None:
        self.peer = stream.peer
        self.versions: Mapping[int, VersionRange] = {}
        self._stream = stream
        self._client_id = client_id
        self._frames = ResponseFrameReader(stream)
        self._in_flight: deque[_InFlightRequest] = deque()
        self._unsent: deque[memoryview] = deque()
        self._blocked = False
        self._next_correlation_id = 1
        self._failure: HeadraceError | None = None
        stream.when_readable(self._read)

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def call(self, api_key: int, version: int, request: Any, deadline_seconds: float) -> Any:
        api = APIS[api_key]
        correlation_id = self._send(api, version, request)
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._in_flight.append(_InFlightRequest(correlation_id, api, version, response))
        try:
            async with asyncio.timeout(deadline_seconds):
                return await response
        except TimeoutError:
            error = RequestTimedOut(f"{self.peer} did not answer {api.name} within {deadline_seconds:g} s")
            self._close_with_error(ConnectionLost(error.message))
            raise error from None

    def post(self, api_key: int, version: int, request: Any) -> None:
        self._send(APIS[api_key], version, request)

    def close(self) -> None:
        self._close_with_error(ConnectionLost(f"the connection to {self.peer} was closed by this client"))

    def _send(self, api: Api, version: int, request: Any) -> int:
        if self._failure is not None:
            raise self._failure
        correlation_id = self._next_correlation_id
        self._next_correlation_id = correlation_id % 0x7FFFFFFF + 1
        header = encode_request_header(api, version, correlation_id, self._client_id)
        body = encode(request, version)
        size = len(header) + sum(map(len, body))
        was_idle = not self._unsent
        self._unsent.append(memoryview(size.to_bytes(4, "big") + header))
        self._unsent.extend(memoryview(chunk) for chunk in body if len(chunk))  # type: ignore[arg-type]
        if was_idle:
            self._write()
        return correlation_id

    def _write(self) -> None:
        """Send until everything is sent or the socket is full; then continue when it is writable."""
        unsent = self._unsent
        try:
            while unsent:
                chunks = [unsent[index] for index in range(min(len(unsent), _CHUNKS_PER_SEND))]
                taken = self._stream.send(chunks, len(unsent) > len(chunks))
                while taken:
                    chunk = unsent.popleft()
                    if len(chunk) > taken:
                        unsent.appendleft(chunk[taken:])
                        break
                    taken -= len(chunk)
        except BlockingIOError:
            self._blocked = True
            self._stream.when_writable(self._write)
            return
        except OSError as error:
            self._close_with_error(ConnectionLost(f"the connection to {self.peer} broke: {error}"))
            return
        if self._blocked:
            self._blocked = False
            self._stream.when_writable(None)

    def _read(self) -> None:
        try:
            for _ in range(_READS_PER_WAKE):
                for frame in self._frames.receive():
                    self._complete_request(frame)
                if self._failure is not None:
                    return
        except BlockingIOError:
            return
        except EOFError:
            self._close_with_error(ConnectionLost(f"{self.peer} closed the connection"))
        except OSError as error:
            self._close_with_error(ConnectionLost(f"the connection to {self.peer} broke: {error}"))
        except (MalformedFrame, MalformedResponse) as error:
            self._close_with_error(MalformedResponse(f"{self.peer}: {error.message}"))

    def _complete_request(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise MalformedResponse("an answer came that was not asked for")
        expected = self._in_flight.popleft()
        tagged = expected.api.response_header_version(expected.version) == 1
        correlation_id, position = parse_response_header(frame, tagged)
        if correlation_id != expected.correlation_id:
            self._in_flight.appendleft(expected)
            raise MalformedResponse(f"answer {correlation_id} came where {expected.correlation_id} was due")
        version = expected.version
        if expected.api.key == API_VERSIONS and _is_unsupported_version(frame, position):
            version = 0
        try:
            message = decode(expected.api.response, version, frame, position)
        except MalformedFrame:
            self._in_flight.appendleft(expected)
            raise
        if not expected.response.done():
            expected.response.set_result(message)

    def _close_with_error(self, failure: HeadraceError) -> None:
        """Close the connection and fail all pending calls; only the first failure is reported."""
        if self._failure is not None:
            return
        self._failure = failure
        self._stream.close()
        self._unsent.clear()
        for expected in self._in_flight:
            if not expected.response.done():
                expected.response.set_exception(type(failure)(failure.message))
        self._in_flight.clear()


class TcpDialer:
    def __init__(self, network: Network, client_id: str) -> None:
        self._network = network
        self._client_id = client_id

    async def dial(self, host: str, port: int, deadline_seconds: float) -> TcpTransport:
        try:
            async with asyncio.timeout(deadline_seconds):
                stream = await self._network.connect(host, port, deadline_seconds)
                transport = TcpTransport(stream, self._client_id)
                try:
                    transport.versions = await _fetch_api_versions(transport, deadline_seconds)
                except BaseException:
                    transport.close()
                    raise
        except TimeoutError:
            raise Unreachable(f"{host}:{port} did not answer within {deadline_seconds:g} s") from None
        except OSError as error:
            reason = "connection refused" if isinstance(error, ConnectionRefusedError) else error.strerror or error
            raise Unreachable(f"cannot connect to {host}:{port}: {reason}") from error
        except (ConnectionLost, RequestTimedOut) as error:
            raise Unreachable(f"{host}:{port} took the connection but does not serve: {error.message}") from error
        return transport


async def _fetch_api_versions(transport: TcpTransport, deadline_seconds: float) -> dict[int, VersionRange]:
    """Negotiate API versions. An older broker returns UNSUPPORTED_VERSION with its own range: retry with that."""
    api = APIS[API_VERSIONS]
    version = api.max_version
    while True:
        request = ApiVersionsRequest(client_software_name="headrace", client_software_version=__version__)
        response: ApiVersionsResponse = await transport.call(api.key, version, request, deadline_seconds)
        offered = {key.api_key: VersionRange(key.min_version, key.max_version) for key in response.api_keys}
        if response.error_code == 0:
            return offered
        theirs = offered.get(api.key, VersionRange(0, 0))
        if response.error_code != UnsupportedVersion.code or theirs.high >= version:
            raise VersionMismatch(f"{transport.peer} refused to name its versions (error {response.error_code})")
        version = theirs.high


def _is_unsupported_version(frame: memoryview, position: int) -> bool:
    return int.from_bytes(frame[position : position + 2], "big", signed=True) == UnsupportedVersion.code
