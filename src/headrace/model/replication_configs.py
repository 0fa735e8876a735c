"""The settings of a broker that concern copies: how many there are, how they are fetched, and who leads."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.configs import at_least, boolean, integer, long

LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    auto_leader_rebalance_enable: bool = boolean(
        True,
        "Whether leads are given back to the replica that comes first when it is in sync again.",
    )
    default_replication_factor: int = integer(
        3,
        "The replicas of a topic that is created without saying how many, or as many as there are brokers.",
        check=at_least(1),
    )
    follower_replication_throttled_rate: int = long(
        LONG_MAX,
        "How many bytes per second replicas that are not in sync yet may copy, to leave room for others.",
        check=at_least(1),
    )
    leader_imbalance_check_interval_seconds: int = long(
        30,
        "How often leads are given back to the replicas that come first.",
        check=at_least(1),
    )
    leader_replication_throttled_rate: int = long(
        LONG_MAX,
        "How many bytes per second replicas that are not in sync yet may copy from a broker, all of them together.",
        check=at_least(1),
    )
    offsets_topic_replication_factor: int = integer(
        3,
        "The replicas of the log of groups and offsets, or as many as there are brokers when it is made.",
        check=at_least(1),
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576,
        "How much of one partition a follower asks for at a time.",
        check=at_least(0),
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760,
        "How much a follower asks for at a time.",
        check=at_least(0),
    )
    replica_fetch_wait_max_ms: int = integer(
        500,
        "How long a follower waits for something new before it asks again.",
        check=at_least(1),
    )
    replica_lag_time_max_ms: int = long(
        10_000,
        "A follower that has not caught up for so long is no longer waited for.",
        check=at_least(1),
    )
    transaction_state_log_replication_factor: int = integer(
        3,
        "The replicas of the log of transactions, or as many as there are brokers when it is made.",
        check=at_least(1),
    )
