"""The Prometheus text format, and the types and help texts of all metric families; docs/metrics.md has more detail.

- Only families in the table can be written, which ensures that each has a help text and is documented.
- Names of other tools keep the meaning that they have there: kafka_exporter (`kafka_brokers`, `kafka_topic_...`,
  `kafka_consumergroup_...`), Kafka's JMX exporter (`kafka_server_...`, `kafka_controller_...`, `kafka_log_...`), and
  the standard process metrics. All other families are Headrace's own and begin with `headrace_`.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.histogram import Histogram

_SAMPLES = {
    # the process
    "headrace_build_info": "Always 1; the labels contain the version.",
    "headrace_uptime_seconds": "Time since the start of the broker.",
    "process_start_time_seconds": "Start time of the process in seconds since 1970.",
    "process_cpu_seconds_total": "User and system CPU time of the process.",
    "process_resident_memory_bytes": "Resident memory of the process.",
    "process_virtual_memory_bytes": "Virtual memory of the process.",
    "process_max_resident_memory_bytes": "Maximum resident memory since the start of the process.",
    "process_open_fds": "Open file descriptors: log files and connections.",
    "process_max_fds": "Maximum number of file descriptors of the process.",
    # the Kafka listener
    "kafka_server_socket_server_metrics_connection_count": "Open connections of the Kafka listener.",
    "headrace_connections_accepted_total": "Accepted connections of the Kafka listener.",
    "headrace_connections_turned_away_total": "Connections of the Kafka listener that were rejected because of "
    "connection limits.",
    "headrace_frames_refused_total": "Malformed requests; each closed its connection.",
    "headrace_requests_failed_total": "Requests that failed because of a bug; see the log for tracebacks.",
    "headrace_request_bytes_held": "Bytes of requests that are being received or processed.",
    # HTTP and push
    "headrace_http_connections": "Open HTTP connections.",
    "headrace_http_connections_accepted_total": "Accepted HTTP connections.",
    "headrace_http_connections_turned_away_total": "HTTP connections that were rejected because of connection limits.",
    "headrace_http_requests_total": "HTTP responses by status class.",
    "headrace_http_requests_refused_total": "HTTP requests that were rejected before they were processed.",
    "headrace_http_requests_failed_total": "HTTP requests that failed because of a bug.",
    "headrace_http_requests_in_flight": "HTTP requests of a gateway that have no response yet.",
    "headrace_http_received_bytes_total": "Bytes received over HTTP.",
    "headrace_http_sent_bytes_total": "Bytes sent over HTTP.",
    "headrace_push_in_flight": "Messages that are being pushed.",
    "headrace_push_delivered_total": "Messages that a push receiver has accepted.",
    "headrace_push_failed_total": "Push requests that failed.",
    "headrace_push_rejected_total": "Messages that a push receiver has rejected.",
    "headrace_push_circuit_state": "1 for the current state of the circuit breaker of a push receiver.",
    "headrace_brokers_reachable": "Gateway: 1 if any broker is reachable, else 0.",
    "headrace_broker_circuit_state": "Gateway: 1 for the current state of the circuit breaker of a broker.",
    # workers
    "headrace_worker_messages_in_flight": "Worker: messages whose handler runs.",
    "headrace_worker_failed_total": "Worker: calls of handlers that raised, by the action that followed.",
    # the cluster
    "kafka_brokers": "Live brokers, as known to this broker.",
    "kafka_broker_info": "Always 1; the labels contain id and address of this broker.",
    "kafka_controller_kafkacontroller_activecontrollercount": "1 if this broker is the controller, else 0.",
    "kafka_controller_kafkacontroller_offlinepartitionscount": "Partitions without a leader on the controller; 0 on "
    "other brokers.",
    "headrace_registry_session_held": "1 if the registry session is valid, else 0.",
    "kafka_server_replicamanager_partitioncount": "Replicas on this broker.",
    "kafka_server_replicamanager_leadercount": "Partitions that this broker leads.",
    "kafka_server_replicamanager_underreplicatedpartitions": "Partitions led by this broker that have out-of-sync "
    "replicas.",
    "kafka_server_replicamanager_underminisrpartitioncount": "Partitions led by this broker with too few in-sync "
    "replicas for acks=all.",
    "kafka_server_replicamanager_isrshrinks_total": "Replicas that this broker, as leader, removed from the in-sync "
    "replicas.",
    "kafka_server_replicamanager_isrexpands_total": "Replicas that this broker, as leader, added to the in-sync "
    "replicas.",
    # topics
    "kafka_server_brokertopicmetrics_messagesin_total": "Records produced.",
    "kafka_server_brokertopicmetrics_bytesin_total": "Bytes produced.",
    "kafka_server_brokertopicmetrics_bytesout_total": "Bytes fetched by consumers.",
    "kafka_server_brokertopicmetrics_totalproducerequests_total": "Batches that producers sent.",
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": "Fetches of a partition that returned records.",
    "kafka_server_brokertopicmetrics_failedproducerequests_total": "Batches that were rejected.",
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": "Fetches of a partition that failed.",
    "kafka_topic_partitions": "Partitions of the topic.",
    "kafka_topic_partition_current_offset": "High watermark of the partition.",
    "kafka_topic_partition_oldest_offset": "Log start offset of the partition.",
    "kafka_topic_partition_leader": "Node id of the leader.",
    "kafka_topic_partition_leader_is_preferred": "1 if the preferred replica is the leader, else 0.",
    "kafka_topic_partition_replicas": "Replicas of the partition.",
    "kafka_topic_partition_in_sync_replica": "In-sync replicas of the partition.",
    "kafka_topic_partition_under_replicated_partition": "1 if the partition has out-of-sync replicas, else 0.",
    "kafka_log_log_size": "Bytes of the replica's log on this broker.",
    "headrace_dedup_dropped_total": "Messages that were dropped as duplicates because of their dedup id.",
    "headrace_dead_letters": "Dead letters of the topic that are retained.",
    # groups
    "kafka_consumergroup_members": "Members of the group, whatever its protocol.",
    "kafka_consumergroup_current_offset": "Committed offset of the group; ack floor of a share group.",
    "kafka_consumergroup_current_offset_sum": "Sum of the offsets over all partitions of the topic.",
    "kafka_consumergroup_lag": "Consumer lag of the group in messages.",
    "kafka_consumergroup_lag_sum": "Sum of the lag over all partitions of the topic.",
    # queues
    "headrace_subscription_messages": "Unsettled messages by delivery state.",
    "headrace_subscription_backlog": "All unsettled messages.",
    "headrace_subscription_oldest_age_seconds": "Age of the oldest unsettled message; 0 if there is none.",
    "headrace_subscription_deliveries_total": "Messages that were leased.",
    "headrace_subscription_redeliveries_total": "Deliveries of messages that had been delivered before.",
    "headrace_subscription_acks_total": "Messages that were acked.",
    "headrace_subscription_nacks_total": "Messages that were nacked.",
    "headrace_subscription_rejects_total": "Messages that were rejected by a consumer.",
    "headrace_subscription_extends_total": "Messages whose lease was extended.",
    "headrace_subscription_leases_expired_total": "Messages whose lease expired.",
    "headrace_subscription_leases_released_total": "Messages whose lease was released because the consumer was "
    "removed.",
    "headrace_subscription_settles_refused_total": "Settle requests without a valid lease.",
    "headrace_subscription_messages_expired_total": "Messages that expired or were deleted by retention before they "
    "were settled.",
    "headrace_subscription_messages_filtered_total": "Messages that did not match the filter.",
    "headrace_subscription_dead_letters_total": "Messages that became dead letters.",
    "headrace_subscription_discarded_total": "Messages that failed and were dropped without a dead letter.",
    "headrace_delayed_messages": "Delayed messages that are not due yet.",
    "headrace_delayed_overdue_seconds": "How long the oldest due message has been waiting for its release.",
    "headrace_delayed_released_total": "Delayed messages that were released to the topic.",
    # storage
    "headrace_flush_rounds_total": "Fsync rounds.",
    "headrace_cleaner_passes_total": "Runs of the log cleaner.",
    "headrace_cleaner_passes_failed_total": "Runs of the log cleaner that failed.",
    "headrace_cleaner_records_read_total": "Records that the log cleaner has read.",
    "headrace_cleaner_records_kept_total": "Records that the log cleaner has kept.",
    "headrace_cleaner_bytes_read_total": "Bytes that the log cleaner has read.",
    "headrace_cleaner_bytes_written_total": "Bytes that the log cleaner has written.",
    "headrace_disk_free_bytes": "Free bytes of the disk with the data folder.",
    "headrace_produce_refused_for_space": "1 while writes are rejected because the disk is nearly full.",
    "headrace_logs_bytes": "Bytes of all logs on this broker.",
    "headrace_logs_failed": "Logs that reject writes because an earlier write failed.",
    "headrace_stray_logs": "Logs in the stray folder, which are not in the registry.",
    "headrace_stray_bytes": "Bytes of the logs in the stray folder, measured every minute.",
    "headrace_log_quarantined": "1 for each damaged log; the labels identify it.",
}
HISTOGRAMS = {
    "headrace_loop_lag_seconds": "Delay of due callbacks in the event loop.",
    "headrace_request_duration_seconds": "Time from a received request to its response, with waits.",
    "headrace_http_request_duration_seconds": "Time from a received request to its response, with waits.",
    "headrace_worker_handler_duration_seconds": "Worker: duration of the calls of handlers.",
    "headrace_subscription_delivery_seconds": "Time from publish to the first lease; sampled.",
    "headrace_subscription_settle_seconds": "Time from the lease to the ack.",
    "headrace_subscription_end_to_end_seconds": "Time from publish to the ack; sampled.",
    "headrace_delayed_late_seconds": "Delay between due time and release, per batch for its first message.",
    "headrace_fsync_seconds": "Duration of an fsync round, which many batches share.",
}
FAMILIES = _SAMPLES | HISTOGRAMS


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def format_labels(**labels: str | int) -> str:
    """Format the labels between the braces; the result can be shared by families with the same labels."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())


class Exposition:
    """A page of metrics: for each family its help, its type, and then all its samples."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

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
            kind = "histogram" if name in HISTOGRAMS else "counter" if name.endswith("_total") else "gauge"
            lines = self._families[name] = [f"# HELP {name} {FAMILIES[name]}", f"# TYPE {name} {kind}"]
        return lines
