"""Metadata (3): brokers, and the leaders of topics.

v0 knows no controller, and an empty list means all topics; from v1 that is null. v4 lets the client forbid
auto-creation, v5 tells offline replicas, v7 leader epochs, v8 to v10 authorised operations (for the
cluster: now DescribeCluster's), v9 is flexible, v10 shows topic ids, v12 asks by them, v13 has an error for
the whole answer.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import BOOL, INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class MetadataRequestTopic:
    topic_id: UUID = wire(UUID16, since=10)
    name: str | None = wire(STRING, nullable=10)


@message(versions=(0, 13), flexible_since=9)
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = wire(array(MetadataRequestTopic), nullable=1)
    allow_auto_topic_creation: bool = wire(BOOL, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOL, since=8, until=10)
    include_topic_authorized_operations: bool = wire(BOOL, since=8)


@part
class MetadataResponseBroker:
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, since=1, nullable=1, default=None)


@part
class MetadataResponsePartition:
    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, since=7, default=-1)
    replica_nodes: list[int] = wire(array(INT32))
    isr_nodes: list[int] = wire(array(INT32))
    offline_replicas: list[int] = wire(array(INT32), since=5)


@part
class MetadataResponseTopic:
    error_code: int = wire(INT16)
    name: str | None = wire(STRING, nullable=12)
    topic_id: UUID = wire(UUID16, since=10)
    is_internal: bool = wire(BOOL, since=1)
    partitions: list[MetadataResponsePartition] = wire(array(MetadataResponsePartition))
    topic_authorized_operations: int = wire(INT32, since=8, default=-2147483648)


@message(versions=(0, 13), flexible_since=9)
class MetadataResponse:
    throttle_time_ms: int = wire(INT32, since=3)
    brokers: list[MetadataResponseBroker] = wire(array(MetadataResponseBroker))
    cluster_id: str | None = wire(STRING, since=2, nullable=2, default=None)
    controller_id: int = wire(INT32, since=1, default=-1)
    topics: list[MetadataResponseTopic] = wire(array(MetadataResponseTopic))
    cluster_authorized_operations: int = wire(INT32, since=8, until=10, default=-2147483648)
    error_code: int = wire(INT16, since=13)
