"""Streams: which records are delivered, count as processed, and are delivered again."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.sdk.simulated_client import run_scenario, sdk

from headrace.client.groups.offsets import committed
from headrace.sdk import AsyncClient, AsyncStream
from headrace.testkit.world import World


async def texts(stream: AsyncStream, count: int) -> list[str]:
    found = []
    for _ in range(count):
        record = await stream.take()
        assert record is not None
        found.append(record.text)
    return found


async def done(client: AsyncClient, group: str = "readers") -> list[int]:
    return [one.offset for one in (await committed(client.cluster, group)).values()]


def test_everything_is_read_in_order_and_again_without_a_group() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b", "c"])
        for _ in range(2):
            async with client.consume("events") as stream:
                assert await texts(stream, 3) == ["a", "b", "c"]

    run_scenario(scenario)


def test_a_group_continues_at_its_committed_offsets() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b", "c"])
        async with client.consume("events", group="readers") as stream:
            assert await texts(stream, 2) == ["a", "b"]
        assert await done(client) == [2]
        async with client.consume("events", group="readers") as stream:
            assert await texts(stream, 1) == ["c"]

    run_scenario(scenario)


def test_failed_records_are_delivered_again() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b"])

        async def read() -> None:
            async with client.consume("events", group="readers") as stream:
                async for record in stream:
                    if record.text == "b":
                        raise ValueError("b fails")

        with pytest.raises(ValueError, match="b fails"):
            await read()
        assert await done(client) == [1]

    run_scenario(scenario)


def test_leaving_a_loop_without_async_with_repeats_the_last_record() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b"])
        async for record in client.consume("events", group="readers"):
            if record.text == "b":
                break
        await asyncio.sleep(10)
        assert await done(client) == [1]

    run_scenario(scenario)


def test_a_stop_ends_the_loop_and_delivered_records_count_as_processed() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b", "c"])
        async for record in client.consume("events", group="readers"):
            if record.text == "b":
                client.stop()
        assert await done(client) == [2]

    run_scenario(scenario)


def test_a_stop_ends_a_wait_for_records() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.create_topic("events")
        waiting = asyncio.create_task(client.consume("events", group="readers").take())
        await asyncio.sleep(10)
        client.stop()
        assert await waiting is None

    run_scenario(scenario)


def test_with_manual_commits_nothing_is_committed_automatically() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b", "c"])
        async with client.consume("events", group="readers", commit="manual") as stream:
            first = await stream.take()
            assert first is not None
            assert await texts(stream, 1) == ["b"]
            await asyncio.sleep(60)
            assert await done(client) == []
            await stream.commit(first)
            assert await done(client) == [1]
            await stream.commit()
            assert await done(client) == [2]
            assert await texts(stream, 1) == ["c"]
        assert await done(client) == [2]

    run_scenario(scenario)


def test_batches_have_the_available_records() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("events", ["a", "b", "c"])
        sizes = []
        async with client.consume("events", group="readers") as stream:
            async for records in stream.batches(2):
                sizes.append(len(records))
                if sum(sizes) == 3:
                    break
        assert sizes == [2, 1]
        assert await done(client) == [3]

    run_scenario(scenario)


def test_members_of_a_group_share_the_partitions() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.create_topic("events", partitions=2)
        async with sdk(world, "there") as other:
            mine, theirs = (one.consume(["events"], group="readers") for one in (client, other))
            taking = [asyncio.create_task(stream.take()) for stream in (mine, theirs)]
            await asyncio.sleep(30)
            for partition in (0, 1):
                await client.publish("events", b"", partition=partition)
            records = [await task for task in taking]
            assert sorted(record.partition for record in records if record is not None) == [0, 1]

    run_scenario(scenario)


def test_a_stream_can_start_at_the_end() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("events", "old")
        async with client.consume("events", start="latest") as stream:
            await client.publish("events", "new")
            assert await texts(stream, 1) == ["new"]

    run_scenario(scenario)
