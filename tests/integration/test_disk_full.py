"""A full disk: producing fails with a retriable error, reading continues, and writing resumes (I24)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from tests.integration.batches import good_batch
from tests.integration.conftest import StartBroker
from tests.integration.process import BrokerProcess, wait_until
from tests.integration.raw import RawConnection
from tests.integration.records import consume, consumer_of, create_topic, produce

MEGABYTE = 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 MB."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let us mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_rejects_writes_serves_reads_and_recovers(start_broker: StartBroker, small_disk: Path) -> None:
    broker = start_broker(data=small_disk / "data")
    create_topic(broker.address, "orders", 1)
    acknowledged = fill(broker)
    assert acknowledged > 0
    assert broker.running, broker.log_tail()

    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert [message.offset() for message in consume(consumer, acknowledged)] == list(range(acknowledged))

    subprocess.run(["mount", "-o", "remount,size=256m", small_disk], check=True)
    wait_until(lambda: send(broker, b"again").error_code == 0, "the broker accepts writes again")

    broker.restart()
    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        messages = consume(consumer, acknowledged + 1)
        assert [message.offset() for message in messages] == list(range(acknowledged + 1))
        assert messages[-1].value() == b"again"


def test_a_disk_filled_by_another_process_stops_only_writes(start_broker: StartBroker, small_disk: Path) -> None:
    broker = start_broker(data=small_disk / "data")
    create_topic(broker.address, "orders", 1)
    acknowledged = 0
    if send(broker, b"while there is room").error_code == 0:
        acknowledged = 1
    ballast = small_disk / "ballast"
    # A little less than there is, because file systems want some room for themselves.
    ballast.write_bytes(bytes(max(shutil.disk_usage(small_disk).free - 64 * 1024, 0)))
    wait_until(lambda: send(broker, b"x" * MEGABYTE).error_code != 0, "a write fails")
    with RawConnection(broker.address) as raw:
        assert raw.call(3, 12, topics=None).topics
    ballast.unlink()
    wait_until(lambda: send(broker, b"again").error_code == 0, "the broker accepts writes again")
    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consume(consumer, acknowledged + 1)[-1].offset() == acknowledged


def fill(broker: BrokerProcess) -> int:
    """Write until the broker returns an error, which must be retriable; return the number of acknowledged records."""
    for count in range(1000):
        code = send(broker, b"x" * (MEGABYTE - 1000)).error_code
        if code != 0:
            assert KafkaError(int(code)).retriable() or int(code) in RETRIABLE, code
            return count
    raise AssertionError("a disk of 64 MB took a gigabyte")


RETRIABLE = {KafkaError.KAFKA_STORAGE_ERROR, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS}


def send(broker: BrokerProcess, value: bytes) -> Any:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": good_batch([value])}]}]
    with RawConnection(broker.address) as raw:
        response = raw.call(0, 9, acks=-1, timeout=10_000, topic_data=data)
    return response.responses[0].partition_responses[0]


def test_a_client_library_survives_a_full_disk_by_retrying(start_broker: StartBroker, small_disk: Path) -> None:
    broker = start_broker(data=small_disk / "data")
    create_topic(broker.address, "orders", 1)
    fill(broker)
    subprocess.run(["mount", "-o", "remount,size=256m", small_disk], check=True)
    produce(broker.address, "orders", [b"one more"])
