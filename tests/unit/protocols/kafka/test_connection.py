"""Kafka connections: request order, back-pressure, malformed input, and isolation of clients."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest
from tests.unit.protocols.kafka.connection_harness import ConnectionHarness, KafkaTestClient

from headrace.model.errors import UnsupportedVersion
from headrace.protocols.kafka import connection as connection_module
from headrace.protocols.kafka.listener import ListenerLimits
from headrace.wire.codec.codec import decode
from headrace.wire.messages.fetch import FetchResponse
from headrace.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PENDING_MAX = connection_module._PENDING_RESPONSES_MAX
LARGE_BYTES = 250_000


async def test_responses_are_in_request_order_regardless_of_handler_order(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    script, kafka_client = connection_harness.script, await connection_harness.call()
    script.close("a", "b", "c")
    kafka_client.ask("a", "b", "c", "d")
    await connection_harness.until(lambda: script.started == ["a", "b", "c", "d"])
    script.open("c")
    script.open("b")
    await connection_harness.pass_time()
    assert script.ended == ["d", "c", "b"]
    assert kafka_client.answers == []
    script.open("a")
    await connection_harness.until(lambda: len(kafka_client.answers) == 4)
    assert kafka_client.heard == [0, 1, 2, 3]
    assert kafka_client.names() == ["a", "b", "c", "d"]


async def test_requests_start_in_order_regardless_of_how_bytes_are_split(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    connection_harness.world.network.whole_chance = 0.0
    kafka_client = await connection_harness.call()
    names = [str(number) for number in range(40)]
    kafka_client.ask(*names)
    await connection_harness.until(lambda: len(kafka_client.answers) == 40)
    assert connection_harness.script.started == kafka_client.names() == names


async def test_close_callbacks_are_called_once(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    kafka_client, other = await connection_harness.call(), await connection_harness.call()
    notified: list[str] = []
    kafka_client.ask("a")
    other.ask("b")
    await connection_harness.until(lambda: kafka_client.answers and other.answers)
    for context in connection_harness.script.contexts:
        context.when_closed("former", lambda: notified.append("former"))
        context.when_closed("former", lambda: notified.append("latter"))
    kafka_client.close()
    await connection_harness.until(lambda: notified)
    assert notified == ["latter"]


async def test_the_context_names_the_client_and_the_listener(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    kafka_client.ask("a")
    await connection_harness.until(lambda: kafka_client.answers)
    (context,) = connection_harness.script.contexts
    assert (context.version, context.client_id, context.client_host, context.listener) == (
        1,
        "caller",
        "client",
        "PLAINTEXT",
    )


async def test_requests_of_one_connection_may_differ_in_client_id_and_version(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    requested = [("one", 1), ("one", 1), ("another", 1), ("another", 3), (None, 3)]
    for client_id, version in requested:
        kafka_client.send(
            kafka_client.frame(MetadataRequest(topics=[MetadataRequestTopic(name="a")]), version, client_id)
        )
    await connection_harness.until(lambda: len(kafka_client.answers) == len(requested))
    assert [(context.client_id, context.version) for context in connection_harness.script.contexts] == requested


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x08" + bytes(8),  # ends inside the header
        b"\0\0\0\x0a" + b"\x03\xe7\0\0" + bytes(6),  # api key 999
        b"\0\0\0\x0a" + b"\0\x03\0\x63" + bytes(6),  # Metadata version 99
        b"\0\0\0\x0e" + b"\0\x03\0\x01" + bytes(4) + b"\xff\xff" + b"\x7f\xff\xff\xff",  # 2^31-1 topics
    ],
)
async def test_malformed_bytes_close_only_their_connection(
    connection_harness: ConnectionHarness, garbage: bytes
) -> None:
    await connection_harness.open()
    bad, good = await connection_harness.call(), await connection_harness.call()
    bad.send(garbage)
    await connection_harness.until(lambda: bad.closed)
    good.ask("a")
    await connection_harness.until(lambda: good.answers)
    assert connection_harness.server.malformed_connections == 1
    assert connection_harness.server.failures == 0
    assert len(connection_harness.server.connections) == 1


@pytest.mark.parametrize("name", ["bug", "late bug", "waits, then late bug", "unencodable", "unencodable, later"])
async def test_a_failing_handler_closes_its_connection_and_is_logged(
    connection_harness: ConnectionHarness, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await connection_harness.open()
    bad, good = await connection_harness.call(), await connection_harness.call()
    if "," in name:
        connection_harness.script.close(name)
    with caplog.at_level(logging.ERROR):
        bad.ask("fine", name, "never answered")
        if "," in name:
            await connection_harness.until(lambda: name in connection_harness.script.started)
            connection_harness.script.open(name)
        await connection_harness.until(lambda: bad.closed)
    assert "request failed api=Metadata peer=client" in caplog.text
    assert connection_harness.server.failures == 1
    good.ask("a")
    await connection_harness.until(lambda: good.answers)
    assert connection_harness.server.connections


async def test_a_request_without_a_response_is_followed_by_the_next_one(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    kafka_client.produce("silent", acks=0)
    kafka_client.ask("a")
    await connection_harness.until(lambda: kafka_client.answers)
    await connection_harness.pass_time()
    assert kafka_client.heard == [1]


async def test_a_failed_produce_without_a_response_closes_the_connection(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    kafka_client.produce("close", acks=0)
    kafka_client.ask("behind it")
    await connection_harness.until(lambda: kafka_client.closed)
    assert connection_harness.script.started == ["close"]
    assert connection_harness.server.failures == 0


async def test_a_handler_can_delay_the_next_request(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    script, kafka_client = connection_harness.script, await connection_harness.call()
    script.close("hold 1", "hold 2")
    kafka_client.ask("before", "hold 1", "between", "hold 2", "after")
    await connection_harness.until(lambda: "hold 1" in script.started)
    kafka_client.ask("last")
    await connection_harness.pass_time()
    assert script.started == ["before", "hold 1"]
    script.open("hold 1")
    await connection_harness.until(lambda: "hold 2" in script.started)
    await connection_harness.pass_time()
    assert script.started == ["before", "hold 1", "between", "hold 2"]
    script.open("hold 2")
    await connection_harness.until(lambda: len(kafka_client.answers) == 6)
    assert script.started == kafka_client.names()


async def test_reading_pauses_while_too_many_responses_are_pending(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    script, kafka_client = connection_harness.script, await connection_harness.call()
    script.close("first")
    kafka_client.ask("first", *map(str, range(2 * PENDING_MAX)))
    await connection_harness.until(lambda: len(script.started) == PENDING_MAX)
    await connection_harness.pass_time()
    assert len(script.started) == PENDING_MAX
    script.open("first")
    await connection_harness.until(lambda: len(kafka_client.answers) == 2 * PENDING_MAX + 1)
    assert kafka_client.heard == list(range(2 * PENDING_MAX + 1))


async def test_reading_pauses_while_the_client_does_not_read(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    connection_harness.world.network.whole_chance = 1.0
    script, kafka_client = connection_harness.script, await connection_harness.call()
    kafka_client.read(False)
    for number in range(100):
        kafka_client.ask(f"large {number}")
        await connection_harness.pass_time(0.01)
    assert len(script.started) < 60, "100 answers of 30 kB each"
    kafka_client.read(True)
    await connection_harness.until(lambda: len(kafka_client.answers) == 100)
    assert kafka_client.heard == list(range(100))


async def test_a_client_that_never_reads_is_disconnected(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(stalled_seconds=5))
    kafka_client = await connection_harness.call()
    kafka_client.read(False)
    for number in range(100):
        kafka_client.ask(f"large {number}")
    await connection_harness.until(lambda: not connection_harness.server.connections)
    assert connection_harness.server.budget.taken == 0


async def test_large_requests_wait_while_the_budget_is_exhausted(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open(ListenerLimits(budget_bytes=400_000))
    connection_harness.world.network.window_bytes = 32_768  # the maximum of a single read
    callers = [await connection_harness.call() for _ in range(4)]
    for kafka_client in callers:
        kafka_client.send(large_produce(kafka_client)[:-1])
    await connection_harness.pass_time(1)
    budget = connection_harness.server.budget
    assert budget.taken < 400_000 + LARGE_BYTES
    assert [connection._is_waiting_for_budget for connection in connection_harness.server.connections].count(True) == 3
    for kafka_client in callers:
        kafka_client.send(b"!")
    await connection_harness.until(lambda: all(kafka_client.answers for kafka_client in callers))
    assert budget.taken == 0


async def test_a_stalled_client_that_uses_the_budget_is_disconnected(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open(ListenerLimits(budget_bytes=400_000, stalled_seconds=5))
    stalled, patient = await connection_harness.call(), await connection_harness.call()
    stalled.send(large_produce(stalled, size_bytes=390_000)[:-1])
    await connection_harness.pass_time(1)
    patient.send(large_produce(patient))
    await connection_harness.until(lambda: patient.answers)
    assert stalled.closed or connection_harness.server.budget.taken
    await connection_harness.until(lambda: stalled.closed)
    assert connection_harness.server.budget.taken == 0


def large_produce(kafka_client: KafkaTestClient, size_bytes: int = LARGE_BYTES) -> bytes:
    data = PartitionProduceData(records=memoryview(bytes(size_bytes)))
    return kafka_client.frame(ProduceRequest(acks=1, topic_data=[TopicProduceData(partition_data=[data])]), 3)


async def test_closing_cancels_only_read_requests(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    script, kafka_client = connection_harness.script, await connection_harness.call()
    script.close("read", "write")
    kafka_client.fetch("read")
    kafka_client.produce("write")
    await connection_harness.until(lambda: script.started == ["read", "write"])
    kafka_client.close()
    await connection_harness.until(lambda: script.cancelled == ["read"])
    assert not connection_harness.server.connections
    script.open("write")
    await connection_harness.until(lambda: script.ended == ["write"])
    assert connection_harness.server.failures == 0


async def test_unsent_slices_are_released_when_the_connection_closes(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    script, kafka_client = connection_harness.script, await connection_harness.call()
    script.close("slow")
    kafka_client.ask("slow")
    kafka_client.fetch("done, but behind it")
    await connection_harness.until(lambda: script.ended)
    await connection_harness.pass_time()
    assert script.file._pins == 1
    kafka_client.close()
    await connection_harness.until(lambda: not connection_harness.server.connections)
    assert script.file._pins == 0


async def test_a_fetch_that_completes_as_its_connection_closes_releases_its_slices(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    script, kafka_client = connection_harness.script, await connection_harness.call()
    script.close("read")
    kafka_client.fetch("read")
    await connection_harness.until(lambda: script.started)
    (connection,) = connection_harness.server.connections
    script.open("read")
    connection_harness.world.loop.call_soon(
        connection.close
    )  # after the handler's last step, before its response is sent
    await connection_harness.pass_time()
    assert script.ended == ["read"]
    assert script.file._pins == 0


async def test_a_slice_of_the_log_is_sent_within_its_response(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    kafka_client.fetch("t")
    await connection_harness.until(lambda: kafka_client.answers)
    response = decode(FetchResponse, 4, memoryview(kafka_client.answers[0][1]))
    assert bytes(response.responses[0].partitions[0].records) == bytes(range(256)) * 16  # type: ignore[call-overload]


async def test_an_unreadable_log_file_closes_the_connection(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    connection_harness.host.disk.fail_next("pread", "/data/log")
    kafka_client.fetch("t")
    await connection_harness.until(lambda: kafka_client.closed)
    assert not connection_harness.server.connections


async def test_an_unknown_version_of_api_versions_gets_a_version_0_response(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    known = kafka_client.frame(ApiVersionsRequest(), 0)
    kafka_client.send(known[:6] + b"\0\x63" + known[8:])
    kafka_client.ask("still here")
    await connection_harness.until(lambda: len(kafka_client.answers) == 2)
    response = decode(ApiVersionsResponse, 0, memoryview(kafka_client.answers[0][1]))
    assert response.error_code == UnsupportedVersion.code
    assert [key.api_key for key in response.api_keys] == [18]


async def test_thousands_of_pipelined_requests_do_not_starve_others(
    connection_harness: ConnectionHarness,
) -> None:
    await connection_harness.open()
    network = connection_harness.world.network
    network.whole_chance, network.window_bytes = 1.0, 1 << 20
    busy = await connection_harness.call()
    busy.send(b"".join(busy.frame(ApiVersionsRequest(), 0) for _ in range(10_000)))
    started = [0]
    while started[-1] < 10_000:
        await asyncio.sleep(0)
        started.append(len(connection_harness.script.started))
    assert max(after - before for before, after in pairwise(started)) <= 2 * PENDING_MAX
    await connection_harness.until(lambda: len(busy.answers) == 10_000)
    assert busy.heard == list(range(10_000))


async def test_a_disconnected_client_is_removed(connection_harness: ConnectionHarness) -> None:
    await connection_harness.open()
    kafka_client = await connection_harness.call()
    kafka_client.ask("a")
    await connection_harness.until(lambda: kafka_client.answers)
    connection_harness.world.network.reset("client", "broker")
    await connection_harness.until(lambda: not connection_harness.server.connections)
