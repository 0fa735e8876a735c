"""Single messages over REST, and their status in each subscription."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.protocols.rest.rest_harness import RestHarness, with_rest_harness

from headrace.client.admin.subscription_admin import START, Position, SubscriptionAdmin
from headrace.client.produce.producer import Producer
from headrace.client.queues.subscription import Subscription
from headrace.model.message_headers import DEDUP_ID


def test_a_message_is_shown_by_its_content_type() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", b'{"n": [1, 2.50]}', content_type="application/json", headrace_key="c-42")
        await harness.publish("orders", "caf\u00e9".encode(), content_type="text/plain; charset=utf-8")
        await harness.publish("orders", b"\xff\x00", content_type="application/octet-stream")
        async with Producer(harness.cluster) as producer:
            await producer.publish("orders", b'"text"', key=b"\xff", headers=[("a", b"b"), ("n", None)])
            await producer.publish("orders", b"not json")
            await producer.publish("orders", None)

        async def shown(offset: int) -> bytes:
            response = await harness.ask("GET", f"/topics/orders/messages/orders:0:{offset}")
            assert response.status == 200
            assert response.json["message_id"] == f"orders:0:{offset}"
            return response.raw

        assert b'"value":{"n": [1, 2.50]},"key":"c-42"' in await shown(0)
        assert '"value":"caf\u00e9"'.encode() in await shown(1)
        assert b'"value_base64":"/wA="' in await shown(2)
        assert b'"value":"text","key_base64":"/w==","headers":{"a":"b","n":null}' in await shown(3)
        assert b'"value_base64":"bm90IGpzb24="' in await shown(4)
        assert b"value" not in await shown(5)

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    ("message_id", "status", "code"),
    [
        ("orders:0:1", 404, "message_not_found"),
        ("orders:0:99999999", 404, "message_not_found"),
        ("orders:7:0", 404, "message_not_found"),
        ("other:0:0", 404, "message_not_found"),
        ("orders:0", 422, "invalid_request"),
        ("orders:0:9223372036854775808", 422, "invalid_request"),
    ],
)
def test_a_missing_message_is_a_404(message_id: str, status: int, code: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        for behind in ("", "/ack"):
            response = await harness.ask("GET", f"/topics/orders/messages/{message_id}{behind}")
            assert (response.status, response.code) == (status, code)

    with_rest_harness(scenario)


def test_the_offset_of_a_dropped_duplicate_is_a_404() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "configs": {"dedup.window.ms": 60_000}})
        async with Producer(harness.cluster) as producer:
            for dedup_id in (b"a", b"a", b"b"):
                await producer.submit("pay", dedup_id, headers=[(DEDUP_ID, dedup_id)])
        statuses = [(await harness.ask("GET", f"/topics/pay/messages/pay:0:{offset}")).status for offset in range(3)]
        assert statuses == [200, 404, 200]

    with_rest_harness(scenario)


def test_a_message_of_a_missing_topic_is_a_404() -> None:
    async def scenario(harness: RestHarness) -> None:
        assert (await harness.ask("GET", "/topics/orders/messages/orders:0:0")).code == "topic_not_found"

    with_rest_harness(scenario)


def test_a_message_is_found_before_its_new_leader_knows_the_high_watermark() -> None:
    async def scenario(harness: RestHarness) -> None:
        message_id = await harness.publish("orders", {})
        partition = harness.broker.catalogue.partition("orders", 0)
        partition.epoch_start, partition.high_watermark = 1, 0
        asking = asyncio.create_task(harness.ask("GET", f"/topics/orders/messages/{message_id}"))
        await asyncio.sleep(0.2)
        assert not asking.done()
        partition.high_watermark = 1
        assert (await asking).status == 200

    with_rest_harness(scenario)


def test_the_status_of_a_message_is_shown_for_each_subscription() -> None:
    async def scenario(harness: RestHarness) -> None:
        message_id = await harness.publish("orders", {})
        path = f"/topics/orders/messages/{message_id}/ack"
        no_subscriptions = (await harness.ask("GET", path)).json
        assert no_subscriptions == {"message_id": message_id, "acknowledged": True, "subscriptions": []}
        admin = SubscriptionAdmin(harness.cluster)
        for name in ("billing", "mail"):
            await admin.create("orders", name, Position(START))
        async with Subscription(harness.cluster, "orders", "billing") as subscription:
            (message,) = await subscription.lease(wait_seconds=5)
            leased, ready = (await harness.ask("GET", path)).json["subscriptions"]
            assert (leased["subscription"], leased["state"], leased["attempts"]) == ("billing", "leased", 1)
            assert leased["until"].endswith("Z")
            assert ready == {"subscription": "mail", "state": "ready", "attempts": 0}
            assert await subscription.ack([message]) == []
        response = (await harness.ask("GET", path)).json
        assert not response["acknowledged"]
        assert response["subscriptions"][0]["state"] == "settled"
        assert (response["subscriptions"][0]["how"], response["subscriptions"][0]["attempts"]) == ("ack", 1)
        async with Subscription(harness.cluster, "orders", "mail") as subscription:
            await subscription.ack(await subscription.lease(wait_seconds=5))
        assert (await harness.ask("GET", path)).json["acknowledged"]

    with_rest_harness(scenario)
