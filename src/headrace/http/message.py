"""What a handler is given and what it returns: requests with their target, and responses.

Header names are in lower case. Bodies are complete: they are read, within their limits, before the handler is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

# Request targets: the path is not decoded, the query is. The last value of a repeated name applies.


def parse_target(target: str) -> tuple[str | None, str, dict[str, str]]:
    """Parse `/path?name=value` or `http://host:8080/path?name=value` into authority, path and query; `*` is a path. The
    authority, which only the second form has, replaces the header `Host` (RFC 9112, 3.2.2)."""
    authority = None
    if not target.startswith("/"):
        _, scheme_end, rest = target.partition("://")
        if scheme_end:
            # The first of these marks ends the authority: in `http://host?/livez` the slash is part of the query.
            end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
            authority, target = rest[:end], rest[end:]
            if not target.startswith("/"):
                target = f"/{target}"
    if "#" in target:
        target = target[: target.index("#")]
    path, mark, query = target.partition("?")
    return authority, path, _parse_query(query) if mark else {}


def _parse_query(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    is_encoded = "%" in query or "+" in query
    for field in query.split("&"):
        if field:
            name, _, value = field.partition("=")
            found[_decode(name) if is_encoded else name] = _decode(value) if is_encoded else value
    return found


def _decode(text: str) -> str:
    from urllib.parse import unquote_plus  # imported on first use: keeps startup fast

    return unquote_plus(text)


JSON = "application/json"
Header = tuple[str, str]


class Request(msgspec.Struct):
    """`params` are the path parameters of the route and `caller` is the authenticated client; both are set by routing
    and admission. `peer` is the client's host. `id` is returned in `x-request-id` and appears in the log."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: str
    id: str
    params: dict[str, str] = {}
    caller: Any = None


class Response(msgspec.Struct):
    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Sequence[Header] = ()


class StreamedResponse(msgspec.Struct):
    """A body of unknown length, sent chunk by chunk; the next chunk is requested when the client has read the last one.
    The iterator is closed (`aclose`) when the client disconnects."""

    chunks: AsyncIterator[bytes]
    content_type: str
    status: int = 200
    headers: Sequence[Header] = ()


class WebSocket(Protocol):
    async def receive(self) -> str | bytes | None:
        """Return the next message, or None when the peer has closed the WebSocket."""

    async def send(self, text: str) -> None:
        """Send a message and wait for room in the buffer; raise ConnectionError if the peer has closed the
        WebSocket."""

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


class WebSocketResponse(msgspec.Struct):
    """Upgrades the connection to a WebSocket. `websocket_handler` runs in a task until it returns, and is cancelled
    when the peer is gone. The response to a request that is not an upgrade is 426."""

    websocket_handler: Callable[[WebSocket], Awaitable[None]]


HttpResponse = Response | StreamedResponse | WebSocketResponse
HttpHandler = Callable[[Request], Awaitable[HttpResponse]]


class Application(Protocol):
    """The application of a listener. `admit` and `handle` may raise `Problem`, which is the response; any other
    exception is a bug and results in a 500 response."""

    def body_limit(self, method: str, path: str) -> int:
        """Return the maximum size of the body in bytes. Called after the head and before the body is read."""
        ...

    def admit(self, request: Request) -> Coroutine[Any, Any, None]:
        """Decide by the head alone whether to serve the request. Called before the body is read, and again if the body
        is complete later, because the permission may have been revoked meanwhile."""
        ...

    def handle(self, request: Request) -> Coroutine[Any, Any, HttpResponse]:
        """Handle a request after `admit` has returned and the body is complete. Runs outside a task up to its first
        await. If the client disconnects, GET and HEAD are cancelled; other requests run to completion."""
        ...


def json_response(value: Any, status: int = 200, headers: Sequence[Header] = ()) -> Response:
    return Response(status, msgspec.json.encode(value), JSON, headers)
