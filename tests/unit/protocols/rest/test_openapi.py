"""The API description covers every route in OpenAPI 3.1; the page is self-contained."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

from jsonschema_rs import meta
from tests.unit.protocols.rest.rest_harness import BATCH, JSON, RestHarness, with_rest_harness

from headrace.http.routes import Verb


async def described(harness: RestHarness) -> dict[str, Any]:
    response = await harness.ask("GET", "/openapi.json")
    assert (response.status, response.content_type) == (200, JSON)
    document: dict[str, Any] = response.json
    return document


def refs(part: Any) -> set[str]:
    if isinstance(part, dict):
        found = {part["$ref"]} if "$ref" in part else set()
        return found.union(*(refs(one) for one in part.values()))
    if isinstance(part, list):
        return set().union(*(refs(one) for one in part))
    return set()


def test_every_route_is_described_and_nothing_else() -> None:
    async def scenario(harness: RestHarness) -> None:
        document = await described(harness)
        served = {(route.pattern, route.method.lower()) for route in harness.application.routes}
        response = {(path, method) for path, methods in document["paths"].items() for method in methods}
        assert response == served
        ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
        assert len(ids) == len(set(ids))
        for ref in refs(document):
            assert ref.removeprefix("#/components/schemas/") in document["components"]["schemas"]

    with_rest_harness(scenario)


def test_schemas_are_valid_and_every_problem_has_the_same_one() -> None:
    async def scenario(harness: RestHarness) -> None:
        document = await described(harness)
        for schema in document["components"]["schemas"].values():
            meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        for methods in document["paths"].values():
            for operation in methods.values():
                for status, response in operation["responses"].items():
                    if int(status) >= 400:
                        problem = {"$ref": "#/components/schemas/ProblemBody"}
                        assert response["content"] == {JSON: {"schema": problem}}

    with_rest_harness(scenario)


def test_protected_routes_declare_the_bearer_scheme() -> None:
    async def scenario(harness: RestHarness) -> None:
        document = await described(harness)
        for route in harness.application.routes:
            operation = document["paths"][route.pattern][route.method.lower()]
            needs_token = route.access.verb is not Verb.PUBLIC
            assert ("security" in operation) == needs_token
            assert ({"401", "403", "429", "503"} <= set(operation["responses"])) == needs_token
        assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"

    with_rest_harness(scenario)


def test_publishing_is_described_with_all_its_bodies() -> None:
    async def scenario(harness: RestHarness) -> None:
        publish = (await described(harness))["paths"]["/topics/{topic}/messages"]["post"]
        assert set(publish["requestBody"]["content"]) == {JSON, BATCH, "application/octet-stream"}
        names = {(parameter["in"], parameter["name"]) for parameter in publish["parameters"]}
        assert {("path", "topic"), ("query", "wait_for"), ("header", "Idempotency-Key")} <= names

    with_rest_harness(scenario)


def test_the_page_connects_only_to_its_own_server() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask("GET", "/docs")
        page = response.raw.decode()
        assert response.content_type == "text/html; charset=utf-8"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for tag in ("script", "style"):
            (inline,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
            digest = b64encode(sha256(inline.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
        assert not re.findall(r"https?://", page)

    with_rest_harness(scenario)
