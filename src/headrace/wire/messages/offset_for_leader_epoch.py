"""OffsetForLeaderEpoch (23): where an epoch ended, so that logs can be compared.

v3 names the asker, v4 is flexible.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@part
class OffsetForLeaderPartition:
    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32)


@part
class OffsetForLeaderTopic:
    topic: str = wire(STRING)
    partitions: list[OffsetForLeaderPartition] = wire(array(OffsetForLeaderPartition))


@message(versions=(2, 4), flexible_since=4)
class OffsetForLeaderEpochRequest:
    replica_id: int = wire(INT32, since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = wire(array(OffsetForLeaderTopic))


@part
class EpochEndOffset:
    error_code: int = wire(INT16)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


@part
class OffsetForLeaderTopicResult:
    topic: str = wire(STRING)
    partitions: list[EpochEndOffset] = wire(array(EpochEndOffset))


@message(versions=(2, 4), flexible_since=4)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[OffsetForLeaderTopicResult] = wire(array(OffsetForLeaderTopicResult))
