"""kafka-python: producing, consuming, groups. Idempotence is on by default in its producer."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import MessageSizeTooLargeError
from tests.integration.process import PATIENCE_SECONDS, wait_until

COMPRESSIONS = [None, "gzip", "snappy", "lz4", "zstd"]


def create_topic(address: str, topic: str, partitions: int) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])


def produce(address: str, topic: str, values: list[bytes], **config: Any) -> list[Any]:
    with closing(KafkaProducer(bootstrap_servers=address, **config)) as producer:
        sent = [producer.send(topic, value, key=value[-4:]) for value in values]
        return [report.get(PATIENCE_SECONDS) for report in sent]


def group_consumer(address: str, topic: str, **config: Any) -> Any:
    return KafkaConsumer(topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest", **config)


def consume(consumer: Any, count: int) -> list[Any]:
    records: list[Any] = []

    def enough() -> bool:
        for batch in consumer.poll(timeout_ms=500, max_records=count - len(records)).values():
            records.extend(batch)
        return len(records) >= count

    wait_until(enough, f"{count} records are consumed")
    return records


def test_a_producer_and_a_group_work_on_default_settings_with_an_auto_created_topic(address: str, name: str) -> None:
    values = [b"%d" % number for number in range(500)]
    reports = produce(address, name, values)
    assert len({(report.partition, report.offset) for report in reports}) == 500
    with closing(group_consumer(address, name)) as consumer:
        assert sorted(record.value for record in consume(consumer, 500)) == sorted(values)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_round_trips_with_idempotence(address: str, name: str, compression: str | None) -> None:
    if compression == "snappy":
        pytest.importorskip("snappy", reason="kafka-python needs python-snappy for this compression")
    values = [b"a value that compresses well " * 20 + b"%d" % number for number in range(300)]
    create_topic(address, name, 1)
    produce(address, name, values, compression_type=compression, enable_idempotence=True, linger_ms=10)
    with closing(group_consumer(address, name)) as consumer:
        assert [record.value for record in consume(consumer, 300)] == values


def test_empty_values_tombstones_null_keys_and_headers_come_back_as_sent(address: str, name: str) -> None:
    sent = [(b"empty value", b""), (b"tombstone", None), (None, b"null key"), (b"", b"empty key")]
    headers = [("text", b"value"), ("empty", b"")]
    create_topic(address, name, 1)
    with closing(KafkaProducer(bootstrap_servers=address)) as producer:
        for key, value in sent:
            producer.send(name, value, key=key, headers=headers)
        producer.flush(PATIENCE_SECONDS)
    with closing(group_consumer(address, name)) as consumer:
        records = consume(consumer, len(sent))
    assert [(record.key, record.value) for record in records] == sent
    assert all(list(record.headers) == headers for record in records)


def test_a_large_message_is_accepted_and_a_too_large_one_is_rejected(address: str, name: str) -> None:
    create_topic(address, name, 1)
    large = bytes(range(256)) * 3900
    with closing(KafkaProducer(bootstrap_servers=address, max_request_size=4_000_000)) as producer:
        producer.send(name, large).get(PATIENCE_SECONDS)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(name, large * 2).get(PATIENCE_SECONDS)
    with closing(group_consumer(address, name)) as consumer:
        assert consume(consumer, 1)[0].value == large


def test_a_group_continues_at_its_committed_offsets(address: str, name: str) -> None:
    create_topic(address, name, 1)
    produce(address, name, [b"%d" % number for number in range(20)])
    with closing(group_consumer(address, name, enable_auto_commit=False)) as consumer:
        consume(consumer, 7)
        consumer.commit()
    with closing(group_consumer(address, name, enable_auto_commit=False)) as consumer:
        assert consumer.committed(TopicPartition(name, 0)) == 7
        assert consume(consumer, 1)[0].value == b"7"


def test_seeking_by_offset_and_by_timestamp_finds_the_record(address: str, name: str) -> None:
    create_topic(address, name, 1)
    start_ms = int(time.time() * 1000) - 100_000
    partition = TopicPartition(name, 0)
    with closing(KafkaProducer(bootstrap_servers=address, linger_ms=1)) as producer:
        for number in range(100):
            producer.send(name, b"%d" % number, timestamp_ms=start_ms + 1000 * number)
            if number % 10 == 9:
                producer.flush(PATIENCE_SECONDS)
    with closing(KafkaConsumer(bootstrap_servers=address)) as consumer:
        consumer.assign([partition])
        found = consumer.offsets_for_times({partition: start_ms + 41_500})[partition]
        assert (found.offset, found.timestamp) == (42, start_ms + 42_000)
        assert consumer.offsets_for_times({partition: start_ms + 10**6})[partition] is None
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 100}
        consumer.seek(partition, 3)
        assert consume(consumer, 1)[0].value == b"3"


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor])
def test_two_members_share_the_partitions_and_the_remaining_one_gets_all(
    address: str, name: str, assignor: Any
) -> None:
    create_topic(address, name, 4)
    # A group leader of kafka-python may assign no partitions before it has seen the topic, and corrects it at the
    # next refresh.
    config = {"partition_assignment_strategy": [assignor], "heartbeat_interval_ms": 200, "metadata_max_age_ms": 1000}
    with PolledMember(group_consumer(address, name, **config)) as stays:
        with PolledMember(group_consumer(address, name, **config)) as leaves:
            wait_until(lambda: stays.partitions == leaves.partitions == 2, "each member has two partitions")
        wait_until(lambda: stays.partitions == 4, "the one who stays has all four")


class PolledMember:
    """A consumer that its own thread polls, as in an application.

    If one thread polls two consumers in turn, each for a few milliseconds, a rebalance may never complete on a slow
    machine: each consumer gives up its join before the other is polled again.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.partitions = 0

    def _poll(self) -> None:
        with closing(self._consumer):
            while not self._closing.is_set():
                self._consumer.poll(timeout_ms=500)
                self.partitions = len(self._consumer.assignment())

    def __enter__(self) -> PolledMember:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
