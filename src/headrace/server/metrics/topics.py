"""Metrics of topics, partitions and replicas, under the names of kafka_exporter and Kafka's JMX exporter.

The leader reports a partition. Samples of thousands of single partitions are slow to collect and of little use, so
above a limit there is one sample per topic with the sum, `partition="all"`, and above the same number of topics one
sample for all of them, `topic="all"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.broker.broker import Broker
from headrace.broker.partition import Partition, TopicCounts
from headrace.broker.topic import Topic
from headrace.machines.replication.in_sync import IsrState
from headrace.model.names import DEAD_LETTER_SUFFIX
from headrace.model.registry_records import NO_LEADER
from headrace.runtime.tasks import CooperativeYield
from headrace.server.metrics.exposition import Exposition, format_labels

SERIES_MAX = 2000
ALL = "all"

_COUNTERS = (
    ("kafka_server_brokertopicmetrics_messagesin_total", "records_in"),
    ("kafka_server_brokertopicmetrics_bytesin_total", "bytes_in"),
    ("kafka_server_brokertopicmetrics_bytesout_total", "bytes_out"),
    ("kafka_server_brokertopicmetrics_totalproducerequests_total", "produces"),
    ("kafka_server_brokertopicmetrics_totalfetchrequests_total", "fetches"),
    ("kafka_server_brokertopicmetrics_failedproducerequests_total", "failed_produces"),
    ("kafka_server_brokertopicmetrics_failedfetchrequests_total", "failed_fetches"),
    ("headrace_dedup_dropped_total", "duplicates"),
)


class PartitionStats(NamedTuple):
    """The state of one partition that this broker leads, or the sum of several, whose partition number is meaningless.
    `is_under_min_isr` means that too few replicas are in sync for acks=all."""

    partition: int
    end: int
    start: int
    replicas: int
    in_sync: int
    is_behind: int
    is_under_min_isr: int
    is_preferred: int
    size_bytes: int


def add_cluster(out: Exposition, broker: Broker) -> None:
    identity, cluster = broker.identity, broker.cluster
    out.add("kafka_brokers", len(broker.catalogue.nodes))
    out.add("kafka_broker_info", 1, format_labels(id=identity.node_id, address=f"{identity.host}:{identity.port}"))
    out.add("kafka_controller_kafkacontroller_activecontrollercount", int(cluster.controller.is_active_controller))
    out.add("headrace_registry_session_held", int(cluster.membership.session_valid))


async def add_topics(out: Exposition, broker: Broker, yield_turn: CooperativeYield) -> None:
    topics = [(topic, await _partition_stats(topic, yield_turn)) for topic in list(broker.catalogue)]
    total = _sum_of(_sum_of(stats) for _, stats in topics)
    replicas = sum(len(topic.replicas) for topic, _ in topics)
    out.add("kafka_server_replicamanager_partitioncount", replicas)
    out.add("kafka_server_replicamanager_leadercount", sum(len(stats) for _, stats in topics))
    out.add("kafka_server_replicamanager_underreplicatedpartitions", total.is_behind)
    out.add("kafka_server_replicamanager_underminisrpartitioncount", total.is_under_min_isr)
    out.add("kafka_server_replicamanager_isrshrinks_total", sum(topic.counts.in_sync_lost for topic, _ in topics))
    out.add("kafka_server_replicamanager_isrexpands_total", sum(topic.counts.in_sync_gained for topic, _ in topics))
    out.add("kafka_controller_kafkacontroller_offlinepartitionscount", await _count_offline(broker, yield_turn))
    if len(topics) > SERIES_MAX:
        await _add_all_topics(out, [topic for topic, _ in topics], total, yield_turn)
        return
    node_id = broker.identity.node_id
    for topic, stats in topics:
        await yield_turn()
        label = format_labels(topic=topic.name)
        _add_counts(out, topic.counts, label)
        out.add("kafka_topic_partitions", topic.partition_count, label)
        if replicas > SERIES_MAX:
            _add_partition_stats(out, _sum_of(stats), format_labels(topic=topic.name, partition=ALL))
        else:
            _add_partitions(out, topic, stats, node_id)
        _add_dead_letters(out, topic)


async def _partition_stats(topic: Topic, yield_turn: CooperativeYield) -> list[PartitionStats]:
    """Return the states of the partitions that this broker leads."""
    stats = []
    for partition in list(topic.led.values()):
        await yield_turn()
        if partition.in_sync is not None:  # else the leadership has just ended
            stats.append(_stats_of(partition, partition.in_sync))
    return stats


async def _count_offline(broker: Broker, yield_turn: CooperativeYield) -> int:
    """Count offline partitions on the controller only, so that the sum over all brokers is correct."""
    count = 0
    for topic in list(broker.catalogue) if broker.cluster.controller.is_active_controller else ():
        await yield_turn()
        count += sum(place.leader == NO_LEADER for place in topic.partition_records.values())
    return count


async def _add_all_topics(
    out: Exposition, topics: Sequence[Topic], total: PartitionStats, yield_turn: CooperativeYield
) -> None:
    counts = TopicCounts()
    for topic in topics:
        await yield_turn()
        for _, field in _COUNTERS:
            setattr(counts, field, getattr(counts, field) + getattr(topic.counts, field))
    _add_counts(out, counts, format_labels(topic=ALL))
    out.add("kafka_topic_partitions", sum(topic.partition_count for topic in topics), format_labels(topic=ALL))
    _add_partition_stats(out, total, format_labels(topic=ALL, partition=ALL))


def _add_counts(out: Exposition, counts: TopicCounts, label: str) -> None:
    for name, field in _COUNTERS:
        out.add(name, getattr(counts, field), label)


def _add_partitions(out: Exposition, topic: Topic, stats: Sequence[PartitionStats], node_id: int) -> None:
    for one in stats:
        where = format_labels(topic=topic.name, partition=one.partition)
        out.add("kafka_topic_partition_leader", node_id, where)
        _add_partition_stats(out, one, where)
    led = {one.partition for one in stats}
    for index, partition in topic.replicas.items():
        if index not in led:
            size_bytes = partition.log.size_bytes
            out.add("kafka_log_log_size", size_bytes, format_labels(topic=topic.name, partition=index))


def _add_partition_stats(out: Exposition, stats: PartitionStats, where: str) -> None:
    out.add("kafka_topic_partition_current_offset", stats.end, where)
    out.add("kafka_topic_partition_oldest_offset", stats.start, where)
    out.add("kafka_topic_partition_replicas", stats.replicas, where)
    out.add("kafka_topic_partition_in_sync_replica", stats.in_sync, where)
    out.add("kafka_topic_partition_under_replicated_partition", stats.is_behind, where)
    out.add("kafka_topic_partition_leader_is_preferred", stats.is_preferred, where)
    out.add("kafka_log_log_size", stats.size_bytes, where)


def _add_dead_letters(out: Exposition, topic: Topic) -> None:
    """Report retained dead letters: settled ones are deleted from the dead-letter topic, a segment at a time."""
    if topic.name.endswith(DEAD_LETTER_SUFFIX) and topic.led:
        kept = sum(partition.high_watermark - partition.log.start_offset for partition in topic.led.values())
        out.add("headrace_dead_letters", kept, format_labels(topic=topic.name.removesuffix(DEAD_LETTER_SUFFIX)))


def _stats_of(partition: Partition, in_sync: IsrState) -> PartitionStats:
    replicas, isr = in_sync.record.replicas, in_sync.record.isr
    return PartitionStats(
        partition=partition.index,
        end=partition.high_watermark,
        start=partition.log.start_offset,
        replicas=len(replicas),
        in_sync=len(isr),
        is_behind=int(len(isr) < len(replicas)),
        is_under_min_isr=int(not in_sync.has_min_isr(min(partition.config.min_insync_replicas, len(replicas)))),
        is_preferred=int(replicas[0] == in_sync.record.leader),
        size_bytes=partition.log.size_bytes,
    )


def _sum_of(stats: Iterable[PartitionStats]) -> PartitionStats:
    return PartitionStats(*(sum(numbers) for numbers in zip((0,) * len(PartitionStats._fields), *stats, strict=True)))
