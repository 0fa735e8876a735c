"""The HTTP listener: accept connections within limits, and close idle and stalled ones.

Everything runs on one event loop, so the counters are plain numbers. `requests` counts responses by the first digit of
their status, `refused` those sent without calling the application, and `failures` those to requests that failed because
of a bug.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.http.limits import BodyBudget, HttpLimits
from headrace.model.errors import InvalidConfig
from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock
from headrace.runtime.entropy import Entropy
from headrace.runtime.request_ids import request_id

if TYPE_CHECKING:
    import ssl

    from headrace.http.connection import HttpConnection
    from headrace.http.message import Application, Request
    from headrace.http.response_heads import ResponseHeads
    from headrace.runtime.inline_start import InlineCoroutine

log = logging.getLogger(__name__)

_BACKLOG = 4096  # the kernel drops further connection attempts, and the client retries after 1 s, then 3 s


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of the certificate chain and of the private key, both PEM."""

    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        from ssl import PROTOCOL_TLS_SERVER, SSLContext, SSLError

        context = SSLContext(PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except SSLError as error:
            raise InvalidConfig(
                f"{self.certificate} and {self.key} are not a PEM certificate and its key: {error.reason or error}"
            ) from None
        except OSError as error:
            raise InvalidConfig(f"cannot read {self.certificate} or {self.key}: {error.strerror}") from None
        context.set_alpn_protocols(["http/1.1"])
        return context


class HttpListener:
    heads: ResponseHeads

    def __init__(
        self,
        application: Application,
        limits: HttpLimits,
        clock: Clock,
        entropy: Entropy,
        reserved_paths: frozenset[str] = frozenset(),
    ) -> None:
        """`reserved_paths` are also served on connections above the limits."""
        self.application = application
        self.reserved_paths = reserved_paths
        self.limits = limits
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.budget = BodyBudget(limits.bodies_bytes_max, limits.bodies_per_host_bytes_max)
        self.connections: dict[HttpConnection, None] = {}  # not a set: its order must not follow addresses
        self.accepted = 0
        self.rejected_connections = 0
        self.requests = [0] * 6
        self.refused = 0
        self.failures = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.durations = Histogram()
        self._ids = f"{entropy.uuid().hex[:12]}-"
        self._last_id = 0
        self._open_connections = 0  # connections within the limits
        self._per_host: Counter[str] = Counter()  # connections within the limits per host
        self._reserved: dict[HttpConnection, None] = {}
        self._kept_running: set[asyncio.Task[Any] | InlineCoroutine] = set()
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._logs_requests = log.isEnabledFor(logging.DEBUG)
        self._emptied: asyncio.Future[None] | None = None  # set while the listener drains

    async def listen(self, host: str, port: int, tls: TlsFiles | None = None) -> tuple[str, int]:
        new_protocol: Callable[[], asyncio.Protocol] = self._new_connection
        if tls is not None:
            new_protocol = partial(self._new_tls_connection, tls.context())
        self._server = await self.loop.create_server(new_protocol, host, port, backlog=_BACKLOG)
        self._sweep_later()
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def drain(self, seconds: float) -> None:
        """Wait for requests in progress, then close all connections."""
        self._emptied = self.loop.create_future()
        for connection in list(self.connections):
            connection.close_gracefully()
        self._record_emptied()
        await asyncio.wait((self._emptied,), timeout=seconds)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def sweep(self) -> None:
        """Called once a second: close connections that are idle or make no progress."""
        if self.accepted:
            self.heads.tick(self.clock.now_ms())
        self._logs_requests = log.isEnabledFor(logging.DEBUG)
        now = self.clock.monotonic()
        for connection in list(self.connections):
            connection.sweep(now)

    def _sweep_later(self) -> None:
        self._sweeping = self.loop.call_later(self.limits.sweep_seconds, self._sweep_periodically)

    def _sweep_periodically(self) -> None:
        self._sweep_later()
        self.sweep()

    def _new_connection(self) -> HttpConnection:
        # Imported with the first connection, since the HTTP parser would slow down startup.
        from headrace.http.connection import HttpConnection
        from headrace.http.response_heads import ResponseHeads

        if not self.accepted:
            self.heads = ResponseHeads(self.clock.now_ms())
        return HttpConnection(self)

    def _new_tls_connection(self, context: ssl.SSLContext) -> asyncio.Protocol:
        from headrace.http.tls import TlsHandshake

        return TlsHandshake(self._new_connection(), context, self.limits.head_seconds)

    # For its connections

    def admit(self, connection: HttpConnection) -> bool:
        """Return False if the connection is above the limits and therefore reserved. When there are too many reserved
        ones, the oldest is aborted: a health probe sends its request at once, so the oldest is likely not a probe."""
        limits, host = self.limits, connection.host
        self.accepted += 1
        self.connections[connection] = None
        if self._open_connections < limits.connections_max and self._per_host[host] < limits.connections_per_host_max:
            self._open_connections += 1
            self._per_host[host] += 1
            return True
        self.rejected_connections += 1
        self._reserved[connection] = None
        if len(self._reserved) > limits.connections_reserved:
            oldest = next(iter(self._reserved))
            del self._reserved[oldest]
            oldest.abort()
        return False

    def forget(self, connection: HttpConnection) -> None:
        self.connections.pop(connection, None)
        if connection.is_reserved:
            self._reserved.pop(connection, None)
        else:
            self._open_connections -= 1
            self._per_host[connection.host] -= 1
            if not self._per_host[connection.host]:
                del self._per_host[connection.host]
        self._record_emptied()

    def keep_running(self, task: asyncio.Task[Any] | InlineCoroutine) -> None:
        """Keep a reference to a request that continues after its client is gone: asyncio has only weak ones."""
        self._kept_running.add(task)
        task.add_done_callback(self._on_kept_done)

    def next_id(self) -> str:
        self._last_id += 1
        return f"{self._ids}{self._last_id:x}"

    def record_response(self, request: Request, status: int, started_at: float) -> float:
        """Count a response that is about to be sent; return the current time."""
        now = self.clock.monotonic()
        self.requests[status // 100] += 1
        self.durations.observe(now - started_at)
        if self._logs_requests:
            self._log(request, status, now - started_at)
        return now

    def _log(self, request: Request, status: int, seconds: float) -> None:
        """Log a request without query, headers and body, which may contain secrets."""
        before = request_id.set(request.id)
        caller = getattr(request.caller, "name", "-")
        what = "request method=%s path=%s status=%d ms=%.1f peer=%s caller=%s"
        log.debug(what, request.method, request.path, status, seconds * 1000, request.peer, caller)
        request_id.reset(before)

    def _on_kept_done(self, task: asyncio.Task[Any] | InlineCoroutine) -> None:
        self._kept_running.discard(task)
        self._record_emptied()

    def _record_emptied(self) -> None:
        is_empty = not self.connections and not self._kept_running
        if is_empty and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
