"""The TLS handshake of a connection.

A connection counts against the limits of its listener from accept on, so a client that never completes its handshake
uses a slot like any other, for at most `head_seconds`. asyncio's own TLS servers notify a protocol of a connection only
after the handshake; therefore the listener accepts plain TCP, and TLS is started here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from headrace.runtime.inline_start import start_inline_coroutine

if TYPE_CHECKING:
    import ssl

    from headrace.http.connection import HttpConnection

log = logging.getLogger(__name__)


class TlsHandshake(asyncio.Protocol):
    """The protocol of a connection until its handshake is complete; afterwards it is `connection`."""

    def __init__(self, connection: HttpConnection, context: ssl.SSLContext, timeout_seconds: float) -> None:
        self._connection = connection
        self._context = context
        self._timeout_seconds = timeout_seconds
        self._early_data: list[bytes] = []  # decrypted before `_hand_over` runs
        self._has_early_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)
        self._connection.is_handshaking = True
        self._connection.connection_made(raw)
        # Start immediately, so that TLS takes over the transport before anything is read from it.
        start_inline_coroutine(self._shake_hands(raw), asyncio.get_running_loop())

    def data_received(self, data: bytes) -> None:
        self._early_data.append(data)

    def eof_received(self) -> None:
        self._has_early_eof = True

    def connection_lost(self, error: Exception | None) -> None:
        if not self._connection.is_gone:
            self._connection.connection_lost(error)

    async def _shake_hands(self, raw: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        secured: asyncio.Transport | None = None
        try:
            # None if the connection was lost without an error.
            secured = await loop.start_tls(
                raw, self, self._context, server_side=True, ssl_handshake_timeout=self._timeout_seconds
            )
        except OSError as error:  # including ssl errors and the timeout
            log.debug("TLS handshake failed peer=%s error=%s", self._connection.host, error)
        if self._connection.is_gone:
            return
        if secured is None or raw.is_closing():
            raw.abort()
            self._connection.connection_lost(None)
            return
        self._hand_over(secured)

    def _hand_over(self, secured: asyncio.Transport) -> None:
        connection = self._connection
        connection.start_secured(secured)
        secured.set_protocol(connection)
        for data in self._early_data:
            connection.data_received(data)
        if self._has_early_eof:
            connection.eof_received()
        self._early_data.clear()
