"""ListOffsets (2): the offset that belongs to a timestamp.

Special timestamps: -1 the end, -2 the start, -3 (v7) the record with the largest timestamp, -4 (v8) the
start of the local log, -5 (v9) the end of the remote log, -6 (v11) the earliest not yet remote. v2 brings
the isolation level, v4 leader epochs, v6 is flexible, v10 a timeout for remote storage. No match is offset
-1, timestamp -1.
"""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class ListOffsetsPartition:
    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=4, default=-1)
    timestamp: int = wire(INT64)


@part
class ListOffsetsTopic:
    name: str = wire(STRING)
    partitions: list[ListOffsetsPartition] = wire(array(ListOffsetsPartition))


@message(versions=(1, 11), flexible_since=6)
class ListOffsetsRequest:
    replica_id: int = wire(INT32)
    isolation_level: int = wire(INT8, since=2)
    topics: list[ListOffsetsTopic] = wire(array(ListOffsetsTopic))
    timeout_ms: int = wire(INT32, since=10)


@part
class ListOffsetsPartitionResponse:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    timestamp: int = wire(INT64, default=-1)
    offset: int = wire(INT64, default=-1)
    leader_epoch: int = wire(INT32, since=4, default=-1)


@part
class ListOffsetsTopicResponse:
    name: str = wire(STRING)
    partitions: list[ListOffsetsPartitionResponse] = wire(array(ListOffsetsPartitionResponse))


@message(versions=(1, 11), flexible_since=6)
class ListOffsetsResponse:
    throttle_time_ms: int = wire(INT32, since=2)
    topics: list[ListOffsetsTopicResponse] = wire(array(ListOffsetsTopicResponse))
