"""Subscriptions: lease, settle, administer."""

from __future__ import annotations

from headrace.wire.codec.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    Chunk,
    array,
    message,
    part,
    wire,
)

# Lease (10001, our own): take messages of a subscription for a while, waiting up to `max_wait_ms` for some.
#
# To the leader of the partitions. The answer has whole batches, as Fetch has them; leased are only the offsets that it
# names. A receipt is an offset with its attempt and the partition's `lease_epoch`: Settle wants all three. Partitions
# that gave nothing are left out of the answer.


@part
class LeaseTopic:
    name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@message(versions=(0, 0), flexible_since=0)
class LeaseRequest:
    """`member` is whatever the client calls itself: a lease is settled by whoever took it. -1 as `lease_ms` leaves the
    time to the subscription. A subscription that is missing is made, unless `must_exist`. 0 as `max_messages`: the
    member leaves, and is given nothing any more."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    max_wait_ms: int = wire(INT32)
    max_messages: int = wire(INT32, default=100)
    max_bytes: int = wire(INT32, default=1 << 20)
    lease_ms: int = wire(INT32, default=-1)
    topics: list[LeaseTopic] = wire(array(LeaseTopic))
    must_exist: bool = wire(BOOL, tag=0, default=False)


@part
class LeasedRange:
    """Offsets from `first` to `last`, both included, and how often they have been delivered with this time."""

    first: int = wire(INT64)
    last: int = wire(INT64)
    attempt: int = wire(INT32)


@part
class LeasePartitionResponse:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    lease_epoch: int = wire(INT32, default=-1)
    leased_until_ms: int = wire(INT64, default=-1)
    leased: list[LeasedRange] = wire(array(LeasedRange))
    records: Chunk | None = wire(RECORDS, nullable=0)


@part
class LeaseTopicResponse:
    name: str = wire(STRING)
    partitions: list[LeasePartitionResponse] = wire(array(LeasePartitionResponse))


@message(versions=(0, 0), flexible_since=0)
class LeaseResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[LeaseTopicResponse] = wire(array(LeaseTopicResponse))


# LeaseOffsets (10008, our own): lease single messages of a subscription by their offsets. To the partition's leader.
#
# For whoever has read the messages already and has chosen among them, such as dead letters that are sent back. What is
# settled, or leased by somebody else, is left out of the answer; nothing is waited for. Settle (10002) ends the leases.


@part
class LeaseOffsetsRange:
    """Offsets from `first` to `last`, both included."""

    first: int = wire(INT64)
    last: int = wire(INT64)


@message(versions=(0, 0), flexible_since=0)
class LeaseOffsetsRequest:
    """-1 as `lease_ms` leaves the time to the subscription."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    topic: str = wire(STRING)
    partition_index: int = wire(INT32)
    lease_ms: int = wire(INT32, default=-1)
    wanted: list[LeaseOffsetsRange] = wire(array(LeaseOffsetsRange))


@message(versions=(0, 0), flexible_since=0)
class LeaseOffsetsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    lease_epoch: int = wire(INT32, default=-1)
    leased_until_ms: int = wire(INT64, default=-1)
    leased: list[LeasedRange] = wire(array(LeasedRange))


# Settle (10002, our own): say what became of leased messages. Answered when it is committed.
#
# Each item stands for itself: one that is refused (its lease is over, or somebody else's) changes nothing, and the
# others count. `how` has Kafka's numbers: 0 gap (there is no message), 1 ack, 2 nack, 3 reject, 4 extend; and 5
# release, which is ours: the message was delivered to nobody, it is ready at once, and the lease does not count.


@part
class SettleItem:
    """Offsets from `first` to `last`, both included. `attempt` -1: whichever it is now. `delay_ms` is for a nack, -1
    leaves it to the subscription; `lease_ms` for an extension, likewise; `reason` for a nack or reject."""

    first: int = wire(INT64)
    last: int = wire(INT64)
    attempt: int = wire(INT32, default=-1)
    how: int = wire(INT8, default=1)
    delay_ms: int = wire(INT64, default=-1)
    lease_ms: int = wire(INT32, default=-1)
    reason: str | None = wire(STRING, nullable=0, default=None)


@part
class SettlePartition:
    partition_index: int = wire(INT32)
    lease_epoch: int = wire(INT32)
    items: list[SettleItem] = wire(array(SettleItem))


@part
class SettleTopic:
    name: str = wire(STRING)
    partitions: list[SettlePartition] = wire(array(SettlePartition))


@message(versions=(0, 0), flexible_since=0)
class SettleRequest:
    """`member` "": whoever holds the lease; with that, epoch -1 is the present one. So, and with attempt -1, a message
    is settled by its id alone, if anybody has leased it: also under the hands of whoever it was delivered to again."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    topics: list[SettleTopic] = wire(array(SettleTopic))


@part
class FailedSettleItem:
    """`index` counts the items of the request's partition from 0."""

    index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@part
