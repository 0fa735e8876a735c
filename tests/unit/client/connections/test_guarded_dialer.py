"""The circuit of a broker that does not respond opens, admits one probe at a time, and closes after a success."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import Address
from headrace.client.connections.guarded_dialer import FAILURES_MAX, OPEN_MS, CircuitOpen, GuardedDialer
from headrace.client.connections.tcp import TcpDialer
from headrace.client.connections.transport import Transport
from headrace.client.errors import Unreachable
from headrace.model.errors import RequestTimedOut
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.metadata import MetadataRequest

GONE = Address("gone", 9092)


class CountingDialer:
    def __init__(self, world: World) -> None:
        self.dials = 0
        self._dialer = TcpDialer(world.network, "test")

    async def dial(self, host: str, port: int, deadline_seconds: float) -> Transport:
        self.dials += 1
        return await self._dialer.dial(host, port, deadline_seconds)


def guarded(world: World) -> tuple[CountingDialer, GuardedDialer]:
    counting = CountingDialer(world)
    return counting, GuardedDialer(counting, world.clock)


async def fail(dialer: GuardedDialer, times: int) -> None:
    for _ in range(times):
        with pytest.raises(Unreachable):
            await dialer.dial(*GONE, 1.0)


def test_an_unreachable_broker_is_not_dialled_by_every_caller() -> None:
    async def scenario(world: World) -> None:
        counting, dialer = guarded(world)
        await fail(dialer, FAILURES_MAX)
        assert dict(dialer.states()) == {GONE: "open"}
        with pytest.raises(CircuitOpen, match=r"gone:9092 has not answered of late, and is asked again in 0\.5 s"):
            await dialer.dial(*GONE, 1.0)
        await fail(dialer, 50)
        assert counting.dials == FAILURES_MAX

    in_world(scenario)


def test_one_caller_retries_after_a_growing_back_off() -> None:
    async def scenario(world: World) -> None:
        counting, dialer = guarded(world)
        await fail(dialer, FAILURES_MAX)
        await asyncio.sleep(OPEN_MS / 1000)
        await fail(dialer, 3)
        assert counting.dials == FAILURES_MAX + 1
        await asyncio.sleep(OPEN_MS / 1000)
        await fail(dialer, 1)
        assert counting.dials == FAILURES_MAX + 1

    in_world(scenario)


def test_a_reachable_broker_is_open_to_all_callers() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        _, dialer = guarded(world)
        address = Address("broker1", 9092)
        for _ in range(FAILURES_MAX):
            with pytest.raises(Unreachable):
                await dialer.dial(*address, 1.0)
        broker = await scripted_cluster.broker()
        assert broker.address == address
        await asyncio.sleep(OPEN_MS / 1000)
        for _ in range(3):
            transport = await dialer.dial(*address, 1.0)
            assert not transport.closed
            assert transport.versions
        assert dict(dialer.states()) == {address: "closed"}

    in_world(scenario)


def test_a_broker_that_accepts_connections_but_never_responds_is_backed_off() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.script(apis.METADATA, *[Fault.SILENCE] * FAILURES_MAX)
        _, dialer = guarded(world)
        settings = ClientSettings(request_timeout_seconds=1.0)
        async with Cluster([broker.address], dialer, world.clock, world.entropy, settings) as cluster:
            for _ in range(FAILURES_MAX):
                with pytest.raises(RequestTimedOut):
                    await cluster.call(MetadataRequest())
            with pytest.raises(Unreachable, match="not answered of late"):
                await cluster.call(MetadataRequest())
            await asyncio.sleep(OPEN_MS / 1000)
            await cluster.refresh()
        assert dict(dialer.states()) == {broker.address: "closed"}

    in_world(scenario)


def test_a_connection_that_is_open_is_no_way_around_the_circuit() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        _, dialer = guarded(world)
        kept = await dialer.dial(*broker.address, 1.0)
        broker.script(apis.METADATA, *[Fault.SILENCE] * FAILURES_MAX)
        for _ in range(FAILURES_MAX):
            transport = await dialer.dial(*broker.address, 1.0)
            with pytest.raises(RequestTimedOut):
                await transport.call(apis.METADATA, 9, MetadataRequest(), 1.0)
        with pytest.raises(CircuitOpen):
            await kept.call(apis.METADATA, 9, MetadataRequest(), 1.0)
        assert broker.count(apis.METADATA) == FAILURES_MAX
        await asyncio.sleep(OPEN_MS / 1000)
        await kept.call(apis.METADATA, 9, MetadataRequest(), 1.0)
        assert dict(dialer.states()) == {broker.address: "closed"}

    in_world(scenario)


def test_other_brokers_are_used_during_a_back_off() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        _, dialer = guarded(world)
        await fail(dialer, FAILURES_MAX)
        async with Cluster([GONE, broker.address], dialer, world.clock, world.entropy) as cluster:
            assert len((await cluster.topic("orders")).partitions) == 1

    in_world(scenario)
