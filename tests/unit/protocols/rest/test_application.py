"""The REST application: routing, authorization, body limits, and errors."""

from __future__ import annotations

from tests.unit.http.http_harness import HttpHarness
from tests.unit.protocols.rest.rest_harness import RestHarness, answer, with_rest_harness

from headrace.client import errors as client_errors
from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.errors import Unreachable
from headrace.client.produce.publisher import Overloaded
from headrace.http.message import Request, Response
from headrace.http.problems import Problem
from headrace.http.routes import Access, AccessSubject, ForwarderRole, Operation, Verb
from headrace.model import errors
from headrace.model.errors import HeadraceError, NotLeader
from headrace.protocols.rest.application import ALL_ROLES, BODY_BYTES_MAX, RestApplication
from headrace.protocols.rest.authorization import ANONYMOUS, Principal
from headrace.protocols.rest.error_responses import problem_of_error


class RecordingPrincipal(Principal, frozen=True):
    """Records the required permissions, and denies those in `refused`."""

    requested: list[tuple[Verb, str | None]] = []
    refused: set[Verb] = set()

    def require(self, verb: Verb, topic: str | None) -> None:
        self.requested.append((verb, topic))
        if verb in self.refused:
            raise Problem(403, "scope_missing", "no", "ask for it")


class DenyingAuthorizer:
    """Authenticates every request, except those without a token, as `caller`."""

    def __init__(self) -> None:
        self.caller = RecordingPrincipal(ANONYMOUS.name, ANONYMOUS.token_id, ANONYMOUS.scopes)

    async def authenticate(self, request: Request) -> Principal:
        if request.headers.get("authorization") == "none":
            raise Problem(401, "token_missing", "this server wants a token", "send one")
        return self.caller

    async def is_still_authorized(self, request: Request) -> bool:
        return request.headers.get("authorization") != "none"


def test_every_route_declares_its_access_and_its_responses() -> None:
    async def scenario(harness: RestHarness) -> None:
        public = set()
        for route in harness.application.routes:
            assert isinstance(route.access, Access), route.pattern
            assert isinstance(route.operation, Operation), route.pattern
            assert route.operation.summary, route.pattern
            assert route.operation.responses, route.pattern
            if route.access.verb is Verb.PUBLIC:
                public.add(route.pattern)
        assert public == {"/openapi.json", "/docs"}

    with_rest_harness(scenario)


def test_a_forwarder_serves_only_the_routes_of_its_role() -> None:
    async def scenario(harness: RestHarness) -> None:
        for role in (ForwarderRole.PUBLISH, ForwarderRole.SUBSCRIBE):
            application = RestApplication(harness.cluster, DenyingAuthorizer(), frozenset({role}))
            assert {route.role for route in application.routes} == {role, ForwarderRole.BOTH}
        assert {route.role for route in harness.application.routes} == {*ALL_ROLES, ForwarderRole.BOTH}
        publishing = RestApplication(harness.cluster, DenyingAuthorizer(), frozenset({ForwarderRole.PUBLISH}))
        pull = await answer(publishing, Request("GET", "/subscriptions/s/messages", {}, {}, b"", "", ""))
        assert isinstance(pull, Response)
        assert pull.status == 404

    with_rest_harness(scenario)


def test_an_unauthorized_request_is_rejected_before_its_handler_runs() -> None:
    async def scenario(harness: RestHarness) -> None:
        guard = DenyingAuthorizer()
        harness.application = RestApplication(harness.cluster, guard)
        assert (await harness.ask("POST", "/topics/orders/messages", {}, authorization="none")).status == 401
        guard.caller.refused.add(Verb.PUBLISH)
        assert (await harness.ask("POST", "/topics/orders/messages", {})).status == 403
        assert (await harness.ask("GET", "/topics/orders")).code == "topic_not_found"
        await harness.ask("GET", "/topics")
        assert guard.caller.requested == [(Verb.PUBLISH, "orders"), (Verb.READ, "orders"), (Verb.READ, None)]
        assert (await harness.ask("GET", "/openapi.json", authorization="none")).status == 200

    with_rest_harness(scenario)


def test_the_route_cache_does_not_keep_the_topic_of_a_subscription() -> None:
    async def scenario(harness: RestHarness) -> None:
        for topic in ("a", "b"):
            await harness.publish(topic, {"from": topic})
            await SubscriptionAdmin(harness.cluster).create(topic, "workers", Position(START))
        assert (await harness.ask("GET", "/subscriptions/workers/messages")).code == "subscription_ambiguous"
        for topic in ("a", "b"):
            (message,) = (await harness.ask("GET", f"/subscriptions/workers/messages?topic={topic}")).json["messages"]
            assert message["value"] == {"from": topic}

    with_rest_harness(scenario)


