"""Convert the events of share groups to records of `__consumer_offsets`, and back."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.broker.coordination.state_log import KeyValue
from headrace.machines.share_groups.share_group import (
    ShareGroupEpochSet,
    ShareGroupEvent,
    ShareMemberMetadata,
    ShareMemberMetadataSet,
)
from headrace.wire.state_records.share_group_records import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    decode_share_group_key,
    decode_share_group_value,
    encode_share_group_key,
    encode_share_group_value,
)


class StoredShareGroupEvent(msgspec.Struct, frozen=True):
    """A change of a share group; None means that the group was deleted."""

    group_id: str
    event: ShareGroupEvent | None


def share_group_records(group_id: str, events: Iterable[ShareGroupEvent]) -> list[KeyValue]:
    return [_record(group_id, event) for event in events]


def share_group_tombstone(group_id: str) -> KeyValue:
    """Return the tombstone of a group without members; the tombstones of members are written when they leave."""
    return encode_share_group_key(ShareGroupMetadataKey(group_id=group_id)), None


def read_share_group_record(key: bytes, value: bytes | None) -> StoredShareGroupEvent | None:
    """Decode a record; return None for record types of other features."""
    known = decode_share_group_key(key)
    if known is None:
        return None
    stored = None if value is None else decode_share_group_value(known, value)
    if isinstance(known, ShareGroupMemberMetadataKey):
        member_metadata = stored and ShareMemberMetadata(
            rack_id=stored.rack_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            topics=frozenset(stored.subscribed_topic_names),
        )
        return StoredShareGroupEvent(known.group_id, ShareMemberMetadataSet(known.member_id, member_metadata))
    return StoredShareGroupEvent(known.group_id, stored and ShareGroupEpochSet(stored.epoch, stored.metadata_hash))


def _record(group_id: str, event: ShareGroupEvent) -> KeyValue:
    if isinstance(event, ShareGroupEpochSet):
        value = ShareGroupMetadataValue(epoch=event.epoch, metadata_hash=event.metadata_hash)
        return encode_share_group_key(ShareGroupMetadataKey(group_id=group_id)), encode_share_group_value(value)
    key = encode_share_group_key(ShareGroupMemberMetadataKey(group_id=group_id, member_id=event.member_id))
    if event.member_metadata is None:
        return key, None
    member_value = ShareGroupMemberMetadataValue(
        rack_id=event.member_metadata.rack_id,
        client_id=event.member_metadata.client_id,
        client_host=event.member_metadata.client_host,
        subscribed_topic_names=sorted(event.member_metadata.topics),
    )
    return key, encode_share_group_value(member_value)
