"""DescribeQuorum (55): who leads the cluster's metadata, and who follows it.

v1 adds when a replica was last heard of, v2 directory ids, error texts and the addresses of the nodes.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, INT64, STRING, UINT16, UUID16, array, message, part, wire


@part
class DescribeQuorumRequestPartition:
    partition_index: int = wire(INT32)


@part
class DescribeQuorumRequestTopic:
    topic_name: str = wire(STRING)
    partitions: list[DescribeQuorumRequestPartition] = wire(array(DescribeQuorumRequestPartition))


@message(versions=(0, 2), flexible_since=0)
class DescribeQuorumRequest:
    topics: list[DescribeQuorumRequestTopic] = wire(array(DescribeQuorumRequestTopic))


@part
class QuorumReplica:
    replica_id: int = wire(INT32)
    replica_directory_id: UUID = wire(UUID16, since=2)
    log_end_offset: int = wire(INT64)
    last_fetch_timestamp: int = wire(INT64, since=1, default=-1)
    last_caught_up_timestamp: int = wire(INT64, since=1, default=-1)


@part
class DescribeQuorumResponsePartition:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=2, nullable=2, default=None)
    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)
    high_watermark: int = wire(INT64, default=-1)
    current_voters: list[QuorumReplica] = wire(array(QuorumReplica))
    observers: list[QuorumReplica] = wire(array(QuorumReplica))


@part
class DescribeQuorumResponseTopic:
    topic_name: str = wire(STRING)
    partitions: list[DescribeQuorumResponsePartition] = wire(array(DescribeQuorumResponsePartition))


@part
class QuorumListener:
    name: str = wire(STRING)
    host: str = wire(STRING)
    port: int = wire(UINT16)


@part
class QuorumNode:
    node_id: int = wire(INT32)
    listeners: list[QuorumListener] = wire(array(QuorumListener))


@message(versions=(0, 2), flexible_since=0)
class DescribeQuorumResponse:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=2, nullable=2, default=None)
    topics: list[DescribeQuorumResponseTopic] = wire(array(DescribeQuorumResponseTopic))
    nodes: list[QuorumNode] = wire(array(QuorumNode), since=2)
