"""Every request is answered by its route or refused in a known way, and no route is without an owner."""

from __future__ import annotations

from tests.unit.doors.rest.stage import Stage, answer, on_stage
from tests.unit.http.visitors import House

from headrace.client import errors as client_errors
from headrace.client.errors import Unreachable
from headrace.client.publisher import Overloaded
from headrace.client.subscription_admin import START, Position, SubscriptionAdmin
from headrace.doors.rest.access import ANYBODY, Caller
from headrace.doors.rest.application import ALL_SIDES, BODY_BYTES_MAX, RestApplication
from headrace.doors.rest.problems import problem_of
from headrace.http.message import Request, Response
from headrace.http.problem import Problem
from headrace.http.routes import Access, Operation, Side, Subject, Verb
from headrace.model import errors
from headrace.model.errors import HeadraceError, NotLeader


class Guard:
    """Notes what it is asked, and refuses what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Verb, str | None]] = []
        self.refused: Verb | None = None

    async def identify(self, request: Request) -> Caller:
        if request.headers.get("authorization") == "none":
            raise Problem(401, "token_missing", "this server wants a token", "send one")
        return ANYBODY

    async def is_still_welcome(self, request: Request) -> bool:
        return request.headers.get("authorization") != "none"

    def authorize(self, caller: Caller, verb: Verb, topic: str | None) -> None:
        self.asked.append((verb, topic))
        if verb is self.refused:
            raise Problem(403, "scope_missing", "no", "ask for it")


def test_every_route_says_who_may_use_it_and_what_it_answers() -> None:
    async def scenario(stage: Stage) -> None:
        public = set()
        for route in stage.application.routes:
            assert isinstance(route.access, Access), route.pattern
            assert isinstance(route.operation, Operation), route.pattern
            assert route.operation.summary, route.pattern
            assert route.operation.answers, route.pattern
            if route.access.verb is Verb.PUBLIC:
                public.add(route.pattern)
        assert public == {"/openapi.json", "/docs"}

    on_stage(scenario)


def test_each_route_is_of_the_side_that_needs_it() -> None:
    async def scenario(stage: Stage) -> None:
        for side in (Side.PUBLISH, Side.SUBSCRIBE):
            application = RestApplication(stage.cluster, Guard(), frozenset({side}))
            assert {route.side for route in application.routes} == {side, Side.BOTH}
        assert {route.side for route in stage.application.routes} == {*ALL_SIDES, Side.BOTH}
        publishing = RestApplication(stage.cluster, Guard(), frozenset({Side.PUBLISH}))
        pull = await answer(publishing, Request("GET", "/subscriptions/s/messages", {}, {}, b"", "", ""))
        assert isinstance(pull, Response)
        assert pull.status == 404

    on_stage(scenario)


def test_who_may_not_is_refused_before_anything_is_done() -> None:
    async def scenario(stage: Stage) -> None:
        guard = Guard()
        stage.application = RestApplication(stage.cluster, guard)
        assert (await stage.ask("POST", "/topics/orders/messages", {}, authorization="none")).status == 401
        guard.refused = Verb.PUBLISH
        assert (await stage.ask("POST", "/topics/orders/messages", {})).status == 403
        assert (await stage.ask("GET", "/topics/orders")).code == "topic_not_found"
        await stage.ask("GET", "/topics")
        assert guard.asked == [(Verb.PUBLISH, "orders"), (Verb.READ, "orders"), (Verb.READ, None)]
        assert (await stage.ask("GET", "/openapi.json", authorization="none")).status == 200

    on_stage(scenario)


def test_the_same_path_may_mean_another_topic_the_next_time() -> None:
    async def scenario(stage: Stage) -> None:
        for topic in ("a", "b"):
            await stage.publish(topic, {"from": topic})
            await SubscriptionAdmin(stage.cluster).create(topic, "workers", Position(START))
        assert (await stage.ask("GET", "/subscriptions/workers/messages")).code == "subscription_ambiguous"
        for topic in ("a", "b"):
            (message,) = (await stage.ask("GET", f"/subscriptions/workers/messages?topic={topic}")).json["messages"]
            assert message["value"] == {"from": topic}

    on_stage(scenario)


def test_what_is_not_served_says_so() -> None:
    async def scenario(stage: Stage) -> None:
        for target in ("/", "/topic", "/topics/", "/topics//messages", "/topics/a/b", "*"):
            told = await stage.ask("GET", target)
            assert (told.status, told.code) == (404, "not_found")
        told = await stage.ask("PUT", "/topics/orders")
        assert (told.status, told.code) == (405, "method_not_allowed")
        assert told.headers["allow"] == "DELETE, GET, PATCH"

    on_stage(scenario)


def test_a_parameter_that_would_do_nothing_is_refused() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.publish("orders", 1)
        told = await stage.ask("GET", "/topics?limits=5")
        assert (told.status, told.code) == (422, "invalid_parameter")
        assert told.json["message"] == "limits: unknown parameter; known are prefix, limit, after, internal"
        told = await stage.ask("GET", "/topics/orders?verbose=true")
        assert (told.status, told.code) == (422, "invalid_parameter")
        assert told.json["message"] == "verbose: unknown parameter; this route has none"
        told = await stage.ask("GET", "/openapi.json?v=2")
        assert told.status == 200, "what anybody may see is fetched with whatever browsers and proxies add"

    on_stage(scenario)


def test_every_route_of_a_subscription_takes_the_topic_that_makes_its_name_clear() -> None:
    async def scenario(stage: Stage) -> None:
        for route in stage.application.routes:
            if route.access.subject is Subject.SUBSCRIPTION and "{topic}" not in route.pattern:
                assert "topic" in [parameter.name for parameter in route.operation.parameters], route.pattern

    on_stage(scenario)


def test_a_compressed_body_is_refused_rather_than_kept_as_if_it_were_plain() -> None:
    async def scenario(stage: Stage) -> None:
        told = await stage.ask("POST", "/topics/orders/messages", b"\x1f\x8b", content_encoding="gzip")
        assert (told.status, told.code) == (415, "unsupported_encoding")
        await stage.publish("orders", 1, content_encoding="identity")

    on_stage(scenario)


def test_how_large_a_body_may_be_is_up_to_its_route() -> None:
    async def scenario(stage: Stage) -> None:
        application = stage.application
        assert application.body_limit("POST", "/topics/orders/messages") > BODY_BYTES_MAX
        assert application.body_limit("POST", "/topics") == BODY_BYTES_MAX
        assert application.body_limit("POST", "/nowhere") == BODY_BYTES_MAX

    on_stage(scenario)


def test_a_route_takes_a_body_only_if_it_describes_one() -> None:
    async def scenario(stage: Stage) -> None:
        for route in stage.application.routes:
            path = route.pattern.replace("{", "").replace("}", "")
            takes_body = stage.application.body_limit(route.method, path) > 0
            assert takes_body == (route.method in ("POST", "PUT", "PATCH")), route
            assert not takes_body or route.access.verb is not Verb.PUBLIC
        assert stage.application.body_limit("HEAD", "/docs") == 0

    on_stage(scenario)


def test_no_body_is_kept_for_a_caller_without_a_token() -> None:
    async def scenario(stage: Stage) -> None:
        house = House()
        house.listener.application = stage.application
        for path in ("/docs", "/openapi.json", "/topics", "/nowhere"):
            for method in ("GET", "HEAD", "POST", "DELETE"):
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
                for framing in ("Content-Length: 1048576\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n10000\r\n"):
                    visitor = house.visitor().sends(head + framing)
                    if not visitor.is_hung_up_on:
                        visitor.sends(b"x" * 50_000)
                    assert visitor.is_hung_up_on, (head, framing)
                    assert house.listener.budget.taken == 0

    on_stage(scenario, with_auth=True)


def test_every_refusal_becomes_a_problem_that_says_what_to_do() -> None:
    kinds = [
        kind
        for module in (errors, client_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, HeadraceError) and kind is not client_errors.OtherRefusal
    ]
    for kind in kinds:
        problem = problem_of(kind("said"))
        assert 400 <= problem.status < 600
        assert problem.code.replace("_", "").isalpha()
        assert problem.next_step
        assert problem.message == "said"
        assert (problem.status in (429, 503)) == ("retry-after" in dict(problem.headers))


def test_what_may_help_later_is_told_to_come_again() -> None:
    for error, code in ((NotLeader(), "unavailable"), (Overloaded(), "overloaded"), (Unreachable(), "no_broker")):
        problem = problem_of(error)
        assert (problem.status, problem.code) == (503, code)
