"""Brokers call each other over the wire protocol, and every failure is a retriable error."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.broker.cluster.peers import Peers
from headrace.client.errors import ConnectionLost, Unreachable
from headrace.model.errors import RequestTimedOut
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse


def peers_of(scripted_cluster: ScriptedCluster) -> Peers:
    def address_of(node_id: int) -> tuple[str, int] | None:
        return scripted_cluster.brokers[node_id].address if node_id in scripted_cluster.brokers else None

    return Peers(scripted_cluster.world.network, 9, address_of)


def connections(scripted_cluster: ScriptedCluster, node_id: int = 1) -> int:
    """Each begins with a question for the versions."""
    return scripted_cluster.brokers[node_id].count(apis.API_VERSIONS)


def test_a_peer_has_one_connection_per_connection_key() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, t=1)
        await scripted_cluster.broker()
        peers = peers_of(scripted_cluster)
        for connection_key in ("", "", "markers", "markers"):
            response = await peers.call(1, MetadataRequest(), timeout_seconds=1, connection_key=connection_key)
            assert isinstance(response, MetadataResponse)
        assert connections(scripted_cluster) == 2
        peers.close()

    in_world(scenario)


def test_a_single_broker_creates_no_dialer() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        peers = peers_of(scripted_cluster)
        with pytest.raises(Unreachable, match="broker 1 is not live"):
            await peers.call(1, MetadataRequest(), timeout_seconds=1)
        peers.close()
        assert peers._transports is None
        await scripted_cluster.broker()
        await peers.call(1, MetadataRequest(), timeout_seconds=1)
        await peers.call(1, MetadataRequest(), timeout_seconds=1)
        assert connections(scripted_cluster) == 1
        peers.close()

    in_world(scenario)


def test_the_version_is_the_newest_that_both_know_and_the_caller_wants() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, t=1)
        broker = await scripted_cluster.broker()
        peers = peers_of(scripted_cluster)
        await peers.call(1, MetadataRequest(), timeout_seconds=1)
        await peers.call(1, MetadataRequest(), timeout_seconds=1, version_max=9)
        requested = [version for key, version, _ in broker.requests if key == apis.METADATA]
        assert requested == [apis.APIS[apis.METADATA].max_version, 9]
        peers.close()

    in_world(scenario)


@pytest.mark.parametrize(("fault", "error"), [(Fault.CLOSE, ConnectionLost), (Fault.SILENCE, RequestTimedOut)])
def test_after_a_failure_the_next_call_dials_again(fault: Fault, error: type[Exception]) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, t=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.METADATA, fault)
        peers = peers_of(scripted_cluster)
        with pytest.raises(error):
            await peers.call(1, MetadataRequest(), timeout_seconds=1)
        await peers.call(1, MetadataRequest(), timeout_seconds=1)
        assert connections(scripted_cluster) == 2
        peers.close()

    in_world(scenario)


def test_calls_that_wait_for_a_connection_do_not_block_each_other() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.script(apis.API_VERSIONS, *[Fault.SILENCE] * 9)
        peers = peers_of(scripted_cluster)
        began = world.clock.monotonic()

        async def call() -> None:
            with pytest.raises(RequestTimedOut):
                await peers.call(1, MetadataRequest(), timeout_seconds=2)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(call())
        assert world.clock.monotonic() - began < 3
        peers.close()

    in_world(scenario)


def test_close_ends_calls_in_progress() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        broker = await scripted_cluster.broker()
        broker.script(apis.METADATA, Fault.SILENCE)
        peers = peers_of(scripted_cluster)
        call = asyncio.create_task(peers.call(1, MetadataRequest(), timeout_seconds=60))
        await asyncio.sleep(1)
        peers.close()
        with pytest.raises(ConnectionLost):
            await call

    in_world(scenario)
