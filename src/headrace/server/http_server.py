"""The HTTP server of a process: health pages from the start, everything else by a lazily built application.

The application is built on its first request, so that it does not slow down startup.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.broker import Broker
from headrace.http.limits import BODY_BYTES_MAX, HttpLimits
from headrace.http.listener import HttpListener, TlsFiles
from headrace.http.message import Application, HttpResponse, Request
from headrace.http.problems import Problem
from headrace.protocols.health.pages import HEALTH_PATHS, PATHS, HealthPages, HealthSource
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.entropy import Entropy
from headrace.runtime.network import Network
from headrace.runtime.tasks import Supervisor
from headrace.server.browser_guard import BrowserGuard
from headrace.server.push_service import PushService
from headrace.server.settings import Address, HttpSettings, ServeSettings, listen_error

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.protocols.rest.application import RestApplication
    from headrace.push.webhook_pusher import WebhookStatus


class ClosableApplication(Application, Protocol):
    async def admit_metrics(self, request: Request) -> None:
        """Raise `Problem` unless the client may read the metrics."""
        ...

    async def close(self) -> None:
        """Release all resources; the listener is already drained."""
        ...


class LazyApplication:
    """Dispatches requests to health pages, metrics and the application. While the process is starting or stopping, it
    serves only health pages. A server without authentication has a `guard` against web pages. With `guards_metrics`,
    metrics require a token as well, because they contain the names of all topics and subscriptions."""

    def __init__(
        self,
        health: HealthPages,
        build: Callable[[], ClosableApplication],
        guard: BrowserGuard | None = None,
        *,
        guards_metrics: bool = False,
    ) -> None:
        self._health = health
        self._build = build
        self._guard = guard
        self._guards_metrics = guards_metrics
        self._built: ClosableApplication | None = None

    def body_limit(self, method: str, path: str) -> int:
        if path in PATHS:
            return self._health.body_limit(method, path)
        return self._application().body_limit(method, path) if self._health.is_ready else BODY_BYTES_MAX

    def admit(self, request: Request) -> Coroutine[Any, Any, None]:
        if request.path in HEALTH_PATHS:
            return self._health.admit(request)
        if self._guard is not None:
            self._guard.check(request)
        if request.path in PATHS and not self._guards_metrics:
            return self._health.admit(request)
        if not self._health.is_ready:
            raise Problem(
                503,
                "not_ready",
                "the server is starting or stopping",
                "retry after the time in Retry-After",
                [("retry-after", "1")],
            )
        if request.path in PATHS:
            return self._application().admit_metrics(request)
        return self._application().admit(request)

    def handle(self, request: Request) -> Coroutine[Any, Any, HttpResponse]:
        if request.path in PATHS:
            return self._health.handle(request)
        return self._application().handle(request)

    async def close(self) -> None:
        if self._built is not None:
            await self._built.close()

    def _application(self) -> ClosableApplication:
        if self._built is None:
            self._built = self._build()
        return self._built


async def open_listener(listener: HttpListener, settings: HttpSettings) -> Address:
    """Listen on the address in the settings; with TLS if they have a certificate."""
    files = None if settings.http_tls is None else TlsFiles(*settings.http_tls)
    try:
        return await listener.listen(*settings.http, files)
    except OSError as error:
        raise listen_error("--http", settings.http, error) from error


class HttpServer:
    """The HTTP server of a broker: health from the start, REST on its first request, push if a subscription uses it."""

    def __init__(
        self,
        settings: ServeSettings,
        broker: Broker,
        source: HealthSource,
        limits: HttpLimits,
        supervisor: Supervisor,
        disk: Disk,
        network: Network,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._system = disk, network, clock, entropy
        self._rest: RestApplication | None = None
        self._health = HealthPages(source)
        guard = None if settings.auth else BrowserGuard(settings.named_hosts())
        guards_metrics = settings.auth and not settings.open_metrics
        self._front = LazyApplication(self._health, self._build_rest, guard, guards_metrics=guards_metrics)
        self._push_service = PushService(
            partial(self._open_cluster, "push"), supervisor, allows_private=settings.push_private
        )
        self.listener = HttpListener(self._front, limits, clock, entropy, HEALTH_PATHS)

    async def listen(self) -> Address:
        return await open_listener(self.listener, self._settings)

    def open(self) -> None:
        """Serve all requests. Called when the broker has joined the cluster."""
        self._health.is_ready = True
        self._push_service.watch(self._broker.subscription_configs)

    def pushes(self) -> Iterable[WebhookStatus]:
        """The status of each push subscription."""
        return self._push_service.pushers or ()

    async def begin_shutdown(self) -> None:
        """Reject new requests, complete long polls, and release leases."""
        self._health.is_ready = False
        await self._push_service.stop()
        if self._rest is not None:
            await self._rest.pullers.close()

    async def close(self) -> None:
        await self._front.close()

    def _open_cluster(self, client_id: str) -> Cluster:
        from headrace.server.rest_builder import open_cluster

        return open_cluster(self._broker, *self._system, client_id)

    def _build_rest(self) -> RestApplication:
        from headrace.server.rest_builder import build_rest

        with_auth, status_of = self._settings.auth, self._push_service.status
        self._rest = build_rest(self._open_cluster("rest"), with_auth=with_auth, status_of=status_of)
        return self._rest
