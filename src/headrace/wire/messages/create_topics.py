"""CreateTopics (19).

v4 takes the broker's defaults for -1, v5 is flexible and shows the configs, v7 the topic id.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import BOOL, INT8, INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class CreatableReplicaAssignment:
    partition_index: int = wire(INT32)
    broker_ids: list[int] = wire(array(INT32))


@part
class CreatableTopicConfig:
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=2, default=None)


@part
class CreatableTopic:
    name: str = wire(STRING)
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: list[CreatableReplicaAssignment] = wire(array(CreatableReplicaAssignment))
    configs: list[CreatableTopicConfig] = wire(array(CreatableTopicConfig))


@message(versions=(2, 7), flexible_since=5)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = wire(array(CreatableTopic))
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire(BOOL)


@part
class CreatableTopicConfigs:
    name: str = wire(STRING)
    value: str | None = wire(STRING, nullable=5, default=None)
    read_only: bool = wire(BOOL)
    config_source: int = wire(INT8, default=-1)
    is_sensitive: bool = wire(BOOL)


@part
class CreatableTopicResult:
    name: str = wire(STRING)
    topic_id: UUID = wire(UUID16, since=7)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=2, default=None)
    topic_config_error_code: int = wire(INT16, since=5, tag=0)
    num_partitions: int = wire(INT32, since=5, default=-1)
    replication_factor: int = wire(INT16, since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = wire(array(CreatableTopicConfigs), since=5, nullable=5)


@message(versions=(2, 7), flexible_since=5)
class CreateTopicsResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[CreatableTopicResult] = wire(array(CreatableTopicResult))
