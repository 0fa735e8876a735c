"""What a handler is given and what it returns.

Names of headers are in lower case. A body is whole: it was read within its limit before the handler was called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

JSON = "application/json"
Header = tuple[str, str]


class Request(msgspec.Struct):
    """`params` are the parts of the path that the route names, `caller` is who asks: both are known after routing and
    admission. `peer` is the host that the request came from. `id` goes back in `x-request-id` and stands in the log."""

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


class Streamed(msgspec.Struct):
    """A body without a known end, sent chunk by chunk; the next one is asked for when the client has taken the last.
    The iterator is closed (`aclose`) when the client is gone."""

    chunks: AsyncIterator[bytes]
    content_type: str
    status: int = 200
    headers: Sequence[Header] = ()


class WebSocket(Protocol):
    async def receive(self) -> str | bytes | None:
        """The next message; None when the other end has closed."""

    async def send(self, text: str) -> None:
        """Returns when there is room for more. ConnectionError when the other end has closed."""

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


class Upgraded(msgspec.Struct):
    """The connection becomes a WebSocket, and `talk` runs, in a task, until it returns or the other end is gone, which
    cancels it. A request that asked for no WebSocket is answered with 426."""

    talk: Callable[[WebSocket], Awaitable[None]]


Answer = Response | Streamed | Upgraded
Handle = Callable[[Request], Awaitable[Answer]]


class Application(Protocol):
    """What a listener serves. `admit` and `answer` may raise `Problem`; any other exception is answered as our bug."""

    def body_limit(self, method: str, path: str) -> int:
        """How large the body may be, in bytes; asked when the headers are there and before the body is read."""
        ...

    def admit(self, request: Request) -> Coroutine[Any, Any, None]:
        """Decide by the head alone whether the request is served. Called before the body is read, and again when the
        body is complete, if that was later: what was allowed may have been revoked meanwhile."""
        ...

    def answer(self, request: Request) -> Coroutine[Any, Any, Answer]:
        """Called after `admit` has returned and the body is complete. Started at once, outside a task up to its first
        wait. Cancelled when the client goes away and the method is GET or HEAD; others run to their end."""
        ...


def json_response(value: Any, status: int = 200, headers: Sequence[Header] = ()) -> Response:
    return Response(status, msgspec.json.encode(value), JSON, headers)
