"""OffsetFetch (9): how far a group has read.

From v2 null topics mean all. v2 has a group error, v5 leader epochs, v6 is flexible, v7 can ask for stable
offsets only, v8 asks for many groups at once, v9 carries the member's epoch, v10 has topic ids instead of
names.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, UUID16, array, message, part, wire


@part
class OffsetFetchRequestTopic:
    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@part
class OffsetFetchRequestTopics:
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partition_indexes: list[int] = wire(array(INT32))


@part
class OffsetFetchRequestGroup:
    group_id: str = wire(STRING)
    member_id: str | None = wire(STRING, since=9, nullable=9, default=None)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = wire(array(OffsetFetchRequestTopics), nullable=8, default=None)


@message(versions=(1, 10), flexible_since=6)
class OffsetFetchRequest:
    group_id: str = wire(STRING, until=7)
    topics: list[OffsetFetchRequestTopic] | None = wire(array(OffsetFetchRequestTopic), until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = wire(array(OffsetFetchRequestGroup), since=8)
    require_stable: bool = wire(BOOL, since=7)


@part
class OffsetFetchResponsePartition:
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=5, default=-1)
    metadata: str | None = wire(STRING, nullable=1)
    error_code: int = wire(INT16)


@part
class OffsetFetchResponseTopic:
    name: str = wire(STRING)
    partitions: list[OffsetFetchResponsePartition] = wire(array(OffsetFetchResponsePartition))


@part
class OffsetFetchResponsePartitions:
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, default=-1)
    metadata: str | None = wire(STRING, nullable=8)
    error_code: int = wire(INT16)


@part
class OffsetFetchResponseTopics:
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetFetchResponsePartitions] = wire(array(OffsetFetchResponsePartitions))


@part
class OffsetFetchResponseGroup:
    group_id: str = wire(STRING)
    topics: list[OffsetFetchResponseTopics] = wire(array(OffsetFetchResponseTopics))
    error_code: int = wire(INT16)


@message(versions=(1, 10), flexible_since=6)
class OffsetFetchResponse:
    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetFetchResponseTopic] = wire(array(OffsetFetchResponseTopic), until=7)
    error_code: int = wire(INT16, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = wire(array(OffsetFetchResponseGroup), since=8)
