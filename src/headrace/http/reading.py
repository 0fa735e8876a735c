"""Bytes into requests: heads and bodies within their limits.

A request is handed over when its body is whole. Whatever two readers could understand in two ways is refused, since
what stands between a client and us may have read it the other way: two lengths, a length beside chunks, a coding other
than plain `chunked`, a version that is neither 1.0 nor 1.1. After a refusal nothing more is read.

Bytes are fed in slices (`slice_bytes`), because the parser cannot be halted: so few requests begin before the caller is
asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import httptools

from headrace.http import refusals
from headrace.http.message import Request
from headrace.http.problem import Problem
from headrace.http.target import parse_target

if TYPE_CHECKING:
    from headrace.http.listener import HttpListener

log = logging.getLogger(__name__)

IDLE, HEAD, BODY = range(3)
SLICE_BYTES = 1024
WEBSOCKET = "websocket"

_FRAMING_PER_BODY_BYTE_MAX = 8  # of chunks; one byte each is six
_FRAMING_BYTES_MIN = 65_536
_ID_LENGTH_MAX = 128
_NAMES_KEPT_MAX = 512

_names: dict[bytes, str] = {}
"""Names of headers as clients spell them, in lower case: they are the same ones again and again."""

Serve = Callable[[Request, bool, bool], None]
NO_REQUEST = Request("", "", {}, {}, b"", "", "")


class RequestReader:
    """`phase` and `since` tell what it waits for, and from when on; `now` is set by whoever feeds it. `upgrade` is what
    the last request would rather speak, and `trailing` what came behind it."""

    __slots__ = (
        "_body",
        "_body_bytes_max",
        "_door",
        "_fed",
        "_headers",
        "_is_old",
        "_parser",
        "_peer",
        "_problem",
        "_repeated",
        "_serve",
        "_unread",
        "_url",
        "body_bytes",
        "expects_continue",
        "now",
        "phase",
        "request",
        "since",
        "trailing",
        "upgrade",
    )

    def __init__(self, door: HttpListener, peer: str, now: float, serve: Serve) -> None:
        """`serve` gets each request, whether the connection goes on behind it, and whether it is of HTTP/1.0."""
        self._door = door
        self._peer = peer
        self._serve = serve
        self._parser = httptools.HttpRequestParser(self)
        self._problem: Problem | None = None
        self.request = NO_REQUEST
        self._url = b""
        self._headers: dict[str, str] = {}
        self._repeated = 0
        self._is_old = False
        self._fed = 0
        self._body: bytes | bytearray = b""
        self._body_bytes_max = 0
        self._unread = 0  # what is left of the announced length
        self.body_bytes = 0
        self.expects_continue = False
        self.phase = IDLE
        self.now = self.since = now
        self.upgrade = ""
        self.trailing = b""

    @property
    def slice_bytes(self) -> int:
        """How much to feed next: no more than the rest of a body whose end is known."""
        return max(self._unread, SLICE_BYTES)

    def feed(self, data: bytes | memoryview) -> None:
        """Raises the `Problem` that ends the connection."""
        rest = self._parse(data)
        while rest is not None:
            rest = self._parse(rest)
        self._fed += len(data)
        if self.phase == HEAD:
            if self._fed > self._door.limits.head_bytes_max:
                raise refusals.head_too_large(self._door.limits.head_bytes_max)
        elif self.phase == BODY and self._fed > _FRAMING_BYTES_MIN + _FRAMING_PER_BODY_BYTE_MAX * self.body_bytes:
            raise refusals.malformed("its chunks say more about themselves than they hold")

    def _parse(self, data: bytes | memoryview) -> bytes | None:
        """What is to be parsed next, if the parser was stopped by a request for another protocol."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            return self._leave_parser(bytes(data[stop.args[0] :]))
        except httptools.HttpParserCallbackError as error:
            if self._problem is None:
                log.error("a request from %s failed", self._peer, exc_info=error.__context__)
                self._door.failures += 1
                self._problem = refusals.failed(self.request.id)
            raise self._problem from None
        except httptools.HttpParserError as error:
            raise refusals.malformed(str(error)) from None
        return None

    def wants_websocket(self, request: Request) -> bool:
        """Whether this was the last request that is read as one, and asked for a WebSocket behind it."""
        return request is self.request and self.upgrade == WEBSOCKET

    def release(self) -> None:
        """Nothing more will be read."""
        if self.phase == BODY:
            self._door.budget.give_back(self.body_bytes)
        self.phase = IDLE
        self._body = b""

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.since = self.now
        self.request = NO_REQUEST
        self._fed = 0
        self._url = b""
        self._headers = {}
        self._repeated = 0

    def on_url(self, url: bytes) -> None:
        self._url += url  # it may come in pieces
        if len(self._url) > self._door.limits.url_bytes_max:
            self._refuse(refusals.url_too_long(self._door.limits.url_bytes_max))

    def on_header(self, name: bytes, value: bytes) -> None:
        key = _names.get(name) or _lower(name)
        headers = self._headers
        if key in headers:
            self._repeated += 1
            headers[key] = f"{headers[key]}, {value.decode('latin-1')}"
        else:
            headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        headers, parser, door = self._headers, self._parser, self._door
        self._headers = {}  # what stands behind the last chunk is for nobody
        version = parser.get_http_version()
        self._is_old = version == "1.0"
        if version != "1.1" and not self._is_old:
            self._refuse(refusals.unknown_version(version))
        if len(headers) + self._repeated > door.limits.headers_max:
            self._refuse(refusals.too_many_headers(door.limits.headers_max))
        host = headers.get("host")
        if (host is None and not self._is_old) or (host is not None and "," in host):
            self._refuse(refusals.malformed("it must have one Host"))
        path, query = parse_target(self._url.decode("ascii"))
        if path[:1] != "/" and path != "*":
            self._refuse(refusals.malformed("its target must be a path"))
        request_id = headers.get("x-request-id") or ""
        if not request_id or not _is_sane(request_id):
            request_id = door.next_id()
        method = parser.get_method().decode("ascii")
        self.request = Request(method, path, query, headers, b"", self._peer, request_id)
        self.upgrade = ""
        if "upgrade" in headers and parser.should_upgrade():
            self.upgrade = headers["upgrade"].lower()
        elif "content-length" in headers or "transfer-encoding" in headers:
            self._expect_body(headers)

    def on_body(self, piece: bytes) -> None:
        size = len(piece)
        if self.body_bytes + size > self._body_bytes_max:
            self._refuse(refusals.body_too_large(self._body_bytes_max))
        if not self._door.budget.take(size):
            self._refuse(refusals.too_many_bodies())
        self.body_bytes += size
        self._unread -= size
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def on_message_complete(self) -> None:
        request = self.request
        if self._body:
            request.body = bytes(self._body)
            self._body = b""
        self.body_bytes = 0
        self.phase = IDLE
        if not self.upgrade:
            self._serve(request, self._parser.should_keep_alive(), self._is_old)
        elif self.upgrade == WEBSOCKET:
            self._serve(request, False, self._is_old)

    def _expect_body(self, headers: dict[str, str]) -> None:
        coding, length, request = headers.get("transfer-encoding"), 0, self.request
        if coding is None:
            length = int(headers["content-length"])
            if not length:
                return
        elif coding.lower() != "chunked" or self._is_old:
            self._refuse(refusals.unknown_coding(coding))
        self._body_bytes_max = self._door.application.body_limit(request.method, request.path)
        if length > self._body_bytes_max:
            self._refuse(refusals.body_too_large(self._body_bytes_max))
        expected = headers.get("expect")
        if expected is not None:
            if expected.lower() != "100-continue":
                self._refuse(refusals.unknown_expectation(expected))
            self.expects_continue = not self._is_old
        self._unread = length
        self.phase = BODY
        self.since = self.now

    def _leave_parser(self, rest: bytes) -> bytes | None:
        """The request asks for another protocol, and the parser has left everything behind its head alone."""
        if self.upgrade == WEBSOCKET:
            self.trailing = rest
            return None
        # An offer that nobody need take up, such as h2c: the request is read again as if it had not been made.
        request = self.request
        self._parser = httptools.HttpRequestParser(self)
        lines = [f"{name}: {value}\r\n" for name, value in request.headers.items() if name != "upgrade"]
        target = self._url.decode("ascii")
        return f"{request.method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1") + rest

    def _refuse(self, problem: Problem) -> NoReturn:
        self._problem = problem  # the parser gives its own exception for ours
        raise problem


def _lower(name: bytes) -> str:
    lower = name.decode("ascii").lower()
    if len(_names) < _NAMES_KEPT_MAX:
        _names[name] = lower
    return lower


def _is_sane(request_id: str) -> bool:
    return len(request_id) <= _ID_LENGTH_MAX and request_id.isascii() and request_id.isprintable()
