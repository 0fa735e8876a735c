"""The broker settings that are the defaults of share groups and subscriptions."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.configs import at_least, between, integer
from headrace.model.replication_configs import ReplicationConfig

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupDefaults(ReplicationConfig):
    group_share_delivery_count_limit: int = integer(
        5,
        "The maximum number of delivery attempts. A message that fails the last one becomes a dead letter.",
        check=between(1, 1000),
    )
    group_share_heartbeat_interval_ms: int = integer(
        5000,
        "The heartbeat interval of the members of share groups.",
        check=at_least(100),
    )
    group_share_partition_max_record_locks: int = integer(
        0,
        "The maximum number of messages of a partition that are leased at the same time. 0: no limit. Kafka's default "
        "is 2000.",
        check=at_least(0),
    )
    group_share_record_lock_duration_ms: int = integer(
        30_000,
        "The visibility timeout: a lease that is not extended expires after this many milliseconds.",
        check=between(100, 12 * HOUR_MS),
    )
    group_share_session_timeout_ms: int = integer(
        45_000,
        "Remove a member of a share group that has sent no heartbeat for this many milliseconds, and release its "
        "leases.",
        check=at_least(100),
    )
