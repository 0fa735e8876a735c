"""Records of `__consumer_offsets` for committed offsets and classic groups, in Kafka's format.

- A key begins with a version (int16) that is also its type: 0 and 1 an offset, 2 a group.
- A value begins with the version of its layout; a null value deletes. All versions are read.
- Offsets are written with the topic id (v4), so that a topic that was deleted and created again does not get the
  offsets of its predecessor.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from headrace.wire.codec.codec import decode_versioned, encode_versioned, version_of
from headrace.wire.codec.schema import BYTES, INT32, INT64, STRING, UUID16, ApiMessage, Part, array, wire

_OFFSET_KEY_VERSION: Final = 1
_OFFSET_VALUE_VERSION: Final = 4
_GROUP_KEY_VERSION: Final = 2
_GROUP_VALUE_VERSION: Final = 3


class OffsetCommitKey(ApiMessage, versions=(0, 1)):
    group: str = wire(STRING)
    topic: str = wire(STRING)
    partition: int = wire(INT32)


class OffsetCommitValue(ApiMessage, versions=(0, 4), flexible_since=4):
    """Only v1 has an expiry time; later, offsets expire with their group. v4 adds the topic id."""

    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, since=3, default=-1)
    metadata: str = wire(STRING)
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, since=1, until=1, default=-1)
    topic_id: UUID = wire(UUID16, since=4, tag=0)


class GroupMetadataKey(ApiMessage, versions=(2, 2)):
    group: str = wire(STRING)


class GroupMemberMetadata(Part):
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(STRING, since=3, nullable=3, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout_ms: int = wire(INT32, since=1)
    session_timeout_ms: int = wire(INT32)
    subscription: bytes = wire(BYTES)
    assignment: bytes = wire(BYTES)


class GroupMetadataValue(ApiMessage, versions=(0, 4), flexible_since=4):
    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(STRING, nullable=0, default=None)
    leader: str | None = wire(STRING, nullable=0, default=None)
    current_state_timestamp: int = wire(INT64, since=2, default=-1)
    members: list[GroupMemberMetadata] = array(GroupMemberMetadata)


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    return encode_versioned(OffsetCommitKey(group=group, topic=topic, partition=partition), _OFFSET_KEY_VERSION)


def encode_group_key(group: str) -> bytes:
    return encode_versioned(GroupMetadataKey(group=group), _GROUP_KEY_VERSION)


def encode_offset_value(value: OffsetCommitValue) -> bytes:
    return encode_versioned(value, _OFFSET_VALUE_VERSION)


def encode_group_value(value: GroupMetadataValue) -> bytes:
    return encode_versioned(value, _GROUP_VALUE_VERSION)


def decode_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """Return the key, or None for another type."""
    version = version_of(data)
    if version <= _OFFSET_KEY_VERSION:
        return decode_versioned(OffsetCommitKey, data)
    if version == _GROUP_KEY_VERSION:
        return decode_versioned(GroupMetadataKey, data)
    return None


def decode_offset_value(data: bytes) -> OffsetCommitValue:
    return decode_versioned(OffsetCommitValue, data)


def decode_group_value(data: bytes) -> GroupMetadataValue:
    return decode_versioned(GroupMetadataValue, data)
