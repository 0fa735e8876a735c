"""OffsetCommit (8): remember how far a group has read.

v5 drops the retention time, v6 adds leader epochs, v7 static members, v8 is flexible, v9 is for the newer
group protocol (the generation is the member's epoch), v10 has topic ids instead of names.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, INT64, STRING, UUID16, array, message, part, wire


@part
class OffsetCommitRequestPartition:
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire(STRING, nullable=2)


@part
class OffsetCommitRequestTopic:
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitRequestPartition] = wire(array(OffsetCommitRequestPartition))


@message(versions=(2, 10), flexible_since=8)
class OffsetCommitRequest:
    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire(STRING)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    group_instance_id: str | None = wire(STRING, since=7, nullable=7, default=None)
    topics: list[OffsetCommitRequestTopic] = wire(array(OffsetCommitRequestTopic))


@part
class OffsetCommitResponsePartition:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@part
class OffsetCommitResponseTopic:
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitResponsePartition] = wire(array(OffsetCommitResponsePartition))


@message(versions=(2, 10), flexible_since=8)
class OffsetCommitResponse:
    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire(array(OffsetCommitResponseTopic))
