"""Topics over REST: create, list, change and delete them, with optimistic concurrency by ETag."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness


def test_a_topic_is_created_as_requested() -> None:
    async def scenario(harness: RestHarness) -> None:
        configs = {"retention.ms": 1000, "cleanup.policy": "compact", "preallocate": False}
        response = await harness.ask("POST", "/topics", {"name": "orders", "partitions": 3, "configs": configs})
        assert response.status == 201
        body = response.json
        assert (body["topic"], body["partitions"], body["replication_factor"]) == ("orders", 3, 1)
        assert body["configs"] == {"retention.ms": "1000", "cleanup.policy": "compact", "preallocate": "false"}
        assert body["placement"][2] == {"partition": 2, "leader": 1, "replicas": [1], "in_sync": [1]}
        shown = await harness.ask("GET", "/topics/orders")
        assert (shown.status, shown.json, shown.headers["etag"]) == (200, body, response.headers["etag"])

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"name": "taken"}, 409, "topic_exists"),
        ({"name": "a b"}, 422, "invalid_topic"),
        ({"name": ".."}, 422, "invalid_topic"),
        ({"name": "__mine"}, 403, "topic_internal"),
        ({"name": "orders", "replication_factor": 3}, 422, "invalid_replication_factor"),
        ({"name": "orders", "configs": {"colour": "red"}}, 422, "invalid_config"),
        ({"name": "orders", "configs": {"retention.ms": "long"}}, 422, "invalid_config"),
        ({"name": "orders", "partitions": 0}, 422, "invalid_body"),
        ({"name": "orders", "partitions": 2**40}, 422, "invalid_body"),
        ({"name": "orders", "partitons": 1}, 422, "invalid_body"),
        ({}, 422, "invalid_body"),
        ([], 422, "invalid_body"),
    ],
)
def test_an_invalid_topic_is_rejected(body: Any, status: int, code: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "taken"})
        response = await harness.ask("POST", "/topics", body)
        assert (response.status, response.code) == (status, code)

    with_rest_harness(scenario)


def test_a_body_must_be_json_with_its_content_type() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask("POST", "/topics", b'{"name":', content_type="application/json")
        assert (response.status, response.code) == (400, "malformed_json")
        response = await harness.ask("POST", "/topics", b"name=orders", content_type="text/plain")
        assert (response.status, response.code) == (415, "unsupported_media_type")

    with_rest_harness(scenario)


def test_topics_are_listed_in_pages() -> None:
    async def scenario(harness: RestHarness) -> None:
        for name in ("a-1", "b", "a-3", "a-2"):
            await harness.ask("POST", "/topics", {"name": name})
        await harness.ask("POST", "/topics/a-1/messages", {}, headrace_delay="1h")
        first = (await harness.ask("GET", "/topics?prefix=a&limit=2")).json
        assert first == {
            "topics": [{"topic": "a-1", "partitions": 1}, {"topic": "a-2", "partitions": 1}],
            "after": "a-2",
        }
        second = (await harness.ask("GET", f"/topics?prefix=a&limit=2&after={first['after']}")).json
        assert second == {"topics": [{"topic": "a-3", "partitions": 1}]}
        assert "__delayed.a-1" not in [one["topic"] for one in (await harness.ask("GET", "/topics")).json["topics"]]
        everything = (await harness.ask("GET", "/topics?internal=true")).json["topics"]
        assert "__delayed.a-1" in [one["topic"] for one in everything]
        assert (await harness.ask("GET", "/topics?limit=1001")).code == "invalid_parameter"
        assert (await harness.ask("GET", "/topics?internal=1")).code == "invalid_parameter"

    with_rest_harness(scenario)


def test_a_change_with_an_outdated_etag_is_rejected() -> None:
    async def scenario(harness: RestHarness) -> None:
        made = await harness.ask("POST", "/topics", {"name": "orders", "configs": {"retention.ms": 1000}})
        etag = made.headers["etag"]
        changed = await harness.ask("PATCH", "/topics/orders", {"partitions": 2}, if_match=etag)
        assert (changed.status, changed.json["partitions"]) == (200, 2)
        assert changed.headers["etag"] != etag
        for method, body in (("PATCH", {"partitions": 3}), ("DELETE", {})):
            late = await harness.ask(method, "/topics/orders", body, if_match=etag)
            assert (late.status, late.code) == (412, "topic_changed")
        assert (await harness.ask("GET", "/topics/orders")).json["partitions"] == 2
        again = await harness.ask("PATCH", "/topics/orders", {"configs": {"retention.ms": None}}, if_match="*")
        assert again.json["configs"] == {}
        assert (await harness.ask("DELETE", "/topics/orders", if_match=again.headers["etag"])).status == 204
        assert (await harness.ask("GET", "/topics/orders")).code == "topic_not_found"

    with_rest_harness(scenario)


def test_an_unchanged_topic_is_a_304() -> None:
    async def scenario(harness: RestHarness) -> None:
        etag = (await harness.ask("POST", "/topics", {"name": "orders"})).headers["etag"]
        response = await harness.ask("GET", "/topics/orders", if_none_match=f'"other", {etag}')
        assert (response.status, response.raw, response.headers["etag"]) == (304, b"", etag)

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"partitions": 1}, "invalid_partitions"),
        ({"configs": {"colour": "red"}}, "invalid_config"),
        ({"configs": {"retention.ms": []}}, "invalid_body"),
    ],
)
def test_an_invalid_change_is_rejected(body: Any, code: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "orders", "partitions": 2})
        response = await harness.ask("PATCH", "/topics/orders", body)
        assert (response.status, response.code) == (422, code)

    with_rest_harness(scenario)


def test_a_missing_topic_is_a_404_for_every_method() -> None:
    async def scenario(harness: RestHarness) -> None:
        for method, body in (("GET", b""), ("PATCH", {"partitions": 2}), ("DELETE", b"")):
            response = await harness.ask(method, "/topics/orders", body)
            assert (response.status, response.code) == (404, "topic_not_found")

    with_rest_harness(scenario)


def test_requests_for_missing_topics_leave_no_state() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        for number in range(50):
            assert (await harness.ask("GET", f"/topics/nowhere-{number}")).status == 404
            assert (await harness.ask("POST", f"/topics/no%20where-{number}/messages", {})).status == 422
        assert set(harness.cluster.view.topics) == {"orders"}
        assert len(harness.cluster.view.topic_errors) <= 1

    with_rest_harness(scenario)


def test_internal_topics_are_read_only() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics/orders/messages", {}, headrace_delay="1h")
        assert (await harness.ask("GET", "/topics/__delayed.orders")).status == 200
        for method, body in (("PATCH", {"partitions": 2}), ("DELETE", b"")):
            assert (await harness.ask(method, "/topics/__delayed.orders", body)).code == "topic_internal"

    with_rest_harness(scenario)


def test_creating_a_topic_does_not_recreate_a_deleted_one() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("gone", {})
        await harness.ask("DELETE", "/topics/gone")
        await harness.publish("new", {})
        assert [one["topic"] for one in (await harness.ask("GET", "/topics")).json["topics"]] == ["new"]

    with_rest_harness(scenario)
