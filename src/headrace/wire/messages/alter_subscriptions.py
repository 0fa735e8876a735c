"""AlterSubscriptions (10004, our own): create, seek or delete a subscription in partitions. To the partitions' leader.

`action`: 0 create (one that exists stays as it is), 1 seek, 2 delete. Where to begin is `timestamp_ms` if that is not
-1, else `offset`, of which -1 is the end and -2 the start.
"""

from __future__ import annotations

from headrace.wire.schema import INT8, INT16, INT32, INT64, STRING, array, message, part, wire


@part
class AlterSubscriptionsPartition:
    partition_index: int = wire(INT32)
    offset: int = wire(INT64, default=-1)
    timestamp_ms: int = wire(INT64, default=-1)


@part
class AlterSubscriptionsTopic:
    name: str = wire(STRING)
    partitions: list[AlterSubscriptionsPartition] = wire(array(AlterSubscriptionsPartition))


@message(versions=(0, 0), flexible_since=0)
class AlterSubscriptionsRequest:
    subscription: str = wire(STRING)
    action: int = wire(INT8)
    topics: list[AlterSubscriptionsTopic] = wire(array(AlterSubscriptionsTopic))


@part
class AlterSubscriptionsPartitionAnswer:
    """`floor` is where it stands now; -1 if it is deleted."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    floor: int = wire(INT64, default=-1)


@part
class AlterSubscriptionsTopicAnswer:
    name: str = wire(STRING)
    partitions: list[AlterSubscriptionsPartitionAnswer] = wire(array(AlterSubscriptionsPartitionAnswer))


@message(versions=(0, 0), flexible_since=0)
class AlterSubscriptionsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[AlterSubscriptionsTopicAnswer] = wire(array(AlterSubscriptionsTopicAnswer))
