"""TxnOffsetCommit (28): remember how far a group has read, if the transaction commits.

v2 adds leader epochs, v3 is flexible and tells who the member is, v4 knows TRANSACTION_ABORTABLE, v5 adds the group to
the transaction by itself.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@part
class TxnOffsetCommitRequestPartition:
    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire(STRING, nullable=0)


@part
class TxnOffsetCommitRequestTopic:
    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(array(TxnOffsetCommitRequestPartition))


@message(versions=(0, 5), flexible_since=3)
class TxnOffsetCommitRequest:
    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(STRING, since=3)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = wire(array(TxnOffsetCommitRequestTopic))


@part
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@part
class TxnOffsetCommitResponseTopic:
    name: str = wire(STRING)
    partitions: list[TxnOffsetCommitResponsePartition] = wire(array(TxnOffsetCommitResponsePartition))


@message(versions=(0, 5), flexible_since=3)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = wire(array(TxnOffsetCommitResponseTopic))
