"""ShareFetch (78): acquire records of a share group's partitions, and settle such as were acquired before.

`share_session_epoch` 0 opens a session, -1 closes it, else it counts the session's requests. v0 was Kafka's early
access and is gone; v2 has the acquire mode (0: whole batches, 1: never more than `max_records`) and renewals, for which
a request fetches nothing.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID16,
    Chunk,
    array,
    message,
    part,
    wire,
)


@part
class AcknowledgementBatch:
    """One type is for the whole range; else there is one for each offset."""

    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    acknowledge_types: list[int] = wire(array(INT8))


@part
class FetchPartition:
    partition_index: int = wire(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(AcknowledgementBatch))


@part
class FetchTopic:
    topic_id: UUID = wire(UUID16)
    partitions: list[FetchPartition] = wire(array(FetchPartition))


@part
class ForgottenTopic:
    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@message(versions=(1, 2), flexible_since=0)
class ShareFetchRequest:
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
    topics: list[FetchTopic] = wire(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = wire(array(ForgottenTopic))


@part
class LeaderIdAndEpoch:
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32)


@part
class AcquiredRecords:
    first_offset: int = wire(INT64)
    last_offset: int = wire(INT64)
    delivery_count: int = wire(INT16)


@part
class PartitionData:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    acknowledge_error_code: int = wire(INT16)
    acknowledge_error_message: str | None = wire(STRING, nullable=0, default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch)
    records: Chunk | None = wire(RECORDS, nullable=0)
    acquired_records: list[AcquiredRecords] = wire(array(AcquiredRecords))


@part
class ShareFetchableTopicResponse:
    topic_id: UUID = wire(UUID16)
    partitions: list[PartitionData] = wire(array(PartitionData))


@part
class NodeEndpoint:
    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(1, 2), flexible_since=0)
class ShareFetchResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = wire(INT32)
    responses: list[ShareFetchableTopicResponse] = wire(array(ShareFetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint))