def test_unknown_paths_and_methods_are_404_and_405() -> None:
    async def scenario(harness: RestHarness) -> None:
        for target in ("/", "/topic", "/topics/", "/topics//messages", "/topics/a/b", "*"):
            response = await harness.ask("GET", target)
            assert (response.status, response.code) == (404, "not_found")
        response = await harness.ask("PUT", "/topics/orders")
        assert (response.status, response.code) == (405, "method_not_allowed")
        assert response.headers["allow"] == "DELETE, GET, PATCH"

    with_rest_harness(scenario)


def test_an_unknown_parameter_is_rejected() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", 1)
        response = await harness.ask("GET", "/topics?limits=5")
        assert (response.status, response.code) == (422, "invalid_parameter")
        assert response.json["message"] == "limits: unknown parameter; known are prefix, limit, after, internal"
        response = await harness.ask("GET", "/topics/orders?verbose=true")
        assert (response.status, response.code) == (422, "invalid_parameter")
        assert response.json["message"] == "verbose: unknown parameter; this route has none"
        response = await harness.ask("GET", "/openapi.json?v=2")
        assert response.status == 200, "public routes accept the additional parameters of browsers and proxies"

    with_rest_harness(scenario)


def test_every_subscription_route_accepts_the_topic_parameter() -> None:
    async def scenario(harness: RestHarness) -> None:
        for route in harness.application.routes:
            if route.access.subject is AccessSubject.SUBSCRIPTION and "{topic}" not in route.pattern:
                assert "topic" in [parameter.name for parameter in route.operation.parameters], route.pattern

    with_rest_harness(scenario)


def test_a_compressed_body_is_rejected() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask("POST", "/topics/orders/messages", b"\x1f\x8b", content_encoding="gzip")
        assert (response.status, response.code) == (415, "unsupported_encoding")
        await harness.publish("orders", 1, content_encoding="identity")

    with_rest_harness(scenario)


def test_the_body_limit_is_that_of_the_route() -> None:
    async def scenario(harness: RestHarness) -> None:
        application = harness.application
        assert application.body_limit("POST", "/topics/orders/messages") > BODY_BYTES_MAX
        assert application.body_limit("POST", "/topics") == BODY_BYTES_MAX
        assert application.body_limit("POST", "/nowhere") == BODY_BYTES_MAX

    with_rest_harness(scenario)


def test_a_route_accepts_a_body_only_if_it_describes_one() -> None:
    async def scenario(harness: RestHarness) -> None:
        for route in harness.application.routes:
            path = route.pattern.replace("{", "").replace("}", "")
            takes_body = harness.application.body_limit(route.method, path) > 0
            assert takes_body == (route.method in ("POST", "PUT", "PATCH")), route
            assert not takes_body or route.access.verb is not Verb.PUBLIC
        assert harness.application.body_limit("HEAD", "/docs") == 0

    with_rest_harness(scenario)


def test_no_body_is_buffered_for_a_client_without_a_token() -> None:
    async def scenario(harness: RestHarness) -> None:
        simulated_broker = HttpHarness()
        simulated_broker.listener.application = harness.application
        for path in ("/docs", "/openapi.json", "/topics", "/nowhere"):
            for method in ("GET", "HEAD", "POST", "DELETE"):
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
                for framing in ("Content-Length: 1048576\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n10000\r\n"):
                    http_client = simulated_broker.http_client().sends(head + framing)
                    if not http_client.is_hung_up_on:
                        http_client.sends(b"x" * 50_000)
                    assert http_client.is_hung_up_on, (head, framing)
                    assert simulated_broker.listener.budget.taken == 0

    with_rest_harness(scenario, with_auth=True)


def test_every_error_becomes_a_problem_with_a_next_step() -> None:
    kinds = [
        kind
        for module in (errors, client_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, HeadraceError) and kind is not client_errors.UnknownErrorCode
    ]
    for kind in kinds:
        problem = problem_of_error(kind("said"))
        assert 400 <= problem.status < 600
        assert problem.code.replace("_", "").isalpha()
        assert problem.next_step
        assert problem.message == "said"
        assert (problem.status in (429, 503)) == ("retry-after" in dict(problem.headers))


def test_retriable_errors_have_retry_after() -> None:
    for error, code in ((NotLeader(), "unavailable"), (Overloaded(), "overloaded"), (Unreachable(), "no_broker")):
        problem = problem_of_error(error)
        assert (problem.status, problem.code) == (503, code)
