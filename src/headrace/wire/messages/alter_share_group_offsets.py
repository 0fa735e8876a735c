"""AlterShareGroupOffsets (91): let a share group without members go on from other offsets."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, INT64, STRING, UUID16, array, message, part, wire


@part
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)


@part
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = wire(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = wire(array(AlterShareGroupOffsetsRequestPartition))


@message(versions=(0, 0), flexible_since=0)
class AlterShareGroupOffsetsRequest:
    group_id: str = wire(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = wire(array(AlterShareGroupOffsetsRequestTopic))


@part
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@part
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = wire(array(AlterShareGroupOffsetsResponsePartition))


@message(versions=(0, 0), flexible_since=0)
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = wire(array(AlterShareGroupOffsetsResponseTopic))
