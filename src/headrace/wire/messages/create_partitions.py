"""CreatePartitions (37): raise the number of partitions of topics. v2 is flexible."""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, STRING, array, message, part, wire


@part
class CreatePartitionsAssignment:
    broker_ids: list[int] = wire(array(INT32))


@part
class CreatePartitionsTopic:
    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: list[CreatePartitionsAssignment] | None = wire(
        array(CreatePartitionsAssignment), nullable=0, default=None
    )


@message(versions=(0, 3), flexible_since=2)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = wire(array(CreatePartitionsTopic))
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOL)


@part
class CreatePartitionsTopicResult:
    name: str = wire(STRING)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 3), flexible_since=2)
class CreatePartitionsResponse:
    throttle_time_ms: int = wire(INT32)
    results: list[CreatePartitionsTopicResult] = wire(array(CreatePartitionsTopicResult))
