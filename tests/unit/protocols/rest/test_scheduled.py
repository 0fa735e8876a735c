"""Delayed messages over REST: listed by due time, cancelled and rescheduled."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness


async def add(harness: RestHarness, delay: str, key: str = "") -> str:
    message_id = await harness.publish("orders", {"after": delay}, headrace_delay=delay, headrace_key=key)
    await moment()
    return message_id


async def moment() -> None:
    """Wait until the leader has read the message back from the log, which follows its acknowledgement."""
    await asyncio.sleep(0.1)


def test_delayed_messages_are_listed_in_pages_by_due_time() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "orders", "partitions": 3})
        assert (await harness.ask("GET", "/topics/orders/scheduled")).json == {"messages": []}
        for minutes in (7, 3, 9, 1, 5, 2, 8, 4, 6):
            await add(harness, f"{minutes}m", key=f"key {minutes}")
        seen: list[str] = []
        after = ""
        for _ in range(5):
            response = (await harness.ask("GET", f"/topics/orders/scheduled?limit=2{after}")).json
            seen += [one["value"]["after"] for one in response["messages"]]
            after = f"&after={response.get('after')}"
        assert seen == [f"{minutes}m" for minutes in range(1, 10)]
        assert after == "&after=None"

    with_rest_harness(scenario)


def test_messages_with_the_same_due_time_are_listed_once() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "orders", "partitions": 3})
        at = "2099-01-01T00:00:00Z"
        for number in range(9):
            await harness.publish("orders", number, headrace_deliver_at=at, headrace_key=f"key {number}")
        await moment()
        seen: list[str] = []
        after = ""
        while after != "&after=None":
            response = (await harness.ask("GET", f"/topics/orders/scheduled?limit=2{after}")).json
            seen += [one["message_id"] for one in response["messages"]]
            after = f"&after={response.get('after')}"
        assert len(seen) == len(set(seen)) == 9

    with_rest_harness(scenario)


def test_a_delayed_message_can_be_rescheduled_and_cancelled() -> None:
    async def scenario(harness: RestHarness) -> None:
        message_id = await add(harness, "1h")
        path = f"/topics/orders/scheduled/{message_id}"
        moved = await harness.ask("PATCH", path, {"deliver_at": "2099-01-01T00:00:00Z"})
        assert moved.json == {"message_id": message_id, "due_at": "2099-01-01T00:00:00.000Z"}
        assert (await harness.ask("PATCH", path, {"delay": 90})).status == 200
        (listed,) = (await harness.ask("GET", "/topics/orders/scheduled")).json["messages"]
        assert listed["message_id"] == message_id
        assert (await harness.ask("DELETE", path)).status == 204
        for response in (await harness.ask("DELETE", path), await harness.ask("PATCH", path, {"delay": "1h"})):
            assert (response.status, response.code) == (409, "not_waiting")
        assert (await harness.ask("GET", "/topics/orders/scheduled")).json == {"messages": []}

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    "body", [{}, {"delay": "1h", "deliver_at": "2099-01-01T00:00:00Z"}, {"delay": "soon"}, {"deliver_at": "soon"}]
)
def test_an_invalid_due_time_is_rejected(body: dict[str, str]) -> None:
    async def scenario(harness: RestHarness) -> None:
        message_id = await add(harness, "1h")
        assert (await harness.ask("PATCH", f"/topics/orders/scheduled/{message_id}", body)).status == 422

    with_rest_harness(scenario)


def test_a_missing_delayed_message_is_a_404() -> None:
    async def scenario(harness: RestHarness) -> None:
        assert (await harness.ask("GET", "/topics/orders/scheduled")).code == "topic_not_found"
        assert (await harness.ask("DELETE", "/topics/orders/scheduled/__delayed.orders:0:0")).status == 404
        await harness.publish("orders", {})
        response = await harness.ask("DELETE", "/topics/orders/scheduled/orders:0:0")
        assert (response.status, response.code) == (404, "message_not_found")
        assert (await harness.ask("DELETE", "/topics/orders/scheduled/x")).code == "invalid_request"
        assert (await harness.ask("GET", "/topics/orders/scheduled?after=x")).code == "invalid_parameter"

    with_rest_harness(scenario)
