"""Publishing over REST: values, properties, batches, idempotency, delays and replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.protocols.rest.rest_harness import BATCH, ParsedResponse, RestHarness, with_rest_harness

from headrace.broker.produce.dedup_windows import DedupWindows
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.metadata import TopicPartition
from headrace.client.produce.publisher import PublisherSettings
from headrace.client.queues.request_reply import Responder
from headrace.model.ids import message_id_from_text
from headrace.protocols.rest.bodies import time_ms
from headrace.runtime import tasks as cooperative_yield
from headrace.server.rest_builder import build_rest, open_cluster
from headrace.wire.apis import PRODUCE


async def records(harness: RestHarness, topic: str, partition: int = 0, count: int = 1) -> list[ConsumedRecord]:
    async with Consumer(harness.cluster, partitions={TopicPartition(topic, partition): 0}) as consumer:
        found: list[ConsumedRecord] = []
        while len(found) < count:
            found += await consumer.poll(timeout_seconds=5)
        return found


def produces(harness: RestHarness) -> int:
    return next(handler.time.count for handler in harness.broker.handlers if handler.api.key == PRODUCE)


def test_json_is_stored_as_it_was_sent() -> None:
    async def scenario(harness: RestHarness) -> None:
        text = b'{ "amount":1.50, "note":"caf\xc3\xa9" }'
        response = await harness.ask("POST", "/topics/orders/messages", text, content_type="application/json")
        assert (response.status, response.json) == (201, {"message_id": "orders:0:0"})
        (record,) = await records(harness, "orders")
        assert (record.value, record.key, list(record.headers)) == (text, None, [])

    with_rest_harness(scenario)


def test_other_values_are_stored_with_their_content_type() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("images", b"\xff\xd8\x00", content_type="image/jpeg")
        await harness.publish("images", b'{"a":1}', content_type="application/x-www-form-urlencoded")
        await harness.publish("images", b"")
        first, second, third = await records(harness, "images", count=3)
        assert (first.value, list(first.headers)) == (b"\xff\xd8\x00", [("content-type", b"image/jpeg")])
        assert (second.value, list(second.headers)) == (b'{"a":1}', [])
        assert third.value == b""

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a":', "byte 5"),
        (b'{"a":1,}', "byte 7"),
        (b'"\xff"', "UTF-8"),
        (b"", "byte 0"),
        (b"[" * 5000, "nested"),
    ],
)
def test_malformed_json_is_rejected_with_its_position(body: bytes, message: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask(
            "POST", "/topics/orders/messages", body, content_type="application/json; charset=utf-8"
        )
        assert (response.status, response.code) == (400, "malformed_json")
        assert message in response.json["message"]

    with_rest_harness(scenario)


def test_headrace_headers_set_properties_of_the_message() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "jobs", "partitions": 4})
        message_id = await harness.publish(
            "jobs",
            {"n": 1},
            headrace_key="c-42",
            headrace_partition="2",
            headrace_priority="9",
            headrace_ttl="90s",
            headrace_tags="red, blue",
            headrace_header_trace="t-1",
        )
        assert message_id == "jobs:2:0"
        (record,) = await records(harness, "jobs", 2)
        assert record.key == b"c-42"
        assert dict(record.headers) == {
            "trace": b"t-1",
            "headrace-priority": b"9",
            "headrace-ttl": b"90000ms",
            "headrace-tags": b"red, blue",
        }

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("headrace-partition", "x"),
        ("headrace-partition", "7"),
        ("headrace-priority", "10"),
        ("headrace-ttl", "soon"),
        ("headrace-delay", "-1"),
        ("headrace-delay", "1e400"),
        ("headrace-delay", "nan"),
        ("headrace-deliver-at", "tomorrow"),
        ("headrace-repeat", "now and then"),
        ("headrace-repeat", "0 0 31 2 *"),
        ("headrace-prioritty", "1"),
        ("idempotency-key", "x" * 300),
    ],
)
def test_an_invalid_header_is_rejected_and_nothing_is_written(header: str, value: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        before = produces(harness)
        response = await harness.ask("POST", "/topics/orders/messages", {}, **{header: value})
        assert response.status in (404, 422)
        assert response.code in ("invalid_parameter", "topic_not_found")
        assert produces(harness) == before

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    "name",
    [
        *("headrace-reply-to", "headrace-dead-topic", "headrace-dead-partition", "headrace-redriven"),
        *("headrace-dedup-id", "headrace-dedup-digest", "headrace-delay", "headrace-origin-topic", "headrace-new"),
    ],
)
def test_reserved_headers_cannot_be_set(name: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        before = produces(harness)
        response = await harness.ask("POST", "/topics/orders/messages", {}, **{f"headrace-header-{name}": "ledger"})
        assert (response.status, response.code) == (422, "reserved_header")
        for spelled in (name, name.title()):
            response = await harness.publish_batch("orders", {"value": 1, "headers": {spelled: "ledger"}})
            assert (response.status, response.code) == (422, "reserved_header")
        assert produces(harness) == before

    with_rest_harness(scenario)


def test_headers_for_message_properties_can_be_set() -> None:
    async def scenario(harness: RestHarness) -> None:
        for name in ("headrace-tags", "headrace-priority", "headrace-correlation-id"):
            await harness.publish("orders", {}, **{f"headrace-header-{name}": "1"})
            response = await harness.publish_batch("orders", {"value": 1, "headers": {name: "1"}})
            assert response.status == 201

    with_rest_harness(scenario)


def test_a_key_has_the_partition_that_kafka_clients_choose() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "jobs", "partitions": 4})
        for key in ("a", "b", "c-42"):
            first = await harness.publish("jobs", {}, headrace_key=key)
            response = await harness.publish_batch("jobs", {"value": 1, "key": key})
            again = response.json["messages"][0]["message_id"]
            assert message_id_from_text(first).partition == message_id_from_text(again).partition

    with_rest_harness(scenario)


def test_concurrent_requests_share_a_batch() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {"n": -1})
        before = produces(harness)
        async with asyncio.TaskGroup() as group:
            requested = [group.create_task(harness.publish("orders", {"n": number})) for number in range(50)]
        assert [task.result() for task in requested] == [f"orders:0:{number + 1}" for number in range(50)]
        assert produces(harness) - before <= 2
        values = [record.value for record in await records(harness, "orders", count=51)]
        assert values[1:] == [b'{"n":%d}' % number for number in range(50)]

    with_rest_harness(scenario)


def test_a_batch_request_is_one_record_batch() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "jobs", "partitions": 4})
        before = produces(harness)
        response = await harness.publish_batch("jobs", *({"value": {"n": number}} for number in range(100)))
        assert response.status == 201
        ids = [message_id_from_text(one["message_id"]) for one in response.json["messages"]]
        assert {place.partition for place in ids} == {ids[0].partition}
        assert [place.offset for place in ids] == list(range(100))
        assert produces(harness) - before == 1
        found = await records(harness, "jobs", ids[0].partition, 100)
        assert [record.value for record in found] == [b'{"n":%d}' % number for number in range(100)]

    with_rest_harness(scenario)


def test_converting_a_large_batch_yields_to_other_requests() -> None:
    # 10,000 keys of 1.5 kB, or 10,000 schedules, held the event loop for seconds.
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        turns = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
            messages = ({"value": 1, "key": "k", "repeat": f"{minute} * * * *"} for minute in range(50))
            publishing = asyncio.ensure_future(harness.publish_batch("orders", *messages))
            while not publishing.done():
                turns += 1
                await asyncio.sleep(0)
        assert publishing.result().status == 201
        assert turns >= 100  # at least one for each message when it is parsed, and one when its partition is chosen

    with_rest_harness(scenario)


def test_messages_of_a_batch_may_have_all_properties() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.publish_batch(
            "orders",
            {"value_base64": "AAE=", "content_type": "image/png", "headers": {"a": "b"}},
            {"value": None, "priority": 7, "ttl": 1.5, "tags": ["red", "blue"], "partition": 0},
            {"key": "gone"},
            {"value": "later", "delay": "1h"},
        )
        assert response.status == 201
        *now, later = response.json["messages"]
        assert [one["message_id"] for one in now] == ["orders:0:0", "orders:0:1", "orders:0:2"]
        assert later["message_id"] == "__delayed.orders:0:0"
        assert later["due_at"].endswith("Z")
        first, second, third = await records(harness, "orders", count=3)
        assert (first.value, dict(first.headers)) == (b"\0\1", {"a": b"b", "content-type": b"image/png"})
        assert second.value == b"null"
        assert dict(second.headers)["headrace-tags"] == b"red,blue"
        assert dict(second.headers)["headrace-ttl"] == b"1500ms"
        assert (third.key, third.value) == (b"gone", None)

    with_rest_harness(scenario)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "$.messages"),
        ([{"value": 1}, {"vlaue": 2}], "vlaue"),
        ([{"value": 1}, {"value": 1, "priority": 10}], "$.messages[1].priority"),
        ([{"value": 1}, {"value": 1, "delay": "soon"}], "message 1"),
        ([{"value": 1}, {"value": 1, "value_base64": "AA=="}], "message 1"),
        ([{"value_base64": "?"}], "base64"),
        ([{"value": 1, "headers": {f"h{number}": "" for number in range(1001)}}], "up to 1000 headers"),
    ],
)
def test_a_batch_with_an_invalid_message_is_rejected_as_a_whole(messages: list[Any], message: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        before = produces(harness)
        response = await harness.publish_batch("orders", *messages)
        assert response.status == 422
        assert message in response.json["message"]
        assert produces(harness) == before

    with_rest_harness(scenario)


def test_headers_for_single_messages_are_rejected_for_a_batch() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.publish_batch("orders", {"value": 1}, headrace_delay="1h")
        assert (response.status, response.code) == (422, "invalid_parameter")
        body = {"messages": [{"value": 1}]}
        response = await harness.ask("POST", "/topics/orders/messages?wait_for=reply", body, content_type=BATCH)
        assert (response.status, response.code) == (422, "invalid_parameter")

    with_rest_harness(scenario)


def test_a_failed_partition_does_not_affect_messages_of_others() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.publish_batch("orders", {"value": 1, "key": "a"}, {"value": 2, "partition": 9})
        assert response.status == 207
        good, bad = response.json["messages"]
        assert good == {"message_id": "orders:0:0"}
        assert bad["error"]["code"] == "topic_not_found"

    with_rest_harness(scenario)


def test_a_failed_message_does_not_affect_others_of_the_batch() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "latest", "configs": {"cleanup.policy": "compact"}})
        response = await harness.publish_batch(
            "latest", {"value": 1, "key": "a"}, {"value": 2}, {"value": 3, "key": "b"}
        )
        assert response.status == 207
        first, bad, last = response.json["messages"]
        assert (first, last) == ({"message_id": "latest:0:0"}, {"message_id": "latest:0:1"})
        assert bad["error"]["code"] == "invalid_message"
        async with asyncio.TaskGroup() as group:
            good = [
                group.create_task(harness.ask("POST", "/topics/latest/messages", {}, headrace_key="a")) for _ in "ab"
            ]
            keyless = group.create_task(harness.ask("POST", "/topics/latest/messages", {}))
        assert [task.result().status for task in good] == [201, 201]
        assert (keyless.result().status, keyless.result().code) == (422, "invalid_message")

    with_rest_harness(scenario)


def test_a_message_above_the_limit_of_the_topic_is_rejected() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "small", "configs": {"max.message.bytes": 1000}})
        response = await harness.ask("POST", "/topics/small/messages", b"x" * 2000)
        assert (response.status, response.code) == (413, "message_too_large")
        assert await harness.publish("small", b"x") == "small:0:0"

    with_rest_harness(scenario)


def test_a_batch_above_the_limit_of_the_topic_is_split() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "small", "configs": {"max.message.bytes": 1000}})
        response = await harness.publish_batch("small", *({"value": "x" * 300} for _ in range(10)))
        assert response.status == 201
        assert [one["message_id"] for one in response.json["messages"]] == [f"small:0:{number}" for number in range(10)]

    with_rest_harness(scenario)


def test_above_the_publish_budget_requests_get_retry_after() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        harness.application.publisher.settings = PublisherSettings(buffer_bytes_max=2000)
        async with asyncio.TaskGroup() as group:
            requested = [
                group.create_task(harness.ask("POST", "/topics/orders/messages", b"x" * 900)) for _ in range(4)
            ]
        response = [task.result() for task in requested]
        assert sorted(one.status for one in response) == [201, 201, 503, 503]
        assert response[3].code == "overloaded"
        assert response[3].headers["retry-after"] == "1"
        assert (await harness.ask("POST", "/topics/orders/messages", b"x" * 900)).status == 201

    with_rest_harness(scenario)


def test_a_retry_with_the_same_idempotency_key_returns_the_first_id() -> None:
    async def scenario(harness: RestHarness) -> None:
        harness.application.publisher.settings = PublisherSettings(sticky_bytes=1)
        await harness.ask("POST", "/topics", {"name": "pay", "partitions": 4, "configs": {"dedup.window.ms": 60_000}})
        first = await harness.publish("pay", {"n": 1}, idempotency_key="p-1")
        other = await harness.publish("pay", {"n": 2}, idempotency_key="p-2")
        async with asyncio.TaskGroup() as group:
            again = [group.create_task(harness.publish("pay", {"n": 1}, idempotency_key="p-1")) for _ in range(5)]
        assert {task.result() for task in again} == {first}
        assert other != first

    with_rest_harness(scenario)


def test_an_idempotency_key_belongs_to_the_token_that_sends_it() -> None:
    async def scenario(harness: RestHarness) -> None:
        one, other = await harness.token("manage:*"), await harness.token("manage:*")
        body = {"name": "pay", "configs": {"dedup.window.ms": 60_000}}
        await harness.ask("POST", "/topics", body, authorization=one)
        first = await harness.publish("pay", {"n": 1}, idempotency_key="p-1", authorization=one)
        second = await harness.publish("pay", {"n": 2}, idempotency_key="p-1", authorization=other)
        assert first != second
        shown = await harness.ask("GET", f"/topics/pay/messages/{second}", authorization=other)
        assert shown.json["value"] == {"n": 2}
        assert await harness.publish("pay", {"n": 1}, idempotency_key="p-1", authorization=one) == first

    with_rest_harness(scenario, with_auth=True)


def test_an_idempotency_key_that_is_used_for_another_message_is_rejected() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "configs": {"dedup.window.ms": 60_000}})
        first = await harness.publish("pay", {"n": 1}, idempotency_key="p-1")
        response = await harness.ask("POST", "/topics/pay/messages", {"n": 2}, idempotency_key="p-1")
        assert (response.status, response.code) == (422, REUSED)
        assert await harness.publish("pay", {"n": 1}, idempotency_key="p-1") == first

    with_rest_harness(scenario)


REUSED = "idempotency_key_reused"
Messages = list[dict[str, Any]]
ONE, TWO, THREE = {"value": 1}, {"value": 2}, {"value": 3}
KEYED: Messages = [{"value": number, "key": f"k{number}"} for number in range(8)]
LARGE: Messages = [{"value": "x" * 100_000, "tags": [str(number)]} for number in range(6)]
"""More messages than fit into one record batch."""


def end_offsets(harness: RestHarness, topic: str) -> dict[int, int]:
    """Return the end offsets of non-empty partitions."""
    led = harness.broker.catalogue.topic(topic).led.values()
    return {partition.index: partition.log.end_offset for partition in led if partition.log.end_offset}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([ONE, TWO], [ONE], id="shorter"),
        pytest.param([ONE, TWO], [ONE, TWO, THREE], id="longer"),
        pytest.param([ONE, TWO], [TWO, ONE], id="reordered"),
        pytest.param([ONE, TWO], [ONE, THREE], id="changed"),
        pytest.param([ONE, TWO], 1, id="single after batch"),
        pytest.param(1, [ONE, TWO], id="batch after single"),
        pytest.param(1, [ONE], id="batch of one after single"),
        pytest.param([ONE], 1, id="single after batch of one"),
        pytest.param({"messages": [ONE]}, [ONE], id="batch after single with the same body"),
        pytest.param([ONE], {"messages": [ONE]}, id="single with the same body after batch"),
        pytest.param(KEYED, KEYED[::-1], id="reordered keys"),
        pytest.param(KEYED, [*KEYED, {"value": 9, "key": "k9"}], id="longer with keys"),
        pytest.param(KEYED, KEYED[:2], id="shorter with keys"),
        pytest.param([ONE], LARGE, id="large after small"),
        pytest.param(LARGE, [*LARGE, ONE], id="longer and large"),
        pytest.param([ONE], [ONE, {"value": 2, "delay": "1h"}], id="with a delayed one"),
    ],
)
def test_an_idempotency_key_that_is_used_for_other_messages_stores_nothing(first: Any, second: Any) -> None:
    async def publish(harness: RestHarness, body: int | dict[str, Any] | Messages) -> ParsedResponse:
        if isinstance(body, list):
            return await harness.publish_batch("pay", *body, idempotency_key="k")
        return await harness.ask("POST", "/topics/pay/messages", body, idempotency_key="k")

    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "partitions": 4, "configs": {"dedup.window.ms": 60_000}})
        stored = await publish(harness, first)
        assert stored.status == 201
        before = end_offsets(harness, "pay")
        response = await publish(harness, second)
        assert (response.status, response.code) == (422, REUSED)
        assert end_offsets(harness, "pay") == before
        delayed = harness.broker.catalogue.find("__delayed.pay")
        assert delayed is None or not end_offsets(harness, delayed.name)
        assert (await publish(harness, first)).json == stored.json

    with_rest_harness(scenario)


def test_a_batch_that_reuses_an_idempotency_key_is_sent_to_the_broker_once() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "configs": {"dedup.window.ms": 60_000}})
        await harness.publish_batch("pay", *[ONE] * 50, idempotency_key="b-1")
        before = produces(harness)
        assert (await harness.publish_batch("pay", *[TWO] * 50, idempotency_key="b-1")).code == REUSED
        assert produces(harness) == before + 1

    with_rest_harness(scenario)


def test_concurrent_requests_with_one_idempotency_key_are_stored_once() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "partitions": 4, "configs": {"dedup.window.ms": 60_000}})
        pairs: list[tuple[Messages, Messages]] = [
            ([ONE, TWO], [ONE, TWO, THREE]),
            (LARGE, [*LARGE, ONE]),
            ([ONE], LARGE),
        ]
        for number, (one, other) in enumerate(pairs):
            key = f"b-{number}"
            async with asyncio.TaskGroup() as group:
                requested = [
                    group.create_task(harness.publish_batch("pay", *messages, idempotency_key=key))
                    for messages in (one, other, one, other)
                ]
            response = [task.result() for task in requested]
            assert sorted(one.status for one in response) == [201, 201, 422, 422]
            assert len({one.raw for one in response if one.status == 201}) == 1

    with_rest_harness(scenario)


def test_an_idempotency_key_is_known_at_other_gateways_and_to_a_new_leader() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "configs": {"dedup.window.ms": 60_000}})
        first = await harness.publish_batch("pay", ONE, TWO, idempotency_key="b-1")
        host = harness.host
        cluster = open_cluster(harness.broker, host.disk, host.network, host.clock, host.entropy, "rest")
        other = build_rest(cluster, with_auth=False)
        await harness.application.close()
        harness.application = other
        assert (await harness.publish_batch("pay", ONE, TWO, idempotency_key="b-1")).json == first.json
        assert (await harness.publish_batch("pay", ONE, TWO, THREE, idempotency_key="b-1")).status == 422
        dedup: DedupWindows = harness.broker.dedup
        dedup.begin(harness.broker.catalogue.partition("pay", 0))  # reads the log, like a new leader
        assert (await harness.publish_batch("pay", ONE, TWO, THREE, idempotency_key="b-1")).code == REUSED
        assert (await harness.publish_batch("pay", ONE, TWO, idempotency_key="b-1")).json == first.json

    with_rest_harness(scenario)


def test_a_retried_batch_with_an_idempotency_key_returns_the_first_ids() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.ask("POST", "/topics", {"name": "pay", "partitions": 4, "configs": {"dedup.window.ms": 60_000}})
        messages = [{"value": number} for number in range(5)]
        first = await harness.publish_batch("pay", *messages, idempotency_key="b-1")
        await harness.publish_batch("pay", *messages, idempotency_key="b-2")
        assert (await harness.publish_batch("pay", *messages, idempotency_key="b-1")).json == first.json

    with_rest_harness(scenario)


def test_a_delayed_message_is_delivered_at_its_due_time() -> None:
    async def scenario(harness: RestHarness) -> None:
        now_ms = harness.host.clock.now_ms()
        response = await harness.ask(
            "POST", "/topics/orders/messages", {"n": 1}, headrace_delay="10s", headrace_key="k"
        )
        assert response.json["message_id"] == "__delayed.orders:0:0"
        due_ms = time_ms(response.json["due_at"], "due_at")
        assert 10_000 <= due_ms - now_ms < 11_000
        at = await harness.ask("POST", "/topics/orders/messages", {}, headrace_deliver_at="2099-01-01T00:00:00+01:00")
        assert at.json["due_at"] == "2098-12-31T23:00:00.000Z"
        (record,) = await records(harness, "orders")
        assert (record.key, record.value) == (b"k", b'{"n":1}')
        assert 0 <= record.timestamp_ms - due_ms < 1000
        assert (await harness.publish("orders", {}, headrace_delay="0s")).startswith("orders:")

    with_rest_harness(scenario)


def test_a_repeated_message_is_due_by_its_schedule() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask("POST", "/topics/orders/messages", {}, headrace_repeat="0 6 * * *")
        assert response.json["due_at"].endswith("T06:00:00.000Z")
        both = await harness.ask(
            "POST", "/topics/orders/messages", {}, headrace_delay="1s", headrace_deliver_at="2099-01-01T00:00:00Z"
        )
        assert (both.status, both.code) == (422, "invalid_parameter")

    with_rest_harness(scenario)


def test_a_request_returns_its_reply() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("prices", {"warm": "up"})

        async def price_of(record: ConsumedRecord) -> bytes:
            assert record.key == b"c-42"
            return b'{"price":7}'

        async def work() -> None:
            async with (
                Responder(harness.cluster) as responder,
                Consumer(harness.cluster, partitions={TopicPartition("prices", 0): 1}) as consumer,
            ):
                await responder.answer(consumer, price_of)

        worker = harness.supervisor.spawn(work(), "worker")
        response = await harness.ask(
            "POST", "/topics/prices/messages?wait_for=reply&timeout=5s", {"sku": 1}, headrace_key="c-42"
        )
        assert response.status == 200
        assert response.json["value"] == {"price": 7}
        worker.cancel()
        await asyncio.wait([worker])
        late = await harness.ask("POST", "/topics/prices/messages?wait_for=reply&timeout=100ms", {"sku": 2})
        assert (late.status, late.code) == (504, "no_reply")

    with_rest_harness(scenario)


def test_a_consumer_can_reply_over_rest() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("prices", {"warm": "up"})
        requested = harness.supervisor.spawn(
            harness.ask("POST", "/topics/prices/messages?wait_for=reply&timeout=20s", {"sku": 1}), "asked"
        )
        request = (await records(harness, "prices", count=2))[1]
        headers = {name: (value or b"").decode() for name, value in request.headers}
        correlation = {"headrace_header_headrace_correlation_id": headers["headrace-correlation-id"]}
        await harness.publish(headers["headrace-reply-to"], {"price": 7}, **correlation)
        assert (await requested).json["value"] == {"price": 7}
        response = await harness.ask("POST", "/topics/__reply.gone/messages", {}, **correlation)
        assert (response.status, response.code) == (404, "topic_not_found")

    with_rest_harness(scenario)


@pytest.mark.parametrize("query", ["wait_for=godot", "wait_for=reply&timeout=2h", "wait_for=reply&timeout=x"])
def test_an_invalid_wait_is_rejected(query: str) -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask("POST", f"/topics/prices/messages?{query}", {})
        assert (response.status, response.code) == (422, "invalid_parameter")

    with_rest_harness(scenario)


def test_internal_topics_cannot_be_published_to() -> None:
    async def scenario(harness: RestHarness) -> None:
        for topic in ("__consumer_offsets", "__delayed.orders", "__mine"):
            response = await harness.ask("POST", f"/topics/{topic}/messages", {})
            assert (response.status, response.code) == (403, "topic_internal")

    with_rest_harness(scenario)


def test_publishing_creates_topics_only_if_the_broker_allows_it() -> None:
    async def scenario(harness: RestHarness) -> None:
        response = await harness.ask("POST", "/topics/orders/messages", {})
        assert (response.status, response.code) == (404, "topic_not_found")
        batch = await harness.publish_batch("orders", {"value": 1})
        assert (batch.status, batch.code) == (404, "topic_not_found")
        odd = await harness.ask("POST", "/topics/or%20ders/messages", {})
        assert (odd.status, odd.code) == (422, "invalid_topic")

    with_rest_harness(scenario, auto_create_topics_enable="false")


def test_publishing_notices_a_deleted_topic() -> None:
    async def scenario(harness: RestHarness) -> None:
        await harness.publish("orders", {})
        await harness.broker.catalogue.delete("orders")
        response = await harness.ask("POST", "/topics/orders/messages", {})
        assert (response.status, response.code) == (404, "topic_not_found")
        assert await harness.publish("orders", {}) == "orders:0:0"

    with_rest_harness(scenario)


def test_a_batch_is_recognized_by_its_content_type_only() -> None:
    async def scenario(harness: RestHarness) -> None:
        body = b'{"messages":[{"value":1}]}'
        single = await harness.ask("POST", "/topics/orders/messages", body, content_type="application/json")
        assert single.json == {"message_id": "orders:0:0"}
        batch = await harness.ask("POST", "/topics/orders/messages", body, content_type=f"{BATCH}; charset=utf-8")
        assert batch.json == {"messages": [{"message_id": "orders:0:1"}]}

    with_rest_harness(scenario)
