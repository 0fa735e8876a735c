"""The replication throttle limits joining replicas and not those in sync."""

from __future__ import annotations

import asyncio

from tests.unit.broker.admin.test_config_admin import BROKER, DELETE, SET, change
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

RATE = "leader.replication.throttled.rate"
VALUE = b"x" * 100_000


async def leave_behind(simulated_cluster: SimulatedCluster, rate: str, *values: bytes) -> None:
    """Broker 2 lacks these, by default two large ones: the second has to wait until the first is paid for."""
    await simulated_cluster.create_topic("t", (1, 2))
    await simulated_cluster.wait_until_in_sync("t")
    assert await change(simulated_cluster[1], BROKER, "1", (RATE, SET, rate)) == 0
    simulated_cluster[2].kill()
    await simulated_cluster.wait_until_in_sync("t", 1)
    for value in values or (VALUE, VALUE):
        await produce(simulated_cluster[1], "t", value)


@in_simulated_cluster(replica_fetch_max_bytes="1000")
async def test_joining_replicas_fetch_no_faster_than_the_throttle(
    simulated_cluster: SimulatedCluster,
) -> None:
    await leave_behind(simulated_cluster, "10000")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    assert 10 <= loop.time() - began < 15


@in_simulated_cluster(replica_fetch_max_bytes="1000")
async def test_a_follower_that_waits_for_little_does_not_wait_for_long(simulated_cluster: SimulatedCluster) -> None:
    await leave_behind(simulated_cluster, "10000", *[b"x" * 1000] * 20)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    assert 2 <= loop.time() - began < 4


@in_simulated_cluster(replica_fetch_max_bytes="1000")
async def test_a_removed_throttle_delays_no_follower(simulated_cluster: SimulatedCluster) -> None:
    await leave_behind(simulated_cluster, "1")
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.end_offset == 1)
    assert await change(simulated_cluster[1], BROKER, "1", (RATE, DELETE, None)) == 0
    await simulated_cluster.wait_until_in_sync("t")


@in_simulated_cluster(replica_fetch_max_bytes="1000")
async def test_an_in_sync_replica_is_not_throttled(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("other", (1, 2))
    await leave_behind(simulated_cluster, "1")
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until(lambda: simulated_cluster.replica(2, "t").log.end_offset == 1)
    await simulated_cluster.wait_until_in_sync("other")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(2):
        await produce(simulated_cluster[1], "other", VALUE)
    assert loop.time() - began < 1
    assert simulated_cluster.replica(2, "t").log.end_offset == 1


@in_simulated_cluster()
async def test_bytes_for_in_sync_replicas_do_not_count_for_the_throttle(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("other", (1, 3))
    await simulated_cluster.wait_until_in_sync("other", 1, 3)
    await leave_behind(simulated_cluster, "10000", b"a", b"b")
    for _ in range(5):
        await produce(simulated_cluster[1], "other", VALUE)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await simulated_cluster.open(2)
    await simulated_cluster.wait_until_in_sync("t")
    assert loop.time() - began < 5
