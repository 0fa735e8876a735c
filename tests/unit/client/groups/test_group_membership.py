"""Members of a group share its partitions, and continue from its committed offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.client.admin.group_admin import GroupAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.fetch.consumer import Consumer, ConsumerSettings
from headrace.client.groups.group_membership import GroupRules
from headrace.client.groups.offsets import Commit, committed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.model.errors import FencedInstanceId, GroupIdNotFound, GroupNotEmpty, HeadraceError
from headrace.testkit.world import World

ASSIGNORS = ["range", "roundrobin", "cooperative-sticky"]
ORDERS = TopicPartition("orders", 0)


def rules(assignor: str = "range", instance_id: str | None = None) -> GroupRules:
    return GroupRules(
        "g",
        assignors=(assignor,),
        instance_id=instance_id,
        session_timeout_seconds=10.0,
        heartbeat_seconds=1.0,
        poll_interval_max_seconds=30.0,
    )


async def publish(cluster: Cluster, count: int, partitions: int) -> None:
    async with Producer(cluster) as producer:
        for number in range(count):
            await producer.submit("orders", b"%d" % number, partition=number % partitions)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.1)


class Member:
    """A consumer that keeps polling, with what it has got."""

    def __init__(self, cluster: Cluster, group: GroupRules) -> None:
        self.consumer = Consumer(cluster, ["orders"], group=group)
        self.seen: Counter[tuple[int, int]] = Counter()
        self.failure: HeadraceError | None = None
        self._stop = asyncio.Event()

    @property
    def partitions(self) -> list[int]:
        return sorted(target.partition for target in self.consumer.assignment)

    async def live(self) -> None:
        async with self.consumer:
            while not self._stop.is_set():
                try:
                    records = await self.consumer.poll(timeout_seconds=0.3)
                except HeadraceError as error:
                    self.failure = error
                    return
                self.seen.update((record.partition, record.offset) for record in records)

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_the_partitions_and_take_over_when_one_leaves(assignor: str) -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, asyncio.TaskGroup() as group:
            await TopicAdmin(cluster).create(NewTopic("orders", 4))
            await publish(cluster, 100, 4)
            first, second = Member(cluster, rules(assignor)), Member(cluster, rules(assignor))
            group.create_task(first.live())
            await until(lambda: len(first.seen) == 100)
            assert first.partitions == [0, 1, 2, 3]
            group.create_task(second.live())
            await until(lambda: len(second.partitions) == 2 and len(first.partitions) == 2)
            assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
            await publish(cluster, 100, 4)
            await until(lambda: len(first.seen) + len(second.seen) == 200)
            first.stop()
            await until(lambda: second.partitions == [0, 1, 2, 3])
            await publish(cluster, 100, 4)
            await until(lambda: len(first.seen) + len(second.seen) == 300)
            second.stop()
        assert set((first.seen + second.seen).values()) == {1}, "everybody left in order, so nothing came twice"

    in_world(scenario)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_member_that_dies_is_replaced_when_its_session_ends(assignor: str) -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, asyncio.TaskGroup() as group:
            await TopicAdmin(cluster).create(NewTopic("orders", 4))
            survivor = Member(cluster, rules(assignor))
            group.create_task(survivor.live())
            await until(lambda: len(survivor.partitions) == 4)
            elsewhere = world.host("elsewhere")
            elsewhere.start(Member(client(world, "elsewhere"), rules(assignor)).live(), "victim")
            await until(lambda: len(survivor.partitions) == 2)
            elsewhere.crash(silently=True)
            await publish(cluster, 40, 4)
            await until(lambda: len(survivor.seen) == 40)
            survivor.stop()

    in_world(scenario)


def test_a_later_member_continues_at_the_committed_offset() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            await publish(cluster, 10, 1)
            async with Consumer(cluster, ["orders"], group=rules()) as consumer:
                assert len(await consumer.poll(4)) == 4
            async with Consumer(cluster, ["orders"], group=rules()) as consumer:
                assert [record.offset for record in await consumer.poll()] == [4, 5, 6, 7, 8, 9]
            assert await committed(cluster, "g") == {ORDERS: Commit(10)}

    in_world(scenario)


def test_an_unprocessed_record_is_delivered_again_after_the_application_fails() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            await publish(cluster, 5, 1)

            async def application() -> None:
                async with Consumer(cluster, ["orders"], group=rules()) as consumer:
                    async for record in consumer:
                        if record.offset == 2:
                            raise RuntimeError("the application failed")

            with pytest.raises(RuntimeError):
                await application()
            assert await committed(cluster, "g") == {ORDERS: Commit(2)}

    in_world(scenario)


def test_processed_records_are_committed_periodically() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            await publish(cluster, 6, 1)
            async with Consumer(cluster, ["orders"], group=rules()) as consumer:
                await consumer.poll(3)
                await asyncio.sleep(6)
                assert await committed(cluster, "g") == {}, "a commit waits until the application asks for more"
                await consumer.poll(1)
                assert await committed(cluster, "g") == {ORDERS: Commit(3)}

    in_world(scenario)


def test_automatic_commits_can_be_disabled() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        by_hand = ConsumerSettings(commit_seconds=None)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            await publish(cluster, 6, 1)
            async with Consumer(cluster, ["orders"], group=rules(), settings=by_hand) as consumer:
                await consumer.poll(4)
                await consumer.commit({ORDERS: 2})
                await consumer.poll(4)
            assert await committed(cluster, "g") == {ORDERS: Commit(2)}

    in_world(scenario)


def test_an_application_that_stops_polling_loses_its_partitions_and_may_return() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, asyncio.TaskGroup() as group:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            async with Consumer(cluster, ["orders"], group=rules()) as sleeper:
                await sleeper.poll(timeout_seconds=10)
                assert len(sleeper.assignment) == 2
                other = Member(cluster, rules())
                await asyncio.sleep(40)
                group.create_task(other.live())
                await until(lambda: other.partitions == [0, 1])
                await sleeper.poll(timeout_seconds=20)
                assert len(sleeper.assignment) == 1
                other.stop()

    in_world(scenario)


def test_a_poll_that_times_out_does_not_disturb_a_join() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world, group_initial_rebalance_delay_ms="3000")
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            async with Consumer(cluster, ["orders"], group=rules()) as consumer:
                polls = 0
                while not consumer.assignment:
                    await consumer.poll(timeout_seconds=0.01)
                    polls += 1
                assert polls > 100
                assert (await GroupAdmin(cluster).describe("g")).state == "Stable"

    in_world(scenario)


def test_the_leader_reassigns_when_a_topic_grows() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, asyncio.TaskGroup() as group:
            admin = TopicAdmin(cluster)
            await admin.create(NewTopic("orders", 1))
            member = Member(cluster, rules())
            group.create_task(member.live())
            await until(lambda: member.partitions == [0])
            await admin.add_partitions("orders", 3)
            await until(lambda: member.partitions == [0, 1, 2])
            member.stop()

    in_world(scenario)


def test_a_returning_static_member_keeps_its_partitions_and_fences_its_duplicate() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, asyncio.TaskGroup() as group:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            first = Member(cluster, rules(instance_id="i1"))
            group.create_task(first.live())
            await until(lambda: first.partitions == [0, 1])
            second = Member(cluster, rules(instance_id="i1"))
            group.create_task(second.live())
            await until(lambda: second.partitions == [0, 1])
            await until(lambda: isinstance(first.failure, FencedInstanceId))
            second.stop()

    in_world(scenario)


def test_an_administrator_sees_members_and_lag_and_may_delete_an_empty_group() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster:
            admin = GroupAdmin(cluster)
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            await publish(cluster, 10, 1)
            async with Consumer(cluster, ["orders"], group=rules()) as consumer:
                await consumer.poll(4)
                await consumer.commit()
                view = await admin.describe("g")
                assert (view.state, view.assignor) == ("Stable", "range")
                assert [list(member.partitions) for member in view.members] == [[ORDERS]]
                (lag,) = await admin.lag("g")
                assert (lag.committed, lag.end, lag.lag) == (4, 10, 6)
                assert lag.member == view.members[0]
                with pytest.raises(GroupNotEmpty):
                    await admin.delete("g")
            assert [(listed.group, listed.state) for listed in await admin.list()] == [("g", "Empty")]
            await admin.delete("g")
            with pytest.raises(GroupIdNotFound):
                await admin.describe("g")

    in_world(scenario)
