"""Between the events of share groups and the records of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.broker.state_log import KeyValue
from headrace.machines.share_groups import ShareEpochSet, ShareGroupEvent, ShareProfile, ShareProfileSet
from headrace.wire.share_group_records import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    decode_share_group_key,
    decode_share_group_value,
    encode_share_group_key,
    encode_share_group_value,
)


class ShareGroupStored(msgspec.Struct, frozen=True):
    """A change of a share group, or (None) the end of the group."""

    group_id: str
    event: ShareGroupEvent | None


def share_group_records(group_id: str, events: Iterable[ShareGroupEvent]) -> list[KeyValue]:
    return [_record(group_id, event) for event in events]


def share_end_record(group_id: str) -> KeyValue:
    """Of a group without members; theirs were ended when they left."""
    return encode_share_group_key(ShareGroupMetadataKey(group_id=group_id)), None


def read_share_group_record(key: bytes, value: bytes | None) -> ShareGroupStored | None:
    """What a record tells; None for kinds that are not of share groups."""
    known = decode_share_group_key(key)
    if known is None:
        return None
    stored = None if value is None else decode_share_group_value(known, value)
    if isinstance(known, ShareGroupMemberMetadataKey):
        return ShareGroupStored(known.group_id, ShareProfileSet(known.member_id, stored and _profile(stored)))
    return ShareGroupStored(known.group_id, stored and ShareEpochSet(stored.epoch, stored.metadata_hash))


def _record(group_id: str, event: ShareGroupEvent) -> KeyValue:
    if isinstance(event, ShareEpochSet):
        value = ShareGroupMetadataValue(epoch=event.epoch, metadata_hash=event.metadata_hash)
        return encode_share_group_key(ShareGroupMetadataKey(group_id=group_id)), encode_share_group_value(value)
    key = encode_share_group_key(ShareGroupMemberMetadataKey(group_id=group_id, member_id=event.member_id))
    return key, None if event.profile is None else encode_share_group_value(_profile_value(event.profile))


def _profile_value(profile: ShareProfile) -> ShareGroupMemberMetadataValue:
    return ShareGroupMemberMetadataValue(
        rack_id=profile.rack_id,
        client_id=profile.client_id,
        client_host=profile.client_host,
        subscribed_topic_names=sorted(profile.topics),
    )


def _profile(value: ShareGroupMemberMetadataValue) -> ShareProfile:
    return ShareProfile(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )
