"""An HTTP listener with a scripted application and clients, without sockets. Time advances only when a test advances
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec

from headrace.http.connection import HttpConnection
from headrace.http.limits import HttpLimits
from headrace.http.listener import HttpListener
from headrace.http.message import (
    HttpResponse,
    Request,
    Response,
    StreamedResponse,
    WebSocket,
    WebSocketResponse,
    json_response,
)
from headrace.http.problems import Problem
from headrace.testkit.entropy import SeededEntropy

HOST = "127.0.0.1"
RESERVED = frozenset({"/healthy"})


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_700_000_000_000


class ScriptedApplication:
    """An application: `/wait/NAME` waits until `open(NAME)`; other paths respond at once."""

    def __init__(self) -> None:
        self.body_bytes_max = 1000
        self.is_valid = True
        self.admitted: list[str] = []
        self.requests: list[Request] = []
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.closed_streams = 0
        self.websocket_handler: Callable[[WebSocket], Any] = self._echo
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Event] = {}

    def open(self, name: str) -> None:
        self._waiting.setdefault(name, asyncio.Event()).set()

    def body_limit(self, method: str, path: str) -> int:
        if path == "/bug":
            raise ZeroDivisionError
        return self.body_bytes_max

    async def admit(self, request: Request) -> None:
        """Reject `X-Token: none`, and `X-Token: revocable` unless `is_valid`. `X-Token: later` waits for
        `open("token")`, then is rejected unless `is_valid`."""
        token = request.headers.get("x-token")
        self.admitted.append(request.path)
        if token == "later":
            await self._waiting.setdefault("token", asyncio.Event()).wait()
        if token == "none" or (token in ("later", "revocable") and not self.is_valid):
            raise Problem(401, "token_unknown", "no such token", "get one")
        if token == "bug":
            raise ZeroDivisionError

    async def handle(self, request: Request) -> HttpResponse:
        self.requests.append(request)
        self.started.append(request.path)
        name = request.path.rpartition("/")[2]
        if request.path.startswith("/wait/"):
            try:
                await self._waiting.setdefault(name, asyncio.Event()).wait()
            except asyncio.CancelledError:
                self.cancelled.append(request.path)
                raise
        match name:
            case "bug":
                raise ZeroDivisionError
            case "problem":
                raise Problem(409, "conflicting", "it conflicts", "do not", [("retry-after", "3")])
            case "post-only":
                raise Problem(405, "method_not_allowed", "no", "use POST", [("allow", "GET, POST")])
            case "stream":
                return StreamedResponse(self._stream(), "text/event-stream", headers=[("cache-control", "no-store")])
            case "socket":
                return WebSocketResponse(self.websocket_handler)
            case "empty":
                return Response(204)
            case "large":
                return Response(200, b"x" * 100_000, "text/plain")
            case "splitting":
                return Response(200, b"", "text/plain", [("x-name", "a\r\nset-cookie: b")])
        return json_response({"path": request.path, "body": len(request.body)})

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self.chunks.get()) is not None:
                yield chunk
        finally:
            self.closed_streams += 1

    async def _echo(self, socket: WebSocket) -> None:
        while (message := await socket.receive()) is not None:
            await socket.send(f"got {message!r}")


class FakeTransport(asyncio.Transport):
    """Records what was written to a connection and how it ended. The client reads written data at once, unless
    `is_taken` is False."""

    def __init__(self, protocol: HttpConnection, peer: str = HOST) -> None:
        super().__init__({"peername": (peer, 40_000)})
        self.protocol = protocol
        self._written = bytearray()
        self.unsent = 0
        self.is_taken = True
        self.reads = True
        self.has_eof = False
        self.closed = False
        self.aborted = False
        self._is_lost = False

    @property
    def written(self) -> bytes:
        return bytes(self._written)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_eof
        if self.closed:
            return
        self._written += data
        if not self.is_taken:
            self.unsent += len(data)
            if self.unsent > 65536:
                self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def take(self, size: int | None = None) -> None:
        """Let the client read this number of unread bytes, or all."""
        self.unsent -= self.unsent if size is None else size
        if self.unsent < 16384:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        if not self.unsent:
            asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self.closed = self.aborted = True
        asyncio.get_running_loop().call_soon(self.lose)

    def lose(self) -> None:
        self.closed = True
        if not self._is_lost:
            self._is_lost = True
            self.protocol.connection_lost(None)


class ParsedResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(msgspec.json.decode(self.body)["code"])

    @property
    def path(self) -> str:
        return str(msgspec.json.decode(self.body)["path"])


class HttpTestClient:
    """A client: `sends` sends bytes unchanged; `answers` are the complete responses."""

    def __init__(self, harness: HttpHarness, peer: str = HOST) -> None:
        self.exchange = harness.listener._new_connection()
        self.line = FakeTransport(self.exchange, peer)
        self.exchange.connection_made(self.line)

    def sends(self, data: bytes | str) -> HttpTestClient:
        payload = data.encode("latin-1") if isinstance(data, str) else data
        assert self.line.reads, "the connection does not read now"
        self.exchange.data_received(payload)
        return self

    def asks(self, path: str, method: str = "GET", headers: str = "", body: bytes = b"") -> HttpTestClient:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        return self.sends(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}{length}\r\n".encode() + body)

    def sends_eof(self) -> None:
        if not self.exchange.eof_received():
            self.line.close()

    def answers(self, *methods: str) -> list[ParsedResponse]:
        return parse(self.line.written, methods)

    def answer(self, *methods: str) -> ParsedResponse:
        (response,) = self.answers(*methods)
        return response

    @property
    def is_hung_up_on(self) -> bool:
        return self.line.closed or self.line.has_eof


class HttpHarness:
    """A listener without a socket."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.script = ScriptedApplication()
        self.listener = HttpListener(self.script, HttpLimits(**limits), self.clock, SeededEntropy(1), RESERVED)

    def http_client(self, peer: str = HOST) -> HttpTestClient:
        return HttpTestClient(self, peer)

    def wait(self, seconds: float) -> None:
        """Advance the time and sweep the connections once."""
        self.clock.seconds += seconds
        self.listener.sweep()


def parse(data: bytes, methods: tuple[str, ...] = ()) -> list[ParsedResponse]:
    """Parse responses, which must use all bytes; `methods` are those of the requests, by default GET."""
    found: list[ParsedResponse] = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = {name: value for name, _, value in (line.partition(": ") for line in lines)}
        assert len(headers) == len(lines), lines
        body = b""
        method = methods[len(found)] if len(found) < len(methods) else "GET"
        if method != "HEAD" and headers.get("transfer-encoding") == "chunked":
            while True:
                size, _, data = data.partition(b"\r\n")
                body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
                if not int(size, 16):
                    break
        elif method != "HEAD" and "content-length" in headers:
            size_bytes = int(headers["content-length"])
            assert len(data) >= size_bytes
            body, data = data[:size_bytes], data[size_bytes:]
        found.append(ParsedResponse(int(status), headers, body))
    return found


async def settled() -> None:
    """Run all ready callbacks."""
    for _ in range(10):
        await asyncio.sleep(0)
