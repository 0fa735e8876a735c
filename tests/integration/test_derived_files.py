"""All files next to the log files are derived: lost or damaged, they are rebuilt without loss (I21, I22)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from tests.integration.conftest import StartBroker
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess
from tests.integration.records import consume, consumer_of, create_topic, produce

RECORDS = 3000


@pytest.fixture
def stopped(start_broker: StartBroker) -> BrokerProcess:
    """Return a cleanly stopped broker with several segments and a committed offset."""
    broker = start_broker()
    create_topic(broker.address, "orders", 1, {"segment.bytes": "1048576"})
    values = [b"%d " % number + b"x" * 1000 for number in range(RECORDS)]
    produce(broker.address, "orders", values, **{"batch.num.messages": 20})
    with consumer_of(broker.address, "readers", **{"enable.auto.commit": False}) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 1234)], asynchronous=False)
    assert broker.terminate() == 0
    return broker


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 7):
        content[position] ^= 0x55
    path.write_bytes(content)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [Path.unlink, flip, halve, fill_with_zeros])
@pytest.mark.parametrize("suffix", ["index", "timeindex", "checkpoint"])
def test_damaged_derived_files_lose_no_record(
    stopped: BrokerProcess, suffix: str, harm: Callable[[Path], None]
) -> None:
    harmed = list(stopped.data.glob(f"logs/*/*.{suffix}"))
    assert harmed
    for path in harmed:
        harm(path)
    stopped.start()
    assert_all_there(stopped)


@pytest.mark.parametrize("harm", [Path.unlink, flip, halve, fill_with_zeros])
def test_damaged_flushed_offsets_lose_no_record(stopped: BrokerProcess, harm: Callable[[Path], None]) -> None:
    harm(stopped.data / "flushed-offsets")
    stopped.start()
    assert_all_there(stopped)


def test_stray_folders_and_files_do_not_prevent_the_start(stopped: BrokerProcess) -> None:
    (stopped.data / "logs" / "lost+found").mkdir()
    (stopped.data / "logs" / "notes.txt").write_text("not ours")
    stopped.start()
    assert_all_there(stopped)


def test_a_damaged_registry_fails_the_start_with_a_message(stopped: BrokerProcess) -> None:
    for path in stopped.data.glob("registry.db*"):
        path.write_bytes(b"this is no database" * 400)
    stopped.launch()
    assert stopped.wait_ended() != 0
    assert "registry" in stopped.log_text()
    assert "Traceback" not in stopped.log_text()


def assert_all_there(broker: BrokerProcess) -> None:
    partition = TopicPartition("orders", 0)
    with consumer_of(broker.address, "readers") as consumer:
        assert consumer.get_watermark_offsets(partition, timeout=PATIENCE_SECONDS) == (0, RECORDS)
        [committed] = consumer.committed([partition], timeout=PATIENCE_SECONDS)
        assert committed.offset == 1234
        consumer.assign([TopicPartition("orders", 0, 0)])
        values = [(message.value() or b"").split(b" ")[0] for message in consume(consumer, RECORDS)]
        assert values == [b"%d" % number for number in range(RECORDS)]
        consumer.assign([TopicPartition("orders", 0, RECORDS // 2)])
        assert consume(consumer, 1)[0].offset() == RECORDS // 2
        [found] = consumer.offsets_for_times([TopicPartition("orders", 0, 1)], timeout=PATIENCE_SECONDS)
        assert found.offset == 0
    produce(broker.address, "orders", [b"one more"])
    assert "Traceback" not in broker.log_text()
