"""Transactions of the SDK: writes and acked records are committed together or not at all."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.sdk.simulated_client import next_of, run_scenario, sdk

from headrace.client.groups.offsets import committed
from headrace.model.errors import IllegalGeneration, InvalidRequest, ProducerFenced, UnknownMemberId
from headrace.sdk import AsyncClient, AsyncStream
from headrace.testkit.world import World


async def read(client: AsyncClient, topic: str, count: int) -> list[str]:
    async with client.consume(topic) as stream:
        return [await text_of(stream) for _ in range(count)]


async def text_of(stream: AsyncStream) -> str:
    record = await stream.take()
    assert record is not None
    return record.text


def test_the_end_commits_and_an_exception_aborts() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        async with client.transaction("t-1") as tx:
            await tx.publish("ledger", "a")
            await tx.publish("book", {"b": 1}, key="k")

        async def change_my_mind() -> None:
            async with client.transaction("t-1") as tx:
                await tx.publish("ledger", "never read")
                raise ValueError("changed my mind")

        with pytest.raises(ValueError, match="changed my mind"):
            await change_my_mind()
        async with client.transaction("t-1") as tx:
            await tx.publish("ledger", "c")
        async with client.transaction("t-1"):
            pass
        assert await read(client, "ledger", 2) == ["a", "c"]
        assert await read(client, "book", 1) == ['{"b":1}']

    run_scenario(scenario)


def test_records_are_acked_together_with_their_results() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("payments", ["1", "2", "3"])
        async with client.consume("payments", group="bank", commit="manual") as stream:
            async for record in stream:
                async with client.transaction("t-1") as tx:
                    tx.ack(record)
                    await tx.publish("ledger", f"booked {record.text}")
                if record.text == "2":
                    break
        assert await read(client, "ledger", 2) == ["booked 1", "booked 2"]
        assert [one.offset for one in (await committed(client.cluster, "bank")).values()] == [2]

    run_scenario(scenario)


def test_after_an_abort_the_stream_is_rewound_to_the_acked_records() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish_many("payments", ["1", "2", "3"])
        failures = 2
        async with client.consume("payments", group="bank", commit="manual") as stream:
            async for records in stream.batches(2):
                try:
                    async with client.transaction("t-1") as tx:
                        tx.ack(*records)
                        for record in records:
                            await tx.publish("ledger", record.text)
                        if failures:
                            failures -= 1
                            raise ConnectionError("the bank is closed")
                except ConnectionError:
                    continue
                if records[-1].text == "3":
                    break
        assert await read(client, "ledger", 3) == ["1", "2", "3"]
        assert [one.offset for one in (await committed(client.cluster, "bank")).values()] == [3]

    run_scenario(scenario)


def test_a_new_producer_fences_the_previous_one_with_the_same_id() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        async with sdk(world, "there") as other:

            async def be_slow() -> None:
                async with client.transaction("t-1") as mine:
                    await mine.publish("ledger", "mine")
                    await asyncio.sleep(1)
                    async with other.transaction("t-1") as theirs:
                        await theirs.publish("ledger", "theirs")
                    await mine.publish("ledger", "mine again")

            with pytest.raises(ProducerFenced, match="'t-1' has taken over"):
                await be_slow()
            with pytest.raises(ProducerFenced, match="give every worker an id of its own"):
                async with client.transaction("t-1") as mine:
                    await mine.publish("ledger", "still mine?")
            assert await read(client, "ledger", 1) == ["theirs"]

    run_scenario(scenario)


def test_a_member_that_lost_its_partition_commits_nothing() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        await client.publish("payments", "1")
        async with sdk(world, "there") as other:
            slow, quick = (one.consume("payments", group="bank", commit="manual") for one in (client, other))
            mine = await slow.take()
            assert mine is not None
            theirs = await quick.take()  # when the group has waited long enough for a member that asks for nothing
            assert theirs is not None

            async def book() -> None:
                async with client.transaction("t-1") as tx:
                    tx.ack(mine)
                    await tx.publish("ledger", "mine")

            with pytest.raises((IllegalGeneration, UnknownMemberId)):
                await book()
            async with other.transaction("t-2") as tx:
                tx.ack(theirs)
                await tx.publish("ledger", "theirs")
            assert await read(client, "ledger", 1) == ["theirs"]

    run_scenario(scenario)


def test_transactions_of_one_id_wait_for_each_other() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        async def write(text: str) -> None:
            async with client.transaction("t-1") as tx:
                for _ in range(2):
                    await tx.publish("ledger", text)
                    await asyncio.sleep(1)

        async with asyncio.TaskGroup() as tasks:
            for text in ("a", "b"):
                tasks.create_task(write(text))
        assert sorted(await read(client, "ledger", 4)) == ["a", "a", "b", "b"]

    run_scenario(scenario)


def test_only_records_of_a_stream_with_manual_commits_can_be_acked() -> None:
    async def scenario(client: AsyncClient, _world: World) -> None:
        await client.publish("payments", "1")
        for stream in (client.consume("payments"), client.consume("payments", group="bank")):
            record = await stream.take()
            assert record is not None
            with pytest.raises(InvalidRequest, match='commit="manual"'):
                async with client.transaction("t-1") as tx:
                    tx.ack(record)

    run_scenario(scenario)


def test_delayed_messages_of_a_transaction_are_delivered_only_after_its_commit() -> None:
    async def scenario(client: AsyncClient, world: World) -> None:
        async def publish(text: str, *, fails: bool) -> None:
            async with client.transaction("t-1") as tx:
                await tx.publish("orders", text, delay="10m")
                if fails:
                    raise ValueError(text)

        with pytest.raises(ValueError, match="never"):
            await publish("never", fails=True)
        await publish("later", fails=False)
        assert (await next_of(client.subscribe("orders", "billing"))).text == "later"
        assert world.clock.monotonic() >= 600

    run_scenario(scenario)
