"""The cluster routes to the right broker, refreshes metadata after errors, and retries only where that helps."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.client.cluster import ClientSettings
from headrace.client.connections.address import Address
from headrace.client.errors import Unreachable, VersionMismatch
from headrace.client.groups.offsets import END, Commit, commit, committed, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.model.errors import (
    CoordinatorLoading,
    InvalidRequest,
    NotCoordinator,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.fetch import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.wire.messages.group_offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from headrace.wire.messages.groups import Coordinator, FindCoordinatorResponse
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse


def test_the_first_reachable_bootstrap_address_is_used() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=2)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster(None, Address("gone", 9092), broker.address) as cluster:
            assert len((await cluster.topic("orders")).partitions) == 2

    in_world(scenario)


def test_all_addresses_that_failed_are_named() -> None:
    async def scenario(world: World) -> None:
        async with ScriptedCluster(world).cluster(None, Address("a", 1), Address("b", 2)) as cluster:
            with pytest.raises(Unreachable, match=r"a:1.*b:2"):
                await cluster.refresh()

    in_world(scenario)


def test_a_broker_that_advertises_an_unreachable_address_is_named_with_it() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        bootstrap = broker.address
        broker.address = Address("nowhere", 9092)
        async with scripted_cluster.cluster(None, bootstrap) as cluster:
            await cluster.refresh()
            with pytest.raises(Unreachable, match=r"advertises nowhere:9092.*advertised address"):
                await cluster.call(MetadataRequest(), node_id=1)

    in_world(scenario)


def test_a_topic_is_remembered_until_an_error_casts_doubt_on_it() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            await cluster.topic("orders")
            await cluster.topic("orders")
            assert broker.count(apis.METADATA) == 1
            scripted_cluster.topics["orders"] = 3
            cluster.invalidate_metadata()
            assert len((await cluster.topic("orders")).partitions) == 3

    in_world(scenario)


def test_metadata_grows_old() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster(ClientSettings(metadata_age_seconds_max=60.0)) as cluster:
            await cluster.topic("orders")
            await asyncio.sleep(61)
            await cluster.topic("orders")
            assert broker.count(apis.METADATA) == 2

    in_world(scenario)


def test_a_refresh_of_other_topics_does_not_prolong_the_age_of_a_topic() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1, payments=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster(ClientSettings(metadata_age_seconds_max=60.0)) as cluster:
            await cluster.topic("orders")
            scripted_cluster.topics["orders"] = 3
            await asyncio.sleep(40)
            await cluster.refresh([])
            await cluster.current_topic("payments")
            await asyncio.sleep(40)
            assert len((await cluster.topic("orders")).partitions) == 3

    in_world(scenario)


def test_the_current_topic_has_the_partitions_that_were_just_added() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            await cluster.topic("orders")
            scripted_cluster.topics["orders"] = 3
            assert len((await cluster.current_topic("orders")).partitions) == 3
            with pytest.raises(UnknownTopicOrPartition, match="'nope'"):
                await cluster.current_topic("nope")

    in_world(scenario)


def test_an_unknown_topic_is_reported_at_once() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            began = world.clock.monotonic()
            with pytest.raises(UnknownTopicOrPartition, match="'nope'"):
                await cluster.call_with_retries(lambda: cluster.topic("nope"))
            assert world.clock.monotonic() - began < 1.0

    in_world(scenario)


def test_a_topic_that_is_about_to_appear_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, asyncio.TaskGroup() as group:
            waiting = group.create_task(cluster.call_with_retries(lambda: cluster.topic("new"), topics_may_appear=True))
            await asyncio.sleep(3)
            scripted_cluster.topics["new"] = 1
            assert (await waiting).name == "new"

    in_world(scenario)


def test_a_retriable_error_is_tried_again_until_the_deadline() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        attempts = []

        async def attempt() -> None:
            attempts.append(world.clock.monotonic())
            raise NotLeader

        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(NotLeader):
                await cluster.call_with_retries(attempt, deadline_seconds=10.0)
        assert len(attempts) > 5
        assert 8.0 < attempts[-1] - attempts[0] < 10.0

    in_world(scenario)


def test_a_final_error_is_not_tried_again() -> None:
    async def scenario(world: World) -> None:
        attempts: list[None] = []

        async def attempt() -> None:
            attempts.append(None)
            raise InvalidRequest

        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(InvalidRequest):
                await cluster.call_with_retries(attempt)
        assert len(attempts) == 1

    in_world(scenario)


def test_a_lost_connection_is_dialled_again() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.METADATA, Fault.CLOSE)
        async with scripted_cluster.cluster() as cluster:
            await cluster.call_with_retries(cluster.refresh)
            assert broker.count(apis.API_VERSIONS) == 2

    in_world(scenario)


def test_no_version_in_common_is_a_mismatch_that_names_both_ranges() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.versions[apis.METADATA] = (20, 22)
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(VersionMismatch, match=r"20-22.*0-13"):
                await cluster.refresh()

    in_world(scenario)


def test_an_old_story_about_a_leader_is_not_believed() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        first, second = await scripted_cluster.broker(1), await scripted_cluster.broker(2)
        target = TopicPartition("orders", 0)
        async with scripted_cluster.cluster(None, first.address) as cluster:
            scripted_cluster.leaders[target], scripted_cluster.epochs[target] = 2, 5
            assert (await cluster.partition(*target)).leader == 2
            scripted_cluster.leaders[target], scripted_cluster.epochs[target] = 1, 4
            cluster.invalidate_metadata()
            assert (await cluster.partition(*target)).leader == 2
        assert second.node_id == 2

    in_world(scenario)


def test_offsets_are_requested_from_the_leader_even_when_it_moves() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=2)
        await scripted_cluster.broker(1)
        second = await scripted_cluster.broker(2)
        moving = TopicPartition("orders", 1)
        async with scripted_cluster.cluster() as cluster:
            await cluster.topic("orders")
            scripted_cluster.leaders[moving], scripted_cluster.epochs[moving] = 2, 1
            scripted_cluster.ends[moving] = 7
            rejected = _list_offsets_refused(NotLeader.code)
            scripted_cluster.brokers[1].script(apis.LIST_OFFSETS, rejected)
            found = await find_offsets(cluster, {TopicPartition("orders", 0): END, moving: END})
        assert {target: at.offset for target, at in found.items()} == {TopicPartition("orders", 0): 0, moving: 7}
        assert second.count(apis.LIST_OFFSETS) == 1

    in_world(scenario)


@pytest.mark.parametrize("version", [3, 6])
def test_the_coordinator_is_found_again_when_it_has_moved(version: int) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        first, second = await scripted_cluster.broker(1), await scripted_cluster.broker(2)
        for broker in (first, second):
            broker.versions[apis.FIND_COORDINATOR] = (0, version)
        first.script(apis.FIND_COORDINATOR, _coordinator(1), _coordinator(2))
        # The broker that named a wrong coordinator is not asked again at once.
        second.script(apis.FIND_COORDINATOR, _coordinator(-1, CoordinatorLoading.code), _coordinator(2))
        first.script(apis.OFFSET_COMMIT, _commit_answer(NotCoordinator.code))
        second.script(apis.OFFSET_COMMIT, _commit_answer(0))
        async with scripted_cluster.cluster(None, first.address) as cluster:
            await commit(cluster, "g", {TopicPartition("orders", 0): Commit(3)})
        assert second.count(apis.OFFSET_COMMIT) == 1

    in_world(scenario)


@pytest.mark.parametrize("version", [7, 9])
def test_commits_are_read_in_the_old_form_and_in_the_new(version: int) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.versions[apis.OFFSET_FETCH] = (1, version)
        broker.script(apis.FIND_COORDINATOR, _coordinator(1))
        broker.script(apis.OFFSET_FETCH, _commits({0: 5, 1: -1}))
        async with scripted_cluster.cluster() as cluster:
            found = await committed(cluster, "g", [TopicPartition("t", 0), TopicPartition("t", 1)])
        assert found == {TopicPartition("t", 0): Commit(5, "")}

    in_world(scenario)


def test_each_lane_has_a_connection_of_its_own() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.script(apis.METADATA, MetadataResponse(), Fault.SILENCE)
        async with scripted_cluster.cluster() as cluster:
            await cluster.refresh()
            cluster.view = cluster.view.merged(broker._metadata(MetadataRequest()), complete=True)
            async with asyncio.TaskGroup() as group:
                stuck = group.create_task(cluster.call(MetadataRequest(), node_id=1, connection_key="slow"))
                await asyncio.sleep(1)
                await cluster.call(MetadataRequest(), node_id=1)
                assert not stuck.done()
                stuck.cancel()

    in_world(scenario)


def _coordinator(node_id: int, code: int = 0) -> FindCoordinatorResponse:
    result = Coordinator(key="g", node_id=node_id, error_code=code)
    return FindCoordinatorResponse(node_id=node_id, error_code=code, coordinators=[result])


def _commit_answer(code: int) -> OffsetCommitResponse:
    result = OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="orders", partitions=[result])])


def _commits(offsets: dict[int, int]) -> OffsetFetchResponse:
    old = [OffsetFetchResponsePartition(partition_index=p, committed_offset=o) for p, o in offsets.items()]
    new = [OffsetFetchResponsePartition(partition_index=p, committed_offset=o) for p, o in offsets.items()]
    group = OffsetFetchResponseGroup(group_id="g", topics=[OffsetFetchResponseTopic(name="t", partitions=new)])
    return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=old)], groups=[group])


def _list_offsets_refused(code: int) -> ListOffsetsResponse:
    result = ListOffsetsPartitionResponse(partition_index=1, error_code=code)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[result])])
