"""HTTP error responses: the exception `Problem`, and the problems that the server itself responds with.

Every error response has the body `{"code": ..., "message": ..., "next": ...}`. `code` is for programs and never
changes. `message` says what was wrong with the request, `next` what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.http.message import JSON, Header, Response


class ProblemBody(msgspec.Struct):
    code: str
    message: str
    next: str


class Problem(Exception):
    """An error response. An application raises it, and the connection sends it."""

    def __init__(self, status: int, code: str, message: str, next_step: str, headers: Sequence[Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.next_step = next_step
        self.headers = headers

    @property
    def body(self) -> ProblemBody:
        return ProblemBody(self.code, self.message, self.next_step)

    def response(self) -> Response:
        return Response(self.status, msgspec.json.encode(self.body), JSON, self.headers)


# Problems of the server, before or instead of the application

ALL_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_RETRY_LATER = [("retry-after", "1")]


def malformed_request(why: str) -> Problem:
    return Problem(400, "malformed_request", f"the request is malformed: {why}", "see RFC 9112")


def incomplete_request() -> Problem:
    return Problem(
        400,
        "incomplete_request",
        "the connection was closed before the request was complete",
        "send the complete request",
    )


def connect_not_supported() -> Problem:
    return Problem(
        405,
        "method_not_allowed",
        "CONNECT is not supported: this server is not a proxy",
        "send the request directly",
        [("allow", ALL_METHODS)],
    )


def head_timed_out(seconds: float) -> Problem:
    return Problem(408, "request_timeout", f"the request head did not arrive within {seconds:g} s", "send it faster")


def body_too_slow(bytes_per_second: int, seconds: float) -> Problem:
    return Problem(
        408,
        "request_timeout",
        f"the body fell {seconds:g} s behind the minimum rate of {bytes_per_second} bytes per second",
        "send it faster, or split it into smaller requests",
    )


def body_too_large(limit: int) -> Problem:
    if not limit:
        return Problem(413, "body_too_large", "this request must not have a body", "send it without a body")
    return Problem(
        413,
        "body_too_large",
        f"the maximum body size of this request is {limit} bytes",
        "split it into smaller requests",
    )


def url_too_long(limit: int) -> Problem:
    return Problem(414, "url_too_long", f"the maximum length of a URL is {limit} bytes", "send long values in the body")


def unknown_expectation(value: str) -> Problem:
    return Problem(
        417, "unknown_expectation", f"Expect '{value[:100]}' is not supported", "omit Expect, or send 100-continue"
    )


def upgrade_required() -> Problem:
    return Problem(
        426,
        "upgrade_required",
        "this resource requires a WebSocket of version 13",
        "connect with ws:// or wss://",
        [("upgrade", "websocket"), ("sec-websocket-version", "13")],
    )


def head_too_large(limit: int) -> Problem:
    return Problem(
        431, "headers_too_large", f"the maximum size of all headers is {limit} bytes", "send fewer or smaller headers"
    )


def too_many_headers(limit: int) -> Problem:
    return Problem(431, "too_many_headers", f"the maximum number of headers is {limit}", "send fewer headers")


def internal_error(request_id: str) -> Problem:
    return Problem(
        500,
        "internal_error",
        "the request failed because of an internal error of the server",
        f"see the server's log for the request id {request_id}" if request_id else "see the server's log",
    )


def unknown_coding(value: str) -> Problem:
    return Problem(
        501,
        "unknown_coding",
        f"Transfer-Encoding '{value[:100]}' is not supported",
        "send the body chunked or with Content-Length",
    )


def too_many_bodies() -> Problem:
    return Problem(
        503,
        "too_busy",
        "too many request bodies are being received, in total or from your host",
        "retry after the time in Retry-After",
        _RETRY_LATER,
    )


def too_many_connections() -> Problem:
    what = "there are too many connections, in total or from your host"
    return Problem(503, "too_many_connections", what, "use fewer connections, or retry later", _RETRY_LATER)


def shutting_down() -> Problem:
    return Problem(503, "going_away", "the server is stopping", "retry later or on another server", _RETRY_LATER)


def unknown_version(version: str) -> Problem:
    return Problem(505, "unknown_version", f"HTTP/{version} is not supported", "use HTTP/1.1")
