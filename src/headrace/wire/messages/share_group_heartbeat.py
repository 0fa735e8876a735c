"""ShareGroupHeartbeat (76): all that a member of a share group tells and is told.

What has not changed since the last heartbeat is null. The member makes up its own id; member epoch 0 joins, -1 leaves.
v0 was Kafka's early access and is gone.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, STRING, UUID16, array, message, part, wire


@message(versions=(1, 1), flexible_since=0)
class ShareGroupHeartbeatRequest:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    subscribed_topic_names: list[str] | None = wire(array(STRING), nullable=0, default=None)


@part
class TopicPartitions:
    topic_id: UUID = wire(UUID16)
    partitions: list[int] = wire(array(INT32))


@part
class Assignment:
    topic_partitions: list[TopicPartitions] = wire(array(TopicPartitions))


@message(versions=(1, 1), flexible_since=0)
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0, default=None)
    member_epoch: int = wire(INT32)
    heartbeat_interval_ms: int = wire(INT32)
    assignment: Assignment | None = wire(Assignment, nullable=0)
