"""Third-party clients and `dedup.window.ms`: producers continue after duplicates, consumers continue past the gaps."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from tests.integration.process import PATIENCE_SECONDS, outside_broker
from tests.integration.records import consume, consumer_of, create_topic

pytestmark = pytest.mark.skipif(outside_broker() is not None, reason="dedup ids are our own")

IDS = 60
LAST = b"last"


def produce_thrice(address: str, topic: str, **config: object) -> list[int]:
    """Send each id three times, in batches of several, some with duplicates only; then one record without an id."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            offsets.append(message.offset() or 0)
        else:
            errors.append(error)

    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **config})
    for turn in range(3):
        for number in range(IDS):
            for _ in range(2 if turn == 0 else 1):
                headers: list[tuple[str, str | bytes | None]] = [("headrace-dedup-id", b"%d" % number)]
                producer.produce(topic, b"%d" % number, headers=headers, on_delivery=on_delivery)
            if number % 7 == 0:
                assert producer.flush(PATIENCE_SECONDS) == 0
    producer.produce(topic, LAST, on_delivery=on_delivery)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert errors == []
    return offsets


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_id_is_read_once_by_every_client(address: str, name: str, idempotent: bool, compression: str) -> None:
    create_topic(address, name, 1, {"dedup.window.ms": "600000"})
    offsets = produce_thrice(address, name, **{"enable.idempotence": idempotent, "compression.type": compression})
    assert len(offsets) == 4 * IDS + 1
    expected = [*(b"%d" % number for number in range(IDS)), LAST]
    assert read_by_confluent(address, name, len(expected)) == expected
    assert read_by_kafka_python(address, name, len(expected)) == expected
    assert asyncio.run(read_by_aiokafka(address, name, len(expected))) == expected


def read_by_confluent(address: str, topic: str, count: int) -> list[bytes]:
    with consumer_of(address, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() or b"" for message in consume(consumer, count)]


def read_by_kafka_python(address: str, topic: str, count: int) -> list[bytes]:
    with closing(KafkaConsumer(bootstrap_servers=address)) as consumer:
        target = PythonTopicPartition(topic, 0)
        consumer.assign([target])
        consumer.seek_to_beginning(target)
        return [next(consumer).value for _ in range(count)]


async def read_by_aiokafka(address: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=address)
    await consumer.start()
    try:
        target = AioTopicPartition(topic, 0)
        consumer.assign([target])
        await consumer.seek_to_beginning(target)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()
