"""The description of the API, made from the table of routes: OpenAPI 3.1 at /openapi.json, and a page at /docs.

Nothing is described by hand that the table or a type already says, so the description cannot say anything else than
what is served. What follows from a route's place in the table is added: that a token may be missing, a topic not there,
a body malformed, or no broker up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace import __version__
from headrace.doors.rest.docs_page import POLICY, page
from headrace.http.message import JSON, Header, Request, Response
from headrace.http.problem import ProblemBody
from headrace.http.routes import Access, Operation, Parameter, Route, Subject, Verb

RAW = "application/octet-stream"
_REFS = "#/components/schemas/{name}"
_PROBLEM = "The request was refused"
_MEANINGS = {
    200: "Done",
    201: "Made",
    202: "Accepted",
    204: "Done; there is nothing to say",
    207: "Some were taken, some were not",
    304: "Not changed since",
    101: "The connection is a WebSocket from here on",
    400: "The request is malformed",
    401: "There is no token, or it is not valid",
    403: "The token does not allow it, or the topic is the broker's own",
    404: "There is no such thing",
    409: "At odds with what is",
    412: "It has changed meanwhile",
    413: "Too large",
    415: "The body is of the wrong type",
    422: "The request makes no sense",
    429: "Too many requests; Retry-After says when to come again",
    503: "Not now; Retry-After says when to come again",
    504: "No reply has come in time",
}
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "topic": {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"},
    "message_id": {"type": "string", "minLength": 1, "examples": ["orders:0:17"]},
}
_CACHED: Sequence[Header] = [("cache-control", "no-cache")]


class Description:
    """`routes` are looked at when somebody asks for the first time."""

    def __init__(self, routes: Sequence[Route], *, with_auth: bool) -> None:
        self._routes = routes
        self._with_auth = with_auth
        self._document: bytes | None = None

    async def openapi(self, _: Request) -> Response:
        if self._document is None:
            self._document = msgspec.json.encode(document(self._routes, with_auth=self._with_auth))
        return Response(200, self._document, JSON, _CACHED)

    async def docs(self, _: Request) -> Response:
        headers = [*_CACHED, ("content-security-policy", POLICY), ("x-content-type-options", "nosniff")]
        return Response(200, page(), "text/html; charset=utf-8", headers)

    def routes(self) -> list[Route]:
        public = Access(Verb.PUBLIC)
        return [
            Route(
                "GET",
                "/openapi.json",
                self.openapi,
                public,
                Operation("This description", {200: dict[str, Any]}),
            ),
            Route(
                "GET",
                "/docs",
                self.docs,
                public,
                Operation("This description, for people", {200: {"text/html": str}}),
            ),
        ]


def document(routes: Sequence[Route], *, with_auth: bool) -> dict[str, Any]:
    types = _Types(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, types, with_auth=with_auth)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": "Topics, messages and subscriptions. Every refusal has a `code` that never changes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": types.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Types:
    """The schemas of all types that the table names."""

    def __init__(self, routes: Sequence[Route]) -> None:
        kinds: list[Any] = [ProblemBody]
        for route in routes:
            operation = route.operation
            kinds += [parameter.kind for parameter in operation.parameters]
            for said in (operation.body, *operation.answers.values()):
                for kind in _contents(said).values():
                    kinds += [one for one in _alternatives(kind) if one is not bytes]
        found, self.components = msgspec.json.schema_components(kinds, ref_template=_REFS)
        # By identity: not all that describes a type can be hashed.
        self._schemas: dict[int, Any] = {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}
        self._kept = kinds

    def of(self, kind: Any) -> dict[str, Any]:
        if kind is bytes:
            return {}
        alternatives = _alternatives(kind)
        if len(alternatives) > 1:
            return {"anyOf": [self.of(one) for one in alternatives]}
        schema: dict[str, Any] = self._schemas[id(alternatives[0])]
        return schema


def _operation(route: Route, types: _Types, *, with_auth: bool) -> dict[str, Any]:
    operation = route.operation
    is_public = route.access.verb is Verb.PUBLIC
    names = re.findall(r"{(\w+)}", route.pattern)
    described: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-zA-Z]+', '_', route.pattern).rstrip('_')}",
        "summary": operation.summary,
        "tags": [_tag(route.pattern)],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in names),
            *(_parameter(parameter, types) for parameter in operation.parameters),
        ],
        "responses": {str(status): _answer(status, said, types) for status, said in sorted(operation.answers.items())},
    }
    for status in sorted({*operation.problems, *_implied(route)}):
        described["responses"][str(status)] = _answer(status, ProblemBody, types)
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body, types)}
    if not is_public:
        described["security"] = [{"bearer": []}] if with_auth else [{"bearer": []}, {}]
    return described


def _implied(route: Route) -> Sequence[int]:
    """The problems that any such route may have."""
    if route.access.verb is Verb.PUBLIC:
        return ()
    implied = [401, 403, 429, 503]
    if route.access.subject is not Subject.CLUSTER:
        implied += (404, 422)
    if route.access.subject is Subject.SUBSCRIPTION:
        implied.append(409)
    if route.operation.body is not None:
        implied += (400, 413, 415, 422)
    return implied


def _path_schema(name: str) -> dict[str, Any]:
    return _PATH_PARAMETERS.get(name, {"type": "string", "minLength": 1})


def _tag(pattern: str) -> str:
    parts = [part for part in pattern.split("/") if part and not part.startswith("{")]
    if len(parts) == 1 or parts[0] != "topics":
        return parts[0]
    return parts[1]


def _parameter(parameter: Parameter, types: _Types) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.text,
        "schema": types.of(parameter.kind),
    }


def _answer(status: int, said: Any, types: _Types) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": _MEANINGS.get(status, _PROBLEM)}
    if said is not None:
        answer["content"] = _content(said, types)
    return answer


def _content(said: Any, types: _Types) -> dict[str, Any]:
    return {media_type: {"schema": types.of(kind)} for media_type, kind in _contents(said).items()}


def _contents(said: Any) -> Mapping[str, Any]:
    """What a body may be, by media type: JSON of a type, unless a mapping says it otherwise."""
    if said is None:
        return {}
    if isinstance(said, Mapping):
        return said
    return {RAW if said is bytes else JSON: said}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """A tuple stands for any one of its types."""
    return kind if isinstance(kind, tuple) else (kind,)
