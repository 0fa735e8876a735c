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
        return StoredShareGroupEvent(
            known.group_id, ShareMemberMetadataSet(known.member_id, stored and _member_metadata(stored))
        )
    return StoredShareGroupEvent(known.group_id, stored and ShareGroupEpochSet(stored.epoch, stored.metadata_hash))


def _record(group_id: str, event: ShareGroupEvent) -> KeyValue:
    if isinstance(event, ShareGroupEpochSet):
        value = ShareGroupMetadataValue(epoch=event.epoch, metadata_hash=event.metadata_hash)
        return encode_share_group_key(ShareGroupMetadataKey(group_id=group_id)), encode_share_group_value(value)
    key = encode_share_group_key(ShareGroupMemberMetadataKey(group_id=group_id, member_id=event.member_id))
    return key, None if event.member_metadata is None else encode_share_group_value(
        _member_metadata_value(event.member_metadata)
    )


def _member_metadata_value(member_metadata: ShareMemberMetadata) -> ShareGroupMemberMetadataValue:
    return ShareGroupMemberMetadataValue(
        rack_id=member_metadata.rack_id,
        client_id=member_metadata.client_id,
        client_host=member_metadata.client_host,
        subscribed_topic_names=sorted(member_metadata.topics),
    )


def _member_metadata(value: ShareGroupMemberMetadataValue) -> ShareMemberMetadata:
    return ShareMemberMetadata(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )
