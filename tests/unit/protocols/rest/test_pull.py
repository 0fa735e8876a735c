"""Pulling over REST: the form of messages, sharing, long polls, and invalid requests."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.unit.protocols.rest.rest_queue_support import RestQueues, another, with_queues


def test_a_pulled_message_has_its_receipt_and_properties() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b'{"order": 1}', key=b"c-42", headers=[("kind", b"new"), ("empty", None)])
        (message,) = await queues.pull("lease=1m")
        assert message["message_id"] == "jobs:0:0"
        assert message["receipt"].startswith("jobs:0:0/1/")
        assert message["value"] == {"order": 1}
        assert (message["key"], message["headers"]) == ("c-42", {"kind": "new", "empty": None})
        assert message["attempt"] == 1
        assert message["published_at"].endswith("Z")
        assert message["lease_until"] > message["published_at"]
        assert "value_base64" not in message

    with_queues(scenario)


@pytest.mark.parametrize(
    ("value", "content_type", "shown"),
    [
        (b"[1, 2.50]", None, {"value": [1, 2.5]}),
        (b" null ", None, {"value": None}),
        (b"hello", None, {"value_base64": "aGVsbG8="}),
        (b"hello", "text/plain", {"value": "hello"}),
        (b"123", "text/plain; charset=utf-8", {"value": "123"}),
        (b"\xff", "text/plain", {"value_base64": "/w=="}),
        (b"123", "application/octet-stream", {"value_base64": "MTIz"}),
        (b'{"a":1}', "application/json", {"value": {"a": 1}}),
        (b'"\xff"', None, {"value_base64": base64.b64encode(b'"\xff"').decode()}),
        (b"1,2", None, {"value_base64": "MSwy"}),
        (b"1]}, {", None, {"value_base64": base64.b64encode(b"1]}, {").decode()}),
        (b"[" * 5000 + b"]" * 5000, None, {"value_base64": base64.b64encode(b"[" * 5000 + b"]" * 5000).decode()}),
        (b"", None, {"value_base64": ""}),
        (None, None, {}),
    ],
)
def test_a_value_is_json_or_text_or_base64(value: bytes | None, content_type: str | None, shown: Any) -> None:
    async def scenario(queues: RestQueues) -> None:
        headers = [] if content_type is None else [("content-type", content_type.encode())]
        await queues.put(value, headers=headers)  # type: ignore[arg-type]
        (message,) = await queues.pull()
        assert {name: message[name] for name in ("value", "value_base64") if name in message} == shown

    with_queues(scenario)


def test_every_pull_response_is_valid_json() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"\x00\xff", key=b"\xff\xfe", headers=[("k\udcff", b"\xfe"), ('"', b'\\"')])
        (message,) = await queues.pull()
        assert message["key_base64"] == "//4="
        assert message["headers"]['"'] == '\\"'

    with_queues(scenario)


def test_two_clients_share_the_messages() -> None:
    async def scenario(queues: RestQueues) -> None:
        other = another(queues)
        await queues.put(*(b"%d" % number for number in range(6)))
        first, second = await queues.pull("max_messages=3"), await other.pull("max_messages=3")
        assert sorted(one["value"] for one in [*first, *second]) == [0, 1, 2, 3, 4, 5]
        assert await queues.pull() == []

    with_queues(scenario)


def test_a_disconnected_long_poll_leases_nothing() -> None:
    async def scenario(queues: RestQueues) -> None:
        hung_up = asyncio.create_task(queues.pull("wait=60s"))
        await asyncio.sleep(1)
        hung_up.cancel()
        other = another(queues)
        waiting = asyncio.create_task(other.pull("wait=30s"))
        await asyncio.sleep(1)
        await queues.put(b"1")
        (message,) = await waiting
        assert (message["value"], message["attempt"]) == (1, 1)
        assert await queues.pull("wait=500ms") == []

    with_queues(scenario)


def test_a_pull_by_topic_does_not_create_a_subscription() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1")
        response = await queues.get("/topics/jobs/subscriptions/workers/messages")
        assert [one["value"] for one in response["messages"]] == [1]
        missing = await queues.ask("GET", "/topics/jobs/subscriptions/nobody/messages")
        assert (missing.status, missing.body["code"]) == (404, "subscription_not_found")
        missing = await queues.ask("GET", "/topics/nowhere/subscriptions/workers/messages")
        assert (missing.status, missing.body["code"]) == (404, "topic_not_found")

    with_queues(scenario)


def test_a_raw_pull_returns_the_value_with_headers() -> None:
    async def scenario(queues: RestQueues) -> None:
        wanted = {"accept": "application/octet-stream"}
        url = "/subscriptions/workers/messages?max_messages=1"
        assert (await queues.ask("GET", url, headers=wanted)).status == 204
        await queues.put(
            b"\x00\r\n", key="ä 1".encode(), headers=[("X-\n", b"a\r\nb: c"), ("content-type", b"image/png")]
        )
        response = await queues.ask("GET", url, headers=wanted)
        assert (response.status, response.response.body, response.response.content_type) == (
            200,
            b"\x00\r\n",
            "image/png",
        )
        assert response.headers["headrace-message-id"] == "jobs:0:0"
        assert response.headers["headrace-key"] == "%C3%A4%201"
        assert response.headers["headrace-header-X-%0A"] == "a%0D%0Ab:%20c"
        assert all(value.isprintable() and value.isascii() for value in response.headers.values())
        receipt = response.headers["headrace-receipt"]
        assert await queues.post("/subscriptions/workers/ack", {"receipt": receipt}) == {"settled": 1, "refused": []}
        many = await queues.ask("GET", "/subscriptions/workers/messages", headers=wanted)
        assert many.status == 422

    with_queues(scenario)


def test_an_invalid_content_type_is_not_returned() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"x", headers=[("content-type", b"text/plain\r\nset-cookie: a=b")])
        url = "/subscriptions/workers/messages?max_messages=1"
        response = await queues.ask("GET", url, headers={"accept": "application/octet-stream"})
        assert response.response.content_type == "application/octet-stream"

    with_queues(scenario)


@pytest.mark.parametrize(
    "query",
    [
        "max_messages=0",
        "max_messages=1001",
        "max_messages=ten",
        "wait=61s",
        "wait=-1",
        "wait=soon",
        "lease=99ms",
        "lease=13h",
        "lease=nan",
        "lease=1e308",
    ],
)
def test_invalid_parameters_are_rejected(query: str) -> None:
    async def scenario(queues: RestQueues) -> None:
        response = await queues.ask("GET", f"/subscriptions/workers/messages?{query}")
        assert (response.status, response.body["code"]) == (422, "invalid_parameter")
        assert response.body["next"]

    with_queues(scenario)


def test_head_leases_nothing() -> None:
    async def scenario(queues: RestQueues) -> None:
        await queues.put(b"1")
        assert (await queues.ask("HEAD", "/subscriptions/workers/messages")).status == 405
        assert len(await queues.pull()) == 1

    with_queues(scenario)


def test_a_deleted_subscription_is_a_404_although_it_was_cached() -> None:
    async def scenario(queues: RestQueues) -> None:
        assert await queues.pull() == []
        other = another(queues)
        assert (await other.ask("DELETE", "/topics/jobs/subscriptions/workers")).status == 204
        for _ in range(2):
            response = await queues.ask("GET", "/subscriptions/workers/messages")
            assert (response.status, response.body["code"]) == (404, "subscription_not_found")

    with_queues(scenario)
