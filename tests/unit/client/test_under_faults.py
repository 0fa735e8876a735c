"""Producers and members of a group on a network that resets and cuts: nothing is lost, and it settles."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import ADDRESS, client, start_broker

from headrace.client.admin.group_admin import GroupAdmin
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.tcp import TcpDialer
from headrace.client.fetch.consumer import Consumer
from headrace.client.groups.group_membership import GroupRules
from headrace.client.produce.producer import Producer
from headrace.testkit.world import World

PARTITIONS = 3
RECORDS = 300
HOSTS = ("writer", "reader1", "reader2")


def impatient_client(world: World, host_name: str) -> Cluster:
    host = world.host(host_name)
    settings = ClientSettings(request_timeout_seconds=4.0, dial_timeout_seconds=2.0)
    return Cluster([ADDRESS], TcpDialer(host.network, host_name), host.clock, host.entropy, settings)


async def write(world: World) -> None:
    async with impatient_client(world, "writer") as cluster, Producer(cluster) as producer:
        for number in range(RECORDS):
            await producer.submit("orders", b"%d" % number, partition=number % PARTITIONS)
            await asyncio.sleep(0.1)


async def read(world: World, host_name: str, assignor: str, seen: set[bytes], stop: asyncio.Event) -> None:
    rules = GroupRules("g", assignors=(assignor,), session_timeout_seconds=8.0, heartbeat_seconds=1.0)
    async with impatient_client(world, host_name) as cluster, Consumer(cluster, ["orders"], group=rules) as consumer:
        while not stop.is_set():
            for record in await consumer.poll(timeout_seconds=0.5):
                assert record.value is not None
                seen.add(record.value)


async def trouble(world: World, random: Random) -> None:
    """Half a minute of resets, and cuts in one or both directions."""
    for _ in range(12):
        await asyncio.sleep(random.uniform(0.5, 4.0))
        host = random.choice(HOSTS)
        if random.random() < 0.5:
            world.network.reset(host, ADDRESS.host)
        else:
            world.network.cut(host, ADDRESS.host, one_way=random.random() < 0.5)
            await asyncio.sleep(random.uniform(0.1, 12.0))
            world.network.heal()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(3))
def test_everything_written_is_read_and_committed_in_the_end(seed: int, assignor: str) -> None:
    async def scenario(world: World) -> None:
        await start_broker(world, group_initial_rebalance_delay_ms="0")
        seen: set[bytes] = set()
        stop = asyncio.Event()
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", PARTITIONS))
            async with asyncio.TaskGroup() as group:
                for host_name in ("reader1", "reader2"):
                    group.create_task(read(world, host_name, assignor, seen, stop))
                writing = group.create_task(write(world))
                await trouble(world, Random(seed))
                await writing
                async with asyncio.timeout(300):
                    while len(seen) < RECORDS:
                        await asyncio.sleep(1)
                stop.set()
            lags = await GroupAdmin(cluster).lag("g")
            assert [(lag.end, lag.lag) for lag in lags] == [(RECORDS // PARTITIONS, 0)] * PARTITIONS

    in_world(scenario, seed)
