"""Share groups (KIP-932)."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID16,
    ApiMessage,
    Chunk,
    Part,
    array,
    wire,
)
from headrace.wire.messages.consumer_groups import Assignment, DescribedAssignment
from headrace.wire.messages.metadata import NodeEndpoint

# ShareGroupHeartbeat (76): join, heartbeat and leave. A field that has not changed since the last heartbeat is null.
# The member generates its own id; member epoch 0 joins, -1 leaves. v0 was an early access version and is not
# supported.


class ShareGroupHeartbeatRequest(ApiMessage, versions=(1, 1), flexible_since=0):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    subscribed_topic_names: list[str] | None = array(STRING, nullable=0, default=None)


class ShareGroupHeartbeatResponse(ApiMessage, versions=(1, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: Assignment | None = wire(Assignment, nullable=0)


# ShareGroupDescribe (77): return the state and the members of share groups. v0 was an early access version.


class ShareGroupDescribeRequest(ApiMessage, versions=(1, 1), flexible_since=0):
    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = wire(BOOL)


class ShareGroupMember(Part):
    member_id: str = wire(STRING)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = array(STRING)
    assignment: DescribedAssignment = wire(DescribedAssignment)


class DescribedShareGroup(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: list[ShareGroupMember] = array(ShareGroupMember)
    authorized_operations: int = wire(INT32, default=-2147483648)


class ShareGroupDescribeResponse(ApiMessage, versions=(1, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    groups: list[DescribedShareGroup] = array(DescribedShareGroup)


# ShareFetch (78): acquire records of partitions for a share group, and acknowledge records acquired before.
#
# - `share_session_epoch` 0 opens a session, -1 closes it; otherwise it counts the requests of the session.
# - v2 adds the acquire mode (0: whole batches, 1: at most `max_records`), and renewals: a request with renewals
#   acquires nothing. v0 was an early access version.


class AcknowledgementBatch(Part):
    """`acknowledge_types` has one type for the whole range, or one for each offset."""

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    acknowledge_types: list[int] = array(INT8)


class ShareFetchPartition(Part):
    partition_index: int = wire(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


class ShareFetchTopic(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[ShareFetchPartition] = array(ShareFetchPartition)


class ShareForgottenTopic(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[int] = array(INT32)


class ShareFetchRequest(ApiMessage, versions=(1, 2), flexible_since=0):
    group_id: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0)
    share_session_epoch: int = wire(INT32)
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, default=2147483647)
    max_records: int = wire(INT32)
    batch_size: int = wire(INT32)
    share_acquire_mode: int = wire(INT8, since=2)
    is_renew_ack: bool = wire(BOOL, since=2)
    topics: list[ShareFetchTopic] = array(ShareFetchTopic)
    forgotten_topics_data: list[ShareForgottenTopic] = array(ShareForgottenTopic)


class ShareLeaderIdAndEpoch(Part):
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32)


class AcquiredRecords(Part):
    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_count: int = wire(INT16)


class ShareFetchPartitionData(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    acknowledge_error_code: int = wire(INT16)
    acknowledge_error_message: str | None = wire(STRING, nullable=0, default=None)
    current_leader: ShareLeaderIdAndEpoch = wire(ShareLeaderIdAndEpoch)
    records: Chunk | None = wire(RECORDS, nullable=0)
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


class ShareFetchableTopicResponse(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[ShareFetchPartitionData] = array(ShareFetchPartitionData)


class ShareFetchResponse(ApiMessage, versions=(1, 2), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = wire(INT32)
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


# ShareAcknowledge (79): acknowledge records that were acquired by ShareFetch, in the same session. v2 adds renewals
# and the duration of the acquisition lock. v0 was an early access version.


class AcknowledgePartition(Part):
    partition_index: int = wire(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


class AcknowledgeTopic(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition)


class ShareAcknowledgeRequest(ApiMessage, versions=(1, 2), flexible_since=0):
    group_id: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0)
    share_session_epoch: int = wire(INT32)
    is_renew_ack: bool = wire(BOOL, since=2)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic)


class ShareAcknowledgePartitionData(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    current_leader: ShareLeaderIdAndEpoch = wire(ShareLeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData)


class ShareAcknowledgeResponse(ApiMessage, versions=(1, 2), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = wire(INT32, since=2)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint)


# DescribeShareGroupOffsets (90): return the start offsets of share groups. v1 adds the lag.


class DescribeShareGroupOffsetsRequestTopic(Part):
    topic_name: str = wire(STRING)
    partitions: list[int] = array(INT32)


class DescribeShareGroupOffsetsRequestGroup(Part):
    """Null `topics` selects all topics of the group."""

    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array(
        DescribeShareGroupOffsetsRequestTopic, nullable=0
    )


class DescribeShareGroupOffsetsRequest(ApiMessage, versions=(0, 1), flexible_since=0):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup)


class DescribeShareGroupOffsetsResponsePartition(Part):
    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)
    leader_epoch: int = wire(INT32)
    lag: int = wire(INT64, since=1, default=-1)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class DescribeShareGroupOffsetsResponseTopic(Part):
    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(DescribeShareGroupOffsetsResponsePartition)


class DescribeShareGroupOffsetsResponseGroup(Part):
    group_id: str = wire(STRING)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class DescribeShareGroupOffsetsResponse(ApiMessage, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup)


# AlterShareGroupOffsets (91): set the start offsets of a share group without members.


class AlterShareGroupOffsetsRequestPartition(Part):
    partition_index: int = wire(INT32)
    start_offset: int = wire(INT64)


class AlterShareGroupOffsetsRequestTopic(Part):
    topic_name: str = wire(STRING)
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(AlterShareGroupOffsetsRequestPartition)


class AlterShareGroupOffsetsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    group_id: str = wire(STRING)
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic)


class AlterShareGroupOffsetsResponsePartition(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class AlterShareGroupOffsetsResponseTopic(Part):
    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(AlterShareGroupOffsetsResponsePartition)


class AlterShareGroupOffsetsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(AlterShareGroupOffsetsResponseTopic)


# DeleteShareGroupOffsets (92): delete the offsets of topics of a share group without members.


class DeleteShareGroupOffsetsRequestTopic(Part):
    topic_name: str = wire(STRING)


class DeleteShareGroupOffsetsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    group_id: str = wire(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic)


class DeleteShareGroupOffsetsResponseTopic(Part):
    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class DeleteShareGroupOffsetsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(DeleteShareGroupOffsetsResponseTopic)
