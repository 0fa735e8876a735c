"""Produce and consume records with confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.process import PATIENCE_SECONDS, wait_until


def create_topic(address: str, topic: str, partitions: int = 4, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})])[topic].result(PATIENCE_SECONDS)


def produce(
    address: str, topic: str, values: Sequence[bytes | None], partition: int = -1, **config: Any
) -> list[Message]:
    """Produce all records and return the delivery reports; fail unless each was acknowledged."""
    reports: list[Message] = []
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            reports.append(message)
        else:
            refused.append(error)

    producer = Producer({"bootstrap.servers": address, **config})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=f"key-{number}", partition=partition, on_delivery=on_delivery)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert refused == []
    return reports


@contextmanager
def consumer_of(address: str, group: str, **config: Any) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", **config}
    with closing(Consumer(settings)) as consumer:
        yield consumer


def consume(consumer: Consumer, count: int) -> list[Message]:
    """Return the next `count` messages."""
    messages: list[Message] = []

    def enough() -> bool:
        for message in consumer.consume(count - len(messages), timeout=0.5):
            error = message.error()
            assert error is None or error.retriable() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error
            if error is None:
                messages.append(message)
        return len(messages) >= count

    wait_until(enough, f"{count} messages are consumed")
    return messages
