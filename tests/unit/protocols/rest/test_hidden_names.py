"""Errors and lists do not reveal topics and subscriptions without permission."""

from __future__ import annotations

import pytest
from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness

from headrace.http.message import Request
from headrace.http.problems import Problem

ROUTES = (
    ("GET", "/subscriptions/invoices/messages", "consume"),
    ("GET", "/subscriptions/invoices/push", "read"),
    ("DELETE", "/subscriptions/invoices/push", "manage"),
    ("POST", "/subscriptions/invoices/seek", "manage"),
    ("GET", "/subscriptions/invoices/dead-letters", "read"),
)


async def make(harness: RestHarness, operator: str, *topics: str) -> None:
    for topic in topics:
        assert (await harness.ask("POST", "/topics", {"name": topic}, authorization=operator)).status == 201
        body = {"name": "invoices", "start": "earliest"}
        assert (await harness.ask("POST", f"/topics/{topic}/subscriptions", body, authorization=operator)).status == 201


@pytest.mark.parametrize(("method", "path", "verb"), ROUTES)
def test_a_subscription_of_topics_without_permission_is_not_found(method: str, path: str, verb: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        operator, mine = await harness.token("manage:*"), await harness.token(f"{verb}:mine")
        await make(harness, operator, "secret-one")
        for _ in range(2):
            response = await harness.ask(method, path, authorization=mine)
            assert (response.status, response.code) == (404, "subscription_not_found")
            assert b"secret" not in response.raw
            await harness.ask("POST", "/topics", {"name": "secret-two"}, authorization=operator)
            body = {"name": "invoices"}
            await harness.ask("POST", "/topics/secret-two/subscriptions", body, authorization=operator)

    with_rest_harness(scenario, with_auth=True)


def test_a_subscription_is_resolved_among_permitted_topics() -> None:
    async def scenario(harness: RestHarness) -> None:
        operator, mine = await harness.token("manage:*"), await harness.token("consume:mine", "publish:mine")
        await make(harness, operator, "mine", "secret-one", "secret-two")
        await harness.publish("mine", {"n": 1}, authorization=mine)
        response = await harness.ask("GET", "/subscriptions/invoices/messages", authorization=mine)
        assert [one["value"] for one in response.json["messages"]] == [{"n": 1}]
        response = await harness.ask("GET", "/subscriptions/invoices/messages", authorization=operator)
        assert (response.status, response.code) == (409, "subscription_ambiguous")

    with_rest_harness(scenario, with_auth=True)


def test_a_topic_without_permission_is_rejected_whether_or_not_it_exists() -> None:
    async def scenario(harness: RestHarness) -> None:
        operator, mine = await harness.token("manage:*"), await harness.token("consume:mine")
        await make(harness, operator, "secret-one")
        for topic in ("secret-one", "secret-two"):
            response = await harness.ask("GET", f"/subscriptions/invoices/messages?topic={topic}", authorization=mine)
            assert (response.status, response.code) == (403, "scope_missing")

    with_rest_harness(scenario, with_auth=True)


def test_metrics_require_the_metrics_scope() -> None:
    async def scenario(harness: RestHarness) -> None:
        async def refused(authorization: str | None) -> int:
            headers = {} if authorization is None else {"authorization": authorization}
            with pytest.raises(Problem) as raised:
                await harness.application.admit_metrics(Request("GET", "/metrics", {}, headers, b"", "peer", "r-1"))
            return raised.value.status

        assert await refused(None) == 401
        assert await refused(await harness.token("read:*")) == 403
        assert await refused(await harness.token("metrics:mine")) == 403
        for scope in ("metrics:*", "manage:*"):
            headers = {"authorization": await harness.token(scope)}
            await harness.application.admit_metrics(Request("GET", "/metrics", {}, headers, b"", "peer", "r-1"))

    with_rest_harness(scenario, with_auth=True)
