"""Topics: create and delete topics, add partitions, delete records."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID16, ApiMessage, Part, array, wire

# CreateTopics (19): create topics. v4 accepts -1 for the broker's defaults; v5 is flexible and returns the configs; v7
# returns the topic id.


class CreatableReplicaAssignment(Part):
    partition_index: int = wire(INT32)
    broker_ids: list[int] = array(INT32)


class CreatableTopicConfig(Part):
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=2, default=None)


class CreatableTopic(Part):
    name: str = wire(STRING)
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(ApiMessage, versions=(2, 7), flexible_since=5):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire(BOOL)


class CreatableTopicConfigs(Part):
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=5, default=None)
    read_only: bool = wire(BOOL)
    config_source: int = wire(INT8, default=-1)
    is_sensitive: bool = wire(BOOL)


class CreatableTopicResult(Part):
    name: str = wire(STRING)
    topic_id: UUID = wire(UUID16, since=7)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=2, default=None)
    topic_config_error_code: int = wire(INT16, since=5, tag=0)
    num_partitions: int = wire(INT32, since=5, default=-1)
    replication_factor: int = wire(INT16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable=5)


class CreateTopicsResponse(ApiMessage, versions=(2, 7), flexible_since=5):
    throttle_time_ms: int = wire(INT32)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


# DeleteTopics (20): delete topics. v4 is flexible, v5 adds error messages, v6 selects topics by name or id.


class DeleteTopicState(Part):
    name: str | None = wire(STRING, nullable=6, default=None)
    topic_id: UUID = wire(UUID16)


class DeleteTopicsRequest(ApiMessage, versions=(1, 6), flexible_since=4):
    topic_names: list[str] = array(STRING, until=5)
    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    timeout_ms: int = wire(INT32)


class DeletableTopicResult(Part):
    name: str | None = wire(STRING, nullable=6)
    topic_id: UUID = wire(UUID16, since=6)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=5, nullable=5, default=None)


class DeleteTopicsResponse(ApiMessage, versions=(1, 6), flexible_since=4):
    throttle_time_ms: int = wire(INT32)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


# CreatePartitions (37): increase the number of partitions of topics. v2 is flexible.


class CreatePartitionsAssignment(Part):
    broker_ids: list[int] = array(INT32)


class CreatePartitionsTopic(Part):
    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=0, default=None)


class CreatePartitionsRequest(ApiMessage, versions=(0, 3), flexible_since=2):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOL)


class CreatePartitionsTopicResult(Part):
    name: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class CreatePartitionsResponse(ApiMessage, versions=(0, 3), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


# DeleteRecords (21): advance the log start offset of partitions. Offset -1 is the high watermark. v2 is flexible.


class DeleteRecordsPartition(Part):
    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


class DeleteRecordsTopic(Part):
    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


class DeleteRecordsRequest(ApiMessage, versions=(0, 2), flexible_since=2):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = wire(INT32)


class DeleteRecordsPartitionResult(Part):
    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64)
    error_code: int = wire(INT16)


class DeleteRecordsTopicResult(Part):
    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(ApiMessage, versions=(0, 2), flexible_since=2):
    throttle_time_ms: int = wire(INT32)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
