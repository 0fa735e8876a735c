"""ListPartitionReassignments (46): the moves that are under way. Null means those of all topics."""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, STRING, array, message, part, wire


@part
class ListPartitionReassignmentsTopics:
    name: str = wire(STRING)
    partition_indexes: list[int] = wire(array(INT32))


@message(versions=(0, 0), flexible_since=0)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = wire(INT32, default=60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = wire(array(ListPartitionReassignmentsTopics), nullable=0)


@part
class OngoingPartitionReassignment:
    partition_index: int = wire(INT32)
    replicas: list[int] = wire(array(INT32))
    adding_replicas: list[int] = wire(array(INT32))
    removing_replicas: list[int] = wire(array(INT32))


@part
class OngoingTopicReassignment:
    name: str = wire(STRING)
    partitions: list[OngoingPartitionReassignment] = wire(array(OngoingPartitionReassignment))


@message(versions=(0, 0), flexible_since=0)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[OngoingTopicReassignment] = wire(array(OngoingTopicReassignment))
