"""A simulated cluster elects leaders, continues without one of its brokers, and reports violated invariants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.produce.producer import Producer
from headrace.registry.brokers import CONTROLLER_EPOCH_KEY
from headrace.registry.interface import Check, SessionState
from headrace.testkit.cluster import SESSION_SECONDS, InvariantViolated, SimCluster
from headrace.testkit.world import World

TOPIC = "orders"
IMPATIENT = ClientSettings(request_timeout_seconds=1.0, dial_timeout_seconds=1.0)
SETTINGS = {"replica.lag.time.max.ms": "2000"}


def in_cluster(main: Callable[[SimCluster, Producer], Awaitable[None]], world: World | None = None) -> None:
    world = world or World(1)
    cluster = SimCluster(world, 3, SETTINGS)
    host = world.host("client")

    async def run() -> None:
        await cluster.start_all()
        dialer = TcpDialer(host.network, host.name)
        async with Cluster(parse_addresses(cluster.bootstrap), dialer, host.clock, host.entropy, IMPATIENT) as client:
            await TopicAdmin(client).create(NewTopic(TOPIC, 1, 3, {"min.insync.replicas": "2"}))
            async with Producer(client) as producer:
                await producer.publish(TOPIC, b"first", partition=0)
                await main(cluster, producer)

    try:
        world.run(run())
    finally:
        world.close()


def leader_of(cluster: SimCluster) -> int:
    broker = cluster.up[0].broker
    assert broker is not None
    return broker.catalogue.partition_record(TOPIC, 0).leader


async def well_again(cluster: SimCluster) -> None:
    async with asyncio.timeout(10 * SESSION_SECONDS):
        while cluster.unhealthy_partitions() or cluster.diverged_partitions():
            await asyncio.sleep(0.1)


def test_a_cluster_continues_without_its_leader_and_accepts_it_back() -> None:
    async def main(cluster: SimCluster, producer: Producer) -> None:
        cluster.brokers[leader_of(cluster)].kill()
        await producer.publish(TOPIC, b"second", partition=0)
        assert cluster.unhealthy_partitions()
        await cluster.heal()
        await well_again(cluster)
        replicas = cluster.replicas(TOPIC, 0)
        assert len(replicas) == 3
        assert len({replica.batches for replica in replicas.values()}) == 1
        assert len(replicas[1].batches) == 2

    in_cluster(main)


def test_a_paused_leader_is_replaced_and_follows_when_it_resumes() -> None:
    async def main(cluster: SimCluster, producer: Producer) -> None:
        paused = leader_of(cluster)
        cluster.brokers[paused].host.pause(3 * SESSION_SECONDS)
        assert cluster.brokers[paused].host.is_paused
        await producer.publish(TOPIC, b"second", partition=0)
        assert cluster.brokers[paused].host.is_paused
        await asyncio.sleep(3 * SESSION_SECONDS)
        await well_again(cluster)
        assert len(cluster.replicas(TOPIC, 0)[paused].batches) == 2

    in_cluster(main)


def test_an_isolated_leader_is_replaced() -> None:
    world = World(1)

    async def main(cluster: SimCluster, producer: Producer) -> None:
        lonely = cluster.brokers[leader_of(cluster)]
        cluster.disconnect(lonely, silently=True)
        cluster.isolate(lonely)
        world.network.cut("client", lonely.host.name)
        await producer.publish(TOPIC, b"second", partition=0)
        assert len(cluster.replicas(TOPIC, 0)[lonely.node_id].batches) == 1
        await cluster.heal()
        await well_again(cluster)
        assert len(cluster.replicas(TOPIC, 0)[lonely.node_id].batches) == 2

    in_cluster(main, world)


def test_a_power_cut_of_all_heals_by_itself() -> None:
    async def main(cluster: SimCluster, producer: Producer) -> None:
        for broker in cluster.brokers.values():
            broker.cut_power()
        await cluster.start_all()
        await producer.publish(TOPIC, b"second", partition=0)
        await well_again(cluster)
        assert len(cluster.replicas(TOPIC, 0)[1].batches) == 2

    in_cluster(main)


def test_a_new_disk_is_filled_again() -> None:
    async def main(cluster: SimCluster, _: Producer) -> None:
        broker = cluster.brokers[leader_of(cluster)]
        broker.kill()
        broker.host.replace_disk()
        await cluster.start_all()
        await well_again(cluster)
        assert len({replica.batches for replica in cluster.replicas(TOPIC, 0).values()}) == 1

    in_cluster(main)


def test_a_ring_leaves_each_broker_two_neighbours() -> None:
    world = World(1)
    cluster = SimCluster(world, 5, SETTINGS)
    cluster.cut_ring()
    names = [broker.host.name for broker in cluster.brokers.values()]
    reached = {name: sum(not world.network.is_cut(name, other) for other in names) - 1 for name in names}
    world.close()
    assert set(reached.values()) == {2}


def test_two_leaders_of_one_epoch_end_the_run() -> None:
    async def main(cluster: SimCluster, _: Producer) -> None:
        partition = cluster.replica(leader_of(cluster), TOPIC, 0)
        impostor = cluster.brokers[1 + leader_of(cluster) % 3].broker
        assert partition is not None
        assert impostor is not None
        for result in impostor.catalogue.on_leadership_gained:
            result(partition)
        await asyncio.sleep(1)

    with pytest.raises(InvariantViolated, match="I11"):
        in_cluster(main)


@pytest.mark.parametrize(("state", "rule"), [(SessionState.DOUBTED, "I13"), (SessionState.HELD, "I11")])
def test_a_controller_that_may_not_act_ends_the_run(state: SessionState, rule: str) -> None:
    async def main(cluster: SimCluster, _: Producer) -> None:
        assert cluster.registry.on_commit is not None
        for broker in cluster.up:
            assert broker.registry is not None
            cluster.registry.on_commit(broker.registry, [Check(CONTROLLER_EPOCH_KEY, 7)], state)
        await asyncio.sleep(1)

    with pytest.raises(InvariantViolated, match=rule):
        in_cluster(main)
