"""The table of routes: lookup, 404 and 405, and encoded path segments."""

from __future__ import annotations

import pytest

from headrace.http.message import Request, Response
from headrace.http.problems import Problem
from headrace.http.routes import Access, Operation, Route, RouteTable, Verb


async def handle(_: Request) -> Response:
    return Response()


def route(method: str, pattern: str) -> Route:
    return Route(method, pattern, handle, Access(Verb.PUBLIC), Operation("", {}))


ROUTES = RouteTable(
    [
        route("GET", "/"),
        route("GET", "/topics"),
        route("POST", "/topics"),
        route("GET", "/topics/{topic}"),
        route("GET", "/topics/{topic}/messages/{message_id}"),
        route("GET", "/topics/special/messages/{message_id}"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/", "/", {}),
        ("GET", "/topics", "/topics", {}),
        ("HEAD", "/topics", "/topics", {}),
        ("POST", "/topics", "/topics", {}),
        ("GET", "/topics/a", "/topics/{topic}", {"topic": "a"}),
        ("GET", "/topics/a%2Fb%20c", "/topics/{topic}", {"topic": "a/b c"}),
        ("GET", "/topics/{topic}", "/topics/{topic}", {"topic": "{topic}"}),
        ("GET", "/topics/{}", "/topics/{topic}", {"topic": "{}"}),
        ("GET", "/topics/a/messages/1", "/topics/{topic}/messages/{message_id}", {"topic": "a", "message_id": "1"}),
        ("GET", "/topics/special/messages/1", "/topics/special/messages/{message_id}", {"message_id": "1"}),
    ],
)
def test_a_route_is_found_with_its_parameters(method: str, path: str, pattern: str, params: dict[str, str]) -> None:
    found, read = ROUTES.find(method, path)
    assert (found.pattern, read) == (pattern, params)


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/topics/a/b", "/topics/a/messages", "*", "", "//", "/topics/", "/topics//GET", "/topics//messages/1"],
)
def test_an_unknown_path_is_a_404(path: str) -> None:
    with pytest.raises(Problem) as caught:
        ROUTES.find("GET", path)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_an_unsupported_method_is_a_405_with_the_supported_ones() -> None:
    with pytest.raises(Problem) as caught:
        ROUTES.find("DELETE", "/topics")
    assert (caught.value.status, caught.value.code) == (405, "method_not_allowed")
    assert list(caught.value.headers) == [("allow", "GET, POST")]


def test_there_is_one_route_for_each_method_and_pattern() -> None:
    with pytest.raises(AssertionError, match="two routes for GET /a"):
        RouteTable([route("GET", "/a"), route("GET", "/a")])
    assert len(list(ROUTES)) == 6
