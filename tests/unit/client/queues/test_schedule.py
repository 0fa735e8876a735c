"""Messages are scheduled, listed over all partitions, cancelled and moved from a client."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.fetch.consumer import Consumer
from headrace.client.queues.schedule import Schedule, When, topic_of
from headrace.model.errors import InvalidRecordState, InvalidRequest, UnknownTopicOrPartition
from headrace.model.ids import message_id_from_text
from headrace.testkit.world import World


def test_a_message_is_scheduled_rescheduled_and_released() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            schedule = Schedule(cluster, "orders")
            assert await schedule.count() == 0
            where = await schedule.add(b"hello", key=b"k", headers=[("a", b"1")], when=When(delay_ms=3_600_000))
            (found,) = [message async for message in schedule.messages()]
            assert (found.id, found.key, found.value, found.repeat) == (where, b"k", b"hello", None)
            await schedule.move(where, cluster.clock.now_ms() + 2000)
            async with Consumer(cluster, ["orders"]) as consumer:
                async for record in consumer:
                    assert (record.key, record.value) == (b"k", b"hello")
                    assert dict(record.headers) == {"a": b"1", "headrace-delayed-id": str(where).encode()}
                    break
            assert await schedule.count() == 0
            with pytest.raises(InvalidRecordState):
                await schedule.cancel(where)

    in_world(scenario)


def test_the_list_is_in_order_over_all_partitions_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.queues.schedule._PAGE", 3)

    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 3))
            schedule = Schedule(cluster, "orders")
            for number in range(20):
                when = When(due_ms=2_000_000_000_000 + number * 7 % 20)
                await schedule.add(b"%d" % number, when=when, partition=number % 3)
            found = [message.due_ms - 2_000_000_000_000 async for message in schedule.messages()]
            assert found == list(range(20))
            assert await schedule.count() == 20

    in_world(scenario)


def test_messages_that_wait_in_a_partition_that_another_client_has_added_are_counted() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, client(world) as other:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            schedule = Schedule(cluster, "orders")
            await schedule.add(b"a", when=When(delay_ms=3_600_000))
            assert await schedule.count() == 1
            await TopicAdmin(other).add_partitions("orders", 2)
            await Schedule(other, "orders").add(b"b", when=When(delay_ms=3_600_000), partition=1)
            assert await schedule.count() == 2
            assert [message.value async for message in schedule.messages()] == [b"a", b"b"]

    in_world(scenario)


def test_a_cancelled_message_does_not_come() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            schedule = Schedule(cluster, "orders")
            where = await schedule.add(b"tick", when=When(repeat="every 1s"))
            await schedule.cancel(where)
            await asyncio.sleep(3)
            assert [message async for message in schedule.messages()] == []

    in_world(scenario)


def test_invalid_schedules_are_rejected() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            schedule = Schedule(cluster, "orders")
            for when in (When(due_ms=1, delay_ms=1), When(repeat="often")):
                with pytest.raises(InvalidRequest):
                    await schedule.add(b"x", when=when)
            with pytest.raises(InvalidRequest):
                await schedule.cancel(message_id_from_text("__delayed.other:0:1"))
            with pytest.raises(UnknownTopicOrPartition):
                await Schedule(cluster, "unknown").count()

    in_world(scenario)


def test_the_id_contains_the_topic_of_a_delayed_message() -> None:
    assert topic_of(message_id_from_text("__delayed.orders:3:5")) == "orders"
    for text in ("orders:3:5", "__acks.orders:3:5"):
        with pytest.raises(InvalidRequest):
            topic_of(message_id_from_text(text))
