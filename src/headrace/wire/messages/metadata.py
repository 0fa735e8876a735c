"""Metadata of the cluster: brokers, topics, versions, features."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID16,
    ApiMessage,
    Part,
    array,
    wire,
)

# Metadata (3): return the brokers, and the topics with their leaders.
#
# - In v0 an empty list selects all topics, and there is no controller; from v1 on, null selects all topics.
# - v4 adds `allow_auto_topic_creation`, v5 offline replicas, v7 leader epochs.
# - v8 to v10 have authorized operations of the cluster; later versions of clients use DescribeCluster for these.
# - v9 is flexible. v10 adds topic ids, v12 selects by them, v13 adds an error of the whole response.


class MetadataRequestTopic(Part):
    topic_id: UUID = wire(UUID16, since=10)
    name: str | None = wire(STRING, nullable=10)


class MetadataRequest(ApiMessage, versions=(0, 13), flexible_since=9):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable=1)
    allow_auto_topic_creation: bool = wire(BOOL, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOL, since=8, until=10)
    include_topic_authorized_operations: bool = wire(BOOL, since=8)


class MetadataResponseBroker(Part):
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, since=1, nullable=1, default=None)


class MetadataResponsePartition(Part):
    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=7, default=-1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    offline_replicas: list[int] = array(INT32, since=5)


class MetadataResponseTopic(Part):
    error_code: int = wire(INT16)
    name: str | None = wire(STRING, nullable=12)
    topic_id: UUID = wire(UUID16, since=10)
    is_internal: bool = wire(BOOL, since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = wire(INT32, since=8, default=-2147483648)


class MetadataResponse(ApiMessage, versions=(0, 13), flexible_since=9):
    throttle_time_ms: int = wire(INT32, since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = wire(STRING, since=2, nullable=2, default=None)
    controller_id: int = wire(INT32, since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = wire(INT32, since=8, until=10, default=-2147483648)
    error_code: int = wire(INT16, since=13)


# Parts of the responses to Produce (0), Fetch (1), ShareFetch (78) and ShareAcknowledge (79): the current leader of a
# partition and the addresses of the leaders. With them, a client that asked the wrong broker need not fetch metadata.


class LeaderIdAndEpoch(Part):
    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)


class NodeEndpoint(Part):
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, nullable=0, default=None)


# DescribeTopicPartitions (75): return topics in pages, with their eligible leader replicas.


class DescribeTopicPartitionsTopic(Part):
    name: str = wire(STRING)


class Cursor(Part):
    topic_name: str = wire(STRING)
    partition_index: int = wire(INT32)


class DescribeTopicPartitionsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    topics: list[DescribeTopicPartitionsTopic] = array(DescribeTopicPartitionsTopic)
    response_partition_limit: int = wire(INT32, default=2000)
    cursor: Cursor | None = wire(Cursor, nullable=0)


class DescribeTopicPartitionsResponsePartition(Part):
    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    replica_nodes: list[int] = array(INT32)
    isr_nodes: list[int] = array(INT32)
    eligible_leader_replicas: list[int] | None = array(INT32, nullable=0, default=None)
    last_known_elr: list[int] | None = array(INT32, nullable=0, default=None)
    offline_replicas: list[int] = array(INT32)


class DescribeTopicPartitionsResponseTopic(Part):
    error_code: int = wire(INT16)
    name: str | None = wire(STRING, nullable=0, default=None)
    topic_id: UUID = wire(UUID16)
    is_internal: bool = wire(BOOL)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = wire(INT32, default=-2147483648)


class DescribeTopicPartitionsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = wire(Cursor, nullable=0)


# DescribeCluster (60): return the brokers and the controller. v1 adds the endpoints of controllers (type 2), v2
# fenced brokers. Headrace has tagged fields of its own, which other clients skip. `is_draining`: the broker is online
# and is being drained, or is stopping. `session_invalid`: the broker that responds has no valid session with the
# registry, so what it returns may be outdated.


class DescribeClusterRequest(ApiMessage, versions=(0, 2), flexible_since=0):
    include_cluster_authorized_operations: bool = wire(BOOL)
    endpoint_type: int = wire(INT8, since=1, default=1)
    include_fenced_brokers: bool = wire(BOOL, since=2)


class DescribeClusterBroker(Part):
    broker_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, nullable=0, default=None)
    is_fenced: bool = wire(BOOL, since=2)
    is_draining: bool = wire(BOOL, tag=10_000, default=False)


class DescribeClusterResponse(ApiMessage, versions=(0, 2), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    endpoint_type: int = wire(INT8, since=1, default=1)
    cluster_id: str = wire(STRING)
    controller_id: int = wire(INT32, default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = wire(INT32, default=-2147483648)
    session_invalid: bool = wire(BOOL, tag=10_000, default=False)


# DescribeQuorum (55): return the leader and the replicas of the cluster metadata. v1 adds the time of a replica's
# last fetch, v2 directory ids, error messages and the endpoints of the nodes.


class DescribeQuorumRequestPartition(Part):
    partition_index: int = wire(INT32)


class DescribeQuorumRequestTopic(Part):
    topic_name: str = wire(STRING)
    partitions: list[DescribeQuorumRequestPartition] = array(DescribeQuorumRequestPartition)


class DescribeQuorumRequest(ApiMessage, versions=(0, 2), flexible_since=0):
    topics: list[DescribeQuorumRequestTopic] = array(DescribeQuorumRequestTopic)


class QuorumReplica(Part):
    replica_id: int = wire(INT32)
    replica_directory_id: UUID = wire(UUID16, since=2)
    log_end_offset: int = wire(INT64)
    last_fetch_timestamp: int = wire(INT64, since=1, default=-1)
    last_caught_up_timestamp: int = wire(INT64, since=1, default=-1)


class DescribeQuorumResponsePartition(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=2, nullable=2, default=None)
    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)
    high_watermark: int = wire(INT64, default=-1)
    current_voters: list[QuorumReplica] = array(QuorumReplica)
    observers: list[QuorumReplica] = array(QuorumReplica)


class DescribeQuorumResponseTopic(Part):
    topic_name: str = wire(STRING)
    partitions: list[DescribeQuorumResponsePartition] = array(DescribeQuorumResponsePartition)


class QuorumListener(Part):
    name: str = wire(STRING)
    host: str = wire(STRING)
    port: int = wire(UINT16)


class QuorumNode(Part):
    node_id: int = wire(INT32)
    listeners: list[QuorumListener] = array(QuorumListener)


class DescribeQuorumResponse(ApiMessage, versions=(0, 2), flexible_since=0):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=2, nullable=2, default=None)
    topics: list[DescribeQuorumResponseTopic] = array(DescribeQuorumResponseTopic)
    nodes: list[QuorumNode] = array(QuorumNode, since=2)


# ApiVersions (18): return the supported versions; the first request of every connection. v3 is flexible, and adds the
# name of the client and the features. Its response header remains version 0, so that a client can read the response
# to an unsupported version. v4 allows features with the minimum 0.


class ApiVersionsRequest(ApiMessage, versions=(0, 4), flexible_since=3):
    client_software_name: str = wire(STRING, since=3)
    client_software_version: str = wire(STRING, since=3)


class ApiVersion(Part):
    api_key: int = wire(INT16)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


class SupportedFeatureKey(Part):
    name: str = wire(STRING)
    min_version: int = wire(INT16)
    max_version: int = wire(INT16)


class FinalizedFeatureKey(Part):
    name: str = wire(STRING)
    max_version_level: int = wire(INT16)
    min_version_level: int = wire(INT16)


class ApiVersionsResponse(ApiMessage, versions=(0, 4), flexible_since=3):
    error_code: int = wire(INT16)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = wire(INT32, since=1)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch: int = wire(INT64, since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready: bool = wire(BOOL, since=3, tag=3)


# UpdateFeatures (57): change the finalized level of a feature. v1 adds `validate_only` and `upgrade_type`, v2 has one
# error for the request instead of one for each feature.


class FeatureUpdate(Part):
    feature: str = wire(STRING)
    max_version_level: int = wire(INT16)
    allow_downgrade: bool = wire(BOOL, until=0)
    upgrade_type: int = wire(INT8, since=1, default=1)


class UpdateFeaturesRequest(ApiMessage, versions=(0, 2), flexible_since=0):
    timeout_ms: int = wire(INT32, default=60_000)
    feature_updates: list[FeatureUpdate] = array(FeatureUpdate)
    validate_only: bool = wire(BOOL, since=1)


class UpdatableFeatureResult(Part):
    feature: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class UpdateFeaturesResponse(ApiMessage, versions=(0, 2), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, until=1)
