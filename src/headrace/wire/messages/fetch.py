"""Fetch, ListOffsets and OffsetForLeaderEpoch: reading from partitions."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import (
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
from headrace.wire.messages.metadata import LeaderIdAndEpoch, NodeEndpoint

# Fetch (1): read batches of several partitions, and wait up to `max_wait_ms` for `min_bytes`.
#
# - v5 adds the log start offset, v7 sessions (only changed partitions are sent), v9 the leader epoch, v10 zstd, v11
#   racks.
# - v12 is flexible and reports the epoch at which logs diverge. v13 has topic ids instead of names.
# - v15 moves the follower's identity to a tagged field, v16 adds the endpoints of new leaders, v17 directory ids, v18
#   the follower's high watermark.


class FetchPartition(Part):
    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=9, default=-1)
    fetch_offset: int = wire(INT64)
    last_fetched_epoch: int = wire(INT32, since=12, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    partition_max_bytes: int = wire(INT32)
    replica_directory_id: UUID = wire(UUID16, since=17, tag=0)
    high_watermark: int = wire(INT64, since=18, tag=1, default=9223372036854775807)


class FetchTopic(Part):
    topic: str = wire(STRING, until=12)
    topic_id: UUID = wire(UUID16, since=13)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Part):
    topic: str = wire(STRING, until=12)
    topic_id: UUID = wire(UUID16, since=13)
    partitions: list[int] = array(INT32)


class ReplicaState(Part):
    replica_id: int = wire(INT32, default=-1)
    replica_epoch: int = wire(INT64, default=-1)


class FetchRequest(ApiMessage, versions=(4, 18), flexible_since=12):
    cluster_id: str | None = wire(STRING, since=12, nullable=12, tag=0, default=None)
    replica_id: int = wire(INT32, until=14, default=-1)
    replica_state: ReplicaState | None = wire(ReplicaState, since=15, tag=1)
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, default=2147483647)
    isolation_level: int = wire(INT8)
    session_id: int = wire(INT32, since=7)
    session_epoch: int = wire(INT32, since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = wire(STRING, since=11)


class FetchAbortedTransaction(Part):
    producer_id: int = wire(INT64)
    first_offset: int = wire(INT64)


class EpochEndOffset(Part):
    epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


class SnapshotId(Part):
    end_offset: int = wire(INT64, default=-1)
    epoch: int = wire(INT32, default=-1)


class PartitionData(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    high_watermark: int = wire(INT64)
    last_stable_offset: int = wire(INT64, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = wire(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId | None = wire(SnapshotId, since=12, tag=2)
    aborted_transactions: list[FetchAbortedTransaction] | None = array(
        FetchAbortedTransaction, nullable=4, default=None
    )
    preferred_read_replica: int = wire(INT32, since=11, default=-1)
    records: Chunk | None = wire(RECORDS, nullable=4)


class FetchableTopicResponse(Part):
    topic: str = wire(STRING, until=12)
    topic_id: UUID = wire(UUID16, since=13)
    partitions: list[PartitionData] = array(PartitionData)


class FetchResponse(ApiMessage, versions=(4, 18), flexible_since=12):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=7)
    session_id: int = wire(INT32, since=7)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)


# ListOffsets (2): find the offset for a timestamp.
#
# - Special timestamps: -1 the end, -2 the start, -3 (v7) the record with the largest timestamp, -4 (v8) the start of
#   the local log, -5 (v9) the end of the remote log, -6 (v11) the earliest offset that is not in remote storage.
# - If no record matches, offset and timestamp are -1.
# - v2 adds the isolation level, v4 leader epochs; v6 is flexible; v10 adds a timeout for remote storage.


class ListOffsetsPartition(Part):
    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=4, default=-1)
    timestamp: int = wire(INT64)


class ListOffsetsTopic(Part):
    name: str = wire(STRING)
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(ApiMessage, versions=(1, 11), flexible_since=6):
    replica_id: int = wire(INT32)
    isolation_level: int = wire(INT8, since=2)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = wire(INT32, since=10)


class ListOffsetsPartitionResponse(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    timestamp: int = wire(INT64, default=-1)
    offset: int = wire(INT64, default=-1)
    leader_epoch: int = wire(INT32, since=4, default=-1)


class ListOffsetsTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(ApiMessage, versions=(1, 11), flexible_since=6):
    throttle_time_ms: int = wire(INT32, since=2)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


# OffsetForLeaderEpoch (23): return the end offset of an epoch, so that a client can find where its log diverges. v3
# adds the replica id of the sender, v4 is flexible.


class OffsetForLeaderPartition(Part):
    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32)


class OffsetForLeaderTopic(Part):
    topic: str = wire(STRING)
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(ApiMessage, versions=(2, 4), flexible_since=4):
    replica_id: int = wire(INT32, since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class LeaderEpochEndOffset(Part):
    error_code: int = wire(INT16)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


class OffsetForLeaderTopicResult(Part):
    topic: str = wire(STRING)
    partitions: list[LeaderEpochEndOffset] = array(LeaderEpochEndOffset)


class OffsetForLeaderEpochResponse(ApiMessage, versions=(2, 4), flexible_since=4):
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
