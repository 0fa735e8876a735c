"""AlterPartitionReassignments (45): move partitions to other replicas; null ends a move that is under way.

v1 can forbid that the number of replicas changes by it.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, STRING, array, message, part, wire


@part
class ReassignablePartition:
    partition_index: int = wire(INT32)
    replicas: list[int] | None = wire(array(INT32), nullable=0, default=None)


@part
class ReassignableTopic:
    name: str = wire(STRING)
    partitions: list[ReassignablePartition] = wire(array(ReassignablePartition))


@message(versions=(0, 1), flexible_since=0)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = wire(INT32, default=60_000)
    allow_replication_factor_change: bool = wire(BOOL, since=1, default=True)
    topics: list[ReassignableTopic] = wire(array(ReassignableTopic))


@part
class ReassignablePartitionResponse:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@part
class ReassignableTopicResponse:
    name: str = wire(STRING)
    partitions: list[ReassignablePartitionResponse] = wire(array(ReassignablePartitionResponse))


@message(versions=(0, 1), flexible_since=0)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = wire(INT32)
    allow_replication_factor_change: bool = wire(BOOL, since=1, default=True)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    responses: list[ReassignableTopicResponse] = wire(array(ReassignableTopicResponse))
