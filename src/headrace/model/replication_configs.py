"""The broker settings of replication: replication factors, follower fetches and leader elections."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.configs import at_least, boolean, integer, long

LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    auto_leader_rebalance_enable: bool = boolean(
        True,
        "Elect the preferred leader (the first replica) of a partition again when it is back in sync.",
    )
    default_replication_factor: int = integer(
        3,
        "The replication factor of a topic that is created without one, limited by the number of brokers.",
        check=at_least(1),
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        "The maximum number of bytes per second that this broker fetches for replicas that are out of sync.",
        check=at_least(1),
    )
    leader_imbalance_check_interval_seconds: int = long(
        30,
        "How often the controller checks whether to elect preferred leaders.",
        check=at_least(1),
    )
    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        "The maximum number of bytes per second that this broker sends to replicas that are out of sync, in total.",
        check=at_least(1),
    )
    offsets_topic_replication_factor: int = integer(
        3,
        "The replication factor of __consumer_offsets, limited by the number of brokers when it is created.",
        check=at_least(1),
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576,
        "The maximum number of bytes per partition in a follower fetch.",
        check=at_least(0),
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760,
        "The maximum number of bytes in a follower fetch.",
        check=at_least(0),
    )
    replica_fetch_wait_max_ms: int = integer(
        500,
        "The maximum time that a follower fetch waits at the leader for new records.",
        check=at_least(1),
    )
    replica_lag_time_max_ms: int = long(
        10_000,
        "Remove a follower from the in-sync replicas when it has not caught up with the leader for this many "
        "milliseconds.",
        check=at_least(1),
    )
    transaction_state_log_replication_factor: int = integer(
        3,
        "The replication factor of __transaction_state, limited by the number of brokers when it is created.",
        check=at_least(1),
    )
