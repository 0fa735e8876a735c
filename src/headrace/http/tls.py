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
    """The protocol of a connection until its handshake is complete; afterwards it is `exchange`."""

    def __init__(self, exchange: HttpConnection, context: ssl.SSLContext, timeout_seconds: float) -> None:
        self._exchange = exchange
        self._context = context
        self._timeout_seconds = timeout_seconds
        self._early_markers: list[bytes] = []  # data that was decrypted before the task below runs
        self._has_early_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast("asyncio.Transport", transport)
        self._exchange.is_handshaking = True
        self._exchange.connection_made(raw)
        # Start immediately, so that TLS takes over the transport before anything is read from it.
        start_inline_coroutine(self._shake_hands(raw), asyncio.get_running_loop())

    def data_received(self, data: bytes) -> None:
        self._early_markers.append(data)

    def eof_received(self) -> None:
        self._has_early_eof = True

    def connection_lost(self, error: Exception | None) -> None:
        if not self._exchange.is_gone:
            self._exchange.connection_lost(error)

    async def _shake_hands(self, raw: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        secured: asyncio.Transport | None = None
        try:
            # None if the connection was lost without an error.
            secured = await loop.start_tls(
                raw, self, self._context, server_side=True, ssl_handshake_timeout=self._timeout_seconds
            )
        except OSError as error:  # including ssl errors and the timeout
            log.debug("TLS handshake failed peer=%s error=%s", self._exchange.host, error)
        if self._exchange.is_gone:
            return
        if secured is None or raw.is_closing():
            raw.abort()
            self._exchange.connection_lost(None)
            return
        self._hand_over(secured)

    def _hand_over(self, secured: asyncio.Transport) -> None:
        exchange = self._exchange
        exchange.start_secured(secured)
        secured.set_protocol(exchange)
        for data in self._early_markers:
            exchange.data_received(data)
        if self._has_early_eof:
            exchange.eof_received()
        self._early_markers.clear()
