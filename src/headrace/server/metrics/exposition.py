"""The Prometheus text format, and the types and help texts of all metric families; docs/metrics.md has more detail.

- Only families in the table can be written, which ensures that each has a help text and is documented.
- Names of other tools keep the meaning that they have there: kafka_exporter (`kafka_brokers`, `kafka_topic_...`,
  `kafka_consumergroup_...`), Kafka's JMX exporter (`kafka_server_...`, `kafka_controller_...`, `kafka_log_...`), and
  the standard process metrics. All other families are Headrace's own and begin with `headrace_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from headrace.model.histogram import Histogram

Kind = Literal["counter", "gauge", "histogram"]

_PROCESS: dict[str, tuple[Kind, str]] = {
    "headrace_build_info": ("gauge", "Always 1; the labels contain the version."),
    "headrace_uptime_seconds": ("gauge", "Time since the start of the broker."),
    "headrace_loop_lag_seconds": ("histogram", "Delay of due callbacks in the event loop."),
    "process_start_time_seconds": ("gauge", "Start time of the process in seconds since 1970."),
    "process_cpu_seconds_total": ("counter", "User and system CPU time of the process."),
    "process_resident_memory_bytes": ("gauge", "Resident memory of the process."),
    "process_virtual_memory_bytes": ("gauge", "Virtual memory of the process."),
    "process_max_resident_memory_bytes": ("gauge", "Maximum resident memory since the start of the process."),
    "process_open_fds": ("gauge", "Open file descriptors: log files and connections."),
    "process_max_fds": ("gauge", "Maximum number of file descriptors of the process."),
}

_KAFKA_LISTENER: dict[str, tuple[Kind, str]] = {
    "kafka_server_socket_server_metrics_connection_count": ("gauge", "Open connections of the Kafka listener."),
    "headrace_connections_accepted_total": ("counter", "Accepted connections of the Kafka listener."),
    "headrace_connections_turned_away_total": (
        "counter",
        "Connections of the Kafka listener that were rejected because of connection limits.",
    ),
    "headrace_frames_refused_total": ("counter", "Malformed requests; each closed its connection."),
    "headrace_requests_failed_total": ("counter", "Requests that failed because of a bug; see the log for tracebacks."),
    "headrace_request_bytes_held": ("gauge", "Bytes of requests that are being received or processed."),
    "headrace_request_duration_seconds": ("histogram", "Time from a received request to its response, with waits."),
}

_HTTP: dict[str, tuple[Kind, str]] = {
    "headrace_http_connections": ("gauge", "Open HTTP connections."),
    "headrace_http_connections_accepted_total": ("counter", "Accepted HTTP connections."),
    "headrace_http_connections_turned_away_total": (
        "counter",
        "HTTP connections that were rejected because of connection limits.",
    ),
    "headrace_http_requests_total": ("counter", "HTTP responses by status class."),
    "headrace_http_requests_refused_total": ("counter", "HTTP requests that were rejected before they were processed."),
    "headrace_http_requests_failed_total": ("counter", "HTTP requests that failed because of a bug."),
    "headrace_http_requests_in_flight": ("gauge", "HTTP requests of a gateway that have no response yet."),
    "headrace_http_received_bytes_total": ("counter", "Bytes received over HTTP."),
    "headrace_http_sent_bytes_total": ("counter", "Bytes sent over HTTP."),
    "headrace_http_request_duration_seconds": (
        "histogram",
        "Time from a received request to its response, with waits.",
    ),
    "headrace_push_in_flight": ("gauge", "Messages that are being pushed."),
    "headrace_push_delivered_total": ("counter", "Messages that a push receiver has accepted."),
    "headrace_push_failed_total": ("counter", "Push requests that failed."),
    "headrace_push_rejected_total": ("counter", "Messages that a push receiver has rejected."),
    "headrace_push_circuit_state": ("gauge", "1 for the current state of the circuit breaker of a push receiver."),
    "headrace_brokers_reachable": ("gauge", "Gateway: 1 if any broker is reachable, else 0."),
    "headrace_broker_circuit_state": ("gauge", "Gateway: 1 for the current state of the circuit breaker of a broker."),
}

_WORKERS: dict[str, tuple[Kind, str]] = {
    "headrace_worker_messages_in_flight": ("gauge", "Worker: messages whose handler runs."),
    "headrace_worker_failed_total": ("counter", "Worker: failed calls of handlers, by the action that followed."),
    "headrace_worker_handler_duration_seconds": ("histogram", "Worker: duration of the calls of handlers."),
}

_CLUSTER: dict[str, tuple[Kind, str]] = {
    "kafka_brokers": ("gauge", "Live brokers, as known to this broker."),
    "kafka_broker_info": ("gauge", "Always 1; the labels contain id and address of this broker."),
    "kafka_controller_kafkacontroller_activecontrollercount": ("gauge", "1 if this broker is the controller, else 0."),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (
        "gauge",
        "Partitions without a leader on the controller; 0 on other brokers.",
    ),
    "headrace_registry_session_held": ("gauge", "1 if the registry session is valid, else 0."),
    "kafka_server_replicamanager_partitioncount": ("gauge", "Replicas on this broker."),
    "kafka_server_replicamanager_leadercount": ("gauge", "Partitions that this broker leads."),
    "kafka_server_replicamanager_underreplicatedpartitions": (
        "gauge",
        "Partitions led by this broker that have out-of-sync replicas.",
    ),
    "kafka_server_replicamanager_underminisrpartitioncount": (
        "gauge",
        "Partitions led by this broker with too few in-sync replicas for acks=all.",
    ),
    "kafka_server_replicamanager_isrshrinks_total": (
        "counter",
        "Replicas that this broker, as leader, removed from the in-sync replicas.",
    ),
    "kafka_server_replicamanager_isrexpands_total": (
        "counter",
        "Replicas that this broker, as leader, added to the in-sync replicas.",
    ),
}

_TOPICS: dict[str, tuple[Kind, str]] = {
    "kafka_server_brokertopicmetrics_messagesin_total": ("counter", "Records produced."),
    "kafka_server_brokertopicmetrics_bytesin_total": ("counter", "Bytes produced."),
    "kafka_server_brokertopicmetrics_bytesout_total": ("counter", "Bytes fetched by consumers."),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": ("counter", "Batches that producers sent."),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": (
        "counter",
        "Fetches of a partition that returned records.",
    ),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": ("counter", "Batches that were rejected."),
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": ("counter", "Fetches of a partition that failed."),
    "kafka_topic_partitions": ("gauge", "Partitions of the topic."),
    "kafka_topic_partition_current_offset": ("gauge", "High watermark of the partition."),
    "kafka_topic_partition_oldest_offset": ("gauge", "Log start offset of the partition."),
    "kafka_topic_partition_leader": ("gauge", "Node id of the leader."),
    "kafka_topic_partition_leader_is_preferred": ("gauge", "1 if the preferred replica is the leader, else 0."),
    "kafka_topic_partition_replicas": ("gauge", "Replicas of the partition."),
    "kafka_topic_partition_in_sync_replica": ("gauge", "In-sync replicas of the partition."),
    "kafka_topic_partition_under_replicated_partition": (
        "gauge",
        "1 if the partition has out-of-sync replicas, else 0.",
    ),
    "kafka_log_log_size": ("gauge", "Bytes of the replica's log on this broker."),
    "headrace_dedup_dropped_total": ("counter", "Messages that were dropped as duplicates because of their dedup id."),
    "headrace_dead_letters": ("gauge", "Dead letters of the topic that are retained."),
}

_GROUPS: dict[str, tuple[Kind, str]] = {
    "kafka_consumergroup_members": ("gauge", "Members of the group, whatever its protocol."),
    "kafka_consumergroup_current_offset": ("gauge", "Committed offset of the group; ack floor of a share group."),
    "kafka_consumergroup_current_offset_sum": ("gauge", "Sum of the offsets over all partitions of the topic."),
    "kafka_consumergroup_lag": ("gauge", "Consumer lag of the group in messages."),
    "kafka_consumergroup_lag_sum": ("gauge", "Sum of the lag over all partitions of the topic."),
}

_QUEUES: dict[str, tuple[Kind, str]] = {
    "headrace_subscription_messages": ("gauge", "Unsettled messages by delivery state."),
    "headrace_subscription_backlog": ("gauge", "All unsettled messages."),
    "headrace_subscription_oldest_age_seconds": (
        "gauge",
        "Age of the oldest unsettled message; 0 if there is none.",
    ),
    "headrace_subscription_deliveries_total": ("counter", "Messages that were leased."),
    "headrace_subscription_redeliveries_total": ("counter", "Deliveries of messages that had been delivered before."),
    "headrace_subscription_acks_total": ("counter", "Messages that were acked."),
    "headrace_subscription_nacks_total": ("counter", "Messages that were nacked."),
    "headrace_subscription_rejects_total": ("counter", "Messages that were rejected by a consumer."),
    "headrace_subscription_extends_total": ("counter", "Messages whose lease was extended."),
    "headrace_subscription_leases_expired_total": ("counter", "Messages whose lease expired."),
    "headrace_subscription_leases_released_total": (
        "counter",
        "Messages whose lease was released because the consumer was removed.",
    ),
    "headrace_subscription_settles_refused_total": ("counter", "Settle requests without a valid lease."),
    "headrace_subscription_messages_expired_total": (
        "counter",
        "Messages that expired or were deleted by retention before they were settled.",
    ),
    "headrace_subscription_messages_filtered_total": ("counter", "Messages that did not match the filter."),
    "headrace_subscription_dead_letters_total": ("counter", "Messages that became dead letters."),
    "headrace_subscription_discarded_total": (
        "counter",
        "Messages that failed and were dropped without a dead letter.",
    ),
    "headrace_subscription_delivery_seconds": ("histogram", "Time from publish to the first lease; sampled."),
    "headrace_subscription_settle_seconds": ("histogram", "Time from the lease to the ack."),
    "headrace_subscription_end_to_end_seconds": ("histogram", "Time from publish to the ack; sampled."),
    "headrace_delayed_messages": ("gauge", "Delayed messages that are not due yet."),
    "headrace_delayed_overdue_seconds": ("gauge", "How long the oldest due message has been waiting for its release."),
    "headrace_delayed_released_total": ("counter", "Delayed messages that were released to the topic."),
    "headrace_delayed_late_seconds": (
        "histogram",
        "Delay between due time and release, per batch for its first message.",
    ),
}

_STORAGE: dict[str, tuple[Kind, str]] = {
    "headrace_fsync_seconds": ("histogram", "Duration of an fsync round, which many batches share."),
    "headrace_flush_rounds_total": ("counter", "Fsync rounds."),
    "headrace_cleaner_passes_total": ("counter", "Runs of the log cleaner."),
    "headrace_cleaner_passes_failed_total": ("counter", "Runs of the log cleaner that failed."),
    "headrace_cleaner_records_read_total": ("counter", "Records that the log cleaner has read."),
    "headrace_cleaner_records_kept_total": ("counter", "Records that the log cleaner has kept."),
    "headrace_cleaner_bytes_read_total": ("counter", "Bytes that the log cleaner has read."),
    "headrace_cleaner_bytes_written_total": ("counter", "Bytes that the log cleaner has written."),
    "headrace_disk_free_bytes": ("gauge", "Free bytes of the disk with the data folder."),
    "headrace_produce_refused_for_space": ("gauge", "1 while writes are rejected because the disk is nearly full."),
    "headrace_logs_bytes": ("gauge", "Bytes of all logs on this broker."),
    "headrace_logs_failed": ("gauge", "Logs that reject writes because an earlier write failed."),
    "headrace_stray_logs": ("gauge", "Logs in the stray folder, which are not in the registry."),
    "headrace_stray_bytes": ("gauge", "Bytes of the logs in the stray folder, measured every minute."),
    "headrace_log_quarantined": ("gauge", "1 for each damaged log; the labels identify it."),
}

FAMILIES: dict[str, tuple[Kind, str]] = {
    **_PROCESS,
    **_KAFKA_LISTENER,
    **_HTTP,
    **_WORKERS,
    **_CLUSTER,
    **_TOPICS,
    **_GROUPS,
    **_QUEUES,
    **_STORAGE,
}


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def format_labels(**labels: str | int) -> str:
    """Format the labels between the braces; the result can be shared by families with the same labels."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())


class Exposition:
    """A page of metrics: for each family its help, its type, and then all its samples."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._families

    def add(self, name: str, value: float, labels: str = "") -> None:
        self._lines(name).append(f"{name}{{{labels}}} {value}" if labels else f"{name} {value}")

    def add_histogram(self, name: str, histogram: Histogram, labels: str = "") -> None:
        lines = self._lines(name)
        before = f"{labels}," if labels else ""
        behind = f"{{{labels}}}" if labels else ""
        running = 0
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
            running += count
            lines.append(f'{name}_bucket{{{before}le="{bound}"}} {running}')
        lines.append(f"{name}_sum{behind} {histogram.total}")
        lines.append(f"{name}_count{behind} {histogram.count}")

    def pieces(self) -> Iterator[bytes]:
        """Yield the text of one family at a time."""
        for lines in self._families.values():
            yield "\n".join([*lines, ""]).encode()

    def _lines(self, name: str) -> list[str]:
        lines = self._families.get(name)
        if lines is None:
            kind, means = FAMILIES[name]
            lines = self._families[name] = [f"# HELP {name} {means}", f"# TYPE {name} {kind}"]
        return lines
