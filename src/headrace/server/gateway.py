"""Run a gateway: build it from its settings, report readiness when a broker responds, and shut it down gracefully.

- A gateway is stateless: everything it acknowledged is on the disks of the brokers. Therefore it may be killed at any
  time, and a load balancer may send each request to a different gateway.
- While no broker responds, the gateway rejects requests immediately with 503 and Retry-After. Waiting for a timeout
  would not help the client and would keep its connection open.
- Shutdown order: become unready, stop pushing, complete long polls, complete requests in progress, close connections.
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
from headrace.http.listener import HttpListener
from headrace.http.message import HttpResponse, Request
from headrace.http.problems import Problem
from headrace.http.routes import ForwarderRole, Verb
from headrace.model.errors import HeadraceError
from headrace.protocols.health.pages import HEALTH_PATHS, HealthPages
from headrace.protocols.rest.application import ALL_ROLES, RestApplication
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.entropy import SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.runtime.process_resources import raise_open_files_limit
from headrace.runtime.tasks import BackgroundTaskDied, Supervisor
from headrace.server.browser_guard import BrowserGuard
from headrace.server.event_loop import HANG_SECONDS, LoopLag, LoopWatchdog
from headrace.server.http_server import LazyApplication, open_listener
from headrace.server.metrics.exposition import Exposition, format_labels
from headrace.server.metrics.process import CIRCUIT_STATES, add_http, add_process, add_pushes
from headrace.server.process_logging import configure
from headrace.server.push_service import PushService
from headrace.server.rest_builder import build_rest
from headrace.server.settings import GatewaySettings, show_address
from headrace.wire.messages.metadata import MetadataRequest

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
RESPONSE_SECONDS = 3.0
_CONNECTION_KEY = "health"  # a separate connection, so that a busy broker does not appear unreachable


class BrokerHealth:
    """Probes the brokers once a second, over separate connections. The probes include brokers whose circuit breakers
    are open, and close the circuit breakers of those that respond again."""

    def __init__(self, cluster: Cluster) -> None:
        self.is_reachable = False
        """Whether any broker responded to the last probe."""
        self.first_response = asyncio.Event()
        """Set when a broker has responded for the first time."""
        self._cluster = cluster
        self._has_logged = False  # so that a wrong --bootstrap is logged at startup

    async def run(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(CHECK_SECONDS)

    async def probe(self) -> None:
        is_reachable = await self._any_known_broker_responds()
        if not is_reachable:
            if self.is_reachable:  # not before the first probe of a gateway that is starting
                self._report(is_reachable=False)  # before the next probe, which may take longer
            is_reachable = await self._any_bootstrap_responds()
        self._report(is_reachable=is_reachable)

    def _report(self, *, is_reachable: bool) -> None:
        if is_reachable != self.is_reachable or not self._has_logged:
            level = logging.INFO if is_reachable else logging.WARNING
            log.log(level, "brokers are reachable" if is_reachable else "no broker is reachable; probing every second")
        self.is_reachable, self._has_logged = is_reachable, True
        if is_reachable:
            self.first_response.set()

    async def _any_known_broker_responds(self) -> bool:
        async with asyncio.TaskGroup() as group:
            probes = [group.create_task(self._broker_responds(node_id)) for node_id in self._cluster.view.nodes]
        return any(task.result() for task in probes)

    async def _any_bootstrap_responds(self) -> bool:
        """Probe the bootstrap addresses, since all known brokers may have been replaced."""
        try:
            await self._cluster.refresh([])
        except HeadraceError:
            return False
        self._cluster.invalidate_metadata()  # the refresh fetched brokers only, no partition leaders
        return True

    async def _broker_responds(self, node_id: int) -> bool:
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        try:
            await self._cluster.call(
                request, node_id=node_id, timeout_seconds=RESPONSE_SECONDS, connection_key=_CONNECTION_KEY
            )
        except HeadraceError:
            return False
        return True


class GatewayApplication:
    """The REST API of a gateway, which rejects requests while no broker is reachable."""

    def __init__(self, rest: RestApplication, broker_health: BrokerHealth) -> None:
        self.in_flight = 0
        self._rest = rest
        self._broker_health = broker_health

    def body_limit(self, method: str, path: str) -> int:
        return self._rest.body_limit(method, path)

    async def admit(self, request: Request) -> None:
        if not self._broker_health.is_reachable and self._needs_brokers(request):
            raise Problem(
                503,
                "no_broker",
                "no broker is reachable from this gateway",
                "retry after the time in Retry-After; GET /readyz reports when brokers are reachable again",
                [("retry-after", str(round(CHECK_SECONDS)))],
            )
        await self._rest.admit(request)

    async def admit_metrics(self, request: Request) -> None:
        await self._rest.admit_metrics(request)

    async def handle(self, request: Request) -> HttpResponse:
        self.in_flight += 1
        try:
            return await self._rest.handle(request)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        await self._rest.close()

    def _needs_brokers(self, request: Request) -> bool:
        try:
            route, _ = self._rest.routes.find(request.method, request.path)
        except Problem:
            return False
        return route.access.verb is not Verb.PUBLIC


class GatewayMetrics:
    """Metrics in the Prometheus text format. `listener` is set after the listener has been created."""

    listener: HttpListener

    def __init__(
        self,
        application: GatewayApplication,
        dialer: GuardedDialer,
        broker_health: BrokerHealth,
        pushing: PushService,
        clock: Clock,
    ) -> None:
        self.loop_lag = LoopLag(clock)
        self._application = application
        self._dialer = dialer
        self._broker_health = broker_health
        self._push_service = pushing
        self._clock = clock
        self._started = clock.monotonic()

    def checks(self) -> dict[str, str | None]:
        return {"brokers": None if self._broker_health.is_reachable else "no broker is reachable"}

    async def page(self) -> bytes:
        out = Exposition()
        add_process(out, self._clock, self._started, self.loop_lag)
        add_http(out, self.listener)
        add_pushes(out, self._push_service.pushers or ())
        out.add("headrace_http_requests_in_flight", self._application.in_flight)
        out.add("headrace_brokers_reachable", int(self._broker_health.is_reachable))
        for address, state in self._dialer.states():
            for one in CIRCUIT_STATES:
                where = format_labels(broker=str(address), state=one)
                out.add("headrace_broker_circuit_state", int(one == state), where)
        return b"".join(out.pieces())


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
        self._rest = build_rest(
            self._cluster, with_auth=settings.auth, sides=_SIDES[settings.side], status_of=self._push_service.status
        )
        application = GatewayApplication(self._rest, self._broker_health)
        metrics = GatewayMetrics(application, dialer, self._broker_health, self._push_service, clock)
        self._health = HealthPages(metrics)
        limits = limits_of_connections(min(raise_open_files_limit() // 2, _CONNECTIONS_MAX))
        guard = None if settings.auth else BrowserGuard(settings.named_hosts())
        guards_metrics = settings.auth and not settings.open_metrics
        front = LazyApplication(self._health, lambda: application, guard, guards_metrics=guards_metrics)
        self._listener = HttpListener(front, limits, clock, entropy, HEALTH_PATHS)
        metrics.listener = self._listener
        self._loop_lag = metrics.loop_lag
        self._watchdog = LoopWatchdog(clock, HANG_SECONDS)

    async def serve(self) -> None:
        """Run until stopped; raise if a background task fails."""
        address = await open_listener(self._listener, self._settings)
        self._health.is_ready = True  # readiness now depends only on the brokers
        self._supervisor.spawn(self._watchdog.run(), "watchdog")
        self._supervisor.spawn(self._broker_health.run(), "broker health")
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
            await self._rest.pullers.close()
        await self._rest.close()
        log.info("gateway stopped")

    async def _begin(self, host: str, port: int) -> None:
        await self._broker_health.first_response.wait()
        if self._settings.side != "publish":
            self._push_service.start()
        http = show_address(host, port)
        sys.stdout.write(f"ready http={http} bootstrap={self._settings.bootstrap} version={__version__}\n")
        sys.stdout.flush()
