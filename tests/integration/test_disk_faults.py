"""fsync of a real process, delayed or failed by strace: acknowledged records are on disk (I1, I23)."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from tests.integration.batches import good_batch
from tests.integration.process import BrokerProcess, wait_until
from tests.integration.raw import RawConnection
from tests.integration.records import consume, consumer_of, create_topic

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@contextmanager
def injected(broker: BrokerProcess, fault: str, folder: Path) -> Iterator[None]:
    """Inject a fault into every fdatasync and fsync of the running broker."""
    calls = "fdatasync,fsync"
    command = ["strace", "-f", "-p", str(broker.process.pid), "-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"]
    says = folder / "strace.txt"
    with says.open("wb") as output:
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output)
    try:
        wait_until(lambda: "attached" in says.read_text() or tracer.poll() is not None, "strace has attached")
        if tracer.poll() is not None:
            pytest.skip(f"strace may not trace here: {says.read_text()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def send(broker: BrokerProcess, value: bytes) -> Any:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": good_batch([value])}]}]
    with RawConnection(broker.address) as raw:
        response = raw.call(0, 9, acks=-1, timeout=30_000, topic_data=data)
    return response.responses[0].partition_responses[0]


def test_an_acknowledgement_waits_for_the_fsync(broker: BrokerProcess, tmp_path: Path) -> None:
    create_topic(broker.address, "orders", 1)
    assert send(broker, b"quick").error_code == 0
    with injected(broker, "delay_enter=700000", tmp_path):
        started = time.monotonic()
        assert send(broker, b"slow").error_code == 0
        assert time.monotonic() - started >= 0.7
    assert send(broker, b"quick again").base_offset == 2


def test_a_failed_fsync_is_not_acknowledged_and_not_retried(broker: BrokerProcess, tmp_path: Path) -> None:
    create_topic(broker.address, "orders", 1)
    assert send(broker, b"before").error_code == 0
    with injected(broker, "error=EIO", tmp_path):
        try:
            assert send(broker, b"lost").error_code != 0
        except OSError:
            wait_until(lambda: not broker.running, "a broker that does not answer has ended")
    if broker.running:
        assert send(broker, b"the disk seems to work again").error_code != 0, "a failed log stays failed"
        broker.kill()
    else:
        assert broker.wait_ended() != 0
    broker.start()
    assert send(broker, b"after").error_code == 0
    with consumer_of(broker.address, "readers") as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consume(consumer, 1)[0].value() == b"before"
