"""DescribeSubscriptions (10003, our own): how far the subscriptions of partitions are. To the partitions' leader.

`subscriptions` null asks for all that there are. A subscription that a partition does not know is left out.
"""

from __future__ import annotations

from headrace.wire.schema import INT16, INT32, INT64, STRING, array, message, part, wire


@part
class DescribeSubscriptionsTopic:
    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message(versions=(0, 0), flexible_since=0)
class DescribeSubscriptionsRequest:
    subscriptions: list[str] | None = wire(array(STRING), nullable=0, default=None)
    topics: list[DescribeSubscriptionsTopic] = wire(array(DescribeSubscriptionsTopic))


@part
class DescribedSubscription:
    """Everything below `floor` is settled; `end` is what may be delivered. `backlog` counts what is not settled, with
    those that are leased, wait for a retry or for their dead letter. `oldest_ms` is the timestamp of the first that is
    not settled, -1 if there is none."""

    subscription: str = wire(STRING)
    floor: int = wire(INT64)
    end: int = wire(INT64)
    backlog: int = wire(INT64)
    leased: int = wire(INT64)
    waiting: int = wire(INT64)
    dying: int = wire(INT64)
    oldest_ms: int = wire(INT64, default=-1)


@part
class DescribeSubscriptionsPartitionAnswer:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    subscriptions: list[DescribedSubscription] = wire(array(DescribedSubscription))


@part
class DescribeSubscriptionsTopicAnswer:
    name: str = wire(STRING)
    partitions: list[DescribeSubscriptionsPartitionAnswer] = wire(array(DescribeSubscriptionsPartitionAnswer))


@message(versions=(0, 0), flexible_since=0)
class DescribeSubscriptionsResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeSubscriptionsTopicAnswer] = wire(array(DescribeSubscriptionsTopicAnswer))
