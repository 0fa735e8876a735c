"""The table of routes. Only routes in the table are served, and each declares its access rule.

Parts of a pattern in braces match one path segment and become `Request.params`. Segments are decoded after the path
has been split, so that `%2F` is part of a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import unquote

import msgspec

from headrace.http.message import HttpHandler, Request, Response
from headrace.http.problems import ALL_METHODS, Problem

_EMPTY = "/"
"""A placeholder for an empty segment, which no parameter matches."""


class Verb(Enum):
    """The permission that a route requires. PUBLIC requires no token."""

    PUBLIC = "public"
    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    METRICS = "metrics"
    MANAGE = "manage"


class AccessSubject(Enum):
    """The resource of the permission: the topic in the path, the topic of the subscription in the path, or the
    cluster."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class ForwarderRole(Enum):
    """Whether the route is for publishers or subscribers; a gateway may serve only one of them."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    BOTH = "both"


class Access(msgspec.Struct, frozen=True):
    verb: Verb
    subject: AccessSubject = AccessSubject.CLUSTER


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter or header, for the API description. `kind` is a type that msgspec supports."""

    name: str
    kind: Any
    text: str
    where: str = "query"
    required: bool = False


class Operation(msgspec.Struct, frozen=True):
    """The API description of a route. `body` and the values of `responses` are types that msgspec supports,
    `bytes` for raw content, or None for no body. `problems` are the statuses of its error responses other than those
    that follow from the properties of the route."""

    summary: str
    responses: Mapping[int, Any]
    body: Any = None
    parameters: Sequence[Parameter] = ()
    problems: Sequence[int] = ()


class Route(msgspec.Struct, frozen=True):
    method: str
    pattern: str
    handle: HttpHandler
    access: Access
    operation: Operation
    role: ForwarderRole = ForwarderRole.BOTH
    body_bytes_max: int | None = None


class RouteTable:
    """Finds the route of a request in a time that is independent of the number of routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._all = tuple(routes)
        self._root: dict[str, Any] = {}
        for route in routes:
            self._add(route)

    def __iter__(self) -> Any:
        return iter(self._all)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route, or raise `Problem` 404 or 405. The route of GET also serves HEAD."""
        node: Any = self._root
        params: list[str] = []
        for segment in path.split("/")[1:]:
            following = node.get(segment or _EMPTY)
            if segment and (following is None or segment.startswith("{")):
                following = node.get("{}")
                params.append(unquote(segment))
            if following is None:
                raise _not_found(path)
            node = following
        by_method: dict[str, tuple[Route, tuple[str, ...]]] | None = node.get("")
        if by_method is None:
            raise _not_found(path)
        found = by_method.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = ", ".join(sorted(by_method))
            raise Problem(
                405,
                "method_not_allowed",
                f"{method} is not supported at {path}",
                f"use {allowed}",
                [("allow", allowed)],
            )
        route, names = found
        return route, dict(zip(names, params, strict=True))

    def _add(self, route: Route) -> None:
        node: Any = self._root
        names: list[str] = []
        for segment in route.pattern.split("/")[1:]:
            is_param = segment.startswith("{")
            if is_param:
                names.append(segment[1:-1])
            node = node.setdefault("{}" if is_param else segment or _EMPTY, {})
        by_method = node.setdefault("", {})
        assert route.method not in by_method, f"two routes for {route.method} {route.pattern}"
        by_method[route.method] = (route, tuple(names))


def _not_found(path: str) -> Problem:
    return Problem(404, "not_found", f"the path {path[:200]} does not exist", "GET /openapi.json lists all paths")


# OPTIONS: the methods of a path, derived from the 405 response of the application


def options_response(request: Request, response: Response) -> Response:
    """Convert a 405 response of the application to 204 with `allow`; other responses are returned unchanged."""
    if request.path == "*":
        return Response(204, headers=[("allow", ALL_METHODS)])
    if response.status != 405:
        return response
    methods = {method.strip() for name, value in response.headers if name == "allow" for method in value.split(",")}
    if "GET" in methods:
        methods.add("HEAD")
    return Response(204, headers=[("allow", ", ".join(sorted(methods | {"OPTIONS"})))])
