"""A minimal ASGI application: read the body without parsing it, and respond with a small JSON object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

_RESPONSE = b'{"message_id":"orders:3:1234567"}'
_START = {
    "type": "http.response.start",
    "status": 201,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_RESPONSE))],
}
_BODY = {"type": "http.response.body", "body": _RESPONSE}

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(_scope: dict[str, Any], receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send(_START)
    await send(_BODY)
