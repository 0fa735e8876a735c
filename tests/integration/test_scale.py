"""Many partitions and many connections on one broker.

HEADRACE_PARTITIONS sets the number of partitions: by default 1,000, and 10,000 for the full run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from tests.integration.conftest import Figures, StartBroker
from tests.integration.hostile import allow_many_descriptors
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess
from tests.integration.raw import RawConnection
from tests.integration.records import consume, consumer_of, create_topic, produce

PARTITIONS = int(os.environ.get("HEADRACE_PARTITIONS", "1000"))
PARTITIONS_MEMORY_MAX = 500 * 2**20
CONNECTIONS = 1000
CONNECTIONS_MEMORY_MAX = 100 * 2**20


@pytest.mark.timeout(120 + PARTITIONS / 20)
def test_many_partitions_start_serve_and_fit_into_memory(start_broker: StartBroker, figures: Figures) -> None:
    broker = start_broker()
    per_topic = 100
    for number in range(PARTITIONS // per_topic):
        create_topic(broker.address, f"topic-{number}", per_topic)
    with RawConnection(broker.address) as raw:
        topics = raw.call(3, 12, topics=None).topics
    assert sum(len(topic.partitions) for topic in topics if topic.name.startswith("topic-")) == PARTITIONS
    send_to_all(broker, per_topic)
    written = broker.rss_bytes()

    assert broker.terminate(PATIENCE_SECONDS + PARTITIONS / 50) == 0
    clean = seconds_to_ready(broker)
    broker.kill()
    unclean = seconds_to_ready(broker)
    send_to_all(broker, per_topic)
    assert read_all(broker, per_topic) == 2 * PARTITIONS
    read = broker.rss_bytes()
    descriptors = len(os.listdir(f"/proc/{broker.process.pid}/fd"))
    figures.add(
        f"{PARTITIONS} partitions: memory {written >> 20} MB after writing to each, {read >> 20} MB after a restart, "
        f"writing and reading; ready after {clean:.2f} s (clean), {unclean:.2f} s (killed); {descriptors} descriptors"
    )
    assert max(written, read) < PARTITIONS_MEMORY_MAX


def test_more_partitions_are_served_than_file_descriptors_are_allowed(tmp_path: Path) -> None:
    allowed, partitions = 1024, 2000
    broker = BrokerProcess(tmp_path, descriptors_max=allowed).start()
    try:
        create_topic(broker.address, "wide", partitions)
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
        for lap in range(2):
            for partition in range(partitions):
                producer.produce("wide", b"%d" % lap, partition=partition)
            assert producer.flush(PATIENCE_SECONDS) == 0
        broker.restart()
        with consumer_of(broker.address, "readers") as consumer:
            consumer.assign([TopicPartition("wide", partition, 0) for partition in range(partitions)])
            assert len(consume(consumer, 2 * partitions)) == 2 * partitions
        assert broker.terminate() == 0
        assert "Traceback" not in broker.log_text()
    finally:
        broker.stop()


def test_a_thousand_idle_connections_fit_into_memory(broker: BrokerProcess, figures: Figures) -> None:
    allow_many_descriptors()
    produce(broker.address, "orders", [b"x"])
    before = broker.rss_bytes()
    connections = [RawConnection(broker.address) for _ in range(CONNECTIONS)]
    for connection in connections:
        assert connection.call(18, 3, client_software_name="idle", client_software_version="1").error_code == 0
    grown = broker.rss_bytes() - before
    produce(broker.address, "orders", [b"x"])
    figures.add(f"{CONNECTIONS} idle connections: {grown >> 10} KB")
    for connection in connections:
        connection.socket.close()
    assert grown < CONNECTIONS_MEMORY_MAX


def send_to_all(broker: BrokerProcess, per_topic: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 50})
    for number in range(PARTITIONS // per_topic):
        for partition in range(per_topic):
            producer.produce(f"topic-{number}", b"x", partition=partition)
    assert producer.flush(120) == 0


def read_all(broker: BrokerProcess, per_topic: int) -> int:
    """Read two records from every partition, ten topics at a time.

    One librdkafka consumer of 10,000 partitions pauses for half a minute while it asks for offsets; the cause
    is not known.
    """
    topics = [f"topic-{number}" for number in range(PARTITIONS // per_topic)]
    read = 0
    with consumer_of(broker.address, "readers") as consumer:
        for first in range(0, len(topics), 10):
            chosen = topics[first : first + 10]
            starts = [TopicPartition(topic, partition, 0) for topic in chosen for partition in range(per_topic)]
            consumer.assign(starts)
            read += len(consume(consumer, 2 * len(starts)))
    return read


def seconds_to_ready(broker: BrokerProcess) -> float:
    started = time.monotonic()
    broker.start()
    return time.monotonic() - started
