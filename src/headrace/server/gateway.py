"""Run a gateway: build it from its settings, report readiness when a broker responds, and shut it down gracefully.

A gateway is stateless: everything it acknowledged is on the disks of the brokers. Therefore it may be killed at any
time, and a load balancer may send each request to a different gateway.

Shutdown order: become unready, stop pushing, answer long polls, complete requests in progress, close connections.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from headrace import __version__
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.guarded_dialer import GuardedDialer
from headrace.client.connections.tcp import TcpDialer
from headrace.http.limits import limits_of_connections
from headrace.http.listener import HttpListener, TlsFiles
from headrace.http.routes import ForwarderRole
from headrace.model.errors import HeadraceError
from headrace.protocols.health.pages import HEALTH_PATHS, HealthPages
from headrace.protocols.rest.application import ALL_ROLES
from headrace.runtime.clock import SystemClock
from headrace.runtime.entropy import SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.runtime.process_resources import raise_open_files_limit
from headrace.runtime.tasks import BackgroundTaskDied, Supervisor
from headrace.server.broker_health import BrokerHealth
from headrace.server.browser_guard import BrowserGuard
from headrace.server.gateway_application import GatewayApplication
from headrace.server.gateway_metrics import GatewayMetrics
from headrace.server.gateway_settings import GatewaySettings
from headrace.server.http_server import LazyApplication
from headrace.server.listening import listen_error
from headrace.server.logs import configure
from headrace.server.pushing import PushService
from headrace.server.rest import build_gateway_rest
from headrace.server.settings import show_address
from headrace.server.watchdog import WEDGED_SECONDS, LoopWatchdog

log = logging.getLogger(__name__)

_CLIENT_ID = "gateway"
_DRAIN_SECONDS = 20.0
_CONNECTIONS_MAX = 20_000
_CLIENT = ClientSettings(
    client_id=_CLIENT_ID, dial_timeout_seconds=2.0, request_timeout_seconds=15.0, deadline_seconds=20.0
)
_SIDES = {
    "publish": frozenset({ForwarderRole.PUBLISH}),
    "subscribe": frozenset({ForwarderRole.SUBSCRIBE}),
    None: ALL_ROLES,
}


def run_gateway(settings: GatewaySettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    try:
        settings.check()
        configure(settings.log_level, settings.log_format)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except HeadraceError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    except BackgroundTaskDied as error:
        sys.stderr.write(f"error: the gateway stopped because its task '{error}' failed; see the log above\n")
        return 1
    return 0


async def _run(settings: GatewaySettings) -> None:
    gateway = Gateway(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
    try:
        await gateway.serve()
    finally:
        await gateway.shut_down()


class Gateway:
    def __init__(self, settings: GatewaySettings) -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        self._settings = settings
        self._supervisor = Supervisor()
        self._stopping: asyncio.Task[None] | None = None
        dialer = GuardedDialer(TcpDialer(SystemNetwork(), _CLIENT_ID), clock)
        self._cluster = Cluster(parse_addresses(settings.bootstrap), dialer, clock, entropy, _CLIENT)
        self._broker_health = BrokerHealth(self._cluster)
        self._push_service = PushService(lambda: self._cluster, self._supervisor, allows_private=settings.push_private)
        self._rest = build_gateway_rest(
            self._cluster, with_auth=settings.auth, sides=_SIDES[settings.side], status_of=self._push_service.status
        )
        application = GatewayApplication(self._rest, self._broker_health)
        metrics = GatewayMetrics(application, dialer, self._broker_health, self._push_service, clock)
        self._health = HealthPages(metrics)
        limits = limits_of_connections(min(raise_open_files_limit() // 2, _CONNECTIONS_MAX))
        guard = None if settings.auth else BrowserGuard((settings.http[0], *settings.http_hosts))
        guards_metrics = settings.auth and not settings.open_metrics
        front = LazyApplication(self._health, lambda: application, guard, guards_metrics=guards_metrics)
        self._listener = HttpListener(front, limits, clock, entropy, HEALTH_PATHS)
        metrics.listener = self._listener
        self._loop_lag = metrics.loop_lag
        self._watchdog = LoopWatchdog(clock, WEDGED_SECONDS)

    async def serve(self) -> None:
        """Run until stopped; raise if a background task fails."""
        tls = None if self._settings.tls is None else TlsFiles(*self._settings.tls)
        try:
            address = await self._listener.listen(*self._settings.http, tls)
        except OSError as error:
            raise listen_error("--http", self._settings.http, error) from error
        self._health.is_ready = True  # readiness now depends only on the brokers
        self._supervisor.spawn(self._watchdog.run(), "watchdog")
        self._supervisor.spawn(self._broker_health.run(), "reach")
        self._supervisor.spawn(self._loop_lag.run(), "loop lag")
        self._supervisor.spawn(self._begin(*address), "start")
        await self._supervisor.failure()

    def stop(self) -> None:
        """Request shutdown. A signal handler may call it more than once."""
        self._health.is_ready = False
        self._stopping = asyncio.get_running_loop().create_task(self._supervisor.stop())

    async def shut_down(self) -> None:
        self._health.is_ready = False
        await self._supervisor.stop()
        self._listener.stop_listening()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listener.drain(_DRAIN_SECONDS))
            await asyncio.sleep(0)  # no request starts after this, so there are no new long polls
            await self._rest.services.pullers.close()
        await self._rest.close()
        log.info("stopped")

    async def _begin(self, host: str, port: int) -> None:
        await self._broker_health.found.wait()
        if self._settings.side != "publish":
            self._push_service.start()
        http = show_address(host, port)
        sys.stdout.write(f"ready http={http} bootstrap={self._settings.bootstrap} version={__version__}\n")
        sys.stdout.flush()
