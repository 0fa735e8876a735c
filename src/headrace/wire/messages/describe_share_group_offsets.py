"""DescribeShareGroupOffsets (90): where share groups stand in their partitions. v1 tells the lag, too."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, INT64, STRING, UUID16, array, message, part, wire


@part
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@part
class DescribeShareGroupOffsetsRequestGroup:
    """`topics` null: all that the group has been at."""

    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = wire(
        array(DescribeShareGroupOffsetsRequestTopic), nullable=0
    )


@message(versions=(0, 1), flexible_since=0)
class DescribeShareGroupOffsetsRequest:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = wire(array(DescribeShareGroupOffsetsRequestGroup))


@part
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)
    leader_epoch: int = wire(INT32)
    lag: int = wire(INT64, since=1, default=-1)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@part
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = wire(
        array(DescribeShareGroupOffsetsResponsePartition)
    )


@part
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = wire(array(DescribeShareGroupOffsetsResponseTopic))
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 1), flexible_since=0)
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = wire(INT32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = wire(array(DescribeShareGroupOffsetsResponseGroup))
