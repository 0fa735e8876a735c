"""The settings of a broker that are the defaults of share groups and of subscriptions."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.configs import at_least, between, integer
from headrace.model.replication_configs import ReplicationConfig

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDefaults(ReplicationConfig):
    group_share_delivery_count_limit: int = integer(
        5,
        "How often a message is delivered before it becomes a dead letter.",
        check=between(1, 1000),
    )
    group_share_heartbeat_interval_ms: int = integer(
        5000,
        "How often the members of a share group send a heartbeat.",
        check=at_least(100),
    )
    group_share_partition_max_record_locks: int = integer(
        0,
        "How many messages of a partition may be leased at a time. 0 is no limit; Kafka has 2000.",
        check=at_least(0),
    )
    group_share_record_lock_duration_ms: int = integer(
        30_000,
        "How long a lease lasts that is not extended.",
        check=between(100, 12 * HOUR_MS),
    )
    group_share_session_timeout_ms: int = integer(
        45_000,
        "Remove a member of a share group that has sent no heartbeat for this long, and release what it leased.",
        check=at_least(100),
    )
