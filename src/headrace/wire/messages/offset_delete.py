"""OffsetDelete (47): forget a group's offsets of topics that it no longer reads. Never flexible."""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, STRING, array, message, part, wire


@part
class OffsetDeleteRequestPartition:
    partition_index: int = wire(INT32)


@part
class OffsetDeleteRequestTopic:
    name: str = wire(STRING)
    partitions: list[OffsetDeleteRequestPartition] = wire(array(OffsetDeleteRequestPartition))


@message(versions=(0, 0))
class OffsetDeleteRequest:
    group_id: str = wire(STRING)
    topics: list[OffsetDeleteRequestTopic] = wire(array(OffsetDeleteRequestTopic))


@part
class OffsetDeleteResponsePartition:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)


@part
class OffsetDeleteResponseTopic:
    name: str = wire(STRING)
    partitions: list[OffsetDeleteResponsePartition] = wire(array(OffsetDeleteResponsePartition))


@message(versions=(0, 0))
class OffsetDeleteResponse:
    error_code: int = wire(INT16)
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetDeleteResponseTopic] = wire(array(OffsetDeleteResponseTopic))
