"""Every route of the table declares its access rule and enforces it. The tests are generated from the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.client.scripted_cluster import ScriptedCluster, in_world
from tests.unit.protocols.rest.rest_harness import answer as answer_of
from tests.unit.protocols.rest.test_authorization import TokenServer, request

from headrace.http.message import Request, Response
from headrace.http.routes import Access, AccessSubject, Operation, Route, Verb
from headrace.model.tokens import VERBS, needed_scope
from headrace.protocols.rest.application import RestApplication
from headrace.protocols.rest.authorization import TokenAuthorizer
from headrace.testkit.world import World

PUBLIC = {("GET", "/openapi.json"), ("GET", "/docs")}
"""The public routes. Add a route only if it neither reveals nor changes anything that requires permission."""

TOPIC = "orders"


def table() -> list[Route]:
    """Return the served routes, without a broker."""
    found: list[Route] = []

    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            found.extend(RestApplication(cluster, TokenAuthorizer(cluster, world.clock)).routes)

    in_world(scenario)
    return found


TABLE = table()
GUARDED = [route for route in TABLE if (route.method, route.pattern) not in PUBLIC]
each_guarded_route = pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.pattern}")


def call_of(route: Route) -> Request:
    """Return a request with a token for this route."""
    path = route.pattern.replace("{topic}", TOPIC)
    while "{" in path:
        before, _, rest = path.partition("{")
        path = f"{before}x{rest.partition('}')[2]}"
    return Request(route.method, path, {}, dict(request().headers), b"", "peer", "r1")


class OneTopic:
    """A directory in which every subscription has the same topic, regardless of permissions."""

    async def topic_of(self, *_: object) -> str:
        return TOPIC


def with_application(scenario: Callable[[RestApplication, TokenServer], Awaitable[None]]) -> None:
    async def play(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        token_server = TokenServer(await scripted_cluster.broker())
        async with scripted_cluster.cluster() as cluster:
            application = RestApplication(cluster, TokenAuthorizer(cluster, world.clock))
            application._directory = OneTopic()  # type: ignore[assignment]
            await scenario(application, token_server)
            await asyncio.sleep(0)

    in_world(play)


async def answer(application: RestApplication, requested: Request) -> Response:
    response = await answer_of(application, requested)
    assert isinstance(response, Response)
    return response


def needed(route: Route) -> str:
    topic = None if route.access.subject is AccessSubject.CLUSTER else TOPIC
    return str(needed_scope(route.access.verb.value, topic))


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.pattern}")
def test_every_route_declares_its_access(route: Route) -> None:
    assert isinstance(route.access, Access)
    assert isinstance(route.operation, Operation)
    assert route.operation.summary
    is_public = (route.method, route.pattern) in PUBLIC
    assert (route.access.verb is Verb.PUBLIC) == is_public, "add public routes to PUBLIC in this test"
    if route.access.subject is AccessSubject.TOPIC:
        assert "{topic}" in route.pattern
    if route.access.subject is AccessSubject.SUBSCRIPTION:
        assert "{subscription}" in route.pattern
    if "{topic}" in route.pattern or "{subscription}" in route.pattern:
        assert route.access.subject is not AccessSubject.CLUSTER, "a route of a topic is authorized by that topic"


def test_the_public_routes_exist() -> None:
    assert {(route.method, route.pattern) for route in TABLE} >= PUBLIC


@each_guarded_route
def test_a_request_without_a_token_is_rejected(route: Route) -> None:
    async def scenario(application: RestApplication, token_server: TokenServer) -> None:
        requested = call_of(route)
        requested.headers = {}
        response = await answer(application, requested)
        assert response.status == 401
        assert dict(response.headers)["www-authenticate"].startswith("Bearer")
        assert token_server.requested == 0

    with_application(scenario)


@each_guarded_route
def test_other_scopes_are_not_sufficient(route: Route) -> None:
    """Tokens with other verbs on the topic, and with the same and all verbs on other topics."""
    others = [f"{verb}:{TOPIC}" for verb in VERBS if verb not in (route.access.verb.value, "manage")]
    others += [f"{route.access.verb.value}:{TOPIC}.other", "manage:other*", f"manage:{TOPIC}.*"]
    if route.access.subject is AccessSubject.CLUSTER:
        others += [f"{verb}:{TOPIC}" for verb in VERBS]

    async def scenario(application: RestApplication, token_server: TokenServer) -> None:
        token_server.grant(scopes=others)
        response = await answer(application, call_of(route))
        assert response.status == 403
        assert b"scope_missing" in response.body
        assert needed(route).encode() in response.body

    with_application(scenario)


@each_guarded_route
def test_the_named_scope_is_sufficient(route: Route) -> None:
    async def scenario(application: RestApplication, token_server: TokenServer) -> None:
        token_server.grant(scopes=[needed(route)])
        reached: list[str] = []

        async def handle(requested: Request) -> Response:
            reached.append(requested.caller.token_id)
            return Response(204)

        found, _ = application.routes.find(route.method, call_of(route).path)
        application.routes.find = lambda *_: (_with(found, handle), {"topic": TOPIC, "subscription": "x"})  # type: ignore[method-assign]
        assert (await answer(application, call_of(route))).status == 204
        assert reached == ["a1"]

    with_application(scenario)


def _with(route: Route, handle: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(route.method, route.pattern, handle, route.access, route.operation)
