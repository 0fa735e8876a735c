"""Send a response chunk by chunk, and request the next chunk only when there is room for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.http.message import StreamedResponse

if TYPE_CHECKING:
    from headrace.http.exchange import HttpConnection

log = logging.getLogger(__name__)

_LAST_CHUNK = b"0\r\n\r\n"


async def send_chunks(connection: HttpConnection, streamed: StreamedResponse, *, chunked: bool) -> None:
    """Send all chunks and the end marker. On a failure the end marker is not sent, so that the client does not mistake
    a partial body for a complete one."""
    try:
        async for chunk in streamed.chunks:
            if chunk:  # an empty chunk would end the body
                connection.write([b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk])
            await connection.wait_writable()
            if connection.is_gone:
                return
        if chunked:
            connection.write([_LAST_CHUNK])
    except Exception:
        log.exception("stream failed peer=%s", connection.host)
        connection.abort()
    finally:
        await close_chunks(streamed)


async def close_chunks(streamed: StreamedResponse) -> None:
    """Close the iterator of the chunks."""
    close = getattr(streamed.chunks, "aclose", None)  # optional for iterators
    if close is not None:
        await close()
