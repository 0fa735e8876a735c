"""ConsumerGroupHeartbeat (68): all that a member of the newer group protocol tells and is told.

What has not changed since the last heartbeat is null or -1. Member epoch 0 joins, -1 leaves, -2 leaves for a while (a
static member). v1 subscribes by a regular expression, and the member makes up its own id.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class TopicPartitions:
    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@message(versions=(0, 1), flexible_since=0)
class ConsumerGroupHeartbeatRequest:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    instance_id: str | None = wire(STRING, nullable=0, default=None)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    subscribed_topic_names: list[str] | None = wire(array(STRING), nullable=0, default=None)
    subscribed_topic_regex: str | None = wire(STRING, since=1, nullable=1, default=None)
    server_assignor: str | None = wire(STRING, nullable=0, default=None)
    topic_partitions: list[TopicPartitions] | None = wire(array(TopicPartitions), nullable=0, default=None)


@part
class Assignment:
    topic_partitions: list[TopicPartitions] = wire(array(TopicPartitions))


@message(versions=(0, 1), flexible_since=0)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: Assignment | None = wire(Assignment, nullable=0)
