"""A range is read from whoever leads its partition, and its end is known without waiting for what will not come."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster, in_world

from headrace.client.cluster import Cluster
from headrace.client.errors import ConnectionLost, TopicAuthorizationFailed
from headrace.client.metadata import TopicPartition
from headrace.columns.scan import RangeFetcher, RangeOutOfLog
from headrace.model.errors import OffsetOutOfRange, UnknownTopicOrPartition
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.batches.batch import BatchRecord, build_batch
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)

ORDERS = TopicPartition("orders", 0)

Scene = Callable[[ScriptedCluster, ScriptedBroker, Cluster], Coroutine[Any, Any, None]]


def play(scene: Scene) -> None:
    """With two brokers, of which the first leads a partition of three records."""

    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker(1)
        await scripted_cluster.broker(2)
        broker._append(ORDERS, build_batch([BatchRecord(value=b"a"), BatchRecord(value=b"b"), BatchRecord(value=b"c")]))
        async with scripted_cluster.cluster() as cluster:
            await scene(scripted_cluster, broker, cluster)

    in_world(scenario)


def reading(end: int = 3, *, read_committed: bool = True, target: TopicPartition = ORDERS) -> RangeFetcher:
    return RangeFetcher(target, 0, end, read_committed, 1 << 20, 60.0, "lane")


def told(**fields: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, **fields)
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[data])])


def starts_at(offset: int) -> ListOffsetsResponse:
    partitions = [ListOffsetsPartitionResponse(partition_index=0, offset=offset)]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=partitions)])


def test_a_new_leader_is_found() -> None:
    async def scene(scripted_cluster: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        assert await reading().fetch(0, cluster) is not None
        scripted_cluster.leaders[ORDERS], scripted_cluster.epochs[ORDERS] = 2, 1
        answer = await reading().fetch(0, cluster)
        assert answer is not None
        assert answer.records == scripted_cluster.logs[ORDERS]
        assert scripted_cluster.brokers[2].count(apis.FETCH) == 1

    play(scene)


@pytest.mark.parametrize("fault", [Fault.CLOSE, Fault.SILENCE, told(error_code=UnknownTopicOrPartition.code)])
def test_a_broker_that_stumbles_is_asked_again(fault: object) -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.script(apis.FETCH, fault)
        assert await reading().fetch(0, cluster) is not None

    play(scene)


def test_a_broker_that_stays_away_is_told_after_the_deadline() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.script(apis.FETCH, *[Fault.CLOSE] * 10_000)
        started = cluster.clock.monotonic()
        with pytest.raises(ConnectionLost):
            await reading().fetch(0, cluster)
        assert 50 < cluster.clock.monotonic() - started <= 61

    play(scene)


def test_a_topic_that_is_not_there_is_told_at_once() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        started = cluster.clock.monotonic()
        with pytest.raises(UnknownTopicOrPartition):
            await reading(target=TopicPartition("bills", 0)).fetch(0, cluster)
        with pytest.raises(UnknownTopicOrPartition):
            await reading(target=TopicPartition("orders", 7)).fetch(0, cluster)
        assert cluster.clock.monotonic() - started < 1

    play(scene)


def test_a_refusal_that_stays_is_told_at_once() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.script(apis.FETCH, told(error_code=TopicAuthorizationFailed.code))
        with pytest.raises(TopicAuthorizationFailed):
            await reading().fetch(0, cluster)

    play(scene)


@pytest.mark.parametrize("read_committed", [True, False])
def test_a_range_whose_last_offsets_hold_nothing_ends(read_committed: bool) -> None:
    """They were compacted away: the log goes on behind them, and there is nothing to give."""

    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        stable = 10 if read_committed else 0
        broker.script(apis.FETCH, told(high_watermark=10, last_stable_offset=stable))
        assert await reading(10, read_committed=read_committed).fetch(3, cluster) is None

    play(scene)


def test_the_end_of_an_open_transaction_is_waited_for() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.script(apis.FETCH, *[told(high_watermark=3, last_stable_offset=0)] * 3)
        answer = await reading().fetch(0, cluster)
        assert answer is not None
        assert answer.records
        assert broker.count(apis.FETCH) == 4

    play(scene)


def test_an_end_that_does_not_come_is_told_after_the_deadline() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(RangeOutOfLog, match=r"offsets 0 to 8 of orders\[0\].*starts at 0.*before 3"):
            await reading(9).fetch(3, cluster)

    play(scene)


def test_a_start_that_is_gone_is_told_at_once_with_what_there_is() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.script(apis.FETCH, told(error_code=OffsetOutOfRange.code))
        broker.script(apis.LIST_OFFSETS, starts_at(3), starts_at(2))
        with pytest.raises(RangeOutOfLog, match="starts at 2") as refused:
            await reading().fetch(0, cluster)
        assert (refused.value.log_start, refused.value.log_end) == (2, 3)
        assert pickle.loads(pickle.dumps(refused.value)).log_start == 2

    play(scene)


def test_a_leader_that_is_behind_may_catch_up() -> None:
    async def scene(_: ScriptedCluster, broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.script(apis.FETCH, *[told(error_code=OffsetOutOfRange.code)] * 2)
        assert await reading().fetch(1, cluster) is not None

    play(scene)
