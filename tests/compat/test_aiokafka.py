"""aiokafka: producing, consuming, groups. It speaks the oldest versions of all clients (ApiVersions 0)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError
from tests.integration.process import PATIENCE_SECONDS

Client = TypeVar("Client", AIOKafkaProducer, AIOKafkaConsumer, AIOKafkaAdminClient)
COMPRESSIONS = [None, "gzip", "snappy", "lz4", "zstd"]


def run(test: Coroutine[Any, Any, None]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            await test

    asyncio.run(with_deadline())


@asynccontextmanager
async def started(client: Client) -> AsyncIterator[Client]:
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


async def create_topic(address: str, topic: str, partitions: int) -> None:
    async with started(AIOKafkaAdminClient(bootstrap_servers=address)) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1)])


async def consume(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        for batch in (await consumer.getmany(timeout_ms=500, max_records=count - len(records))).values():
            records += batch
    return records


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    while True:
        holds = condition()
        if holds is True or (not isinstance(holds, bool) and await holds):
            return
        await asyncio.sleep(0.05)


def group_consumer(address: str, topic: str, **config: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", **config)


def test_a_producer_and_a_group_work_on_default_settings_with_an_auto_created_topic(address: str, name: str) -> None:
    values = [b"%d" % number for number in range(500)]

    async def test() -> None:
        async with started(AIOKafkaProducer(bootstrap_servers=address)) as producer:
            sent = [await producer.send(name, value, key=value) for value in values]
            reports = [await report for report in sent]
            assert len({(report.partition, report.offset) for report in reports}) == 500
        async with started(group_consumer(address, name)) as consumer:
            records = await consume(consumer, 500)
        assert sorted(record.value for record in records) == sorted(values)

    run(test())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_round_trips_with_idempotence(address: str, name: str, compression: str | None) -> None:
    values = [b"a value that compresses well " * 20 + b"%d" % number for number in range(300)]

    async def test() -> None:
        await create_topic(address, name, 1)
        config = {"compression_type": compression, "enable_idempotence": True, "linger_ms": 10}
        async with started(AIOKafkaProducer(bootstrap_servers=address, **config)) as producer:
            sent = [await producer.send(name, value, partition=0) for value in values]
            assert [(await report).offset for report in sent] == list(range(300))
        async with started(group_consumer(address, name)) as consumer:
            assert [record.value for record in await consume(consumer, 300)] == values

    run(test())


def test_empty_values_tombstones_null_keys_and_headers_come_back_as_sent(address: str, name: str) -> None:
    sent = [(b"empty value", b""), (b"tombstone", None), (None, b"null key"), (b"", b"empty key")]
    headers = [("text", b"value"), ("empty", b"")]

    async def test() -> None:
        await create_topic(address, name, 1)
        async with started(AIOKafkaProducer(bootstrap_servers=address)) as producer:
            for key, value in sent:
                await producer.send_and_wait(name, value, key=key, headers=headers)
        async with started(group_consumer(address, name)) as consumer:
            records = await consume(consumer, len(sent))
        assert [(record.key, record.value) for record in records] == sent
        assert all(list(record.headers) == headers for record in records)

    run(test())


def test_a_large_message_is_accepted_and_a_too_large_one_is_rejected(address: str, name: str) -> None:
    large = bytes(range(256)) * 3900

    async def test() -> None:
        await create_topic(address, name, 1)
        config = {"max_request_size": 4_000_000}
        async with started(AIOKafkaProducer(bootstrap_servers=address, **config)) as producer:
            await producer.send_and_wait(name, large)
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(name, large * 2)
        async with started(group_consumer(address, name)) as consumer:
            assert (await consume(consumer, 1))[0].value == large

    run(test())


def test_a_group_continues_at_its_committed_offsets(address: str, name: str) -> None:
    async def test() -> None:
        await create_topic(address, name, 1)
        async with started(AIOKafkaProducer(bootstrap_servers=address)) as producer:
            for number in range(20):
                await producer.send_and_wait(name, b"%d" % number)
        async with started(group_consumer(address, name, enable_auto_commit=False)) as consumer:
            await consume(consumer, 7)
            await consumer.commit({TopicPartition(name, 0): (7, "half way")})
        async with started(group_consumer(address, name, enable_auto_commit=False)) as consumer:
            assert await consumer.committed(TopicPartition(name, 0)) == 7
            assert (await consume(consumer, 1))[0].value == b"7"

    run(test())


def test_seeking_by_offset_and_by_timestamp_finds_the_record(address: str, name: str) -> None:
    start_ms = int(time.time() * 1000) - 100_000
    partition = TopicPartition(name, 0)

    async def test() -> None:
        await create_topic(address, name, 1)
        async with started(AIOKafkaProducer(bootstrap_servers=address)) as producer:
            for number in range(100):
                await producer.send_and_wait(name, b"%d" % number, timestamp_ms=start_ms + 1000 * number)
        async with started(AIOKafkaConsumer(bootstrap_servers=address)) as consumer:
            consumer.assign([partition])
            found = await consumer.offsets_for_times({partition: start_ms + 41_500})
            assert found[partition].offset == 42
            assert found[partition].timestamp == start_ms + 42_000
            assert (await consumer.offsets_for_times({partition: start_ms + 10**6}))[partition] is None
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 100}
            consumer.seek(partition, 3)
            assert (await consume(consumer, 1))[0].value == b"3"

    run(test())


@pytest.mark.parametrize("assignor", [RoundRobinPartitionAssignor, StickyPartitionAssignor])
def test_two_members_share_the_partitions_and_the_remaining_one_gets_all(
    address: str, name: str, assignor: Any
) -> None:
    config = {"partition_assignment_strategy": (assignor,), "heartbeat_interval_ms": 200}

    async def test() -> None:
        await create_topic(address, name, 4)
        async with started(group_consumer(address, name, **config)) as stays:
            async with started(group_consumer(address, name, **config)) as leaves:
                await until(lambda: len(stays.assignment()) == len(leaves.assignment()) == 2)
            await until(lambda: len(stays.assignment()) == 4)

    run(test())


def test_a_static_member_keeps_its_partitions_over_a_restart(address: str, name: str) -> None:
    async def test() -> None:
        await create_topic(address, name, 4)
        config = {"heartbeat_interval_ms": 200}
        async with started(group_consumer(address, name, group_instance_id="one", **config)) as first:
            async with started(group_consumer(address, name, group_instance_id="two", **config)) as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                before = second.assignment()
            async with started(group_consumer(address, name, group_instance_id="two", **config)) as second:
                await until(lambda: len(second.assignment()) == 2)
                assert second.assignment() == before

    run(test())
