"""Subscriptions: lease, settle, administer, and their status. These APIs are Headrace's own."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID16,
    ApiMessage,
    Chunk,
    Part,
    array,
    wire,
)

# Lease (10001): lease messages of a subscription, and wait up to `max_wait_ms` for some. The partitions' leader
# responds.
#
# - The response has whole batches, as those of Fetch; only the listed offsets are leased.
# - A receipt consists of the offset, its attempt and the `lease_epoch` of the partition: Settle requires all three.
# - Partitions without leased messages are omitted from the response.


class LeaseTopic(Part):
    name: str = wire(STRING)
    partitions: list[int] = array(INT32)


class LeaseRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    """`member` is chosen by the client; only the member that holds a lease can settle it. `lease_ms` -1 is the lease
    duration of the subscription. Unless `must_exist`, a missing subscription is created. `max_messages` 0 removes the
    member."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    max_wait_ms: int = wire(INT32)
    max_messages: int = wire(INT32, default=100)
    max_bytes: int = wire(INT32, default=1 << 20)
    lease_ms: int = wire(INT32, default=-1)
    topics: list[LeaseTopic] = array(LeaseTopic)
    must_exist: bool = wire(BOOL, tag=0, default=False)


class LeasedRange(Part):
    """Offsets from `first` to `last`, inclusive, and their number of deliveries including this one."""

    first: int = wire(INT64)
    last: int = wire(INT64)
    attempt: int = wire(INT32)


