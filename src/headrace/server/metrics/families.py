"""Every family that a broker tells: what type it has, and what it means. docs/metrics.md says more of each.

A name that another tool made known keeps that tool's meaning: kafka_exporter's (`kafka_brokers`, `kafka_topic_...`,
`kafka_consumergroup_...`), those of Kafka's JMX exporter (`kafka_server_...`, `kafka_controller_...`, `kafka_log_...`),
and those of any process. All others are our own, and begin with `headrace_`.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_PROCESS: dict[str, tuple[Kind, str]] = {
    "headrace_build_info": ("gauge", "Always 1; the version is in its labels."),
    "headrace_uptime_seconds": ("gauge", "How long the broker has been up."),
    "headrace_loop_lag_seconds": ("histogram", "How late the event loop came to what was due."),
    "process_start_time_seconds": ("gauge", "When the process started, in seconds since 1970."),
    "process_cpu_seconds_total": ("counter", "CPU time of the process, user and system."),
    "process_resident_memory_bytes": ("gauge", "Memory that the process has in RAM."),
    "process_virtual_memory_bytes": ("gauge", "Memory that the process has mapped."),
    "process_max_resident_memory_bytes": ("gauge", "The most memory that the process ever had in RAM."),
    "process_open_fds": ("gauge", "Open file descriptors: log files and connections."),
    "process_max_fds": ("gauge", "How many file descriptors the process may have."),
}

_DOORS: dict[str, tuple[Kind, str]] = {
    "kafka_server_socket_server_metrics_connection_count": ("gauge", "Open connections of Kafka's protocol."),
    "headrace_connections_accepted_total": ("counter", "Connections of Kafka's protocol that were taken."),
    "headrace_connections_turned_away_total": (
        "counter",
        "Connections that were refused, because there were too many.",
    ),
    "headrace_frames_refused_total": ("counter", "Bytes that were no request: each ended a connection."),
    "headrace_requests_failed_total": ("counter", "Requests that failed by a bug of ours; the log has the traceback."),
    "headrace_request_bytes_held": ("gauge", "Bytes of requests that are being received or worked on."),
    "headrace_request_duration_seconds": ("histogram", "From a whole request to its answer, waiting included."),
}

_HTTP: dict[str, tuple[Kind, str]] = {
    "headrace_http_connections": ("gauge", "Open connections of HTTP."),
    "headrace_http_connections_accepted_total": ("counter", "Connections of HTTP that were taken."),
    "headrace_http_connections_turned_away_total": ("counter", "Those that were refused, because there were too many."),
    "headrace_http_requests_total": ("counter", "Answers, by the first digit of their status."),
    "headrace_http_requests_refused_total": ("counter", "Requests that were refused before anybody looked into them."),
    "headrace_http_requests_failed_total": ("counter", "Requests that failed by a bug of ours."),
    "headrace_http_requests_in_flight": ("gauge", "Requests of a gateway that have no answer yet."),
    "headrace_http_received_bytes_total": ("counter", "Bytes received by HTTP."),
    "headrace_http_sent_bytes_total": ("counter", "Bytes sent by HTTP."),
    "headrace_http_request_duration_seconds": ("histogram", "From a whole request to its answer, waiting included."),
    "headrace_push_in_flight": ("gauge", "Messages that are with a webhook's receiver."),
    "headrace_push_delivered_total": ("counter", "Messages that a webhook's receiver has taken."),
    "headrace_push_failed_total": ("counter", "Tries to reach a webhook's receiver that failed."),
    "headrace_push_rejected_total": ("counter", "Messages that a webhook's receiver has rejected."),
    "headrace_push_circuit_state": ("gauge", "1 for the state that the circuit of a webhook is in."),
    "headrace_brokers_reachable": ("gauge", "Of a gateway: 1 while any broker answers."),
    "headrace_broker_circuit_state": ("gauge", "Of a gateway: 1 for the state that the circuit of a broker is in."),
}

_CLUSTER: dict[str, tuple[Kind, str]] = {
    "kafka_brokers": ("gauge", "Brokers that are up, as this one sees it."),
    "kafka_broker_info": ("gauge", "Always 1; id and address of this broker are in its labels."),
    "kafka_controller_kafkacontroller_activecontrollercount": ("gauge", "1 if this broker is the controller."),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (
        "gauge",
        "Partitions that nobody leads; told by the controller, 0 elsewhere.",
    ),
    "headrace_registry_session_held": ("gauge", "0 while the registry cannot be reached."),
    "kafka_server_replicamanager_partitioncount": ("gauge", "Replicas on this broker."),
    "kafka_server_replicamanager_leadercount": ("gauge", "Partitions that this broker leads."),
    "kafka_server_replicamanager_underreplicatedpartitions": (
        "gauge",
        "Partitions led here of which a replica is not in sync.",
    ),
    "kafka_server_replicamanager_underminisrpartitioncount": (
        "gauge",
        "Partitions led here that refuse acks=all: too few replicas are in sync.",
    ),
    "kafka_server_replicamanager_isrshrinks_total": (
        "counter",
        "Replicas that fell out of sync, of partitions led here.",
    ),
    "kafka_server_replicamanager_isrexpands_total": ("counter", "Replicas that came back into sync."),
}

_TOPICS: dict[str, tuple[Kind, str]] = {
    "kafka_server_brokertopicmetrics_messagesin_total": ("counter", "Records produced."),
    "kafka_server_brokertopicmetrics_bytesin_total": ("counter", "Bytes produced."),
    "kafka_server_brokertopicmetrics_bytesout_total": ("counter", "Bytes fetched by consumers."),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": ("counter", "Batches that producers sent."),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": ("counter", "Fetches that were answered with records."),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": ("counter", "Batches that were refused."),
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": ("counter", "Fetches that were refused."),
    "kafka_topic_partitions": ("gauge", "Partitions of the topic."),
    "kafka_topic_partition_current_offset": ("gauge", "High watermark: what comes next."),
    "kafka_topic_partition_oldest_offset": ("gauge", "Where the log starts."),
    "kafka_topic_partition_leader": ("gauge", "Node id of the leader."),
    "kafka_topic_partition_leader_is_preferred": ("gauge", "1 if the first of its replicas leads it."),
    "kafka_topic_partition_replicas": ("gauge", "Replicas of the partition."),
    "kafka_topic_partition_in_sync_replica": ("gauge", "Replicas that are in sync."),
    "kafka_topic_partition_under_replicated_partition": ("gauge", "1 if a replica is not in sync."),
    "kafka_log_log_size": ("gauge", "Bytes of the replica's log on this broker."),
    "headrace_dedup_dropped_total": ("counter", "Messages that were not stored again, by their dedup id."),
    "headrace_dead_letters": ("gauge", "Dead letters of the topic that are kept."),
}

_GROUPS: dict[str, tuple[Kind, str]] = {
    "kafka_consumergroup_members": ("gauge", "Members of the group, of any protocol."),
    "kafka_consumergroup_current_offset": ("gauge", "What the group has committed; of a share group, its floor."),
    "kafka_consumergroup_current_offset_sum": ("gauge", "The same, over the partitions of the topic."),
    "kafka_consumergroup_lag": ("gauge", "Messages that the group has before it."),
    "kafka_consumergroup_lag_sum": ("gauge", "The same, over the partitions of the topic."),
}

_QUEUES: dict[str, tuple[Kind, str]] = {
    "headrace_subscription_messages": ("gauge", "Messages that are not settled, by how they stand."),
    "headrace_subscription_backlog": ("gauge", "All messages that are not settled."),
    "headrace_subscription_oldest_age_seconds": (
        "gauge",
        "Age of the oldest message that is not settled; 0 if none is.",
    ),
    "headrace_subscription_deliveries_total": ("counter", "Messages that were leased."),
    "headrace_subscription_redeliveries_total": ("counter", "Those of them that had been delivered before."),
    "headrace_subscription_acks_total": ("counter", "Messages that were acked."),
    "headrace_subscription_nacks_total": ("counter", "Messages that were given back by their member."),
    "headrace_subscription_rejects_total": ("counter", "Messages that were rejected by their member."),
    "headrace_subscription_extends_total": ("counter", "Messages whose lease was extended."),
    "headrace_subscription_leases_expired_total": ("counter", "Messages that came back because their lease was over."),
    "headrace_subscription_leases_released_total": (
        "counter",
        "Messages that came back because their member was gone.",
    ),
    "headrace_subscription_settles_refused_total": ("counter", "Settles that came too late, or by somebody else."),
    "headrace_subscription_messages_expired_total": (
        "counter",
        "Messages that outlived their time or the log's retention.",
    ),
    "headrace_subscription_messages_filtered_total": ("counter", "Messages that the subscription's filter left out."),
    "headrace_subscription_dead_letters_total": ("counter", "Messages that became dead letters."),
    "headrace_subscription_discarded_total": ("counter", "Messages given up without a dead letter, as configured."),
    "headrace_subscription_delivery_seconds": ("histogram", "From publish to the first lease; sampled, see the docs."),
    "headrace_subscription_settle_seconds": ("histogram", "From the lease to the ack."),
    "headrace_subscription_end_to_end_seconds": ("histogram", "From publish to the ack; sampled, see the docs."),
    "headrace_delayed_messages": ("gauge", "Messages that wait for their time."),
    "headrace_delayed_overdue_seconds": ("gauge", "How long the first message that should have come has been due."),
    "headrace_delayed_released_total": ("counter", "Messages that came to the topic when they were due."),
    "headrace_delayed_late_seconds": ("histogram", "How late they came; of a batch, its first."),
}

_STORAGE: dict[str, tuple[Kind, str]] = {
    "headrace_fsync_seconds": ("histogram", "How long a round of fsync took, which many batches share."),
    "headrace_flush_rounds_total": ("counter", "Rounds of fsync."),
    "headrace_cleaner_passes_total": ("counter", "Passes of compaction."),
    "headrace_cleaner_passes_failed_total": ("counter", "Passes of compaction that failed."),
    "headrace_cleaner_records_read_total": ("counter", "Records that compaction read."),
    "headrace_cleaner_records_kept_total": ("counter", "Records that compaction kept."),
    "headrace_cleaner_bytes_read_total": ("counter", "Bytes that compaction read."),
    "headrace_cleaner_bytes_written_total": ("counter", "Bytes that compaction wrote."),
    "headrace_disk_free_bytes": ("gauge", "Free bytes of the disk with the data folder."),
    "headrace_produce_refused_for_space": ("gauge", "1 while produce is refused because the disk is nearly full."),
    "headrace_logs_bytes": ("gauge", "Bytes of all logs on this broker."),
    "headrace_logs_failed": ("gauge", "Logs that take no more writes, because one failed."),
    "headrace_stray_logs": ("gauge", "Logs that the registry does not know, kept in the folder stray."),
    "headrace_stray_bytes": ("gauge", "Bytes of the logs in the folder stray, measured every minute."),
    "headrace_log_quarantined": ("gauge", "1 for each damaged log; where is in its labels."),
}

FAMILIES: dict[str, tuple[Kind, str]] = {
    **_PROCESS,
    **_DOORS,
    **_HTTP,
    **_CLUSTER,
    **_TOPICS,
    **_GROUPS,
    **_QUEUES,
    **_STORAGE,
}
