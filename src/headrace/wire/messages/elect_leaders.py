"""ElectLeaders (43): let the preferred replica lead (0), or, with loss, one that is not in sync (1). Null means all.

v1 adds the kind of election, v2 is flexible.
"""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, STRING, array, message, part, wire


@part
class TopicPartitions:
    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message(versions=(0, 2), flexible_since=2)
class ElectLeadersRequest:
    election_type: int = wire(INT8, since=1)
    topic_partitions: list[TopicPartitions] | None = wire(array(TopicPartitions), nullable=0)
    timeout_ms: int = wire(INT32, default=60_000)


@part
class PartitionResult:
    partition_id: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@part
class ReplicaElectionResult:
    topic: str = wire(STRING)
    partition_result: list[PartitionResult] = wire(array(PartitionResult))


@message(versions=(0, 2), flexible_since=2)
class ElectLeadersResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=1)
    replica_election_results: list[ReplicaElectionResult] = wire(array(ReplicaElectionResult))
