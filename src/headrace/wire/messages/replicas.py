"""Replicas: reassignments, elections, drains, log directories."""

from __future__ import annotations

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, INT64, STRING, ApiMessage, Part, array, wire

# AlterPartitionReassignments (45): move partitions to other replicas; null cancels a reassignment. v1 adds
# `allow_replication_factor_change`.


class ReassignablePartition(Part):
    partition_index: int = wire(INT32)
    replicas: list[int] | None = array(INT32, nullable=0, default=None)


class ReassignableTopic(Part):
    name: str = wire(STRING)
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(ApiMessage, versions=(0, 1), flexible_since=0):
    timeout_ms: int = wire(INT32, default=60_000)
    allow_replication_factor_change: bool = wire(BOOL, since=1, default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class ReassignableTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(ApiMessage, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    allow_replication_factor_change: bool = wire(BOOL, since=1, default=True)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


# ListPartitionReassignments (46): list ongoing reassignments. Null selects all topics.


class ListPartitionReassignmentsTopics(Part):
    name: str = wire(STRING)
    partition_indexes: list[int] = array(INT32)


class ListPartitionReassignmentsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    timeout_ms: int = wire(INT32, default=60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(ListPartitionReassignmentsTopics, nullable=0)


class OngoingPartitionReassignment(Part):
    partition_index: int = wire(INT32)
    replicas: list[int] = array(INT32)
    adding_replicas: list[int] = array(INT32)
    removing_replicas: list[int] = array(INT32)


class OngoingTopicReassignment(Part):
    name: str = wire(STRING)
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)


# ElectLeaders (43): elect the preferred replica (0) or, accepting data loss, a replica that is not in sync (1). Null
# selects all partitions. v1 adds the election type, v2 is flexible.


class ElectLeadersTopic(Part):
    topic: str = wire(STRING)
    partitions: list[int] = array(INT32)


class ElectLeadersRequest(ApiMessage, versions=(0, 2), flexible_since=2):
    election_type: int = wire(INT8, since=1)
    topic_partitions: list[ElectLeadersTopic] | None = array(ElectLeadersTopic, nullable=0)
    timeout_ms: int = wire(INT32, default=60_000)


class PartitionResult(Part):
    partition_id: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class ReplicaElectionResult(Part):
    topic: str = wire(STRING)
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(ApiMessage, versions=(0, 2), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=1)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


# DrainBroker (10000, Headrace): move all replicas off a broker, or end that. With `reduces_replicas` it succeeds even
# if the other brokers are too few for the replicas of some topics, because the client will reduce these replicas.


class DrainBrokerRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    broker_id: int = wire(INT32)
    is_drained: bool = wire(BOOL, default=True)
    reduces_replicas: bool = wire(BOOL, tag=0)


class DrainBrokerResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


# DescribeLogDirs (35): return the log directories of this broker and the sizes of their logs. v2 is flexible, v3 adds
# an error of the whole response, v4 the size of the volume, v5 whether the directory is cordoned.


class DescribableLogDirTopic(Part):
    topic: str = wire(STRING)
    partitions: list[int] = array(INT32)


class DescribeLogDirsRequest(ApiMessage, versions=(1, 5), flexible_since=2):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=1, default=None)


class DescribeLogDirsPartition(Part):
    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOL)


class DescribeLogDirsTopic(Part):
    name: str = wire(STRING)
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Part):
    error_code: int = wire(INT16)
    log_dir: str = wire(STRING)
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = wire(INT64, since=4, default=-1)
    usable_bytes: int = wire(INT64, since=4, default=-1)
    is_cordoned: bool = wire(BOOL, since=5)


class DescribeLogDirsResponse(ApiMessage, versions=(1, 5), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
