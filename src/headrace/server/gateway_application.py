"""The REST API of a gateway, with fast failure while no broker is reachable.

While no broker responds, the gateway rejects requests immediately with 503 and Retry-After. Waiting for a timeout would
not help the client and would keep its connection open.
"""

from __future__ import annotations

from headrace.http.message import HttpResponse, Request
from headrace.http.problems import Problem
from headrace.http.routes import Verb
from headrace.protocols.rest.application import RestApplication
from headrace.server.broker_health import CHECK_SECONDS, BrokerHealth


class GatewayApplication:
    def __init__(self, rest: RestApplication, broker_health: BrokerHealth) -> None:
        self.in_flight = 0
        self._rest = rest
        self._broker_health = broker_health

    def body_limit(self, method: str, path: str) -> int:
        return self._rest.body_limit(method, path)

    async def admit(self, request: Request) -> None:
        if not self._broker_health.is_there and self._needs_brokers(request):
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
