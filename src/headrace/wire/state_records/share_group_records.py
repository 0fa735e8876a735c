"""Records of `__consumer_offsets` for share groups, in Kafka's format.

- A key begins with a version (int16) that is also its type: 10 a member, 11 a group.
- Types 12 to 15 (target assignment, current assignments, initialized partitions) are Kafka's and are ignored: Headrace
  computes assignments again, and the acks log of each partition has the position of the group.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.wire.codec.codec import decode_versioned, encode_versioned, version_of
from headrace.wire.codec.schema import INT32, INT64, STRING, Message, array, layout, wire

_VALUE_VERSION: Final = 0


class ShareGroupMemberMetadataKey(Message, versions=(10, 10)):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


class ShareGroupMemberMetadataValue(Message, versions=(0, 0), flexible_since=0):
    rack_id: str | None = wire(STRING, nullable=0)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))


class ShareGroupMetadataKey(Message, versions=(11, 11)):
    group_id: str = wire(STRING)


class ShareGroupMetadataValue(Message, versions=(0, 0), flexible_since=0):
    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


ShareGroupKey = ShareGroupMetadataKey | ShareGroupMemberMetadataKey

_VALUE_OF: dict[type, type] = {
    ShareGroupMetadataKey: ShareGroupMetadataValue,
    ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
}
_KEY_OF: dict[int, type] = {layout(key).min_version: key for key in _VALUE_OF}


def encode_share_group_key(key: ShareGroupKey) -> bytes:
    return encode_versioned(key, layout(type(key)).min_version)


def encode_share_group_value(value: object) -> bytes:
    return encode_versioned(value, _VALUE_VERSION)


def decode_share_group_key(data: bytes) -> ShareGroupKey | None:
    """Return the key, or None for another type."""
    cls = _KEY_OF.get(version_of(data))
    if cls is None:
        return None
    key: ShareGroupKey = decode_versioned(cls, data)
    return key


def decode_share_group_value(key: ShareGroupKey, data: bytes) -> Any:
    """Decode the value that belongs to the key."""
    return decode_versioned(_VALUE_OF[type(key)], data)
