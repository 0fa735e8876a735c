"""Produce (0): append one batch to each of the partitions. There is no response to acks=0.

- v3 is the first version with batch format 2. v5 adds the log start offset, v7 zstd, v8 the invalid records.
- v9 is flexible. v10 adds the new leader to NOT_LEADER errors, v12 begins a transaction implicitly.
- v13 has topic ids instead of names.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import INT16, INT32, INT64, RECORDS, STRING, UUID16, ApiMessage, Part, array, wire
from headrace.wire.messages.metadata import LeaderIdAndEpoch, NodeEndpoint


class PartitionProduceData(Part):
    index: int = wire(INT32)
    records: memoryview | None = wire(RECORDS, nullable=3)


class TopicProduceData(Part):
    name: str = wire(STRING, until=12)
    topic_id: UUID = wire(UUID16, since=13)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(ApiMessage, versions=(3, 13), flexible_since=9):
    transactional_id: str | None = wire(STRING, nullable=3, default=None)
    acks: int = wire(INT16)
    timeout_ms: int = wire(INT32)
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Part):
    batch_index: int = wire(INT32)
    batch_index_error_message: str | None = wire(STRING, nullable=8, default=None)


class PartitionProduceResponse(Part):
    index: int = wire(INT32)
    error_code: int = wire(INT16)
    base_offset: int = wire(INT64)
    log_append_time_ms: int = wire(INT64, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = wire(STRING, since=8, nullable=8, default=None)
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Part):
    name: str = wire(STRING, until=12)
    topic_id: UUID = wire(UUID16, since=13)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class ProduceResponse(ApiMessage, versions=(3, 13), flexible_since=9):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = wire(INT32)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
