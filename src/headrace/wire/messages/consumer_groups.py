"""Consumer groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.codec.schema import BOOL, INT8, INT16, INT32, STRING, UUID16, ApiMessage, Part, array, wire

# ConsumerGroupHeartbeat (68): join, heartbeat and leave, with the consumer protocol (KIP-848).
#
# - A field that has not changed since the last heartbeat is null or -1.
# - Member epoch 0 joins, -1 leaves, and -2 is the temporary leave of a static member.
# - v1 adds subscriptions by regular expression; the member generates its own id.


class TopicPartitions(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[int] = array(INT32)


class ConsumerGroupHeartbeatRequest(ApiMessage, versions=(0, 1), flexible_since=0):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    instance_id: str | None = wire(STRING, nullable=0, default=None)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    subscribed_topic_names: list[str] | None = array(STRING, nullable=0, default=None)
    subscribed_topic_regex: str | None = wire(STRING, since=1, nullable=1, default=None)
    server_assignor: str | None = wire(STRING, nullable=0, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=0, default=None)


class Assignment(Part):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(ApiMessage, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: Assignment | None = wire(Assignment, nullable=0)


# ConsumerGroupDescribe (69): return the state and the members of groups of the consumer protocol. v1 adds the
# protocol of a member: consumer (1) or classic (0).


class ConsumerGroupDescribeRequest(ApiMessage, versions=(0, 1), flexible_since=0):
    group_ids: list[str] = array(STRING)
    include_authorized_operations: bool = wire(BOOL)


class DescribedTopicPartitions(Part):
    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = array(INT32)


class DescribedAssignment(Part):
    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


class ConsumerGroupMember(Part):
    member_id: str = wire(STRING)
    instance_id: str | None = wire(STRING, nullable=0, default=None)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = wire(STRING, nullable=0, default=None)
    assignment: DescribedAssignment = wire(DescribedAssignment)
    target_assignment: DescribedAssignment = wire(DescribedAssignment)
    member_type: int = wire(INT8, since=1, default=-1)


class DescribedConsumerGroup(Part):
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: list[ConsumerGroupMember] = array(ConsumerGroupMember)
    authorized_operations: int = wire(INT32, default=-2147483648)


class ConsumerGroupDescribeResponse(ApiMessage, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = wire(INT32)
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
