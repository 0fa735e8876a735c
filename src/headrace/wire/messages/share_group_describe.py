"""ShareGroupDescribe (77): state and members of share groups. v0 was Kafka's early access and is gone."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import BOOL, INT16, INT32, STRING, UUID16, array, message, part, wire


@message(versions=(1, 1), flexible_since=0)
class ShareGroupDescribeRequest:
    group_ids: list[str] = wire(array(STRING))
    include_authorized_operations: bool = wire(BOOL)


@part
class TopicPartitions:
    topic_id: UUID = wire(UUID16)
    topic_name: str = wire(STRING)
    partitions: list[int] = wire(array(INT32))


@part
class Assignment:
    topic_partitions: list[TopicPartitions] = wire(array(TopicPartitions))


@part
class Member:
    member_id: str = wire(STRING)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))
    assignment: Assignment = wire(Assignment)


@part
class DescribedGroup:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING)
    group_epoch: int = wire(INT32)
    assignment_epoch: int = wire(INT32)
    assignor_name: str = wire(STRING)
    members: list[Member] = wire(array(Member))
    authorized_operations: int = wire(INT32, default=-2147483648)


@message(versions=(1, 1), flexible_since=0)
class ShareGroupDescribeResponse:
    throttle_time_ms: int = wire(INT32)
    groups: list[DescribedGroup] = wire(array(DescribedGroup))
