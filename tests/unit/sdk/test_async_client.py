"""The async client: publishing, requests and replies, handlers, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from tests.unit.sdk.simulated_client import next_of, run_scenario, sdk

from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.errors import Unreachable
from headrace.model.errors import InvalidRecordState, MessageTooLarge, RequestTimedOut
from headrace.sdk import (
    AsyncClient,
    AsyncMessage,
    ClientClosed,
    NewMessage,
    NotEncodable,
    PublishFailed,
    Reject,
    Reply,
)
from headrace.testkit.world import World


async def double(message: AsyncMessage) -> object:
    return {"twice": 2 * int(message.text)}


def test_a_receipt_has_the_position_of_the_message() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        receipt = await client.publish("orders", {"id": 1}, key="c-42", headers={"type": "order"})
        assert str(receipt.id) == "orders:0:0"
        message = await next_of(client.subscribe("orders", "billing"))
        assert message.id == receipt.id
        assert (message.key, message.json(), message.headers) == ("c-42", {"id": 1}, {"type": "order"})

    run_scenario(scenario)


def test_publish_many_names_the_failed_messages() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        rows = [NewMessage(value="a", key="k"), object(), b"x" * 2_000_000, {"d": 4}]
        with pytest.raises(PublishFailed, match="2 of 4 messages failed, the first of them message 1") as failed:
            await client.publish_many("orders", rows)
        assert [receipt and receipt.offset for receipt in failed.value.receipts] == [0, None, None, 1]
        assert isinstance(failed.value.failures[1], NotEncodable)
        assert isinstance(failed.value.failures[2], MessageTooLarge)
        assert await client.publish_many("orders", []) == []

    run_scenario(scenario)


def test_the_topic_decides_how_large_a_message_may_be() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.create_topic("large", configs={"max.message.bytes": 4_000_000})
        await client.publish("large", b"x" * 3_000_000)
        message = await next_of(client.subscribe("large", "billing"))
        assert message.value == b"x" * 3_000_000
        with pytest.raises(MessageTooLarge, match=r"has 50000\d\d bytes; max.message.bytes of the topic is 4000000"):
            await client.publish("large", b"x" * 5_000_000)
        with pytest.raises(MessageTooLarge, match=r"more than this client sends at once \(67108864\)"):
            await client.publish("large", bytes(64 << 20))

    run_scenario(scenario)


def test_subscriptions_and_topics_are_configured_with_numbers() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.create_topic("jobs", configs={"retention.ms": 60_000})
        await client.create_subscription("jobs", "workers", configs={"share.delivery.count.limit": 10})
        found = await SubscriptionAdmin(client.cluster).configs("jobs", "workers")
        assert found == {"share.delivery.count.limit": "10"}

    run_scenario(scenario)


def test_a_delayed_message_is_cancelled_by_its_id_as_text() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        first, second = [await client.publish("orders", "never", delay="30m") for _ in range(2)]
        await client.cancel(str(first.id))
        await client.cancel(second.id)
        for receipt in (first, second):
            with pytest.raises(InvalidRecordState):
                await client.cancel(receipt)

    run_scenario(scenario)


def test_a_closed_client_says_so() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("orders", "a")
        messages = client.subscribe("orders", "billing")
        await client.close()
        assert await messages.take() is None
        calls: list[Callable[[], object]] = [
            lambda: client.subscribe("orders", "billing"),
            lambda: client.consume("orders"),
            lambda: client.transaction("payments"),
            lambda: client.publish("orders", "a"),
            lambda: client.publish_many("orders", ["a"]),
            lambda: client.cancel("__delayed.orders:0:0"),
            lambda: client.request("orders", "a"),
            lambda: client.work("orders", "billing", double),
            lambda: client.respond("orders", "billing", double),
            lambda: client.create_topic("orders"),
            lambda: client.create_subscription("orders", "billing"),
            lambda: client.dead_letters("orders"),
            lambda: client.redrive("orders"),
        ]
        for call in calls:
            with pytest.raises(ClientClosed, match="This client is closed; create another one"):
                await cast("Awaitable[object]", call())
        await client.close()

    run_scenario(scenario)


def test_a_client_that_was_never_used_cannot_be_used_after_it_was_closed() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        other = sdk(world, "there")
        await other.close()
        with pytest.raises(ClientClosed):
            await other.publish("orders", "a")

    run_scenario(scenario)


def test_delayed_messages_are_delivered_later_unless_cancelled() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        began = world.clock.monotonic()
        await client.publish("orders", "in an hour", delay="1h")
        cancelled = await client.publish("orders", "never", delay="30m")
        await client.cancel(cancelled)
        with pytest.raises(InvalidRecordState):
            await client.cancel(cancelled)
        assert (await next_of(client.subscribe("orders", "billing"))).text == "in an hour"
        assert 3600 <= world.clock.monotonic() - began < 3602

    run_scenario(scenario)


def test_the_same_dedup_id_is_written_once_also_without_a_key() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.create_topic("orders", partitions=8, configs={"dedup.window.ms": "60000"})
        receipts = {await client.publish("orders", b"a", dedup_id="order-7") for _ in range(5)}
        assert len(receipts) == 1

    run_scenario(scenario)


def test_every_request_gets_what_the_handler_returns() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        async with sdk(world, "there") as other:
            responding = asyncio.create_task(other.respond("prices", "pricing", double))
            async with asyncio.TaskGroup() as tasks:
                requested = [tasks.create_task(client.request("prices", at, timeout="5s")) for at in range(10)]
            replies: list[Reply] = [task.result() for task in requested]
            assert [reply.json() for reply in replies] == [{"twice": 2 * at} for at in range(10)]
            other.stop()
            await responding

    run_scenario(scenario)


def test_an_unanswered_request_times_out_and_is_not_handled_later() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        worked: list[str] = []

        async def handler(message: AsyncMessage) -> None:
            worked.append(message.text)
            client.stop()

        with pytest.raises(RequestTimedOut, match="no reply to a request in prices within 5 s"):
            await client.request("prices", "too late", timeout=5)
        await client.publish("prices", "asks for no reply")
        await client.respond("prices", "pricing", handler)
        assert worked == ["asks for no reply"]

    run_scenario(scenario)


def test_handlers_run_concurrently_and_a_stop_waits_for_them() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", range(7))
        most, running, done = 0, 0, []

        async def handler(message: AsyncMessage) -> None:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await asyncio.sleep(100)
            running -= 1
            done.append(message.json())
            if len(done) == 4:
                client.stop()

        began = world.clock.monotonic()
        await client.work("jobs", "workers", handler, concurrency=3)
        assert (most, running) == (3, 0)
        assert sorted(done) == [0, 1, 2, 3, 4, 5]
        assert world.clock.monotonic() - began < 201

    run_scenario(scenario)


def test_a_handler_error_redelivers_the_message_and_a_reject_does_not() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish_many("jobs", ["flaky", "bad"])
        seen: list[tuple[str, int]] = []

        async def handler(message: AsyncMessage) -> None:
            seen.append((message.text, message.attempt))
            if message.text == "bad":
                raise Reject("cannot be read")
            if message.attempt < 3:
                raise OSError("try again")
            client.stop()

        await client.work("jobs", "workers", handler)
        assert sorted(seen) == [("bad", 1), ("flaky", 1), ("flaky", 2), ("flaky", 3)]
        async with sdk(world, "there") as other:
            await asyncio.sleep(1)
            (letter,) = await other.dead_letters("jobs")
            assert letter.record.value == b"bad"
            assert (await other.redrive("jobs", [])).settled == 0, "no letter is selected"
            assert await other.dead_letters("jobs") == [letter]
            assert (await other.redrive("jobs")).settled == 1
            assert await other.dead_letters("jobs") == []
            assert (await next_of(other.subscribe("jobs", "workers"))).text == "bad"

    run_scenario(scenario)


def test_a_redrive_reaches_other_subscriptions_only_on_request() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("jobs", "bad")
        auditors, workers = client.subscribe("jobs", "auditors"), client.subscribe("jobs", "workers")
        await (await next_of(auditors)).ack()
        for to_all in (False, True):
            await (await next_of(workers)).reject()
            while not await client.dead_letters("jobs"):
                await asyncio.sleep(0.1)
            assert (await client.redrive("jobs", to_all=to_all)).settled == 1
            (theirs,) = await SubscriptionAdmin(client.cluster).describe("auditors", ["jobs"])
            assert theirs.backlog == int(to_all)
        copy = await next_of(workers)
        assert (copy.id.offset, copy.headers["headrace-redriven"]) == (1, "2")

    run_scenario(scenario)


def test_dead_letters_are_empty_without_a_dead_letter_topic() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.create_topic("jobs")
        assert await client.dead_letters("jobs") == []
        assert (await client.redrive("jobs")).settled == 0
        assert await client.create_topic("jobs") is False

    run_scenario(scenario)


def test_cancelled_work_releases_its_messages() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", "a")
        begun = asyncio.Event()

        async def handler(_: AsyncMessage) -> None:
            begun.set()
            await asyncio.sleep(3600)

        working = asyncio.create_task(client.work("jobs", "workers", handler))
        await begun.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        cancelled_at = world.clock.monotonic()
        assert (await next_of(client.subscribe("jobs", "workers"))).attempt == 1
        assert world.clock.monotonic() - cancelled_at < 1

    run_scenario(scenario)


async def test_the_error_without_a_broker_says_how_to_start_one() -> None:
    async with AsyncClient("127.0.0.1:1", timeout=0.05) as client:
        with pytest.raises(Unreachable, match=r"127.0.0.1:1: connection refused; start a broker with `headrace serve`"):
            await client.publish("orders", b"a")
