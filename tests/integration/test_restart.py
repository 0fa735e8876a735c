"""Stop, restart, and recovery from damaged files (I21, I22)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from tests.integration.conftest import Figures, StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, free_ports, wait_until
from tests.integration.raw import RawConnection, encode_request
from tests.integration.records import consume, consumer_of, create_topic, produce

FETCH, JOIN_GROUP = 1, 11


def test_sigterm_exits_with_0_and_loses_nothing(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 2)
    produce(broker.address, "orders", [b"%d" % number for number in range(100)], partition=1)
    with consumer_of(broker.address, "readers") as consumer:
        consumer.subscribe(["orders"])
        consume(consumer, 100)
    assert broker.terminate() == 0
    assert (broker.data / "clean-shutdown").exists()
    broker.start()
    assert not (broker.data / "clean-shutdown").exists()
    with consumer_of(broker.address, "readers") as consumer:
        [committed] = consumer.committed([TopicPartition("orders", 1)], timeout=30)
        assert committed.offset == 100
        consumer.assign([TopicPartition("orders", 1, 0)])
        assert [message.offset() for message in consume(consumer, 100)] == list(range(100))
    assert "Traceback" not in broker.log_text()


def test_sigterm_exits_with_0_during_reads_and_writes(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1)
    with RawConnection(broker.address) as waits, RawConnection(broker.address) as joins, RawConnection(broker.address):
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        limits: dict[str, Any] = {"max_wait": 100_000, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1}
        topics = [{"topic": "orders", "partitions": [partition]}]
        waits.send_frame(encode_request(FETCH, 12, **limits, topics=topics, forgotten_topics_data=[], rack_id=""))
        member: dict[str, Any] = {
            "group_id": "readers",
            "session_timeout": 30_000,
            "protocol_type": "consumer",
            "member_id": "",
        }
        protocols = [{"name": "range", "metadata": b""}]
        joins.send_frame(encode_request(JOIN_GROUP, 3, rebalance_timeout=60_000, **member, protocols=protocols))
        joins.receive_frame()
        assert broker.terminate() == 0
    assert "Traceback" not in broker.log_text()


def test_sigterm_stops_a_broker_that_waits_for_its_registry(tmp_path: Path) -> None:
    kafka_port, http_port, unused_port = free_ports(3)
    command = [str(Path(sys.executable).with_name("headrace")), "serve", "--data", str(tmp_path / "data")]
    command += ["--kafka", f"127.0.0.1:{kafka_port}", "--http", f"127.0.0.1:{http_port}"]
    command += ["--registry", f"zookeeper://127.0.0.1:{unused_port}/headrace"]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            wait_until(lambda: "Connection refused" in log.read_text(), "it waits for ZooKeeper")
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
    assert "stopped before it was ready" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_second_broker_on_the_same_data_does_not_start(broker: BrokerProcess, tmp_path: Path) -> None:
    second = BrokerProcess(tmp_path / "second", data=broker.data)
    second.launch()
    assert second.wait_ended() != 0
    assert "Traceback" not in second.log_text()
    produce(broker.address, "orders", [b"the first one is well"])


def test_a_port_in_use_fails_the_start_with_a_message(broker: BrokerProcess, tmp_path: Path) -> None:
    second = BrokerProcess(tmp_path / "second")
    second.address = broker.address
    second.launch()
    assert second.wait_ended() != 0
    assert str(broker.kafka_port) in second.log_text()


def test_idempotent_producer_state_survives_a_kill(broker: BrokerProcess) -> None:
    from tests.compat.test_produce_rules import IdempotentProducer

    create_topic(broker.address, "orders", 1)
    with RawConnection(broker.address) as raw:
        producer = IdempotentProducer(raw, "orders")
        assert [producer.send(sequence) for sequence in range(3)] == [(0, 0), (0, 1), (0, 2)]
    broker.restart()
    with RawConnection(broker.address) as raw:
        producer.raw = raw
        assert producer.send(2) == (0, 2), "a duplicate from before the kill"
        assert producer.send(3) == (0, 3)
        assert IdempotentProducer(raw, "orders").producer_id != producer.producer_id


def test_topics_configs_and_deletions_survive_a_kill(broker: BrokerProcess) -> None:
    create_topic(broker.address, "kept", 3, {"retention.ms": "12345678"})
    create_topic(broker.address, "dropped", 1)
    with RawConnection(broker.address) as raw:
        raw.call(20, 5, topic_names=["dropped"], timeout=30_000)
        broker.restart()
    with RawConnection(broker.address) as raw:
        topics = {topic.name: topic for topic in raw.call(3, 12, topics=None).topics}
        assert len(topics["kept"].partitions) == 3
        assert "dropped" not in topics
        resource = {"resource_type": 2, "resource_name": "kept", "configuration_keys": None}
        [described] = raw.call(32, 4, resources=[resource]).results
        assert {"retention.ms": "12345678"}.items() <= {one.name: one.value for one in described.configs}.items()


def test_deleted_records_stay_deleted_after_a_kill(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1)
    produce(broker.address, "orders", [b"%d" % number for number in range(10)])
    with RawConnection(broker.address) as raw:
        partitions = [{"partition_index": 0, "offset": 4}]
        [topic] = raw.call(21, 2, topics=[{"name": "orders", "partitions": partitions}], timeout=30_000).topics
        assert topic.partitions[0].error_code == 0
    broker.restart()
    with consumer_of(broker.address, "readers") as consumer:
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=30) == (4, 10)


def test_a_torn_tail_is_truncated_and_everything_before_it_is_served(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1)
    produce(broker.address, "orders", [b"%d" % number for number in range(10)])
    path = segment_with(broker, b"9")
    broker.kill()
    with path.open("ab") as file:
        file.write(path.read_bytes()[:45])
    broker.start()
    produce(broker.address, "orders", [b"10"])
    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert [message.value() for message in consume(consumer, 11)] == [b"%d" % number for number in range(11)]


@pytest.mark.parametrize("stop", ["killed", "terminated"])
def test_a_flipped_bit_below_the_flushed_offset_is_reported_and_never_served(
    start_broker: StartBroker, figures: Figures, stop: str
) -> None:
    broker = start_broker()
    create_topic(broker.address, "orders", 1)
    create_topic(broker.address, "healthy", 1)
    for value in (b"the first of three", b"the second of three", b"the third of three"):
        produce(broker.address, "orders", [value])
    produce(broker.address, "healthy", [b"unharmed"])
    path = segment_with(broker, b"the second of three")
    if stop == "killed":
        broker.kill()
    else:
        assert broker.terminate() == 0
    flip_bit(path, path.read_bytes().index(b"the second of three") + 4)
    broker.start()

    served = read_until_error(broker.address, "orders")
    assert set(served) <= {b"the first of three"}, "nothing damaged and nothing behind it is served"
    wait_until(lambda: path.name in broker.log_text(), "the log names the damaged file")
    report = next(line for line in broker.log_text().splitlines() if path.name in line)
    assert path.parent.name in report, "the report says which partition's file it is"
    assert any(character.isdigit() for character in report.split(path.name, 1)[1]), "and the position in it"
    figures.add(f"{stop}: {report.strip()}")
    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("healthy", 0, 0)])
        assert consume(consumer, 1)[0].value() == b"unharmed"
    assert path.exists(), "the damaged file is kept"


def test_a_flipped_bit_under_a_running_broker_is_not_served_after_a_restart(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1)
    produce(broker.address, "orders", [b"flip me, I am acknowledged"])
    path = segment_with(broker, b"flip me")
    flip_bit(path, path.read_bytes().index(b"flip me"))
    broker.restart()
    assert read_until_error(broker.address, "orders") == []


def segment_with(broker: BrokerProcess, content: bytes) -> Path:
    [path] = [path for path in broker.segment_files() if content in path.read_bytes()]
    return path


def flip_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())


def read_until_error(address: str, topic: str) -> list[bytes | None]:
    """Read without verifying checksums, until the broker returns an error."""
    settings = {"bootstrap.servers": address, "group.id": "careless", "check.crcs": False}
    consumer = Consumer(settings | {"auto.offset.reset": "error", "log_level": 2})
    consumer.assign([TopicPartition(topic, 0, 0)])
    served: list[bytes | None] = []
    errors: list[KafkaError] = []

    def has_error() -> bool:
        message: Message | None = consumer.poll(0.2)
        if message is not None and (error := message.error()) is not None:
            errors.append(error)
        elif message is not None:
            served.append(message.value())
        return bool(errors) or raw_fetch_error(address, topic) != 0

    wait_until(has_error, "the broker stops serving the damaged partition")
    consumer.close()
    return served


def raw_fetch_error(address: str, topic: str) -> int:
    """Return the error code of a fetch from the first offset, 0 while the broker serves it."""
    with RawConnection(address) as raw:
        partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 2**20}
        limits = {"max_wait": 100, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1}
        topics = [{"topic": topic, "partitions": [partition]}]
        response = raw.call(1, 12, **limits, topics=topics, forgotten_topics_data=[], rack_id="")
        return int(response.responses[0].partitions[0].error_code)
