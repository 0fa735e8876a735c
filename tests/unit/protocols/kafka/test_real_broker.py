"""The Kafka listener with a real broker: batches keep their order, and frames are not overwritten while in use."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.protocols.kafka.connection_harness import ConnectionHarness, KafkaTestClient

from headrace.testkit.brokers import PORT, SimBroker
from headrace.testkit.world import World
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header, read_records
from headrace.wire.batches.compression import GZIP, NONE
from headrace.wire.codec.codec import decode
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

LARGE_RECORDS = 40


def batch(name: bytes, count: int, compression: int) -> bytearray:
    """Records with little redundancy."""
    values = [name + hashlib.shake_256(name + b"%d" % at).digest(1000) for at in range(count)]
    return build_batch(
        [BatchRecord(value=value, timestamp_ms=1_700_000_000_000) for value in values], compression=compression
    )


def produce(kafka_client: KafkaTestClient, data: bytearray, acks: int = -1) -> bytes:
    part = PartitionProduceData(index=0, records=memoryview(data))
    topics = [TopicProduceData(name="t", partition_data=[part])]
    return kafka_client.frame(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topics), 7)


def base_offsets(kafka_client: KafkaTestClient) -> list[int]:
    responses = [decode(ProduceResponse, 7, memoryview(body)) for _, body in kafka_client.answers[1:]]
    parts = [response.responses[0].partition_responses[0] for response in responses]
    assert [part.error_code for part in parts] == [0] * len(parts)
    return [part.base_offset for part in parts]


def in_world(seed: int, test: Any) -> None:
    world = World(seed)

    async def go() -> None:
        broker = SimBroker(world, world.host("broker"))
        await broker.start()
        await test(
            ConnectionHarness(world), KafkaTestClient(await world.host("client").network.connect("broker", PORT, 5.0))
        )
        await broker.stop()

    run: Coroutine[Any, Any, None] = go()
    world.run(run)
    world.close()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("acks", [-1, 0])
def test_batches_are_appended_in_the_order_of_their_requests(seed: int, acks: int) -> None:
    async def test(connection_harness: ConnectionHarness, kafka_client: KafkaTestClient) -> None:
        kafka_client.send(kafka_client.frame(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 1))
        await connection_harness.until(lambda: kafka_client.answers)
        sent = []
        for number in range(6):
            name = b"%d" % number
            is_large = number % 2 == 0  # large ones are decompressed in the disk threads, others are appended at once
            data = batch(name, LARGE_RECORDS, GZIP) if is_large else batch(name, 1, NONE)
            sent += [name] * (LARGE_RECORDS if is_large else 1)
            kafka_client.send(produce(kafka_client, data, acks))
        if acks:
            await connection_harness.until(lambda: len(kafka_client.answers) == 7)
            assert base_offsets(kafka_client) == [0, 40, 41, 81, 82, 122]
        found: list[bytes] = []
        while len(found) < len(sent):
            found = await read_all(connection_harness, kafka_client)
        assert found == sent

    in_world(seed, test)


async def read_all(connection_harness: ConnectionHarness, kafka_client: KafkaTestClient) -> list[bytes]:
    requested = FetchPartition(fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[requested])]
    before = len(kafka_client.answers)
    kafka_client.send(
        kafka_client.frame(FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics), 4)
    )
    await connection_harness.until(lambda: len(kafka_client.answers) > before)
    response = decode(FetchResponse, 4, memoryview(kafka_client.answers[-1][1]))
    return names_in(response.responses[0].partitions[0].records)


def names_in(records: Any) -> list[bytes]:
    """Return the names of all records, and check their content."""
    view, found, counts = memoryview(records), [], dict[bytes, int]()
    while view:
        header = parse_header(view)
        for record in read_records(view[: header.size_bytes], header, 1 << 20):
            value = record.value or b""
            name = value[:1]
            at = counts[name] = counts.get(name, -1) + 1
            assert value == name + hashlib.shake_256(name + b"%d" % at).digest(1000)
            found.append(name)
        view = view[header.size_bytes :]
    return found
