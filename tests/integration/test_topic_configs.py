"""Topic and broker configs have the documented effect."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from kio.schema.errors import ErrorCode
from tests.integration.batches import batch, good_batch, record
from tests.integration.conftest import StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess, wait_until
from tests.integration.raw import RawConnection
from tests.integration.records import consume, consumer_of, create_topic, produce

MEGABYTE = 2**20
CREATE_TIME, LOG_APPEND_TIME = 1, 2


@pytest.fixture
def quick_broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker that runs log maintenance every half second."""
    return start_broker({"log.retention.check.interval.ms": "500"})


def segments(broker: BrokerProcess, marker: bytes) -> list[Path]:
    """Return the segments of the partition whose first bytes contain the marker."""
    [folder] = {path.parent for path in broker.segment_files() if marker in path.read_bytes()}
    return sorted(folder.glob("*.log"))


def watermarks(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    with consumer_of(broker.address, "watermarks") as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS)
        return low, high


def test_segments_roll_at_the_configured_size(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1, {"segment.bytes": str(MEGABYTE)})
    produce(broker.address, "orders", [b"rolls" + b"x" * 300_000] * 10)
    assert len(segments(broker, b"rolls")) >= 4


def test_retention_by_size_deletes_the_oldest_segments(quick_broker: BrokerProcess) -> None:
    config = {"segment.bytes": str(MEGABYTE), "retention.bytes": str(2 * MEGABYTE)}
    create_topic(quick_broker.address, "orders", 1, config)
    produce(quick_broker.address, "orders", [b"x" * 300_000] * 30)
    wait_until(lambda: watermarks(quick_broker, "orders")[0] > 0, "the start of the log has moved")
    low, high = watermarks(quick_broker, "orders")
    assert high == 30
    assert 30 - low >= 6, "what retention.bytes asks to keep is kept"
    with consumer_of(quick_broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consume(consumer, 1)[0].offset() == low


def test_retention_by_time_deletes_only_old_segments(quick_broker: BrokerProcess) -> None:
    config = {"segment.bytes": str(MEGABYTE), "retention.ms": "3600000"}
    create_topic(quick_broker.address, "orders", 1, config)
    producer = Producer({"bootstrap.servers": quick_broker.address})
    long_ago = int(time.time() * 1000) - 7_200_000
    for _ in range(8):
        producer.produce("orders", b"old" * 100_000, timestamp=long_ago)
    assert producer.flush(PATIENCE_SECONDS) == 0
    for _ in range(8):
        producer.produce("orders", b"new" * 100_000)
    assert producer.flush(PATIENCE_SECONDS) == 0
    wait_until(lambda: watermarks(quick_broker, "orders")[0] > 0, "the start of the log has moved")
    assert watermarks(quick_broker, "orders")[0] <= 8


def test_the_message_size_limit_of_a_topic_applies_and_can_be_raised(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1, {"max.message.bytes": "10000"})

    def error_of(size: int) -> int:
        errors: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": broker.address, "message.max.bytes": 5_000_000})
        producer.produce("orders", b"x" * size, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE_SECONDS) == 0
        [error] = errors
        return 0 if error is None else error.code()

    assert error_of(9_000) == 0
    assert error_of(11_000) == KafkaError.MSG_SIZE_TOO_LARGE
    alter(broker, "max.message.bytes", "3000000")
    assert error_of(2_500_000) == 0


def test_log_append_time_stamps_records_with_the_brokers_clock(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1, {"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.address})
    stamps: list[tuple[int, int]] = []
    producer.produce("orders", b"x", timestamp=12345, on_delivery=lambda _, message: stamps.append(message.timestamp()))
    assert producer.flush(PATIENCE_SECONDS) == 0
    [(kind, stamp)] = stamps
    assert kind == LOG_APPEND_TIME
    assert before <= stamp <= int(time.time() * 1000)
    with consumer_of(broker.address, "readers", **{"check.crcs": True}) as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consume(consumer, 1)[0].timestamp() == (LOG_APPEND_TIME, stamp)


def test_create_time_is_that_of_the_producer(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("orders", b"x", timestamp=12345)
    assert producer.flush(PATIENCE_SECONDS) == 0
    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consume(consumer, 1)[0].timestamp() == (CREATE_TIME, 12345)


def test_a_timestamp_too_far_in_the_future_is_rejected(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1, {"message.timestamp.after.max.ms": "60000"})
    ahead = int(time.time() * 1000) + 3_600_000
    assert (
        send(broker, batch(record(b"from the future"), 1, timestamp_ms=ahead)).error_code == ErrorCode.invalid_timestamp
    )
    assert send(broker, good_batch([b"from now"])).error_code == 0


def test_more_in_sync_replicas_than_replicas_cannot_be_required(broker: BrokerProcess) -> None:
    create_topic(broker.address, "orders", 1, {"min.insync.replicas": "2"})  # Kafka counts the smaller of the two
    assert send(broker, good_batch([b"x"])).error_code == 0


def test_broker_configs_by_kafkas_names_apply(start_broker: StartBroker) -> None:
    broker = start_broker({"num.partitions": "7", "auto.create.topics.enable": "false"})
    with RawConnection(broker.address) as raw:
        [response] = raw.call(3, 12, topics=[{"name": "auto"}], allow_auto_topic_creation=True).topics
        assert response.error_code == ErrorCode.unknown_topic_or_partition
        request = {
            "name": "made",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        [created] = raw.call(19, 7, topics=[request], timeout=30_000).topics
        assert created.num_partitions == 7


def test_an_unknown_broker_config_fails_the_start_and_suggests_a_name(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"num.partition": "7"})
    broker.launch()
    assert broker.wait_ended() != 0
    assert "num.partitions" in broker.log_text()


def alter(broker: BrokerProcess, config: str, value: str) -> None:
    entry = {"name": config, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": "orders", "configs": [entry]}
    with RawConnection(broker.address) as raw:
        [response] = raw.call(44, 1, resources=[resource], validate_only=False).responses
        assert response.error_code == 0


def send(broker: BrokerProcess, records: bytes) -> Any:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
    with RawConnection(broker.address) as raw:
        response = raw.call(0, 9, acks=-1, timeout=10_000, topic_data=data)
    return response.responses[0].partition_responses[0]
