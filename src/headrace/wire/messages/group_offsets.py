"""Committed offsets of groups."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import BOOL, INT16, INT32, INT64, STRING, UUID16, ApiMessage, Part, array, wire

# OffsetCommit (8): commit offsets of a group. v5 drops the retention time, v6 adds leader epochs, v7 static members;
# v8 is flexible; v9 supports the consumer protocol (the generation is the member epoch); v10 has topic ids instead of
# names.


class OffsetCommitRequestPartition(Part):
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire(STRING, nullable=2)


class OffsetCommitRequestTopic(Part):
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(ApiMessage, versions=(2, 10), flexible_since=8):
    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire(STRING)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    group_instance_id: str | None = wire(STRING, since=7, nullable=7, default=None)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


class OffsetCommitResponseTopic(Part):
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(ApiMessage, versions=(2, 10), flexible_since=8):
    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


# OffsetFetch (9): return committed offsets of groups. From v2 on, null selects all topics. v2 adds an error of the
# group, v5 leader epochs; v6 is flexible; v7 adds `require_stable`, v8 several groups per request, v9 the member
# epoch; v10 has topic ids instead of names.


class OffsetFetchRequestTopic(Part):
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partition_indexes: list[int] = array(INT32)


class OffsetFetchRequestGroup(Part):
    group_id: str = wire(STRING)
    member_id: str | None = wire(STRING, since=9, nullable=9, default=None)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, nullable=8, default=None)


class OffsetFetchRequest(ApiMessage, versions=(1, 10), flexible_since=6):
    group_id: str = wire(STRING, until=7)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, until=7, nullable=2)
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8)
    require_stable: bool = wire(BOOL, since=7)


class OffsetFetchResponsePartition(Part):
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=5, default=-1)
    metadata: str | None = wire(STRING, nullable=1)
    error_code: int = wire(INT16)


class OffsetFetchResponseTopic(Part):
    name: str = wire(STRING, until=9)
    topic_id: UUID = wire(UUID16, since=10)
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponseGroup(Part):
    group_id: str = wire(STRING)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic)
    error_code: int = wire(INT16)


class OffsetFetchResponse(ApiMessage, versions=(1, 10), flexible_since=6):
    throttle_time_ms: int = wire(INT32, since=3)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7)
    error_code: int = wire(INT16, since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8)


# OffsetDelete (47): delete committed offsets of topics to which the group is not subscribed. Never flexible.


class OffsetDeleteRequestPartition(Part):
    partition_index: int = wire(INT32)


class OffsetDeleteRequestTopic(Part):
    name: str = wire(STRING)
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(ApiMessage, versions=(0, 0)):
    group_id: str = wire(STRING)
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


class OffsetDeleteResponseTopic(Part):
    name: str = wire(STRING)
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(ApiMessage, versions=(0, 0)):
    error_code: int = wire(INT16)
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)


# TxnOffsetCommit (28): commit offsets of a group as a part of a transaction. v2 adds leader epochs; v3 is flexible
# and adds the member; v4 adds TRANSACTION_ABORTABLE; v5 adds the group to the transaction implicitly.


class TxnOffsetCommitRequestPartition(Part):
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire(STRING, nullable=0)


class TxnOffsetCommitRequestTopic(Part):
    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(ApiMessage, versions=(0, 5), flexible_since=3):
    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


class TxnOffsetCommitResponseTopic(Part):
    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(ApiMessage, versions=(0, 5), flexible_since=3):
    throttle_time_ms: int = wire(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
