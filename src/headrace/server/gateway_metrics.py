"""The metrics of a gateway in the Prometheus text format: requests, reachability of brokers, and process statistics."""

from __future__ import annotations

from headrace.client.connections.guarded_dialer import GuardedDialer
from headrace.http.listener import HttpListener
from headrace.runtime.clock import Clock
from headrace.server.broker_health import BrokerHealth
from headrace.server.gateway_application import GatewayApplication
from headrace.server.metrics.exposition import Exposition, format_labels
from headrace.server.metrics.loop_lag import LoopLag
from headrace.server.metrics.process import add_process
from headrace.server.metrics.protocols import CIRCUIT_STATES, add_http, add_pushes
from headrace.server.pushing import PushService


class GatewayMetrics:
    """`listener` is set after the listener has been created."""

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
        return {"brokers": None if self._broker_health.is_there else "no broker is reachable"}

    async def page(self) -> bytes:
        out = Exposition()
        add_process(out, self._clock, self._started, self.loop_lag)
        add_http(out, self.listener)
        add_pushes(out, self._push_service.pushers or ())
        out.add("headrace_http_requests_in_flight", self._application.in_flight)
        out.add("headrace_brokers_reachable", int(self._broker_health.is_there))
        for address, state in self._dialer.states():
            for one in CIRCUIT_STATES:
                where = format_labels(broker=str(address), state=one)
                out.add("headrace_broker_circuit_state", int(one == state), where)
        return b"".join(out.pieces())
