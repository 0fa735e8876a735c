"""The records of `__consumer_offsets` that tell of share groups, in Kafka's own form.

A key begins with a version (i16) that also says what it is a key of: 10 a member, 11 a group. Kinds 12 to 15 (target
assignment, what members hold, where partitions were begun) are known to be Kafka's and passed over: here assignments
are made anew, and each partition's acks log tells where a group stands in it.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.wire.codec.codec import decode_versioned, encode_versioned, version_of
from headrace.wire.codec.schema import INT32, INT64, STRING, array, layout, message, wire

_VALUE_VERSION: Final = 0


@message(versions=(10, 10))
class ShareGroupMemberMetadataKey:
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class ShareGroupMemberMetadataValue:
    rack_id: str | None = wire(STRING, nullable=0)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = wire(array(STRING))


@message(versions=(11, 11))
class ShareGroupMetadataKey:
    group_id: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class ShareGroupMetadataValue:
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
    """Return what the record is about, or None for a kind that is not of these."""
    cls = _KEY_OF.get(version_of(data))
    if cls is None:
        return None
    key: ShareGroupKey = decode_versioned(cls, data)
    return key


def decode_share_group_value(key: ShareGroupKey, data: bytes) -> Any:
    """The value that belongs to a key of this class."""
    return decode_versioned(_VALUE_OF[type(key)], data)