class LeasePartitionResponse(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    lease_epoch: int = wire(INT32, default=-1)
    leased_until_ms: int = wire(INT64, default=-1)
    leased: list[LeasedRange] = array(LeasedRange)
    records: Chunk | None = wire(RECORDS, nullable=0)


class LeaseTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[LeasePartitionResponse] = array(LeasePartitionResponse)


class LeaseResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[LeaseTopicResponse] = array(LeaseTopicResponse)


# LeaseOffsets (10008): lease messages of a subscription by their offsets. The partition's leader responds. For
# clients that have already read the messages, such as a redrive of dead letters. Messages that are settled, or leased
# by another member, are omitted from the response, which does not wait.


class LeaseOffsetsRange(Part):
    """Offsets from `first` to `last`, inclusive."""

    first: int = wire(INT64)
    last: int = wire(INT64)


class LeaseOffsetsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    """`lease_ms` -1 is the lease duration of the subscription."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    topic: str = wire(STRING)
    partition_index: int = wire(INT32)
    lease_ms: int = wire(INT32, default=-1)
    wanted: list[LeaseOffsetsRange] = array(LeaseOffsetsRange)


class LeaseOffsetsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    lease_epoch: int = wire(INT32, default=-1)
    leased_until_ms: int = wire(INT64, default=-1)
    leased: list[LeasedRange] = array(LeasedRange)


# Settle (10002): settle leased messages. The response is sent when the settlements are committed.
#
# - Each item has its own result: an item whose lease has expired or belongs to another member changes nothing.
# - `how` is Kafka's acknowledge type: 0 gap (there is no record), 1 ack, 2 nack, 3 reject, 4 extend. Headrace adds 5
#   release: the message was not delivered, is available at once, and the lease does not count as a delivery.


class SettleItem(Part):
    """Offsets from `first` to `last`, inclusive. `attempt` -1 is the current attempt. `delay_ms` applies to a nack and
    `lease_ms` to an extension; -1 is the value of the subscription. `reason` applies to a nack or a reject."""

    first: int = wire(INT64)
    last: int = wire(INT64)
    attempt: int = wire(INT32, default=-1)
    how: int = wire(INT8, default=1)
    delay_ms: int = wire(INT64, default=-1)
    lease_ms: int = wire(INT32, default=-1)
    reason: str | None = wire(STRING, nullable=0, default=None)


class SettlePartition(Part):
    partition_index: int = wire(INT32)
    lease_epoch: int = wire(INT32)
    items: list[SettleItem] = array(SettleItem)


class SettleTopic(Part):
    name: str = wire(STRING)
    partitions: list[SettlePartition] = array(SettlePartition)


class SettleRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    """An empty `member` is any member; then epoch -1 is the current one. With attempt -1 in addition, a message that is
    leased is settled by its id alone, even if it has been delivered again to another member."""

    subscription: str = wire(STRING)
    member: str = wire(STRING)
    topics: list[SettleTopic] = array(SettleTopic)


class FailedSettleItem(Part):
    """`index` is that of the item in the request's partition, from 0."""

    index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


class SettlePartitionResponse(Part):
    """`error_code` applies to all items. Items that are not in `refused` have been settled."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    refused: list[FailedSettleItem] = array(FailedSettleItem)


class SettleTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[SettlePartitionResponse] = array(SettlePartitionResponse)


class SettleResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[SettleTopicResponse] = array(SettleTopicResponse)


# AlterSubscriptions (10004): create (action 0), seek (1) or delete (2) a subscription in partitions. The partitions'
# leader responds. Creating an existing subscription changes nothing. The position is `timestamp_ms` unless it is -1,
# otherwise `offset`: -1 is the end, -2 the start.


class AlterSubscriptionsPartition(Part):
    partition_index: int = wire(INT32)
    offset: int = wire(INT64, default=-1)
    timestamp_ms: int = wire(INT64, default=-1)


class AlterSubscriptionsTopic(Part):
    name: str = wire(STRING)
    partitions: list[AlterSubscriptionsPartition] = array(AlterSubscriptionsPartition)


class AlterSubscriptionsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    subscription: str = wire(STRING)
    action: int = wire(INT8)
    topics: list[AlterSubscriptionsTopic] = array(AlterSubscriptionsTopic)


class AlterSubscriptionsPartitionResponse(Part):
    """`floor` is the current ack floor; -1 if the subscription is deleted."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    floor: int = wire(INT64, default=-1)


class AlterSubscriptionsTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[AlterSubscriptionsPartitionResponse] = array(AlterSubscriptionsPartitionResponse)


class AlterSubscriptionsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    topics: list[AlterSubscriptionsTopicResponse] = array(AlterSubscriptionsTopicResponse)


# DescribeSubscriptions (10003): return the backlog of subscriptions. The partitions' leader responds. Null selects
# all subscriptions. A subscription that does not exist in a partition is omitted.


class DescribeSubscriptionsTopic(Part):
    name: str = wire(STRING)
    partitions: list[int] = array(INT32)


class DescribeSubscriptionsRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    subscriptions: list[str] | None = array(STRING, nullable=0, default=None)
    topics: list[DescribeSubscriptionsTopic] = array(DescribeSubscriptionsTopic)


class DescribedSubscription(Part):
    """All messages below `floor` are settled; those below `end` may be delivered. `backlog` is the number of unsettled
    messages, including those that are leased, wait for a retry or are becoming dead letters. `oldest_ms` is the
    timestamp of the first unsettled message, -1 if there is none."""

    subscription: str = wire(STRING)
    floor: int = wire(INT64)
    end: int = wire(INT64)
    backlog: int = wire(INT64)
    leased: int = wire(INT64)
    waiting: int = wire(INT64)
    dying: int = wire(INT64)
    oldest_ms: int = wire(INT64, default=-1)


class DescribeSubscriptionsPartitionResponse(Part):
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    subscriptions: list[DescribedSubscription] = array(DescribedSubscription)


class DescribeSubscriptionsTopicResponse(Part):
    name: str = wire(STRING)
    partitions: list[DescribeSubscriptionsPartitionResponse] = array(DescribeSubscriptionsPartitionResponse)


class DescribeSubscriptionsResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    topics: list[DescribeSubscriptionsTopicResponse] = array(DescribeSubscriptionsTopicResponse)


# MessageStatus (10005): return the status of messages in each subscription. The partition's leader responds. `state`
# is ready, leased, waiting (for a retry), dying (until its dead letter is written) or settled. With `with_history`,
# the leader also searches the acks log for the settlement or the last failure of each message.


class MessageStatusRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    topic: str = wire(STRING)
    partition_index: int = wire(INT32)
    offsets: list[int] = array(INT64)
    subscriptions: list[str] | None = array(STRING, nullable=0, default=None)
    with_history: bool = wire(BOOL, default=True)


class SubscriptionStatus(Part):
    """`attempts` is the number of known deliveries; 0 for a settled message without history. `at_ms` is the time of the
    settlement or of the last failure, `until_ms` the end of the lease or of the wait; -1 if there is none. `reason` is
    that of the last failure."""

    offset: int = wire(INT64)
    subscription: str = wire(STRING)
    state: str = wire(STRING)
    attempts: int = wire(INT32)
    how: str | None = wire(STRING, nullable=0, default=None)
    at_ms: int = wire(INT64, default=-1)
    until_ms: int = wire(INT64, default=-1)
    member: str | None = wire(STRING, nullable=0, default=None)
    reason: str | None = wire(STRING, nullable=0, default=None)


class MessageStatusResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    statuses: list[SubscriptionStatus] = array(SubscriptionStatus)


# RedriveMessages (10015): deliver settled messages of one subscription again. The partition's leader responds.
# `topic_id` is that of the dead letters: the name may belong to another topic.


class RedriveItem(Part):
    """`redriven`: how many times the message has been redriven, including this time."""

    offset: int = wire(INT64)
    redriven: int = wire(INT32)


class RedriveMessagesRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    subscription: str = wire(STRING)
    topic: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    partition_index: int = wire(INT32)
    items: list[RedriveItem] = array(RedriveItem)


class RedriveMessagesResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    """`refused` are the messages that cannot be redriven, by their index in the request."""

    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    refused: list[FailedSettleItem] = array(FailedSettleItem)


# DescribePushes (10012): return all webhooks, including their secrets, for the processes that push. Any broker
# responds. `version` identifies the content and is the same on all brokers with the same metadata: if the request has
# the current version, the response has `is_changed` false and no content.


class DescribePushesRequest(ApiMessage, versions=(0, 0), flexible_since=0):
    version: str = wire(STRING, default="")


class DescribedPush(Part):
    """`topics` are the pushed topics; empty selects all topics of the subscription. `backoff_ms` is the first back-off
    of a failed message; 0 is the default of the pushing process."""

    subscription: str = wire(STRING)
    url: str = wire(STRING)
    secret: str = wire(STRING)
    concurrency: int = wire(INT32)
    rate: int = wire(INT32)
    timeout_ms: int = wire(INT32)
    backoff_ms: int = wire(INT64)
    topics: list[str] = array(STRING)


class DescribePushesResponse(ApiMessage, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    version: str = wire(STRING, default="")
    is_changed: bool = wire(BOOL, default=False)
    pushes: list[DescribedPush] = array(DescribedPush)
