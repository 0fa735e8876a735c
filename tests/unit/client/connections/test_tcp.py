"""The TCP transport keeps to the protocol, and every way of breaking it ends in a typed error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import Fault, ScriptedBroker, ScriptedCluster, in_world

from headrace.client.connections.tcp import TcpDialer, TcpTransport
from headrace.client.connections.transport import VersionRange
from headrace.client.errors import ConnectionLost, MalformedResponse, Unreachable, VersionMismatch
from headrace.model.errors import RequestTimedOut, UnsupportedVersion
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from headrace.wire.messages.metadata import ApiVersion, ApiVersionsResponse, MetadataRequest, MetadataResponse
from headrace.wire.messages.produce import ProduceRequest


async def dial(world: World, broker: ScriptedBroker) -> TcpTransport:
    return await TcpDialer(world.network, "test").dial(*broker.address, 5.0)


async def request_metadata(transport: TcpTransport, deadline_seconds: float = 5.0) -> MetadataResponse:
    response: MetadataResponse = await transport.call(apis.METADATA, 12, MetadataRequest(), deadline_seconds)
    return response


def test_dialling_learns_the_versions_of_the_broker() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.versions[apis.FETCH] = (4, 11)
        transport = await dial(world, broker)
        assert transport.versions[apis.FETCH] == VersionRange(4, 11)

    in_world(scenario)


def test_the_request_is_repeated_in_the_version_of_an_older_broker() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        only = [ApiVersion(api_key=apis.API_VERSIONS, min_version=0, max_version=2)]
        broker.script(apis.API_VERSIONS, ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=only))
        transport = await dial(world, broker)
        assert [version for _, version, _ in broker.requests] == [4, 2]
        assert apis.FETCH in transport.versions

    in_world(scenario)


def test_a_broker_that_keeps_refusing_its_versions_is_a_mismatch() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.API_VERSIONS, *[ApiVersionsResponse(error_code=UnsupportedVersion.code)] * 2)
        with pytest.raises(VersionMismatch):
            await dial(world, broker)

    in_world(scenario)


def test_concurrent_calls_each_get_their_own_response() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.METADATA, *[MetadataResponse(cluster_id=str(number)) for number in range(20)])
        transport = await dial(world, broker)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(request_metadata(transport)) for _ in range(20)]
        assert [call.result().cluster_id for call in calls] == [str(number) for number in range(20)]

    in_world(scenario)


def test_a_large_response_is_reassembled_from_any_pieces() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        large = bytes(range(256)) * 4000
        topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(records=large)])
        small = MetadataResponse(cluster_id="behind it")
        broker.script(apis.FETCH, FetchResponse(responses=[topic]))
        broker.script(apis.METADATA, small)
        transport = await dial(world, broker)
        async with asyncio.TaskGroup() as group:
            fetched = group.create_task(transport.call(apis.FETCH, 12, FetchRequest(), 60.0))
            behind = group.create_task(request_metadata(transport, 60.0))
        assert bytes(fetched.result().responses[0].partitions[0].records) == large
        assert behind.result().cluster_id == "behind it"

    in_world(scenario)


def test_a_deadline_ends_the_call_and_the_connection_that_is_stuck_behind_it() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.METADATA, Fault.SILENCE)
        transport = await dial(world, broker)
        async with asyncio.TaskGroup() as group:
            stuck = group.create_task(_outcome(request_metadata(transport, 1.0)))
            behind = group.create_task(_outcome(transport.call(apis.FETCH, 12, FetchRequest(max_wait_ms=5000), 30.0)))
        assert isinstance(stuck.result(), RequestTimedOut)
        assert isinstance(behind.result(), ConnectionLost)
        assert transport.closed

    in_world(scenario)


def test_a_call_that_is_cancelled_does_not_disturb_the_next() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.METADATA, MetadataResponse(cluster_id="first"), MetadataResponse(cluster_id="second"))
        transport = await dial(world, broker)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await request_metadata(transport)
        assert (await request_metadata(transport)).cluster_id == "second"

    in_world(scenario)


def test_pending_calls_fail_when_the_broker_closes_the_connection() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.METADATA, Fault.CLOSE)
        transport = await dial(world, broker)
        with pytest.raises(ConnectionLost):
            await request_metadata(transport)
        with pytest.raises(ConnectionLost):
            await request_metadata(transport)

    in_world(scenario)


def test_pending_calls_fail_when_the_connection_is_reset() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.METADATA, Fault.SILENCE)
        transport = await dial(world, broker)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_outcome(request_metadata(transport)))
            await asyncio.sleep(0.5)
            world.network.reset("localhost", broker.address.host)
        assert isinstance(call.result(), ConnectionLost)

    in_world(scenario)


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"\x7f\xff\xff\xffHTTP", id="an absurd length"),
        pytest.param(b"\x00\x00\x00\x02\x00\x00", id="a frame too short for a header"),
        pytest.param(b"\x00\x00\x00\x05\x00\x00\x30\x39\x00", id="an answer to another question"),
        pytest.param(b"\x00\x00\x00\x07\x00\x00\x00\x02\x00\xff\xff", id="an answer that ends too early"),
    ],
)
def test_an_invalid_response_is_a_malformed_response_and_closes_the_connection(nonsense: bytes) -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.METADATA, nonsense)
        transport = await dial(world, broker)
        with pytest.raises(MalformedResponse):
            await request_metadata(transport)
        assert transport.closed

    in_world(scenario)


def test_a_port_without_listener_is_unreachable() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Unreachable, match="nobody:9092"):
            await TcpDialer(world.network, "test").dial("nobody", 9092, 5.0)

    in_world(scenario)


def test_a_port_that_accepts_connections_but_never_responds_is_unreachable() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        broker.script(apis.API_VERSIONS, Fault.SILENCE)
        with pytest.raises(Unreachable, match="within 5 s"):
            await dial(world, broker)

    in_world(scenario)


def test_a_posted_request_expects_no_response() -> None:
    async def scenario(world: World) -> None:
        broker = await ScriptedCluster(world).broker()
        transport = await dial(world, broker)
        transport.post(apis.PRODUCE, 9, ProduceRequest(acks=0))
        await request_metadata(transport)
        assert broker.count(apis.PRODUCE) == 1

    in_world(scenario)


async def _outcome(call: Any) -> Any:
    try:
        return await call
    except (ConnectionLost, RequestTimedOut) as error:
        return error
