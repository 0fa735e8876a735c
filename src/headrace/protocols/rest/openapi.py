"""Generate the API description from the table of routes: OpenAPI 3.1 at /openapi.json, and a page at /docs.

The description is derived from the table and the types, so it always matches the implementation. Problems that follow
from the properties of a route are added: a missing token, an unknown topic, a malformed body, or no reachable broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace import __version__
from headrace.http.message import JSON, Header, Request, Response
from headrace.http.problems import ProblemBody
from headrace.http.routes import Access, AccessSubject, Operation, Parameter, Route, Verb
from headrace.protocols.rest.docs_page import POLICY, page

RAW = "application/octet-stream"
_REFS = "#/components/schemas/{name}"
_PROBLEM = "The request failed"
_MEANINGS = {
    200: "Done",
    201: "Made",
    202: "Accepted",
    204: "Success without a body",
    207: "Some items succeeded, others failed",
    304: "Not modified",
    101: "The connection has been upgraded to a WebSocket",
    400: "The request is malformed",
    401: "The token is missing or invalid",
    403: "The token lacks a scope, or the topic is internal",
    404: "The resource does not exist",
    409: "The request conflicts with the current state",
    412: "The resource has been modified",
    413: "The body is too large",
    415: "The content type or encoding of the body is not supported",
    422: "The request contains invalid values",
    429: "Too many requests; retry after the time in Retry-After",
    503: "Temporarily unavailable; retry after the time in Retry-After",
    504: "No reply arrived in time",
}
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "topic": {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"},
    "message_id": {"type": "string", "minLength": 1, "examples": ["orders:0:17"]},
}
_CACHED: Sequence[Header] = [("cache-control", "no-cache")]


class ApiDescription:
    """The description is generated from `routes` on the first request."""

    def __init__(self, routes: Sequence[Route], *, with_auth: bool) -> None:
        self._routes = routes
        self._with_auth = with_auth
        self._document: bytes | None = None

    async def openapi(self, _: Request) -> Response:
        if self._document is None:
            self._document = msgspec.json.encode(openapi_document(self._routes, with_auth=self._with_auth))
        return Response(200, self._document, JSON, _CACHED)

    async def docs(self, _: Request) -> Response:
        headers = [*_CACHED, ("content-security-policy", POLICY), ("x-content-type-options", "nosniff")]
        return Response(200, page(), "text/html; charset=utf-8", headers)

    def routes(self) -> list[Route]:
        public = Access(Verb.PUBLIC)
        openapi = Operation("Get this API description", {200: dict[str, Any]})
        docs = Operation("Get this API description as a page", {200: {"text/html": str}})
        return [
            Route("GET", "/openapi.json", self.openapi, public, openapi),
            Route("GET", "/docs", self.docs, public, docs),
        ]


def openapi_document(routes: Sequence[Route], *, with_auth: bool) -> dict[str, Any]:
    types = _ComponentSchemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, types, with_auth=with_auth)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": "Topics, messages and subscriptions. Every error has a stable `code`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": types.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _ComponentSchemas:
    """The schemas of all types in the table."""

    def __init__(self, routes: Sequence[Route]) -> None:
        kinds: list[Any] = [ProblemBody]
        for route in routes:
            operation = route.operation
            kinds += [parameter.kind for parameter in operation.parameters]
            for content in (operation.body, *operation.responses.values()):
                for kind in _contents(content).values():
                    kinds += [one for one in _alternatives(kind) if one is not bytes]
        found, self.components = msgspec.json.schema_components(kinds, ref_template=_REFS)
        # By identity, because not every type is hashable; `_kinds` keeps the identities valid.
        self._schemas: dict[int, Any] = {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}
        self._kinds = kinds

    def of(self, kind: Any) -> dict[str, Any]:
        if kind is bytes:
            return {}
        alternatives = _alternatives(kind)
        if len(alternatives) > 1:
            return {"anyOf": [self.of(one) for one in alternatives]}
        schema: dict[str, Any] = self._schemas[id(alternatives[0])]
        return schema


def _operation(route: Route, types: _ComponentSchemas, *, with_auth: bool) -> dict[str, Any]:
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
        "responses": {
            str(status): _response(status, content, types) for status, content in sorted(operation.responses.items())
        },
    }
    for status in sorted({*operation.problems, *_common_problems(route)}):
        described["responses"][str(status)] = _response(status, ProblemBody, types)
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body, types)}
    if not is_public:
        described["security"] = [{"bearer": []}] if with_auth else [{"bearer": []}, {}]
    return described


def _common_problems(route: Route) -> Sequence[int]:
    """Return the statuses of the problems that follow from the properties of a route."""
    if route.access.verb is Verb.PUBLIC:
        return ()
    implied = [401, 403, 429, 503]
    if route.access.subject is not AccessSubject.CLUSTER:
        implied += (404, 422)
    if route.access.subject is AccessSubject.SUBSCRIPTION:
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


def _parameter(parameter: Parameter, types: _ComponentSchemas) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.text,
        "schema": types.of(parameter.kind),
    }


def _response(status: int, content: Any, types: _ComponentSchemas) -> dict[str, Any]:
    described: dict[str, Any] = {"description": _MEANINGS.get(status, _PROBLEM)}
    if content is not None:
        described["content"] = _content(content, types)
    return described


def _content(content: Any, types: _ComponentSchemas) -> dict[str, Any]:
    return {media_type: {"schema": types.of(kind)} for media_type, kind in _contents(content).items()}


def _contents(content: Any) -> Mapping[str, Any]:
    """Return the types of a body by media type: JSON, unless a mapping specifies others."""
    if content is None:
        return {}
    if isinstance(content, Mapping):
        return content
    return {RAW if content is bytes else JSON: content}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the alternatives of a type; a tuple means any one of its types."""
    return kind if isinstance(kind, tuple) else (kind,)
