"""kill -9 of the broker under load: no acknowledged record is lost, duplicated or reordered (I1-I3, I14, I21).

HEADRACE_KILLS sets the number of kills: by default 5, and 50 for the full run.
"""

from __future__ import annotations

import os
import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.batches import good_batch
from tests.integration.conftest import Figures, StartBroker
from tests.integration.history import History
from tests.integration.load import CommittingReader, Load, read_everything
from tests.integration.process import PATIENCE_SECONDS, BrokerProcess
from tests.integration.raw import RawConnection
from tests.integration.records import create_topic

KILLS = int(os.environ.get("HEADRACE_KILLS", "5"))
PARTITIONS = 4


@pytest.mark.timeout(120 + 30 * KILLS)
def test_acknowledged_records_and_commits_survive_kills_under_load(start_broker: StartBroker, figures: Figures) -> None:
    broker = start_broker({"log.segment.bytes": "1048576"})
    create_topic(broker.address, "numbers", PARTITIONS)
    create_topic(broker.address, "probe", 1)
    history = History()
    restarts: list[float] = []
    with (
        CommittingReader(broker.address, "numbers", "readers") as reader,
        Load(broker.address, "numbers", PARTITIONS, history) as load,
    ):
        for number in range(KILLS):
            load.wait_acknowledged(500 + 137 * (number % 7))
            broker.kill()
            restarts.append(seconds_to_first_acknowledgement(broker))
        load.wait_acknowledged(500)
        reader.wait_committed()
    committed = dict(reader.committed)
    broker.kill()
    broker.start()
    read_everything(broker.address, "numbers", PARTITIONS, history)

    assert history.anomalies() == []
    assert not any(history.refused.values()), "with retries every record is acknowledged in the end"
    assert sum(committed.values()) > 0
    found = committed_offsets(broker.address, "readers")
    for partition, offset in committed.items():  # the reader may not have come to every partition
        assert found[partition] >= offset, f"the commit of partition {partition} is lost"
    restarts.sort()
    figures.add(
        f"{KILLS} kills, {history.acknowledged_count()} records acknowledged; restart to first acknowledged "
        f"record: median {restarts[len(restarts) // 2]:.2f} s, worst {restarts[-1]:.2f} s"
    )


def seconds_to_first_acknowledgement(broker: BrokerProcess) -> float:
    """Start the killed broker; return the time until another record is acknowledged with acks=all."""
    started = time.monotonic()
    broker.launch()
    data = [{"name": "probe", "partition_data": [{"index": 0, "records": good_batch([b"probe"])}]}]
    while True:
        assert broker.running, broker.log_tail()
        assert time.monotonic() - started < PATIENCE_SECONDS, "the broker does not come back"
        try:
            with RawConnection(broker.address) as raw:
                response = raw.call(0, 9, acks=-1, timeout=10_000, topic_data=data)
        except OSError:
            time.sleep(0.005)
            continue
        if response.responses[0].partition_responses[0].error_code == 0:
            break
    seconds = time.monotonic() - started
    broker.wait_ready()
    return seconds


def committed_offsets(address: str, group: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    requested = [TopicPartition("numbers", partition) for partition in range(PARTITIONS)]
    found = consumer.committed(requested, timeout=PATIENCE_SECONDS)
    consumer.close()
    return {one.partition: one.offset for one in found}
