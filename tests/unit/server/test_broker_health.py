"""A gateway detects unreachable brokers before its clients do."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.client.cluster import Cluster
from headrace.client.connections.address import Address
from headrace.client.connections.guarded_dialer import GuardedDialer
from headrace.client.connections.tcp import TcpDialer
from headrace.server.gateway import RESPONSE_SECONDS, BrokerHealth
from headrace.testkit.world import World
from headrace.wire import apis

BROKER = Address("broker1", 9092)


def cluster_at(world: World, *bootstrap: Address) -> tuple[Cluster, GuardedDialer]:
    dialer = GuardedDialer(TcpDialer(world.network, "gateway"), world.clock)
    return Cluster(bootstrap, dialer, world.clock, world.entropy), dialer


def test_brokers_are_unreachable_until_one_responds(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        cluster, dialer = cluster_at(world, BROKER)
        broker_health = BrokerHealth(cluster)
        for _ in range(5):
            await broker_health.probe()
            assert not broker_health.is_reachable
        assert not broker_health.first_response.is_set()
        assert dict(dialer.states()) == {BROKER: "open"}
        await ScriptedCluster(world).broker()
        watching = asyncio.create_task(broker_health.run())
        await broker_health.first_response.wait()
        assert broker_health.is_reachable
        assert dict(dialer.states()) == {BROKER: "closed"}
        watching.cancel()

    caplog.set_level("INFO")
    in_world(scenario)
    logged = [record.getMessage() for record in caplog.records if record.name == "headrace.server.gateway"]
    assert logged == ["no broker is reachable; probing every second", "brokers are reachable"]


def test_a_gateway_that_starts_beside_its_brokers_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        cluster, _ = cluster_at(world, broker.address)
        await BrokerHealth(cluster).probe()

    caplog.set_level("INFO")
    in_world(scenario)
    logged = [record.getMessage() for record in caplog.records if record.name == "headrace.server.gateway"]
    assert logged == ["brokers are reachable"]


def test_lost_and_recovered_brokers_are_detected() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        cluster, _ = cluster_at(world, broker.address)
        broker_health = BrokerHealth(cluster)
        await broker_health.probe()
        assert broker_health.is_reachable
        broker.script(apis.METADATA, *[Fault.CLOSE] * 2)
        await broker_health.probe()
        assert not broker_health.is_reachable
        await broker_health.probe()
        assert broker_health.is_reachable

    in_world(scenario)


def test_a_hanging_broker_counts_as_unreachable_during_the_next_probe() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        cluster, _ = cluster_at(world, broker.address)
        broker_health = BrokerHealth(cluster)
        await broker_health.probe()
        broker.script(apis.METADATA, *[Fault.SILENCE] * 2)
        looking = asyncio.create_task(broker_health.probe())
        await asyncio.sleep(RESPONSE_SECONDS + 1)
        assert not broker_health.is_reachable
        assert not looking.done()
        looking.cancel()

    in_world(scenario)


def test_one_broker_of_several_is_enough() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        first, second = await scripted_cluster.broker(1), await scripted_cluster.broker(2)
        cluster, _ = cluster_at(world, first.address)
        broker_health = BrokerHealth(cluster)
        await broker_health.probe()
        first.script(apis.METADATA, *[Fault.SILENCE] * 5)
        began = world.clock.monotonic()
        await broker_health.probe()
        assert broker_health.is_reachable
        assert world.clock.monotonic() - began < RESPONSE_SECONDS + 1
        assert second.count(apis.METADATA) == 1

    in_world(scenario)


def test_a_slow_broker_keeps_the_connections_of_its_clients() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        cluster, _ = cluster_at(world, broker.address)
        broker_health = BrokerHealth(cluster)
        await broker_health.probe()
        transport = await cluster.transport(1)
        broker.script(apis.METADATA, Fault.SILENCE)
        await broker_health.probe()
        assert not transport.closed

    in_world(scenario)


def test_probes_do_not_count_as_topic_metadata() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        cluster, _ = cluster_at(world, broker.address)
        broker_health = BrokerHealth(cluster)
        await broker_health.probe()
        assert broker_health.is_reachable
        assert not cluster.fresh
        await cluster.topic("orders")
        cluster.invalidate_metadata()
        await broker_health.probe()
        assert not cluster.fresh

    in_world(scenario)
