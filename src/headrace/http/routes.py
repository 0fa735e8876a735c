"""The table of routes: what is not in it is not served, and every entry says who may use it.

A pattern's parts in braces match one segment of the path and become `Request.params`. A segment is decoded after the
path was split, so that `%2F` in it is part of a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import unquote

import msgspec

from headrace.http.message import Handle
from headrace.http.problem import Problem

_EMPTY = "/"
"""Stands for a segment without a name, which no parameter matches."""


class Verb(Enum):
    """What a caller must be allowed to do. PUBLIC needs no token."""

    PUBLIC = "public"
    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    METRICS = "metrics"
    MANAGE = "manage"


class Subject(Enum):
    """Of what: a topic that the path names, the topic of a subscription that it names, or the cluster."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class Side(Enum):
    """Which forwarder serves it: a gateway may be one of the two only."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    BOTH = "both"


class Access(msgspec.Struct, frozen=True):
    verb: Verb
    subject: Subject = Subject.CLUSTER


class Parameter(msgspec.Struct, frozen=True):
    """A part of the query or a header, for the description of the API. `kind` is a type that msgspec knows."""

    name: str
    kind: Any
    text: str
    where: str = "query"
    required: bool = False


class Operation(msgspec.Struct, frozen=True):
    """How the description of the API tells of a route. `body` and the values of `answers` are types that msgspec knows,
    `bytes` for anything raw, None for no body; `problems` are the statuses that are answered with a problem."""

    summary: str
    answers: Mapping[int, Any]
    body: Any = None
    parameters: Sequence[Parameter] = ()
    problems: Sequence[int] = ()


class Route(msgspec.Struct, frozen=True):
    method: str
    pattern: str
    handle: Handle
    access: Access
    operation: Operation
    side: Side = Side.BOTH
    body_bytes_max: int | None = None


class Routes:
    """Finds the route of a request, in a time that does not depend on how many there are."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._all = tuple(routes)
        self._root: dict[str, Any] = {}
        for route in routes:
            self._add(route)

    def __iter__(self) -> Any:
        return iter(self._all)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Raises `Problem` 404 or 405. HEAD is served by GET."""
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
                405, "method_not_allowed", f"{method} is not served at {path}", f"use {allowed}", [("allow", allowed)]
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
    return Problem(404, "not_found", f"there is nothing at {path[:200]}", "GET /openapi.json lists what there is")
