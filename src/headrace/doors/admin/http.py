"""Health and metrics by HTTP: `/livez`, `/readyz`, `/metrics`. GET and HEAD only; answers are small, bodies refused.

A connection has a few seconds to bring a request, and only so much of it is read; both limits keep a scraper that went
wrong from holding anything.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

import httptools

log = logging.getLogger(__name__)

_REQUEST_BYTES_MAX = 16_384
_IDLE_SECONDS = 30.0
_CONNECTIONS_MAX = 256

Page = tuple[int, str, str]
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Source(Protocol):
    """Where the pages come from."""

    def render(self) -> str:
        """The metrics, in Prometheus' text format."""
        ...

    def checks(self) -> dict[str, str | None]:
        """What must be well for the broker to be ready: the name of each check, and what is wrong with it."""
        ...


class AdminDoor:
    def __init__(self, source: Source) -> None:
        self.is_ready = False
        self.connections = 0
        self._source = source
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Exchange(self), host, port)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def page(self, path: str) -> Page:
        if path == "/livez":
            return 200, _TEXT, "ok\n"
        if path in ("/readyz", "/healthz"):
            return self._ready()
        if path == "/metrics":
            return 200, _METRICS, self._source.render()
        return 404, _TEXT, "there are /livez, /readyz and /metrics here\n"

    def _ready(self) -> Page:
        checks = {
            "serving": None if self.is_ready else "the broker is starting or stopping",
            **self._source.checks(),
        }
        lines = [f"[{'-' if wrong else '+'}] {name}{f': {wrong}' if wrong else ''}\n" for name, wrong in checks.items()]
        return (503 if any(checks.values()) else 200), _TEXT, "".join(lines)


class _Exchange(asyncio.Protocol):
    """One connection: requests one after the other, each answered at once."""

    def __init__(self, door: AdminDoor) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._received = 0
        self._url = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are transports without saying so.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._door.connections += 1
        if self._door.connections > _CONNECTIONS_MAX:
            transport.abort()
            return
        self._wait_for_request(transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self._door.connections -= 1
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        try:
            if self._received > _REQUEST_BYTES_MAX:
                raise httptools.HttpParserError("the request is too long")
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._answer((400, _TEXT, "this is not a request that is understood here\n"), keep_alive=False)

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url  # it may come in pieces

    def on_message_complete(self) -> None:
        method = self._parser.get_method()
        if method not in (b"GET", b"HEAD"):
            page: Page = (405, _TEXT, "only GET and HEAD\n")
        else:
            path = httptools.parse_url(self._url).path or b""
            page = self._page(path.decode("ascii", "replace"))
        self._answer(page, keep_alive=self._parser.should_keep_alive(), head_only=method == b"HEAD")
        self._received = 0
        if self._transport is not None:
            self._wait_for_request(self._transport)

    def _page(self, path: str) -> Page:
        try:
            return self._door.page(path)
        except Exception:
            # Our bug, not the client's: the parser would take it for a bad request.
            log.exception("%s failed", path)
            return 500, _TEXT, "this page failed; the log says why\n"

    def _wait_for_request(self, transport: asyncio.Transport) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, transport.close)

    def _answer(self, page: Page, *, keep_alive: bool, head_only: bool = False) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        status, content_type, body = page
        payload = body.encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(payload)}\r\nCache-Control: no-store\r\n"
            f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
        )
        transport.write(head.encode() + (b"" if head_only else payload))
        if not keep_alive:
            transport.close()
