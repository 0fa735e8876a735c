"""A REST application with an in-process broker on a simulated host, called without a socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import ADDRESS

from headrace.broker.broker import Broker, open_broker
from headrace.client.admin.tokens import TokenAdmin
from headrace.http.message import Application, HttpResponse, Request, Response, parse_target
from headrace.http.problems import Problem
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.protocols.rest.application import RestApplication
from headrace.runtime.tasks import Supervisor
from headrace.server.rest_builder import build_rest, open_cluster
from headrace.testkit.registry import SimRegistry
from headrace.testkit.world import SimHost, World

JSON = "application/json"
BATCH = "application/vnd.headrace.messages+json"


class ParsedResponse:
    """A response with its body parsed as JSON."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.raw = response.body
        self.content_type = response.content_type
        self.headers = dict(response.headers)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.raw)

    @property
    def code(self) -> str:
        """Return the code of a problem, which must have a next step."""
        assert self.status >= 400, self.raw
        body = self.json
        assert set(body) == {"code", "message", "next"}
        assert body["message"]
        assert body["next"]
        return str(body["code"])


async def answer(application: Application, request: Request) -> HttpResponse:
    """Admit and handle a request, like a listener."""
    try:
        await application.admit(request)
        return await application.handle(request)
    except Problem as problem:
        return problem.response()


class RestHarness:
    def __init__(
        self, world: World, broker: Broker, host: SimHost, supervisor: Supervisor, *, with_auth: bool = False
    ) -> None:
        self.world = world
        self.broker = broker
        self.host = host
        self.supervisor = supervisor
        cluster = open_cluster(broker, host.disk, host.network, host.clock, host.entropy, "rest")
        self.application: RestApplication = build_rest(cluster, with_auth=with_auth)

    @property
    def cluster(self) -> Any:
        return self.application.cluster

    async def token(self, *scopes: str, name: str = "tenant") -> str:
        """Create a token with these scopes; return the value of the `authorization` header."""
        _, token = await TokenAdmin(self.cluster).create(name, scopes)
        return f"Bearer {token}"

    async def ask(self, method: str, target: str, body: Any = b"", **headers: str) -> ParsedResponse:
        """Send a request. A body that is not bytes is sent as JSON; header names have underscores for dashes."""
        _, path, query = parse_target(target)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if not isinstance(body, bytes):
            body = msgspec.json.encode(body)
            named.setdefault("content-type", JSON)
        request = Request(method, path, query, named, body, "10.0.0.1", "request-1")
        response = await answer(self.application, request)
        assert isinstance(response, Response)
        return ParsedResponse(response)

    async def publish(self, topic: str, value: Any, **headers: str) -> str:
        response = await self.ask("POST", f"/topics/{topic}/messages", value, **headers)
        assert response.status == 201, response.raw
        return str(response.json["message_id"])

    async def publish_batch(self, topic: str, *messages: Any, **headers: str) -> ParsedResponse:
        return await self.ask(
            "POST", f"/topics/{topic}/messages", {"messages": list(messages)}, content_type=BATCH, **headers
        )


def with_rest_harness(
    scenario: Callable[[RestHarness], Awaitable[None]], seed: int = 1, *, with_auth: bool = False, **configs: str
) -> None:
    """Run a scenario; configs of the broker by Kafka's names, with underscores for dots."""

    async def run(world: World) -> None:
        host = world.host(ADDRESS.host)
        host.disk.make_directory("/data")
        supervisor = Supervisor()
        settings = {"num.partitions": "1", **{name.replace("_", "."): value for name, value in configs.items()}}
        broker = await open_broker(
            "/data", 1, None, settings, SimRegistry(), host.disk, host.network, host.clock, host.entropy, supervisor
        )
        server = KafkaServer("test", broker.handlers, host.network, host.clock, ListenerLimits())
        await server.listen(*ADDRESS)
        await broker.join(*ADDRESS)
        server.start_accepting()
        await broker.cluster.wait_for_leaders()
        harness = RestHarness(world, broker, host, supervisor, with_auth=with_auth)
        try:
            await scenario(harness)
        finally:
            await harness.application.close()
            await supervisor.stop()
        assert supervisor._first_failure is None

    in_world(run, seed)
