"""Queues over REST with a real broker on a simulated host, called without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.broker.broker import Broker
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.produce.producer import Producer
from headrace.client.queues.feed import FeedRegistry
from headrace.client.queues.puller import PullerPool
from headrace.http.message import Request, Response
from headrace.http.problems import Problem
from headrace.http.routes import AccessSubject, RouteTable
from headrace.model.errors import HeadraceError
from headrace.protocols.rest.authorization import ANONYMOUS, AllowAllAuthorizer
from headrace.protocols.rest.dead_letters import DeadLetterRoutes
from headrace.protocols.rest.error_responses import problem_of_error
from headrace.protocols.rest.pull import PullRoutes
from headrace.protocols.rest.settle import SettleRoutes
from headrace.protocols.rest.subscription_directory import SubscriptionDirectory
from headrace.protocols.rest.subscriptions import SubscriptionRoutes
from headrace.testkit.world import World

TOPIC = "jobs"
WORKERS = "workers"


class RestResponse(NamedTuple):
    status: int
    body: Any
    response: Response

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.response.headers)


class RestQueues:
    """One gateway; `caller` is the principal of the requests."""

    def __init__(self, broker: Broker, cluster: Cluster, world: World) -> None:
        self.broker = broker
        self.cluster = cluster
        self.world = world
        self.caller = ANONYMOUS
        self.feeds = FeedRegistry()
        self.pullers = PullerPool(cluster)
        self.directory = SubscriptionDirectory(cluster)
        self.routes = RouteTable(
            [
                *SubscriptionRoutes(cluster, self.directory).routes(),
                *PullRoutes(self.pullers, self.directory, AllowAllAuthorizer().is_still_authorized).routes(),
                *SettleRoutes(cluster, self.directory, self.feeds).routes(),
                *DeadLetterRoutes(cluster).routes(),
            ]
        )

    async def ask(self, method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> RestResponse:
        parts = urlsplit(url)
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        request = Request(method, parts.path, dict(parse_qsl(parts.query)), headers or {}, content, "peer", "r-1")
        request.caller = self.caller
        try:
            route, request.params = self.routes.find(method, parts.path)
            if route.access.subject is AccessSubject.SUBSCRIPTION:
                name = request.params["subscription"]
                request.params["topic"] = await self.directory.topic_of(name, request.query.get("topic"))
            response = await route.handle(request)
        except Problem as problem:
            response = problem.response()
        except HeadraceError as error:
            response = problem_of_error(error).response()
        assert isinstance(response, Response)
        is_json = response.content_type == "application/json" and response.body
        return RestResponse(response.status, msgspec.json.decode(response.body) if is_json else response.body, response)

    async def get(self, url: str, **headers: str) -> Any:
        """Return the body of a 200 response."""
        response = await self.ask("GET", url, headers=headers)
        assert response.status == 200, response
        return response.body

    async def post(self, url: str, body: Any) -> Any:
        """Return the body of a 200 or 201 response."""
        response = await self.ask("POST", url, body)
        assert response.status in (200, 201), response
        return response.body

    async def pull(self, options: str = "", name: str = WORKERS) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = (await self.get(f"/subscriptions/{name}/messages?{options}"))["messages"]
        return messages

    async def subscribe(self, name: str = WORKERS, topic: str = TOPIC, **options: Any) -> None:
        await self.post(f"/topics/{topic}/subscriptions", {"name": name, "start": "earliest", **options})

    async def put(
        self,
        *values: bytes | None,
        topic: str = TOPIC,
        key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int = 0,
    ) -> None:
        async with Producer(self.cluster) as producer:
            for value in values:
                await producer.publish(topic, value, key=key, headers=headers or (), partition=partition)


Scenario = Callable[[RestQueues], Awaitable[None]]


def with_queues(scenario: Scenario, *, partitions: int = 1, subscribes: bool = True, **configs: str) -> None:
    """Run a scenario with a broker, a topic, and a subscription from the start of the topic."""

    async def play(world: World) -> None:
        broker = await start_broker(world, **configs)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic(TOPIC, partitions))
            queues = RestQueues(broker, cluster, world)
            if subscribes:
                await queues.subscribe()
            await scenario(queues)
            await queues.pullers.close()

    in_world(play)


def another(queues: RestQueues) -> RestQueues:
    """Return a second gateway of the same broker."""
    return RestQueues(queues.broker, client(queues.world), queues.world)


async def pass_time(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def die(queues: RestQueues, *values: bytes, name: str = WORKERS, reason: str = "boom") -> None:
    """Publish messages and dead-letter them, like the subscription does."""
    async with Producer(queues.cluster) as producer:
        for value in values:
            receipt = await producer.publish(TOPIC, value, key=b"k", headers=[("type", value[:1])], partition=0)
            await queues.broker.dead_letters.dead_letter(TOPIC, 0, receipt.offset, name, 5, reason)
