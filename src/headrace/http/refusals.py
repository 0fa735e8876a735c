"""What the engine refuses by itself, before an application has seen it, or in its stead."""

from __future__ import annotations

from headrace.http.problem import Problem

EVERY_METHOD = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_RETRY_LATER = [("retry-after", "1")]


def malformed(why: str) -> Problem:
    return Problem(400, "malformed_request", f"this is not a request that is understood: {why}", "see RFC 9112")


def cut_short() -> Problem:
    return Problem(400, "incomplete_request", "the connection was closed inside a request", "send the whole request")


def no_tunnels() -> Problem:
    return Problem(
        405,
        "method_not_allowed",
        "CONNECT is not served: this server is not a proxy",
        "send the request itself",
        [("allow", EVERY_METHOD)],
    )


def head_timed_out(seconds: float) -> Problem:
    return Problem(
        408, "request_timeout", f"the head of the request did not come within {seconds:g} s", "send it faster"
    )


def body_too_slow(bytes_per_second: int, seconds: float) -> Problem:
    return Problem(
        408,
        "request_timeout",
        f"the body fell {seconds:g} s behind the rate of {bytes_per_second} bytes per second",
        "send it faster, or less at once",
    )


def body_too_large(limit: int) -> Problem:
    if not limit:
        return Problem(413, "body_too_large", "this request takes no body", "send it without one")
    return Problem(
        413, "body_too_large", f"the body may have up to {limit} bytes here", "send less at once, in several requests"
    )


def url_too_long(limit: int) -> Problem:
    return Problem(414, "url_too_long", f"the URL may have up to {limit} bytes", "send what is long in the body")


def unknown_expectation(value: str) -> Problem:
    return Problem(417, "unknown_expectation", f"'{value[:100]}' is not understood", "expect nothing or 100-continue")


def upgrade_required() -> Problem:
    return Problem(
        426,
        "upgrade_required",
        "this is served to WebSockets of version 13 only",
        "connect with ws://",
        [("upgrade", "websocket"), ("sec-websocket-version", "13")],
    )


def head_too_large(limit: int) -> Problem:
    return Problem(431, "headers_too_large", f"the headers may have up to {limit} bytes together", "send less of them")


def too_many_headers(limit: int) -> Problem:
    return Problem(431, "too_many_headers", f"there may be up to {limit} headers", "send fewer of them")


def failed(request_id: str) -> Problem:
    return Problem(
        500,
        "internal_error",
        "the server failed at this request, which is not your fault",
        f"the server's log says why, under the request id {request_id}" if request_id else "the server's log says why",
    )


def unknown_coding(value: str) -> Problem:
    return Problem(
        501,
        "unknown_coding",
        f"Transfer-Encoding '{value[:100]}' is not understood",
        "send it chunked or with its length",
    )


def too_many_bodies() -> Problem:
    return Problem(
        503,
        "too_busy",
        "too many bodies are being received, from all hosts or from yours",
        "try again shortly",
        _RETRY_LATER,
    )


def too_many_connections() -> Problem:
    what = "there are too many connections, from all hosts together or from this one"
    return Problem(503, "too_many_connections", what, "use fewer, or wait", _RETRY_LATER)


def going_away() -> Problem:
    return Problem(503, "going_away", "the server is stopping", "try again, here or elsewhere", _RETRY_LATER)


def unknown_version(version: str) -> Problem:
    return Problem(505, "unknown_version", f"HTTP/{version} is not spoken here", "use HTTP/1.1")
