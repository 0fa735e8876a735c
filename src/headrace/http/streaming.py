"""An answer that is sent chunk by chunk: the next one is asked for when the client has room for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.http.message import Streamed

if TYPE_CHECKING:
    from headrace.http.exchange import Exchange

log = logging.getLogger(__name__)

_LAST_CHUNK = b"0\r\n\r\n"


async def send_chunks(exchange: Exchange, streamed: Streamed, *, chunked: bool) -> None:
    """All of them, and the end; what fails on the way is cut off, so that nobody takes a part for the whole."""
    try:
        async for chunk in streamed.chunks:
            if chunk:  # an empty one would say that this was all
                exchange.write([b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk])
            await exchange.room()
            if exchange.is_gone:
                return
        if chunked:
            exchange.write([_LAST_CHUNK])
    except Exception:
        log.exception("a stream to %s failed", exchange.host)
        exchange.abort()
    finally:
        await close_chunks(streamed)


async def close_chunks(streamed: Streamed) -> None:
    """Whoever makes the chunks hears that nobody wants more of them."""
    close = getattr(streamed.chunks, "aclose", None)  # an iterator need not have it
    if close is not None:
        await close()
