"""DescribeTopicPartitions (75): Metadata's topics in pages, with the eligible leaders."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import BOOL, INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class TopicRequest:
    name: str = wire(STRING)


@part
class Cursor:
    topic_name: str = wire(STRING)
    partition_index: int = wire(INT32)


@message(versions=(0, 0), flexible_since=0)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = wire(array(TopicRequest))
    response_partition_limit: int = wire(INT32, default=2000)
    cursor: Cursor | None = wire(Cursor, nullable=0)


@part
class DescribeTopicPartitionsResponsePartition:
    error_code: int = wire(INT16)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    replica_nodes: list[int] = wire(array(INT32))
    isr_nodes: list[int] = wire(array(INT32))
    eligible_leader_replicas: list[int] | None = wire(array(INT32), nullable=0, default=None)
    last_known_elr: list[int] | None = wire(array(INT32), nullable=0, default=None)
    offline_replicas: list[int] = wire(array(INT32))


@part
class DescribeTopicPartitionsResponseTopic:
    error_code: int = wire(INT16)
    name: str | None = wire(STRING, nullable=0, default=None)
    topic_id: UUID = wire(UUID16)
    is_internal: bool = wire(BOOL)
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(array(DescribeTopicPartitionsResponsePartition))
    topic_authorized_operations: int = wire(INT32, default=-2147483648)


@part
class NextCursor:
    topic_name: str = wire(STRING)
    partition_index: int = wire(INT32)


@message(versions=(0, 0), flexible_since=0)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(array(DescribeTopicPartitionsResponseTopic))
    next_cursor: NextCursor | None = wire(NextCursor, nullable=0)
