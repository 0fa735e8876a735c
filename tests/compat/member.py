"""A group member as a program, until killed: `python -m tests.compat.member CLIENT ADDRESS TOPIC`.

The group has the topic's name. Every record is printed as `PARTITION OFFSET VALUE` before its offset may be committed,
so another member must read every record that a killed member did not print.
"""

from __future__ import annotations

import asyncio
import sys
import warnings

SESSION_TIMEOUT_MS = 6000
"""The minimum that a broker allows by default; it bounds the duration of a takeover."""


def main(client: str, address: str, topic: str) -> None:
    if client == "confluent":
        run_confluent(address, topic)
    elif client == "aiokafka":
        asyncio.run(run_aiokafka(address, topic))
    else:
        run_kafka_python(address, topic)


def run_confluent(address: str, topic: str) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 500,
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 200,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            report(message.partition(), message.offset(), message.value())
            consumer.store_offsets(message)


async def run_aiokafka(address: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=topic,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=200,
    )
    await consumer.start()
    async for record in consumer:
        report(record.partition, record.offset, record.value)


def run_kafka_python(address: str, topic: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=topic,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=200,
    )
    for record in consumer:
        report(record.partition, record.offset, record.value)


def report(partition: int | None, offset: int | None, value: bytes | None) -> None:
    sys.stdout.write(f"{partition} {offset} {(value or b'').decode()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
