"""Parse requests from bytes, with limits for heads and bodies, and admit them by their heads.

- A request is served when its body is complete. A request with a body is first checked by its head
  (`RequestAdmission`). If the check fails, the body is not buffered. A short body is read and dropped, so that the
  connection can continue after the error; otherwise the error ends the connection.
- Ambiguous requests are rejected, because a proxy in front of the server may interpret them differently (request
  smuggling): two lengths, a length in addition to chunks, a transfer coding other than plain `chunked`, a version
  other than 1.0 and 1.1. After such an error nothing more is read.
- A request with an `Upgrade` that is not accepted is parsed a second time without it. A head is parsed at most twice,
  and each pass consumes input, so `feed` terminates on every input. CONNECT is rejected: the parser treats it as an
  upgrade that a second pass cannot remove.
- Bytes are fed in slices (`slice_bytes`), because the parser cannot be interrupted. Therefore only a few requests start
  before the caller regains control.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import httptools

from headrace.http import problems
from headrace.http.message import Request, parse_target
from headrace.http.problems import Problem
from headrace.runtime.inline_start import start_inline
from headrace.runtime.request_ids import request_id

if TYPE_CHECKING:
    from headrace.http.listener import HttpListener

log = logging.getLogger(__name__)

IDLE, HEAD, BODY = range(3)
SLICE_BYTES = 1024
WEBSOCKET = "websocket"
_OTHER_PROTOCOL = "other"

_FRAMING_PER_BODY_BYTE_MAX = 8  # framing overhead of chunks; chunks of one byte have six
_FRAMING_BYTES_MIN = 65_536
_DROPPED_BODY_BYTES_MAX = 65_536
_ID_LENGTH_MAX = 128
_NAMES_KEPT_MAX = 512

_names: dict[bytes, str] = {}
"""A cache of header names in lower case, since the same spellings recur."""


class RequestAdmission:
    """The check of a request by its head alone, before its body is read.

    - The application's `admit` starts when the head is complete. The body is not read while `admit` is pending, so a
      client without a valid token cannot make the server buffer a body.
    - An admission is valid for the time of its head (`at`). If the body is complete later, the request is admitted
      again before it is handled; otherwise a slow body would carry out a request long after its token was revoked.
    - `failure` is the exception of `admit`. `on_done` is called at the end of a check that had to wait.
    """

    __slots__ = ("_on_done", "_task", "at", "failure")

    def __init__(
        self, listener: HttpListener, request: Request, at: float, on_done: Callable[[RequestAdmission], None]
    ) -> None:
        self.at = at
        self.failure: BaseException | None = None
        self._on_done = on_done
        self._task: asyncio.Task[None] | None = None
        before = request_id.set(request.id)
        try:
            outcome = start_inline(listener.application.admit(request), listener.loop)
        except Exception as error:
            self.failure = error
        else:
            if isinstance(outcome, asyncio.Task):
                self._task = outcome
                outcome.add_done_callback(self._end)
        finally:
            request_id.reset(before)

    @property
    def is_pending(self) -> bool:
        return self._task is not None

    async def wait(self) -> None:
        """Return when the request is admitted; raise the exception of `admit` if it failed."""
        if self._task is not None:
            await asyncio.wait((self._task,))
        if self.failure is not None:
            raise self.failure

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._on_done(self)


ServeRequest = Callable[[Request, RequestAdmission | None, bool, bool], None]
NO_REQUEST = Request("", "", {}, {}, b"", "", "")


class RequestReader:
    """`phase` is what the reader waits for, and `deadline` until when; the caller of `feed` sets `now`. `upgrade` is
    the protocol that the last request wants to upgrade to, and `trailing` is the input after it."""

    __slots__ = (
        "_body",
        "_body_bytes_max",
        "_bytes_fed",
        "_discards_body",
        "_headers",
        "_is_old",
        "_is_second_message",
        "_listener",
        "_on_admission",
        "_parser",
        "_peer",
        "_problem",
        "_repeated",
        "_serve",
        "_unread",
        "_url",
        "admission",
        "body_bytes",
        "deadline",
        "expects_continue",
        "now",
        "only_paths",
        "phase",
        "request",
        "trailing",
        "upgrade",
    )

    def __init__(
        self,
        listener: HttpListener,
        peer: str,
        now: float,
        serve: ServeRequest,
        on_admission: Callable[[RequestAdmission], None],
    ) -> None:
        """`serve` is called with each request, its admission if it has a body, whether the connection is kept alive,
        and whether it is HTTP/1.0. `on_admission` is called at the end of each admission that did not complete at
        once."""
        self._listener = listener
        self._peer = peer
        self._serve = serve
        self._on_admission = on_admission
        self._parser = httptools.HttpRequestParser(self)
        self._problem: Problem | None = None
        self.request = NO_REQUEST
        self._url = b""
        self._headers: dict[str, str] = {}
        self._repeated = 0
        self._is_old = False
        self._is_second_message = False  # the current head was rewritten by `_leave_parser`
        self._bytes_fed = 0
        self._body: bytes | bytearray = b""
        self._body_bytes_max = 0
        self._unread = 0  # remaining bytes of a body with a content length
        self.body_bytes = 0
        self.admission: RequestAdmission | None = None  # of the request whose body is being read
        self._discards_body = False  # the body that is being read is dropped
        self.expects_continue = False
        self.phase = IDLE
        self.now = now
        self.deadline = now + listener.limits.head_seconds
        self.only_paths: frozenset[str] | None = None  # the only served paths, on a connection above the limits
        self.upgrade = ""
        self.trailing = b""

    @property
    def slice_bytes(self) -> int:
        """How many bytes to feed next: at most the rest of a body of known length."""
        return max(self._unread, SLICE_BYTES)

    @property
    def is_blocked_on_admission(self) -> bool:
        """Whether feeding must wait until the request whose body comes next is admitted."""
        return self.phase == BODY and self.admission is not None and self.admission.is_pending

    def finish_admission(self) -> None:
        """Raise the error of the admission, unless the body is short enough to be read and dropped."""
        assert self.admission is not None
        failure = self.admission.failure
        if failure is None:
            return
        is_short = 0 < self._unread <= _DROPPED_BODY_BYTES_MAX and not self.expects_continue
        if not is_short or not isinstance(failure, Problem):
            raise failure
        self._discard_body()

    def feed(self, data: bytes | memoryview) -> None:
        """Parse input; raise the `Problem` that ends the connection."""
        rest = self._parse(data)
        while rest is not None:
            rest = self._parse(rest)
        self._bytes_fed += len(data)
        if self.phase == HEAD:
            if self._bytes_fed > self._listener.limits.head_bytes_max:
                raise problems.head_too_large(self._listener.limits.head_bytes_max)
        elif (
            self.phase == BODY
            and not self._discards_body
            and self._bytes_fed > _FRAMING_BYTES_MIN + _FRAMING_PER_BODY_BYTE_MAX * self.body_bytes
        ):
            raise problems.malformed_request("the chunks have too much framing overhead")

    def _parse(self, data: bytes | memoryview) -> bytes | None:
        """Parse input; return the rest to parse if an upgrade request stopped the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            return self._leave_parser(bytes(data[stop.args[0] :]))
        except httptools.HttpParserCallbackError as error:
            if self._problem is None:
                log.error("request failed in the parser peer=%s", self._peer, exc_info=error.__context__)
                self._listener.failures += 1
                self._problem = problems.internal_error(self.request.id)
            raise self._problem from None
        except httptools.HttpParserError as error:
            raise problems.malformed_request(str(error)) from None
        return None

    def wants_websocket(self, request: Request) -> bool:
        """Whether this is the last request and requests an upgrade to a WebSocket."""
        return request is self.request and self.upgrade == WEBSOCKET

    def release(self) -> None:
        """Release resources; nothing more will be read."""
        if self.phase == BODY:
            self._discard_body()
            if self.admission is not None:
                self.admission.cancel()
        self.phase = IDLE

    # Called by the parser.

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.deadline = self.now + self._listener.limits.head_seconds
        self.request = NO_REQUEST
        self._bytes_fed = 0
        self._url = b""
        self._headers = {}
        self._repeated = 0

    def on_url(self, url: bytes) -> None:
        self._url += url  # it may arrive in pieces
        if len(self._url) > self._listener.limits.url_bytes_max:
            self._reject(problems.url_too_long(self._listener.limits.url_bytes_max))

    def on_header(self, name: bytes, value: bytes) -> None:
        key = _names.get(name) or _lower(name)
        headers = self._headers
        if key in headers:
            self._repeated += 1
            headers[key] = f"{headers[key]}, {value.decode('latin-1')}"
        else:
            headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        headers, parser, listener = self._headers, self._parser, self._listener
        self._headers = {}  # trailers after the last chunk are ignored
        version = parser.get_http_version()
        self._is_old = version == "1.0"
        if version != "1.1" and not self._is_old:
            self._reject(problems.unknown_version(version))
        if len(headers) + self._repeated > listener.limits.headers_max:
            self._reject(problems.too_many_headers(listener.limits.headers_max))
        method = parser.get_method().decode("ascii")
        if method == "CONNECT":
            self._reject(problems.connect_not_supported())
        host = headers.get("host")
        if (host is None and not self._is_old) or (host is not None and "," in host):
            self._reject(problems.malformed_request("exactly one Host header is required"))
        authority, path, query = parse_target(self._url.decode("ascii"))
        if authority is not None:
            if not authority:
                self._reject(problems.malformed_request("the request target has no host"))
            headers["host"] = authority
        if path[:1] != "/" and path != "*":
            self._reject(problems.malformed_request("the request target must be a path"))
        request_id = headers.get("x-request-id") or ""
        if not request_id or not _is_valid_request_id(request_id):
            request_id = listener.next_id()
        self.request = Request(method, path, query, headers, b"", self._peer, request_id)
        if self.only_paths is not None and path not in self.only_paths:
            self._reject(problems.too_many_connections())
        self.upgrade = ""
        has_body = "content-length" in headers or "transfer-encoding" in headers
        if parser.should_upgrade():
            if self._is_second_message:
                self._reject(problems.malformed_request("more than one Upgrade header"))
            # A WebSocket starts with a GET without a body; otherwise the body would be parsed as frames.
            is_websocket = method == "GET" and not has_body and headers.get("upgrade", "").lower() == WEBSOCKET
            self.upgrade = WEBSOCKET if is_websocket else _OTHER_PROTOCOL
        elif has_body:
            self._expect_body(headers)
        self._is_second_message = False

    def on_body(self, piece: bytes) -> None:
        size = len(piece)
        if self.body_bytes + size > self._body_bytes_max:
            self._reject(problems.body_too_large(self._body_bytes_max))
        limits = self._listener.limits
        ahead = self.deadline + size / limits.body_bytes_per_second_min
        self.deadline = min(ahead, self.now + limits.body_seconds)
        self._unread -= size
        if self._discards_body:
            return
        if not self._listener.budget.reserve(self._peer, size):
            self._reject(problems.too_many_bodies())
        self.body_bytes += size
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def on_message_complete(self) -> None:
        request, admission = self.request, self.admission
        self.admission = None
        self._discards_body = False
        if self._body:
            request.body = bytes(self._body)
            self._body = b""
        self.body_bytes = 0
        self.phase = IDLE
        if not self.upgrade:
            self._serve(request, admission, self._parser.should_keep_alive(), self._is_old)
        elif self.upgrade == WEBSOCKET:
            self._serve(request, None, False, self._is_old)

    def _expect_body(self, headers: dict[str, str]) -> None:
        coding, length, request = headers.get("transfer-encoding"), 0, self.request
        if coding is None:
            length = int(headers["content-length"])
            if not length:
                return
        elif coding.lower() != "chunked" or self._is_old:
            self._reject(problems.unknown_coding(coding))
        self._body_bytes_max = self._listener.application.body_limit(request.method, request.path)
        if length > self._body_bytes_max:
            self._reject(problems.body_too_large(self._body_bytes_max))
        expected = headers.get("expect")
        if expected is not None:
            if expected.lower() != "100-continue":
                self._reject(problems.unknown_expectation(expected))
            self.expects_continue = not self._is_old
        self._unread = length
        self.phase = BODY
        self.deadline = self.now + self._listener.limits.body_seconds
        self.admission = RequestAdmission(self._listener, request, self.now, self._on_admission)
        try:
            self.finish_admission()
        except Problem as problem:
            self._reject(problem)

    def _discard_body(self) -> None:
        self._listener.budget.release(self._peer, self.body_bytes)
        self._body = b""
        self.body_bytes = 0
        self._discards_body = True

    def _leave_parser(self, rest: bytes) -> bytes | None:
        """Handle an upgrade request, at which the parser stops after the head."""
        if self.upgrade == WEBSOCKET:
            self.trailing = rest
            return None
        # Ignore upgrades to other protocols, such as h2c: parse the request again without the header.
        request, version = self.request, "1.0" if self._is_old else "1.1"
        self._is_second_message = True
        self._parser = httptools.HttpRequestParser(self)
        lines = [f"{name}: {value}\r\n" for name, value in request.headers.items() if name != "upgrade"]
        target = self._url.decode("ascii")
        return f"{request.method} {target} HTTP/{version}\r\n{''.join(lines)}\r\n".encode("latin-1") + rest

    def _reject(self, problem: Problem) -> NoReturn:
        self._problem = problem  # the parser replaces our exception by its own
        raise problem


def _lower(name: bytes) -> str:
    lower = name.decode("ascii").lower()
    if len(_names) < _NAMES_KEPT_MAX:
        _names[name] = lower
    return lower


def _is_valid_request_id(request_id: str) -> bool:
    return len(request_id) <= _ID_LENGTH_MAX and request_id.isascii() and request_id.isprintable()
