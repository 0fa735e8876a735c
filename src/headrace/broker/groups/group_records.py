"""Conversion between the coordinator's events and the records of `__consumer_offsets`."""

from __future__ import annotations

import logging

import msgspec

from headrace.broker.coordination.state_log import KeyValue
from headrace.broker.groups.consumer_group_records import StoredConsumerGroupEvent, read_consumer_group_record
from headrace.broker.share_groups.share_group_records import StoredShareGroupEvent, read_share_group_record
from headrace.machines.groups.group_offsets import CommittedOffset, OffsetCommitted, OffsetForgotten
from headrace.model.errors import MalformedFrame
from headrace.wire.state_records.offsets_records import (
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)

log = logging.getLogger(__name__)


class StoredGroup(msgspec.Struct, frozen=True):
    """A generation of a group; None: the group was deleted."""

    group_id: str
    snapshot: GroupMetadataValue | None


OffsetsLogEvent = OffsetCommitted | OffsetForgotten | StoredGroup | StoredConsumerGroupEvent | StoredShareGroupEvent


def offset_record(event: OffsetCommitted | OffsetForgotten) -> KeyValue:
    key = encode_offset_key(event.group_id, event.topic, event.partition)
    if isinstance(event, OffsetForgotten):
        return key, None
    committed = event.committed
    return key, encode_offset_value(
        OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            topic_id=committed.topic_id,
        )
    )


def group_record(group_id: str, snapshot: GroupMetadataValue | None) -> KeyValue:
    return encode_group_key(group_id), None if snapshot is None else encode_group_value(snapshot)


def read_record(key: bytes, value: bytes | None) -> OffsetsLogEvent | None:
    """Return the event of a record; None for other kinds of records. A record that cannot be decoded is logged and
    skipped, because other groups must not be affected."""
    try:
        known = decode_key(key)
        if known is None:
            return read_consumer_group_record(key, value) or read_share_group_record(key, value)
        if isinstance(known, OffsetCommitKey):
            return _offset_event(known, value)
        return StoredGroup(known.group, None if value is None else decode_group_value(value))
    except MalformedFrame as error:
        log.error("invalid record in __consumer_offsets error=%s", error)
        return None


def _offset_event(key: OffsetCommitKey, value: bytes | None) -> OffsetsLogEvent:
    if value is None:
        return OffsetForgotten(key.group, key.topic, key.partition)
    stored = decode_offset_value(value)
    committed = CommittedOffset(
        offset=stored.offset,
        leader_epoch=stored.leader_epoch,
        metadata=stored.metadata,
        commit_timestamp_ms=stored.commit_timestamp,
        expire_timestamp_ms=stored.expire_timestamp,
        topic_id=stored.topic_id,
    )
    return OffsetCommitted(key.group, key.topic, key.partition, committed)
