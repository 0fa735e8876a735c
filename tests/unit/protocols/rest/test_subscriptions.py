"""Subscriptions over REST: create, list, get, configure, seek and delete them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.protocols.rest.rest_queue_support import RestQueues, with_queues

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.model.tokens import Scope
from headrace.protocols.rest.authorization import Principal


def test_creating_an_existing_subscription_keeps_its_position() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1", b"2")
        response = await queues.ask("POST", "/topics/jobs/subscriptions", {"name": "a", "start": "earliest"})
        assert (response.status, response.body) == (201, {"subscription_id": "a", "topic": "jobs"})
        response = await queues.ask("POST", "/topics/jobs/subscriptions", {"subscription_id": "a", "start": "latest"})
        assert (response.status, response.body) == (200, {"subscription_id": "a", "topic": "jobs"})
        assert len(await queues.pull(name="a")) == 2
        await queues.post("/topics/jobs/subscriptions", {"name": "b", "start": "latest"})
        assert await queues.pull(name="b") == []
        await queues.post("/topics/jobs/subscriptions", {"name": "c"})
        assert len(await queues.pull(name="c")) == 2, "without a start it begins with the oldest message"

    with_queues(scenario, subscribes=False)


def test_a_subscription_may_start_at_a_time() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1")
        await queues.post("/topics/jobs/subscriptions", {"name": "old", "start": "1970-01-02T00:00:00Z"})
        await queues.post("/topics/jobs/subscriptions", {"name": "new", "start": "2999-01-02T00:00:00Z"})
        await queues.put(b"2")
        assert [one["value"] for one in await queues.pull(name="old")] == [1, 2]
        assert [one["value"] for one in await queues.pull(name="new")] == [2]

    with_queues(scenario, subscribes=False)


def test_a_subscription_is_shown_with_its_backlog_and_configs() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.subscribe("slow", configs={"headrace.rate": 5, "headrace.dead.letters.enable": False})
        await queues.put(b"1", b"2", b"3")
        await queues.pull("max_messages=1", name="slow")
        shown = await queues.get("/topics/jobs/subscriptions/slow")
        counts = {name: shown[name] for name in ("backlog", "leased", "waiting", "dying")}
        assert counts == {"backlog": 3, "leased": 1, "waiting": 0, "dying": 0}
        assert shown["configs"] == {"headrace.rate": "5", "headrace.dead.letters.enable": "false"}
        assert [(one["partition"], one["floor"], one["end"]) for one in shown["partitions"]] == [(0, 0, 3), (1, 0, 0)]
        assert shown["oldest_at"].endswith("Z")
        listed = (await queues.get("/topics/jobs/subscriptions"))["subscriptions"]
        assert [(one["subscription_id"], one["backlog"]) for one in listed] == [("slow", 3), ("workers", 3)]

    with_queues(scenario, partitions=2)


def test_configs_are_changed_individually_and_null_resets() -> None:
    async def scenario(queues: RestQueues) -> None:
        url = "/topics/jobs/subscriptions/workers"
        response = await queues.ask("PATCH", url, {"configs": {"headrace.rate": 5, "share.delivery.count.limit": 9}})
        assert response.body["configs"] == {"headrace.rate": "5", "share.delivery.count.limit": "9"}
        response = await queues.ask("PATCH", url, {"configs": {"headrace.rate": None}})
        assert (response.status, response.body["configs"]) == (200, {"share.delivery.count.limit": "9"})
        response = await queues.ask("PATCH", url, {"configs": {"no.such": "1"}})
        assert (response.status, response.body["code"]) == (422, "invalid_config")
        response = await queues.ask("PATCH", "/topics/jobs/subscriptions/nobody", {"configs": {}})
        assert response.status == 404

    with_queues(scenario)


def test_a_webhook_can_be_set_at_creation() -> None:
    async def scenario(queues: RestQueues) -> None:
        body = {"name": "hooked", "push": {"url": "https://example.com/hook"}}
        made = await queues.post("/topics/jobs/subscriptions", body)
        assert made["push_secret"]
        configs = (await queues.get("/topics/jobs/subscriptions/hooked"))["configs"]
        assert configs["headrace.push.url"] == "https://example.com/hook"
        assert configs["headrace.push.secret"] is None
        response = await queues.ask("DELETE", "/topics/jobs/subscriptions/hooked")
        assert response.status == 204
        await queues.subscribe("hooked")
        assert (await queues.get("/topics/jobs/subscriptions/hooked"))["configs"] == {}, "no webhook is configured"

    with_queues(scenario)


def test_a_webhook_cannot_be_set_by_configs() -> None:
    async def scenario(queues: RestQueues) -> None:
        configs = {"headrace.push.url": "https://example.com/hook"}
        for method, url, body in (
            ("POST", "/topics/jobs/subscriptions", {"name": "hooked", "configs": configs}),
            ("PATCH", "/topics/jobs/subscriptions/workers", {"configs": configs}),
        ):
            response = await queues.ask(method, url, body)
            assert (response.status, response.body["code"]) == (422, "invalid_config")

    with_queues(scenario)


def test_a_subscription_can_be_deleted() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.pull()
        url = "/topics/jobs/subscriptions/workers"
        assert (await queues.ask("DELETE", url)).status == 204
        assert (await queues.ask("DELETE", url)).status == 404
        assert (await queues.ask("GET", url)).status == 404
        assert (await queues.ask("GET", "/subscriptions/workers/messages")).status == 404
        assert await queues.get("/topics/jobs/subscriptions") == {"subscriptions": []}

    with_queues(scenario)


def test_a_seek_moves_a_subscription_and_ends_its_leases() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1", b"2", b"3")
        messages = await queues.pull()
        moved = await queues.post("/subscriptions/workers/seek", {"to": "end"})
        assert moved["partitions"] == [{"partition": 0, "floor": 3}, {"partition": 1, "floor": 0}]
        response = await queues.ask("POST", "/subscriptions/workers/ack", {"receipt": messages[0]["receipt"]})
        assert (response.status, response.body["code"]) == (409, "lease_lost")
        assert await queues.pull() == []
        await queues.post("/subscriptions/workers/seek", {"to": 1, "partition": 0})
        assert [one["value"] for one in await queues.pull()] == [2, 3]
        await queues.post("/subscriptions/workers/seek", {"to": "start"})
        assert len(await queues.pull()) == 3
        moved = await queues.post("/subscriptions/workers/seek", {"to": "2999-01-01T00:00:00Z"})
        assert moved["partitions"][0]["floor"] == 3

    with_queues(scenario, partitions=2)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"to": 77, "partition": 0}, 422, "offset_out_of_range"),
        ({"to": 0, "partition": 9}, 404, "topic_not_found"),
        ({"to": "yesterday"}, 422, "invalid_parameter"),
        ({"to": "5"}, 422, "invalid_parameter"),
        ({"to": -1}, 422, "invalid_body"),
        ({"to": True}, 422, "invalid_body"),
        ({}, 422, "invalid_body"),
    ],
)
def test_an_invalid_position_is_rejected(body: Any, status: int, code: str) -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("POST", "/subscriptions/workers/seek", body)
        assert (response.status, response.body["code"]) == (status, code)

    with_queues(scenario)


@pytest.mark.parametrize(
    ("topic", "body", "status", "code"),
    [
        ("jobs", {}, 422, "invalid_body"),
        ("jobs", {"name": ""}, 422, "invalid_body"),
        ("jobs", {"name": "a", "subscription_id": "b"}, 422, "invalid_body"),
        ("jobs", {"name": "x" * 256}, 422, "invalid_body"),
        ("jobs", {"name": "a", "start": "tomorrow"}, 422, "invalid_parameter"),
        ("jobs", {"name": "a", "nonsense": 1}, 422, "invalid_body"),
        ("jobs", {"name": "a", "configs": {"headrace.filter": "((("}}, 422, "invalid_config"),
        ("nowhere", {"name": "a"}, 404, "topic_not_found"),
        ("__acks.jobs", {"name": "a"}, 403, "topic_internal"),
    ],
)
def test_an_invalid_subscription_is_not_created(topic: str, body: Any, status: int, code: str) -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("POST", f"/topics/{topic}/subscriptions", body)
        assert (response.status, response.body["code"]) == (status, code)
        listed = (await queues.get("/topics/jobs/subscriptions"))["subscriptions"]
        assert [one["subscription_id"] for one in listed] == ["workers"]

    with_queues(scenario)


def test_a_subscription_of_the_same_name_in_another_topic_is_not_configured() -> None:
    async def scenario(queues: RestQueues) -> None:
        await TopicAdmin(queues.cluster).create(NewTopic("mine", 1))
        queues.caller = Principal("me", "t-1", (Scope("manage", "mine"),))
        await queues.post("/topics/mine/subscriptions", {"name": "workers", "configs": {"headrace.rate": 1}})
        assert (await queues.get("/topics/mine/subscriptions/workers"))["configs"] == {"headrace.rate": "1"}
        assert (await queues.get("/topics/jobs/subscriptions/workers"))["configs"] == {}

    with_queues(scenario)
