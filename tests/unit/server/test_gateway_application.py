"""A gateway refuses at once what it has no broker for, and serves all else."""

from __future__ import annotations

import pytest
from tests.unit.client.scripted_cluster import ScriptedCluster, in_world
from tests.unit.protocols.rest.rest_harness import answer as answer_of

from headrace.client.connections.guarded_dialer import GuardedDialer
from headrace.client.connections.tcp import TcpDialer
from headrace.http.limits import HttpLimits
from headrace.http.listener import HttpListener
from headrace.http.message import Request, Response
from headrace.http.problems import Problem
from headrace.protocols.rest.application import RestApplication
from headrace.protocols.rest.authorization import AllowAllAuthorizer
from headrace.runtime.supervise import Supervisor
from headrace.server.broker_health import BrokerHealth
from headrace.server.gateway_application import GatewayApplication
from headrace.server.gateway_metrics import GatewayMetrics
from headrace.server.pushing import PushService
from headrace.testkit.world import World


def request(method: str, path: str) -> Request:
    return Request(method, path, {}, {}, b"", "peer", "r1")


def test_while_no_broker_answers_requests_are_refused_at_once() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            reach = BrokerHealth(cluster)
            gateway = GatewayApplication(RestApplication(cluster, AllowAllAuthorizer()), reach)
            with pytest.raises(Problem, match="no broker is reachable") as told:
                await gateway.admit(request("GET", "/topics"))
            assert (told.value.status, told.value.code) == (503, "no_broker")
            assert dict(told.value.headers) == {"retry-after": "1"}
            assert broker.requests == []
            for path, status in (("/openapi.json", 200), ("/nowhere", 404)):
                answer = await answer_of(gateway, request("GET", path))
                assert isinstance(answer, Response)
                assert answer.status == status
            await reach.look()
            answer = await answer_of(gateway, request("GET", "/topics"))
            assert isinstance(answer, Response)
            assert answer.status == 200
            assert gateway.in_flight == 0

    in_world(scenario)


def test_numbers_tell_of_answers_and_of_brokers() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        dialer = GuardedDialer(TcpDialer(world.network, "gateway"), world.clock)
        async with scripted_cluster.cluster() as cluster:
            reach = BrokerHealth(cluster)
            gateway = GatewayApplication(RestApplication(cluster, AllowAllAuthorizer()), reach)
            pushing = PushService(lambda: cluster, Supervisor(), allows_private=False)
            metrics = GatewayMetrics(gateway, dialer, reach, pushing, world.clock)
            metrics.listener = HttpListener(gateway, HttpLimits(), world.clock, world.entropy)
            assert metrics.checks() == {"brokers": "no broker is reachable"}
            await dialer.dial(*broker.address, 1.0)
            await reach.look()
            gateway.in_flight = 3
            text = (await metrics.page()).decode()
        assert metrics.checks() == {"brokers": None}
        assert "headrace_brokers_reachable 1\n" in text
        assert "headrace_http_requests_in_flight 3\n" in text
        assert 'headrace_broker_circuit_state{broker="broker1:9092",state="closed"} 1\n' in text
        assert 'headrace_broker_circuit_state{broker="broker1:9092",state="open"} 0\n' in text
        assert 'headrace_http_requests_total{status="5xx"} 0\n' in text

    in_world(scenario)
