"""The Kafka listener: connection limits, idle and stalled connections, draining."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.unit.protocols.kafka.connection_harness import ConnectionHarness, KafkaTestClient

from headrace.protocols.kafka.listener import ListenerLimits


async def is_served(connection_harness: ConnectionHarness, kafka_client: KafkaTestClient) -> bool:
    before = len(kafka_client.answers)
    kafka_client.ask("hello")
    await connection_harness.until(lambda: kafka_client.closed or len(kafka_client.answers) > before)
    return not kafka_client.closed


async def test_connections_per_host_are_limited(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(connections_per_host_max=2))
    first, second, third = [await connection_harness.call("greedy") for _ in range(3)]
    other = await connection_harness.call("modest")
    assert await is_served(connection_harness, first)
    assert await is_served(connection_harness, second)
    assert not await is_served(connection_harness, third)
    assert await is_served(connection_harness, other)
    assert (connection_harness.server.accepted, connection_harness.server.rejected_connections) == (3, 1)


async def test_connections_are_limited_in_total(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(connections_max=2))
    callers = [await connection_harness.call(f"host-{number}") for number in range(3)]
    assert [await is_served(connection_harness, kafka_client) for kafka_client in callers] == [True, True, False]


async def test_a_closed_connection_makes_room_for_another(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(connections_max=1, connections_per_host_max=1))
    for _ in range(3):
        kafka_client = await connection_harness.call()
        assert await is_served(connection_harness, kafka_client)
        kafka_client.close()
        await connection_harness.until(lambda: not connection_harness.server.connections)
    assert not connection_harness.server._per_host


async def test_an_idle_connection_is_closed(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(idle_seconds=60))
    idle, busy = await connection_harness.call(), await connection_harness.call()
    for _ in range(7):
        await connection_harness.pass_time(10)
        assert await is_served(connection_harness, busy)
    assert idle.closed
    assert not busy.closed


async def test_a_connection_that_waits_for_a_response_is_not_idle(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(idle_seconds=60, stalled_seconds=5))
    kafka_client = await connection_harness.call()
    connection_harness.script.close("long poll")
    kafka_client.fetch("long poll")
    await connection_harness.pass_time(300)
    assert not kafka_client.closed
    connection_harness.script.open("long poll")
    await connection_harness.until(lambda: kafka_client.answers)


@pytest.mark.parametrize("beginning", [b"\0", b"\0\0\0", b"\0\0\0\x40", b"\0\0\0\x40\0\x03"])
async def test_a_connection_that_stalls_within_a_frame_is_closed(
    connection_harness: ConnectionHarness, beginning: bytes
) -> None:
    await connection_harness.open(ListenerLimits(stalled_seconds=5))
    kafka_client = await connection_harness.call()
    kafka_client.send(beginning)
    await connection_harness.pass_time(4)
    assert not kafka_client.closed
    await connection_harness.pass_time(4)
    assert kafka_client.closed
    assert connection_harness.server.budget.taken == 0


async def test_a_connection_that_trickles_bytes_is_closed(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(stalled_seconds=5))
    kafka_client = await connection_harness.call()
    kafka_client.send((1_000_000).to_bytes(4, "big"))
    for _ in range(4):
        await connection_harness.pass_time(2)
        if not kafka_client.closed:
            kafka_client.send(b"\0")
    assert kafka_client.closed
    assert connection_harness.server.budget.taken == 0


async def test_log_lines_about_malformed_requests_are_limited(
    connection_harness: ConnectionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await connection_harness.open()
    with caplog.at_level(logging.INFO, "headrace.protocols"):
        for _ in range(30):
            kafka_client = await connection_harness.call()
            kafka_client.send(b"\xff" * 16)
        await connection_harness.until(lambda: connection_harness.server.malformed_connections == 30)
    assert 1 <= len(caplog.records) <= 10


async def test_no_connection_is_accepted_after_stop_listening(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    inside = await connection_harness.call()
    connection_harness.server.stop_listening()
    connection_harness.server.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        await connection_harness.call()
    assert await is_served(connection_harness, inside)


async def test_draining_completes_requests_and_sends_their_responses(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    kafka_client, idle = await connection_harness.call(), await connection_harness.call()
    connection_harness.script.close("in flight")
    kafka_client.ask("in flight", "behind it")
    await connection_harness.until(lambda: len(connection_harness.script.started) == 2)
    draining = connection_harness.host.start(connection_harness.server.drain(10), "drain")
    await connection_harness.pass_time(2)
    assert not draining.done()
    connection_harness.script.open("in flight")
    await draining
    await connection_harness.until(lambda: kafka_client.closed and idle.closed)
    assert kafka_client.names() == ["in flight", "behind it"]
    assert not connection_harness.server.connections


async def test_draining_waits_for_requests_of_disconnected_clients(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    connection_harness.script.close("write")
    kafka_client.produce("write")
    await connection_harness.until(lambda: connection_harness.script.started)
    kafka_client.close()
    await connection_harness.until(lambda: not connection_harness.server.connections)
    draining = connection_harness.host.start(connection_harness.server.drain(10), "drain")
    await connection_harness.pass_time(1)
    assert not draining.done()
    connection_harness.script.open("write")
    await draining
    assert connection_harness.script.ended == ["write"]


async def test_draining_ends_at_its_timeout(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    connection_harness.script.close("stuck")
    kafka_client.ask("stuck")
    await connection_harness.until(lambda: connection_harness.script.started)
    began = connection_harness.world.loop.time()
    await connection_harness.host.start(connection_harness.server.drain(10), "drain")
    assert connection_harness.world.loop.time() - began == pytest.approx(10, abs=0.1)
    await connection_harness.until(lambda: kafka_client.closed)


async def test_draining_an_idle_listener_ends_at_once(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    async with asyncio.timeout(0.001):
        await connection_harness.server.drain(10)
