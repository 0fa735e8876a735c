"""Compaction in a real broker under load: the compacted log is correct, also after kill -9 during a pass.

HEADRACE_KEYS, HEADRACE_RECORDS and HEADRACE_PADDING (bytes per value) set the size. The full run has a million keys,
four million records and 450 bytes, which is 2 GB.
"""

from __future__ import annotations

import os
from array import array
from random import Random

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from tests.integration.conftest import Figures, StartBroker
from tests.integration.process import BrokerProcess, wait_until
from tests.integration.records import create_topic

KEYS = int(os.environ.get("HEADRACE_KEYS", "3000"))
RECORDS = int(os.environ.get("HEADRACE_RECORDS", "60000"))
PADDING = b"." * int(os.environ.get("HEADRACE_PADDING", "0"))
KILLS = int(os.environ.get("HEADRACE_KILLS", "3"))
TOPIC = "accounts"
SETTINGS = {"log.cleaner.backoff.ms": "50"}
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(max(RECORDS * (100 + len(PADDING)) // 40, 16_384)),
    "min.cleanable.dirty.ratio": "0.05",
    "delete.retention.ms": "3600000",
}


@pytest.mark.timeout(300 + RECORDS // 1000)
def test_compaction_keeps_the_newest_record_of_every_key_at_its_offset(
    start_broker: StartBroker, figures: Figures
) -> None:
    random = Random(7)
    broker = start_broker(SETTINGS)
    create_topic(broker.address, TOPIC, 1, CONFIGS)
    sent = Sent()
    for stage in range(KILLS + 1):
        sent.produce(broker, RECORDS // (KILLS + 1), random)
        if stage < KILLS:
            wait_until(lambda: is_cleaning(broker), "a pass is under way or done")
            broker.kill()
            broker.start()
    wait_until(lambda: is_settled(broker), "a pass is done and none is under way", 120 + RECORDS / 10_000)
    passes = int(cleaned(broker, "passes_total"))
    found = read_all(broker, sent)
    newest = {key: offset for offset, key in enumerate(sent.keys)}
    assert found >= set(newest.values()), "the newest record of a key is missing"
    assert len(found) < RECORDS, "nothing was compacted"
    figures.add(f"{RECORDS} records of {KEYS} keys, {KILLS} kills: {len(found)} left after the last {passes} passes")


class Sent:
    """The log as it was produced: the key of each offset, and whether it is a tombstone."""

    def __init__(self) -> None:
        self.keys: array[int] = array("q")
        self.is_tombstone = bytearray()

    def produce(self, broker: BrokerProcess, count: int, random: Random) -> None:
        producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 5})
        for _ in range(count):
            key, is_tombstone = random.randrange(KEYS), random.random() < 0.02
            number = len(self.keys)
            self.keys.append(key)
            self.is_tombstone.append(is_tombstone)
            value = None if is_tombstone else b"%d %d%b" % (key, number, PADDING)
            while True:
                try:
                    producer.produce(TOPIC, value, b"%d" % key, partition=0)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert producer.flush(120) == 0

    def check(self, message: Message) -> int:
        """Check that a record is unchanged at its offset; return the offset."""
        offset = message.offset()
        assert offset is not None
        key, value = message.key(), message.value()
        assert key == b"%d" % self.keys[offset]
        assert value == (None if self.is_tombstone[offset] else b"%d %d%b" % (self.keys[offset], offset, PADDING))
        return offset


def read_all(broker: BrokerProcess, sent: Sent) -> set[int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "reader", "enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    try:
        while True:
            messages = consumer.consume(5000, timeout=10)
            assert messages, "the reader stands still"
            for message in messages:
                if (error := message.error()) is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    assert found == sorted(set(found)), "out of order, or more than once"
                    return set(found)
                found.append(sent.check(message))
    finally:
        consumer.close()


def is_cleaning(broker: BrokerProcess) -> bool:
    return cleaned(broker, "passes_total") > 0 or any(broker.data.glob("logs/*/*.tmp"))


def is_settled(broker: BrokerProcess) -> bool:
    return cleaned(broker, "passes_total") > 0 and not any(broker.data.glob("logs/*/*.tmp"))


def cleaned(broker: BrokerProcess, what: str) -> float:
    for line in broker.http_get("/metrics").splitlines():
        if line.startswith(f"headrace_cleaner_{what}"):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no metric headrace_cleaner_{what}")