class SettlePartitionResponse:
    """An error here is one of all items. Items that are not among the refused have been settled."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    refused: list[FailedSettleItem] = wire(array(FailedSettleItem))


@part
class SettleTopicResponse:
    name: str = wire(STRING)
    partitions: list[SettlePartitionResponse] = wire(array(SettlePartitionResponse))


@message(versions=(0, 0), flexible_since=0)
class SettleResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[SettleTopicResponse] = wire(array(SettleTopicResponse))


# AlterSubscriptions (10004, our own): create, seek or delete a subscription in partitions. To the partitions' leader.
#
# `action`: 0 create (one that exists stays as it is), 1 seek, 2 delete. Where to begin is `timestamp_ms` if that is not
# -1, else `offset`, of which -1 is the end and -2 the start.


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
class AlterSubscriptionsPartitionResponse:
    """`floor` is where it stands now; -1 if it is deleted."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    floor: int = wire(INT64, default=-1)


@part
class AlterSubscriptionsTopicResponse:
    name: str = wire(STRING)
    partitions: list[AlterSubscriptionsPartitionResponse] = wire(array(AlterSubscriptionsPartitionResponse))


@message(versions=(0, 0), flexible_since=0)
class AlterSubscriptionsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[AlterSubscriptionsTopicResponse] = wire(array(AlterSubscriptionsTopicResponse))


# DescribeSubscriptions (10003, our own): how far the subscriptions of partitions are. To the partitions' leader.
#
# `subscriptions` null asks for all that there are. A subscription that a partition does not know is left out.


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
class DescribeSubscriptionsPartitionResponse:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    subscriptions: list[DescribedSubscription] = wire(array(DescribedSubscription))


@part
class DescribeSubscriptionsTopicResponse:
    name: str = wire(STRING)
    partitions: list[DescribeSubscriptionsPartitionResponse] = wire(array(DescribeSubscriptionsPartitionResponse))


@message(versions=(0, 0), flexible_since=0)
class DescribeSubscriptionsResponse:
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeSubscriptionsTopicResponse] = wire(array(DescribeSubscriptionsTopicResponse))


# MessageStatus (10005, our own): what became of messages, for each subscription. To the partition's leader.
#
# `state` is ready, leased, waiting (for a retry), dying (for its dead letter) or settled. How and when a message was
# settled or has last failed is looked up in the acks log if `with_history` asks for it, and told as long as that has
# it.


@message(versions=(0, 0), flexible_since=0)
class MessageStatusRequest:
    topic: str = wire(STRING)
    partition_index: int = wire(INT32)
    offsets: list[int] = wire(array(INT64))
    subscriptions: list[str] | None = wire(array(STRING), nullable=0, default=None)
    with_history: bool = wire(BOOL, default=True)


@part
class SubscriptionStatus:
    """`attempts` are the deliveries that are known of. `at_ms` says when it was settled or has last failed, `until_ms`
    until when it is leased or waits; -1 if there is no such time. `reason` is that of the last failure."""

    offset: int = wire(INT64)
    subscription: str = wire(STRING)
    state: str = wire(STRING)
    attempts: int = wire(INT32)
    how: str | None = wire(STRING, nullable=0, default=None)
    at_ms: int = wire(INT64, default=-1)
    until_ms: int = wire(INT64, default=-1)
    member: str | None = wire(STRING, nullable=0, default=None)
    reason: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 0), flexible_since=0)
class MessageStatusResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    statuses: list[SubscriptionStatus] = wire(array(SubscriptionStatus))


# DescribePushes (10012, our own): which subscriptions are pushed, to where and how. To any broker.
#
# For whoever does the pushing, so it has the secrets in it. `version` stands for all that is told, and is the same at
# every broker that knows the same: whoever names it hears `is_changed` false and nothing else.


@message(versions=(0, 0), flexible_since=0)
class DescribePushesRequest:
    version: str = wire(STRING, default="")


@part
class DescribedPush:
    """`topics` are those whose messages are pushed, none for all that the subscription is in. `backoff_ms` is what it
    lets a failed message wait at first; 0 leaves it to the sender."""

    subscription: str = wire(STRING)
    url: str = wire(STRING)
    secret: str = wire(STRING)
    concurrency: int = wire(INT32)
    rate: int = wire(INT32)
    timeout_ms: int = wire(INT32)
    backoff_ms: int = wire(INT64)
    topics: list[str] = wire(array(STRING))


@message(versions=(0, 0), flexible_since=0)
class DescribePushesResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    version: str = wire(STRING, default="")
    is_changed: bool = wire(BOOL, default=False)
    pushes: list[DescribedPush] = wire(array(DescribedPush))
