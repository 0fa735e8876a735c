"""Recheck the token of long-running responses: when a token is revoked or expires, its streams, WebSockets and waiting
requests end within a few seconds.

- The token is checked before each chunk is sent, and before a received WebSocket message is processed.
- A timer checks idle connections.
- The check is that of a new request. It is cheap, because the responses of brokers are cached for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.http.message import HttpResponse, Request, Response, StreamedResponse, WebSocket, WebSocketResponse
from headrace.http.problems import Problem
from headrace.runtime.inline_start import switch_to_task
from headrace.runtime.tasks import Supervisor

RECHECK_SECONDS = 1.0
_POLICY_VIOLATION = 1008

IsAuthorized = Callable[[], Awaitable[bool]]
IsStillAuthorized = Callable[[Request], Awaitable[bool]]


def authorization_revoked() -> Problem:
    return Problem(
        401,
        "token_unknown",
        "the token was revoked or expired while the request waited",
        "send the request again with a valid token; create one with `headrace token create`",
        [("www-authenticate", 'Bearer realm="headrace", error="invalid_token"')],
    )


def with_authorization_rechecks(response: HttpResponse, is_authorized: IsAuthorized) -> HttpResponse:
    """Return the same response, which ends when its token is no longer valid."""
    if isinstance(response, Response):
        return response
    if isinstance(response, StreamedResponse):
        return StreamedResponse(
            _stream(response.chunks, is_authorized), response.content_type, response.status, response.headers
        )
    websocket_handler = response.websocket_handler

    async def checked_handler(socket: WebSocket) -> None:
        checked = _RecheckedWebSocket(socket, is_authorized)
        await switch_to_task()
        tasks = Supervisor()
        tasks.spawn(checked.watch(), "check of a WebSocket's token")
        try:
            await websocket_handler(checked)
        finally:
            await tasks.stop()

    return WebSocketResponse(checked_handler)


async def _stream(chunks: AsyncIterator[bytes], is_authorized: IsAuthorized) -> AsyncIterator[bytes]:
    await switch_to_task()
    tasks = Supervisor()
    try:
        while True:
            waiting = tasks.spawn(_next(chunks), "next chunk of a stream")
            while not waiting.done():
                await asyncio.wait([waiting], timeout=RECHECK_SECONDS)
                if not await is_authorized():
                    return
            chunk = waiting.result()
            if chunk is None:
                return
            yield chunk
    finally:
        await tasks.stop()  # a generator cannot be closed while it runs
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


class _RecheckedWebSocket:
    def __init__(self, socket: WebSocket, is_authorized: IsAuthorized) -> None:
        self._socket = socket
        self._is_authorized = is_authorized
        self._has_failed = False

    async def receive(self) -> str | bytes | None:
        received = await self._socket.receive()
        return received if received is not None and await self._passes() else None

    async def send(self, text: str) -> None:
        if await self._passes():
            await self._socket.send(text)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self._socket.close(code, reason)

    async def watch(self) -> None:
        """Run until the token is no longer valid, or until cancelled."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if not await self._passes():
                return

    async def _passes(self) -> bool:
        if not self._has_failed and not await self._is_authorized() and not self._has_failed:
            self._has_failed = True
            await self._socket.close(_POLICY_VIOLATION, "the token is no longer valid")
        return not self._has_failed
