"""DeleteRecords (21): move the start of partitions forward. Offset -1 means the high watermark.

v2 is flexible.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@part
class DeleteRecordsPartition:
    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


@part
class DeleteRecordsTopic:
    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartition] = wire(array(DeleteRecordsPartition))


@message(versions=(0, 2), flexible_since=2)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = wire(array(DeleteRecordsTopic))
    timeout_ms: int = wire(INT32)


@part
class DeleteRecordsPartitionResult:
    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64)
    error_code: int = wire(INT16)


@part
class DeleteRecordsTopicResult:
    name: str = wire(STRING)
    partitions: list[DeleteRecordsPartitionResult] = wire(array(DeleteRecordsPartitionResult))


@message(versions=(0, 2), flexible_since=2)
class DeleteRecordsResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[DeleteRecordsTopicResult] = wire(array(DeleteRecordsTopicResult))
