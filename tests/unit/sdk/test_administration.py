"""Looking at subscriptions and topics, and changing them."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.sdk.simulated_client import next_of, run_scenario

from headrace.client.errors import SubscriptionNotFound
from headrace.model.errors import InvalidRequest, UnknownTopicOrPartition
from headrace.sdk import AsyncClient, Backlog
from headrace.sdk.times import time_of
from headrace.testkit.world import World


def test_the_backlog_counts_what_is_not_settled() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        published_at = time_of(world.clock.now_ms())
        await client.publish_many("jobs", ["a", "b", "c"])
        async with client.subscribe("jobs", "workers", prefetch=1) as messages:
            await (await next_of(messages)).ack()
            held = await next_of(messages)
            backlog = await client.backlog("jobs", "workers")
            assert (backlog.messages, backlog.leased, backlog.waiting, backlog.dying) == (2, 1, 0, 0)
            assert backlog.oldest_at is not None
            assert backlog.oldest_at >= published_at
            await held.nack(delay="1h")
            assert (await client.backlog("jobs", "workers")).waiting == 1
        await client.seek("jobs", "workers", "latest")
        assert await client.backlog("jobs", "workers") == Backlog(0, 0, 0, 0, None)
        with pytest.raises(SubscriptionNotFound, match="there is no subscription 'wrkers'"):
            await client.backlog("jobs", "wrkers")

    run_scenario(scenario)


def test_peeking_leases_nothing() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("jobs", [{"id": 1}, {"id": 2}, {"id": 3}])
        await client.create_subscription("jobs", "workers")
        peeked = await client.peek("jobs", "workers", 2)
        assert [(message.json(), message.state, message.attempts) for message in peeked] == [
            ({"id": 1}, "ready", 0),
            ({"id": 2}, "ready", 0),
        ]
        assert [str(message.id) for message in await client.peek("jobs", "workers")] == [
            "jobs:0:0",
            "jobs:0:1",
            "jobs:0:2",
        ]
        assert (await next_of(client.subscribe("jobs", "workers"))).attempt == 1
        with pytest.raises(InvalidRequest, match="count=0 is not valid"):
            await client.peek("jobs", "workers", 0)

    run_scenario(scenario)


def test_a_subscription_moves_to_a_position() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("jobs", "a")
        await asyncio.sleep(60)
        later = time_of(world.clock.now_ms())
        await client.publish("jobs", "b")
        await client.create_subscription("jobs", "workers", start="latest")
        for to, texts in (("earliest", ["a", "b"]), (later, ["b"]), (later.isoformat(), ["b"]), ("latest", [])):
            await client.seek("jobs", "workers", to)
            assert [message.text for message in await client.peek("jobs", "workers")] == texts
        for wrong in ("start", 5, None, "5"):
            with pytest.raises(InvalidRequest):
                await client.seek("jobs", "workers", wrong)  # type: ignore[arg-type]

    run_scenario(scenario)


def test_dead_letters_are_discarded_only_by_name() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("jobs", ["a", "b"])
        async with client.subscribe("jobs", "workers") as messages:
            for _ in range(2):
                await (await next_of(messages)).reject("no use")
        while len(letters := await client.dead_letters("jobs")) < 2:
            await asyncio.sleep(1)
        assert (await client.discard("jobs", [])).settled == 0
        assert (await client.discard("jobs", letters[:1])).settled == 1
        assert await client.dead_letters("jobs") == letters[1:]
        await client.create_topic("quiet")
        assert (await client.discard("quiet", letters)).settled == 0

    run_scenario(scenario)


def test_the_lag_of_a_group_is_what_it_has_not_read() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("orders", range(5))
        async with client.consume("orders", group="reports", commit="manual") as stream:
            for _ in range(2):
                record = await stream.take()
                assert record is not None
                await stream.commit(record)
            assert await client.lag("reports") == {"orders": 3}

    run_scenario(scenario)


def test_topics_are_listed_purged_and_deleted() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.create_topic("orders", partitions=2)
        await client.publish_many("orders", range(5))
        await client.create_subscription("orders", "billing")
        assert await client.topics() == ["orders"], "without internal topics"
        await client.purge("orders")
        assert (await client.backlog("orders", "billing")).messages == 0
        await client.publish("orders", "after")
        assert (await next_of(client.subscribe("orders", "billing"))).text == "after"
        assert await client.delete_topic("orders")
        assert not await client.delete_topic("orders")
        assert await client.topics() == []
        with pytest.raises(UnknownTopicOrPartition):
            await client.purge("orders")
        assert (await client.publish("orders", "again")).offset == 0

    run_scenario(scenario, num_partitions="1")
