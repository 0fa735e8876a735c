"""Reads of the harness after healing: records, log bounds and committed offsets."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from tests.chaos.processes import StallTimer
from tests.chaos.transcript import Log

RESPONSE_SECONDS = 10.0


def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, Log]:
    """Read a topic from its first record to its present end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reads everything",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "log_level": 0,
    }
    timer, count = StallTimer(f"{topic} is read to its end"), 0
    with closing(Consumer(settings)) as consumer:
        unfinished = set(partitions_of(consumer, topic))
        logs: dict[int, Log] = {partition: [] for partition in unfinished}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unfinished])
        while unfinished:
            timer.check(count, f"{count} records are read, partitions not at their end: {sorted(unfinished)}")
            for message in consumer.consume(1000, timeout=0.2):
                count += 1
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    logs[partition].append((message.offset() or 0, message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
    return logs


def committed_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the committed offsets of a group; none if its coordinator does not respond."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    with closing(Consumer(settings)) as consumer:
        try:
            positions = [TopicPartition(topic, partition) for partition in partitions_of(consumer, topic)]
            found = consumer.committed(positions, timeout=10.0)
        except KafkaException:
            return {}
    return {position.partition: max(position.offset, 0) for position in found}


def log_bounds(bootstrap: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first offset and the high watermark of each partition."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "asks for bounds", "log_level": 0})) as consumer:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=RESPONSE_SECONDS)
            for partition in partitions_of(consumer, topic)
        }


def partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """Return the present partitions; a topic may have grown since it was created."""
    return sorted(consumer.list_topics(topic, timeout=RESPONSE_SECONDS).topics[topic].partitions)
