"""Records of `__consumer_offsets` for groups of the consumer protocol, in Kafka's format.

- A key begins with a version (int16) that is also its type: 3 a group, 5 a member, 6 the epoch of the target
  assignment, 7 the target assignment of a member, 8 its current assignment, 16 the topics that match a regular
  expression.
- A value begins with the version of its layout; a null value deletes.
- Type 4 (partitions of subscribed topics) is Kafka's and is ignored: newer versions of Kafka store a hash in the record
  of the group instead, and so does Headrace.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headrace.wire.codec.codec import RecordTypes
from headrace.wire.codec.schema import BYTES, INT8, INT32, INT64, STRING, UUID16, ApiMessage, Part, array, wire


class ConsumerGroupMetadataKey(ApiMessage, versions=(3, 3)):
    group_id: str = wire(STRING)


class ConsumerGroupMetadataValue(ApiMessage, versions=(0, 0), flexible_since=0):
    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64, tag=0)


class ConsumerGroupMemberMetadataKey(ApiMessage, versions=(5, 5)):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


class ClassicProtocol(Part):
    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


class ClassicMemberMetadata(Part):
    session_timeout_ms: int = wire(INT32)
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(ApiMessage, versions=(0, 0), flexible_since=0):
    """`classic_member_metadata` is null unless the member uses the classic protocol."""

    instance_id: str | None = wire(STRING, nullable=0, default=None)
    rack_id: str | None = wire(STRING, nullable=0, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = array(STRING)
    subscribed_topic_regex: str | None = wire(STRING, nullable=0, default=None)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    server_assignor: str | None = wire(STRING, nullable=0, default=None)
    classic_member_metadata: ClassicMemberMetadata | None = wire(ClassicMemberMetadata, nullable=0, tag=0, default=None)


class ConsumerGroupTargetAssignmentMetadataKey(ApiMessage, versions=(6, 6)):
    group_id: str = wire(STRING)


class ConsumerGroupTargetAssignmentMetadataValue(ApiMessage, versions=(0, 0), flexible_since=0):
    assignment_epoch: int = wire(INT32)


class ConsumerGroupTargetAssignmentMemberKey(ApiMessage, versions=(7, 7)):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


class TargetPartitions(Part):
    topic_id: UUID = wire(UUID16)
    partitions: list[int] = array(INT32)


class ConsumerGroupTargetAssignmentMemberValue(ApiMessage, versions=(0, 0), flexible_since=0):
    topic_partitions: list[TargetPartitions] = array(TargetPartitions)


class ConsumerGroupCurrentMemberAssignmentKey(ApiMessage, versions=(8, 8)):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


class HeldPartitions(Part):
    """`assignment_epochs` has for each partition the epoch since which the member holds it (KIP-1251)."""

    topic_id: UUID = wire(UUID16)
    partitions: list[int] = array(INT32)
    assignment_epochs: list[int] | None = array(INT32, nullable=0, tag=0, default=None)


class ConsumerGroupCurrentMemberAssignmentValue(ApiMessage, versions=(0, 0), flexible_since=0):
    member_epoch: int = wire(INT32)
    previous_member_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned_partitions: list[HeldPartitions] = array(HeldPartitions)
    partitions_pending_revocation: list[HeldPartitions] = array(HeldPartitions)


class ConsumerGroupRegularExpressionKey(ApiMessage, versions=(16, 16)):
    group_id: str = wire(STRING)
    regular_expression: str = wire(STRING)


class ConsumerGroupRegularExpressionValue(ApiMessage, versions=(0, 0), flexible_since=0):
    topics: list[str] = array(STRING)
    version: int = wire(INT64)
    timestamp: int = wire(INT64)


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)

_TYPES: Final = RecordTypes[ConsumerGroupKey](
    {
        ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
        ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    }
)
encode_consumer_group_key = _TYPES.encode_key
encode_consumer_group_value = _TYPES.encode_value
decode_consumer_group_key = _TYPES.decode_key
decode_consumer_group_value = _TYPES.decode_value
