"""The broker's numbers in Prometheus' text format, under the names that existing Kafka dashboards look for.

Nothing is counted here: the numbers lie where they arise, and are read when somebody asks.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable

from headrace import __version__
from headrace.broker.broker import Broker
from headrace.broker.partition import Partition
from headrace.doors.kafka.listener import KafkaDoor
from headrace.model.histogram import Histogram
from headrace.runtime.clock import Clock

_PARTITION_SERIES_MAX = 2000
"""Beyond so many partitions, only sums per topic are shown: a scrape must stay small."""

Labels = dict[str, str | int]


class Exposition:
    """The text format: the lines of a family stand together, behind its type, in whatever order they were added."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, value: float, labels: Labels | None = None, *, kind: str = "gauge") -> None:
        self._family(name, kind).append(f"{name}{_labels(labels)} {value}")

    def add_histogram(self, name: str, histogram: Histogram, labels: Labels) -> None:
        lines = self._family(name, "histogram")
        running = 0
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
            running += count
            lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {running}")
        lines.append(f"{name}_sum{_labels(labels)} {histogram.total}")
        lines.append(f"{name}_count{_labels(labels)} {histogram.count}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._families.values() for line in lines)

    def _family(self, name: str, kind: str) -> list[str]:
        lines = self._families.get(name)
        if lines is None:
            lines = self._families[name] = [f"# TYPE {name} {kind}"]
        return lines


class Metrics:
    def __init__(self, broker: Broker, door: KafkaDoor, clock: Clock) -> None:
        self._broker = broker
        self._door = door
        self._clock = clock
        self._started = clock.monotonic()

    def checks(self) -> dict[str, str | None]:
        store = self._broker.store
        failed = [log for log in store.logs.values() if log.failed is not None or log.quarantined is not None]
        return {
            "groups": None if self._broker.coordinator.is_loaded else "the groups are still being read",
            "disk": "the disk is nearly full: produce is refused" if store.space_refused else None,
            "logs": f"{len(failed)} partitions are out of service; see the log" if failed else None,
            "registry": None if self._broker.cluster.membership.is_held else "the registry cannot be reached",
        }

    def render(self) -> str:
        out = Exposition()
        self._add_process(out)
        self._add_door(out)
        self._add_topics(out)
        self._add_groups(out)
        self._add_storage(out)
        return out.text()

    def _add_process(self, out: Exposition) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        out.add("headrace_build_info", 1, {"version": __version__})
        out.add("headrace_uptime_seconds", round(self._clock.monotonic() - self._started, 3))
        out.add("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime, kind="counter")
        out.add("process_max_resident_memory_bytes", usage.ru_maxrss * 1024)
        out.add("kafka_brokers", 1)
        identity = self._broker.identity
        out.add("kafka_broker_info", 1, {"id": identity.node_id, "address": f"{identity.host}:{identity.port}"})
        out.add(
            "kafka_controller_kafkacontroller_activecontrollercount", int(self._broker.cluster.controller.is_presiding)
        )

        out.add("headrace_registry_session_held", int(self._broker.cluster.membership.is_held))

    def _add_door(self, out: Exposition) -> None:
        door = self._door
        out.add("kafka_server_socket_server_metrics_connection_count", len(door.connections))
        out.add("headrace_connections_accepted_total", door.accepted, kind="counter")
        out.add("headrace_connections_turned_away_total", door.turned_away, kind="counter")
        out.add("headrace_frames_refused_total", door.refusals, kind="counter")
        out.add("headrace_requests_failed_total", door.failures, kind="counter")
        out.add("headrace_request_bytes_held", door.budget.taken)
        for handler in self._broker.handlers:
            if handler.time.count:
                out.add_histogram("headrace_request_duration_seconds", handler.time, {"api": handler.api.name})

    def _add_topics(self, out: Exposition) -> None:
        topics = list(self._broker.catalogue)
        partitions = sum(len(topic.replicas) for topic in topics)
        led = [partition for topic in topics for partition in topic.led.values()]
        out.add("kafka_server_replicamanager_partitioncount", partitions)
        out.add("kafka_server_replicamanager_leadercount", len(led))
        out.add("kafka_server_replicamanager_underreplicatedpartitions", _count(map(_is_underreplicated, led)))
        out.add("kafka_server_replicamanager_underminisrpartitioncount", _count(map(_is_under_minimum, led)))
        for topic in topics:
            label: Labels = {"topic": topic.name}
            counts = topic.counts
            for name, value in (
                ("messagesin", counts.records_in),
                ("bytesin", counts.bytes_in),
                ("bytesout", counts.bytes_out),
                ("totalproducerequests", counts.produces),
                ("totalfetchrequests", counts.fetches),
                ("failedproducerequests", counts.failed_produces),
                ("failedfetchrequests", counts.failed_fetches),
            ):
                out.add(f"kafka_server_brokertopicmetrics_{name}_total", value, label, kind="counter")
            out.add("kafka_topic_partitions", topic.partition_count, label)
        if partitions > _PARTITION_SERIES_MAX:
            return
        for topic in topics:
            for partition in topic.led.values():
                where: Labels = {"topic": topic.name, "partition": partition.index}
                out.add("kafka_topic_partition_current_offset", partition.high_watermark, where)
                out.add("kafka_topic_partition_oldest_offset", partition.log.start_offset, where)
                out.add("kafka_topic_partition_leader", self._broker.identity.node_id, where)
                if partition.in_sync is not None:
                    record = partition.in_sync.record
                    out.add("kafka_topic_partition_replicas", len(record.replicas), where)
                    out.add("kafka_topic_partition_in_sync_replica", len(record.isr), where)
            for partition in topic.replicas.values():
                where = {"topic": topic.name, "partition": partition.index}
                out.add("kafka_log_log_size", partition.log.size_bytes, where)

    def _add_groups(self, out: Exposition) -> None:
        coordinator, catalogue = self._broker.coordinator, self._broker.catalogue
        for led in coordinator:
            for group in led.classic.values():
                label: Labels = {"consumergroup": group.group_id}
                out.add("kafka_consumergroup_members", len(group.describe().members), label)
                for name, index, committed in led.offsets.fetch_all(group.group_id):
                    topic = catalogue.find(name)
                    where: Labels = {**label, "topic": name, "partition": index}
                    out.add("kafka_consumergroup_current_offset", committed.offset, where)
                    partition = None if topic is None else topic.local(index)
                    if partition is not None:  # as far as this broker knows, if it only follows
                        out.add("kafka_consumergroup_lag", max(partition.high_watermark - committed.offset, 0), where)

    def _add_storage(self, out: Exposition) -> None:
        store = self._broker.store
        logs = store.logs.values()
        out.add_histogram("headrace_fsync_seconds", store.flusher.sync_seconds, {})
        out.add("headrace_flush_rounds_total", store.flusher.rounds, kind="counter")
        cleaner = store.cleaner
        out.add("headrace_cleaner_passes_total", cleaner.passes, kind="counter")
        out.add("headrace_cleaner_passes_failed_total", cleaner.passes_failed, kind="counter")
        out.add("headrace_cleaner_records_read_total", cleaner.records_read, kind="counter")
        out.add("headrace_cleaner_records_kept_total", cleaner.records_kept, kind="counter")
        out.add("headrace_cleaner_bytes_read_total", cleaner.bytes_read, kind="counter")
        out.add("headrace_cleaner_bytes_written_total", cleaner.bytes_written, kind="counter")
        out.add("headrace_disk_free_bytes", store.free_bytes)
        out.add("headrace_produce_refused_for_space", int(store.space_refused))
        out.add("headrace_logs_failed", _count(log.failed is not None for log in logs))
        for log in logs:
            if log.quarantined is not None:
                report = log.quarantined
                out.add(
                    "headrace_log_quarantined",
                    1,
                    {"file": report.path, "position": report.position, "offset": report.offset},
                )


def _is_underreplicated(partition: Partition) -> bool:
    return partition.in_sync is not None and len(partition.in_sync.record.isr) < len(partition.in_sync.record.replicas)


def _is_under_minimum(partition: Partition) -> bool:
    return partition.in_sync is not None and not partition.in_sync.is_enough(partition.config.min_insync_replicas)


def _labels(labels: Labels | None) -> str:
    if not labels:
        return ""
    shown = ",".join(f'{name}="{_escape(str(value))}"' for name, value in labels.items())
    return f"{{{shown}}}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _count(marks: Iterable[bool]) -> int:
    return sum(marks)
