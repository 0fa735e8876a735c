"""Delayed messages of another client library are delivered once, although the broker is killed while they are due."""

from __future__ import annotations

import time
from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.integration.conftest import Figures, StartBroker
from tests.integration.process import PATIENCE_SECONDS, wait_until
from tests.integration.records import create_topic

COUNT = 3000
KILLS = 3


def test_delayed_messages_are_delivered_once_although_the_broker_is_killed(
    start_broker: StartBroker, figures: Figures
) -> None:
    broker = start_broker()
    create_topic(broker.address, "orders", 1)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5})
    start_ms = int(time.time() * 1000) + 1000
    for number in range(COUNT):
        due = str(start_ms + number)
        producer.produce(
            "__delayed.orders", due.encode(), headers={"headrace-deliver-at": due, "n": "1"}, on_delivery=_check
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    for number in range(KILLS):
        when_ms = start_ms + (number + 1) * COUNT // (KILLS + 1)
        wait_until(lambda when_ms=when_ms: time.time() * 1000 >= when_ms, "it is time")  # type: ignore[misc]
        broker.kill()
        broker.start()

    found = _read(broker.address, COUNT)

    assert Counter(value for value, _ in found) == Counter(str(start_ms + number).encode() for number in range(COUNT))
    errors = sorted(timestamp_ms - int(value) for value, timestamp_ms in found)
    assert errors[0] >= 0, "one came before its time"
    figures.add(f"release error p50 {errors[COUNT // 2]} ms, with {KILLS} kills in {COUNT / 1000:g} s")


def _read(address: str, count: int) -> list[tuple[bytes, int]]:
    """Consume this number of messages, and all that arrive within one more second."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found: list[tuple[bytes, int]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for message in consumer.consume(500, 1.0) or ():
            assert message.error() is None, message.error()
            headers = dict(message.headers() or [])
            assert set(headers) == {"n", "headrace-delayed-id"}
            found.append((message.value() or b"", message.timestamp()[1]))
        if len(found) >= count:
            deadline = min(deadline, time.monotonic() + 1)
    consumer.close()
    return found


def _check(error: object, _message: object) -> None:
    assert error is None, error
