"""DescribeLogDirs (35): the folders of this broker and the sizes in them.

v2 is flexible, v3 has an error for the whole answer, v4 the size of the volume, v5 whether it takes no more.
"""

from __future__ import annotations

from headrace.wire.schema import BOOL, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class DescribableLogDirTopic:
    topic: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message(versions=(1, 5), flexible_since=2)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = wire(array(DescribableLogDirTopic), nullable=1, default=None)


@part
class DescribeLogDirsPartition:
    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOL)


@part
class DescribeLogDirsTopic:
    name: str = wire(STRING)
    partitions: list[DescribeLogDirsPartition] = wire(array(DescribeLogDirsPartition))


@part
class DescribeLogDirsResult:
    error_code: int = wire(INT16)
    log_dir: str = wire(STRING)
    topics: list[DescribeLogDirsTopic] = wire(array(DescribeLogDirsTopic))
    total_bytes: int = wire(INT64, since=4, default=-1)
    usable_bytes: int = wire(INT64, since=4, default=-1)
    is_cordoned: bool = wire(BOOL, since=5)


@message(versions=(1, 5), flexible_since=2)
class DescribeLogDirsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16, since=3)
    results: list[DescribeLogDirsResult] = wire(array(DescribeLogDirsResult))
