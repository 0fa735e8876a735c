"""Many callers share batches, and each gets the offsets or errors of its own records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerClosed
from headrace.client.produce.publisher import Overloaded, PendingPublish, Publisher, PublisherSettings
from headrace.model.errors import (
    HeadraceError,
    InvalidRecord,
    MessageTooLarge,
    NotLeader,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.batches.batch import BatchRecord
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse


def rejected(code: int) -> ProduceResponse:
    result = PartitionProduceResponse(index=0, error_code=code, base_offset=-1)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[result])])


def records(*values: bytes) -> list[BatchRecord]:
    return [BatchRecord(value=value) for value in values]


async def publish(publisher: Publisher, *values: bytes, alone: bool = False) -> list[int]:
    view = publisher.cached_topic("orders") or await publisher.topic("orders")
    found: list[int] = []
    for shipment in publisher.submit(view, records(*values), 0, alone=alone):
        for outcome in await shipment.outcomes():
            if isinstance(outcome, HeadraceError):
                raise outcome
            found.append(outcome)
    return found


def test_concurrent_callers_share_a_batch_and_each_gets_its_own_offsets() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            await publisher.topic("orders")
            async with asyncio.TaskGroup() as group:
                requested = [group.create_task(publish(publisher, b"%d" % n, b"%d'" % n)) for n in range(20)]
            assert [task.result() for task in requested] == [[2 * n, 2 * n + 1] for n in range(20)]
            assert broker.count(apis.PRODUCE) == 1
            assert publisher.buffered_bytes == 0
            await publisher.close()

    in_world(scenario)


def test_records_that_need_their_own_batch_share_none() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            await publisher.topic("orders")
            async with asyncio.TaskGroup() as group:
                requested = [
                    group.create_task(publish(publisher, value, alone=alone))
                    for value, alone in ((b"a", False), (b"b", True), (b"c", False), (b"d", False), (b"e", True))
                ]
            assert [task.result() for task in requested] == [[0], [1], [2], [3], [4]]
            assert broker.count(apis.PRODUCE) == 4
            await publisher.close()

    in_world(scenario)


def test_records_that_exceed_one_batch_are_written_in_several_in_order() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster, PublisherSettings(batch_bytes_max=1000))
            values = [b"%d" % number * 300 for number in range(8)] + [b"x" * 5000, b"y"]
            assert await publish(publisher, *values) == list(range(10))
            assert scripted_cluster.values("orders") == values
            await publisher.close()

    in_world(scenario)


def test_a_batch_rejected_as_too_large_is_split_and_every_caller_gets_a_result() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, rejected(MessageTooLarge.code))
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            await publisher.topic("orders")
            async with asyncio.TaskGroup() as group:
                requested = [group.create_task(publish(publisher, b"1", b"2", b"3")) for _ in range(3)]
            assert [task.result() for task in requested] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
            await publisher.close()

    in_world(scenario)


@pytest.mark.parametrize("fault", [rejected(NotLeader.code), Fault.CLOSE, Fault.DONE_THEN_CLOSE])
def test_temporary_faults_are_retried_and_nothing_is_written_twice(fault: object) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, fault)
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            assert await publish(publisher, b"a", b"b") == [0, 1]
            assert scripted_cluster.values("orders") == [b"a", b"b"]
            await publisher.close()

    in_world(scenario)


def test_an_error_reaches_all_callers_with_records_in_the_batch() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, rejected(PolicyViolation.code))
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            await publisher.topic("orders")

            async def fails() -> type[HeadraceError]:
                with pytest.raises(HeadraceError) as raised:
                    await publish(publisher, b"bad")
                return raised.type

            async with asyncio.TaskGroup() as group:
                requested = [group.create_task(fails()) for _ in range(3)]
            assert {task.result() for task in requested} == {PolicyViolation}
            assert await publish(publisher, b"good") == [0]
            assert publisher.buffered_bytes == 0
            await publisher.close()

    in_world(scenario)


def test_only_the_invalid_record_is_rejected() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        # Of four records the third is bad: the whole, the second half, and at last the record itself are refused.
        bad = rejected(InvalidRecord.code)
        broker.script(apis.PRODUCE, bad, broker._behave, bad, bad)
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            view = await publisher.topic("orders")
            (first,) = publisher.submit(view, records(b"a"), 0)
            (second,) = publisher.submit(view, records(b"b", b"bad", b"d"), 0)
            assert list(await first.outcomes()) == [0]
            one, two, three = await second.outcomes()
            assert (one, type(two), three) == (1, InvalidRecord, 2)
            assert scripted_cluster.values("orders") == [b"a", b"b", b"d"]
            assert publisher.buffered_bytes == 0
            await publisher.close()

    in_world(scenario)


def test_each_partition_is_written_by_a_request_of_its_own() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=3)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            view = await publisher.topic("orders")
            shipments = [publisher.submit(view, records(b"a"), partition)[0] for partition in (0, 1, 2, 0)]
            assert [list(await shipment.outcomes()) for shipment in shipments] == [[0], [0], [0], [1]]
            assert broker.count(apis.PRODUCE) == 3
            await publisher.close()

    in_world(scenario)


def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            await publisher.topic("orders")
            impatient = asyncio.create_task(publish(publisher, b"a"))
            patient = asyncio.create_task(publish(publisher, b"b"))
            await asyncio.sleep(0)
            impatient.cancel()
            assert await patient == [1]
            assert scripted_cluster.values("orders") == [b"a", b"b"]
            await publisher.close()

    in_world(scenario)


def test_records_beyond_the_buffer_limit_are_rejected_at_once() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster, PublisherSettings(buffer_bytes_max=1000))
            view = await publisher.topic("orders")
            (shipment,) = publisher.submit(view, records(b"x" * 700), 0)
            with pytest.raises(Overloaded):
                publisher.submit(view, records(b"x" * 700), 0)
            await shipment.outcomes()
            assert publisher.submit(view, records(b"x" * 700), 0)
            await publisher.close()

    in_world(scenario)


def test_without_a_partition_records_stay_together_and_all_partitions_get_some() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=4)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster, PublisherSettings(sticky_bytes=500))
            view = await publisher.topic("orders")

            def submit() -> Sequence[PendingPublish]:
                return publisher.submit(view, records(b"a", b"b"))

            together = [shipment.partition for _ in range(5) for shipment in submit()]
            assert len(set(together)) == 1
            seen = set()
            for _ in range(200):
                (shipment,) = submit()
                await shipment.outcomes()
                seen.add(shipment.partition)
            assert seen == {0, 1, 2, 3}
            with pytest.raises(UnknownTopicOrPartition):
                publisher.submit(view, records(b"a"), 4)
            await publisher.close()

    in_world(scenario)


def test_a_missing_topic_is_reported_soon() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, *[rejected(UnknownTopicOrPartition.code)] * 100)
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster, PublisherSettings(topic_wait_seconds=3.0))
            began = cluster.clock.monotonic()
            with pytest.raises(UnknownTopicOrPartition):
                await publish(publisher, b"a")
            assert 3.0 <= cluster.clock.monotonic() - began < 10.0
            await publisher.close()

    in_world(scenario)


def test_closing_fails_waiting_callers() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, Fault.SILENCE)
        async with scripted_cluster.cluster() as cluster:
            publisher = Publisher(cluster)
            waiting = asyncio.create_task(publish(publisher, b"a"))
            await asyncio.sleep(1)
            await publisher.close()
            with pytest.raises(ProducerClosed):
                await waiting
            with pytest.raises(ProducerClosed):
                await publish(publisher, b"b")

    in_world(scenario)


def test_only_the_requested_topic_is_created() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()

        async def look(cluster: Cluster) -> None:
            with pytest.raises(UnknownTopicOrPartition):
                await Publisher(cluster).topic("nowhere")
            assert set(cluster.view.topics) <= {"orders"}

        async with scripted_cluster.cluster() as cluster:
            await look(cluster)

    in_world(scenario)
