"""Answers without an end are given for as long as their caller may have them: a stream whose token was revoked, or has
expired, ends within a few seconds.

It is looked at when there is something to send, which nobody gets without a look that is recent enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.http.message import Answer, Response, Streamed, Upgraded, WebSocket
from headrace.runtime.clock import Clock

RECHECK_SECONDS = 4.0
_POLICY_VIOLATION = 1008

IsWelcome = Callable[[], Awaitable[bool]]


def rechecked(answer: Answer, is_welcome: IsWelcome, clock: Clock) -> Answer:
    """The same answer, which ends when its caller is not welcome any more."""
    if isinstance(answer, Response):
        return answer
    check = _Check(is_welcome, clock)
    if isinstance(answer, Streamed):
        return Streamed(_stream(answer.chunks, check), answer.content_type, answer.status, answer.headers)
    talk = answer.talk
    return Upgraded(lambda socket: talk(_CheckedSocket(socket, check)))


class _Check:
    def __init__(self, is_welcome: IsWelcome, clock: Clock) -> None:
        self._is_welcome = is_welcome
        self._clock = clock
        self._due = clock.monotonic() + RECHECK_SECONDS
        self.has_failed = False

    async def passes(self) -> bool:
        now = self._clock.monotonic()
        if now >= self._due and not self.has_failed:
            self._due = now + RECHECK_SECONDS
            self.has_failed = not await self._is_welcome()
        return not self.has_failed


async def _stream(chunks: AsyncIterator[bytes], check: _Check) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            if not await check.passes():
                return
            yield chunk
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


class _CheckedSocket:
    def __init__(self, socket: WebSocket, check: _Check) -> None:
        self._socket = socket
        self._check = check

    async def receive(self) -> str | bytes | None:
        return await self._socket.receive()

    async def send(self, text: str) -> None:
        if self._check.has_failed:
            return
        if await self._check.passes():
            await self._socket.send(text)
        else:
            await self._socket.close(_POLICY_VIOLATION, "the token is not valid any more")

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self._socket.close(code, reason)
