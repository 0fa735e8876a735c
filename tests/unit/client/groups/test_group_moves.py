"""A group is described in either protocol, and its offsets are changed only while it has no members."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import ScriptedCluster, in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.group_admin import GroupAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import committed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.model.errors import GroupIdNotFound, GroupNotEmpty
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages import consumer_groups as newer
from headrace.wire.messages.groups import Coordinator, DescribedGroup, DescribeGroupsResponse, FindCoordinatorResponse

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


async def prepare(cluster: Cluster) -> GroupAdmin:
    """Two partitions of five records each."""
    await TopicAdmin(cluster).create(NewTopic("orders", 2))
    async with Producer(cluster) as producer:
        for number in range(10):
            await producer.publish("orders", b"x", partition=number % 2)
    return GroupAdmin(cluster)


def test_offsets_can_be_set_for_a_group_that_does_not_exist_yet() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = await prepare(cluster)
            assert await admin.positions("g") == []
            before = await admin.positions("g", {SECOND, FIRST})
            assert [(lag.target, lag.committed, lag.start, lag.end) for lag in before] == [
                (FIRST, None, 0, 5),
                (SECOND, None, 0, 5),
            ]
            await admin.move("g", {FIRST: 3})
            assert [(lag.target, lag.committed, lag.lag) for lag in await admin.positions("g")] == [(FIRST, 3, 2)]

    in_world(scenario)


def test_a_group_with_members_is_not_moved_and_the_error_names_them() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = await prepare(cluster)
            async with Consumer(cluster, ["orders"], group=GroupRules("g")) as consumer:
                async with asyncio.timeout(60):
                    while not consumer.assignment:
                        await consumer.poll(timeout_seconds=0.1)
                (member,) = (await admin.describe("g")).members
                with pytest.raises(GroupNotEmpty, match=member.member_id):
                    await admin.move("g", {FIRST: 3})
            await admin.move("g", {FIRST: 3})
            assert (await committed(cluster, "g"))[FIRST].offset == 3

    in_world(scenario)


def test_a_group_of_the_consumer_protocol_is_described() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.script(
            apis.FIND_COORDINATOR,
            FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1, host="broker1", port=9092)]),
        )
        broker.script(
            apis.DESCRIBE_GROUPS,
            DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", error_code=GroupIdNotFound.code)]),
        )
        held = newer.DescribedAssignment(
            topic_partitions=[newer.DescribedTopicPartitions(topic_name="orders", partitions=[1, 0])]
        )
        member = newer.ConsumerGroupMember(
            member_id="m",
            client_id="c",
            client_host="/h",
            assignment=held,
            target_assignment=newer.DescribedAssignment(),
        )
        described = newer.DescribedConsumerGroup(
            group_id="g", group_state="Stable", assignor_name="uniform", members=[member]
        )
        broker.script(apis.CONSUMER_GROUP_DESCRIBE, newer.ConsumerGroupDescribeResponse(groups=[described]))
        async with scripted_cluster.cluster() as cluster:
            view = await GroupAdmin(cluster).describe("g")
        assert (view.state, view.assignor, view.protocol_type) == ("Stable", "uniform", "consumer")
        assert [(one.member_id, one.host, one.partitions) for one in view.members] == [("m", "/h", [FIRST, SECOND])]

    in_world(scenario)


def test_a_group_that_an_older_broker_does_not_know_is_not_found() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        del broker.versions[apis.CONSUMER_GROUP_DESCRIBE]
        broker.script(
            apis.FIND_COORDINATOR,
            FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1, host="broker1", port=9092)]),
        )
        broker.script(apis.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=[DescribedGroup(group_state="Dead")]))
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(GroupIdNotFound):
                await GroupAdmin(cluster).describe("g")

    in_world(scenario)
