"""ShareAcknowledge (79): settle records that were acquired by ShareFetch, in the same session.

v0 was Kafka's early access and is gone; v2 has renewals, and tells for how long they hold.
"""

from __future__ import annotations

from uuid import UUID

from headrace.wire.messages.share_fetch import AcknowledgementBatch, LeaderIdAndEpoch, NodeEndpoint
from headrace.wire.schema import BOOL, INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class AcknowledgePartition:
    partition_index: int = wire(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = wire(array(AcknowledgementBatch))


@part
class AcknowledgeTopic:
    topic_id: UUID = wire(UUID16)
    partitions: list[AcknowledgePartition] = wire(array(AcknowledgePartition))


@message(versions=(1, 2), flexible_since=0)
class ShareAcknowledgeRequest:
    group_id: str | None = wire(STRING, nullable=0, default=None)
    member_id: str | None = wire(STRING, nullable=0)
    share_session_epoch: int = wire(INT32)
    is_renew_ack: bool = wire(BOOL, since=2)
    topics: list[AcknowledgeTopic] = wire(array(AcknowledgeTopic))


@part
class PartitionData:
    partition_index: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    current_leader: LeaderIdAndEpoch = wire(LeaderIdAndEpoch)


@part
class ShareAcknowledgeTopicResponse:
    topic_id: UUID = wire(UUID16)
    partitions: list[PartitionData] = wire(array(PartitionData))


@message(versions=(1, 2), flexible_since=0)
class ShareAcknowledgeResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    acquisition_lock_timeout_ms: int = wire(INT32, since=2)
    responses: list[ShareAcknowledgeTopicResponse] = wire(array(ShareAcknowledgeTopicResponse))
    node_endpoints: list[NodeEndpoint] = wire(array(NodeEndpoint))
