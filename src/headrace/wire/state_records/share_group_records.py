"""Records of `__consumer_offsets` for share groups, in Kafka's format.

- A key begins with a version (int16) that is also its type: 10 a member, 11 a group.
- Types 12 to 15 (target assignment, current assignments, initialized partitions) are Kafka's and are ignored: Headrace
  computes assignments again, and the acks log of each partition has the position of the group.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.codec.codec import RecordTypes
from headrace.wire.codec.schema import INT32, INT64, STRING, ApiMessage, array, wire


class ShareGroupMemberMetadataKey(ApiMessage, versions=(10, 10)):
    group_id: str = wire(STRING)
    member_id: str = wire(STRING)


class ShareGroupMemberMetadataValue(ApiMessage, versions=(0, 0), flexible_since=0):
    rack_id: str | None = wire(STRING, nullable=0)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: list[str] = array(STRING)


class ShareGroupMetadataKey(ApiMessage, versions=(11, 11)):
    group_id: str = wire(STRING)


class ShareGroupMetadataValue(ApiMessage, versions=(0, 0), flexible_since=0):
    epoch: int = wire(INT32)
    metadata_hash: int = wire(INT64)


ShareGroupKey = ShareGroupMetadataKey | ShareGroupMemberMetadataKey

_TYPES: Final = RecordTypes[ShareGroupKey](
    {
        ShareGroupMetadataKey: ShareGroupMetadataValue,
        ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
    }
)
encode_share_group_key = _TYPES.encode_key
encode_share_group_value = _TYPES.encode_value
decode_share_group_key = _TYPES.decode_key
decode_share_group_value = _TYPES.decode_value
