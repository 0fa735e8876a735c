"""Conversion between events of groups of the consumer protocol and records of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.broker.coordination.state_log import KeyValue
from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.consumer_group_state import (
    ClassicProfile,
    ConsumerGroupEvent,
    CurrentAssignment,
    CurrentAssignmentSet,
    GroupEpochSet,
    MemberMetadata,
    MemberMetadataSet,
    MemberState,
    RegularExpressionResolved,
    TargetAssignmentEpochSet,
    TargetAssignmentSet,
    partitions_by_topic_id,
)
from headrace.model.errors import MalformedFrame
from headrace.wire.state_records import consumer_group_records as records


class StoredConsumerGroupEvent(msgspec.Struct, frozen=True):
    """An event of a group; None: the group was deleted."""

    group_id: str
    event: ConsumerGroupEvent | None


def consumer_group_records(group_id: str, events: Iterable[ConsumerGroupEvent], now_ms: int) -> list[KeyValue]:
    return [_record(*_key_and_value(group_id, event, now_ms)) for event in events]


def group_tombstones(group_id: str) -> list[KeyValue]:
    """The tombstones of a group without members; those of its members were stored when they left."""
    keys = (
        records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        records.ConsumerGroupMetadataKey(group_id=group_id),
    )
    return [_record(key, None) for key in keys]


def read_consumer_group_record(key: bytes, value: bytes | None) -> StoredConsumerGroupEvent | None:
    """Return the event of a record, or None for kinds of records of other protocols."""
    known = records.decode_consumer_group_key(key)
    if known is None:
        return None
    if isinstance(known, records.ConsumerGroupMetadataKey) and value is None:
        return StoredConsumerGroupEvent(known.group_id, None)
    event = _event(known, None if value is None else records.decode_consumer_group_value(known, value))
    return StoredConsumerGroupEvent(known.group_id, event)


def _record(key: records.ConsumerGroupKey, value: object | None) -> KeyValue:
    return records.encode_consumer_group_key(key), None if value is None else records.encode_consumer_group_value(value)


def _key_and_value(
    group_id: str, event: ConsumerGroupEvent, now_ms: int
) -> tuple[records.ConsumerGroupKey, object | None]:
    match event:
        case GroupEpochSet():
            group = records.ConsumerGroupMetadataValue(epoch=event.epoch, metadata_hash=event.metadata_hash)
            return records.ConsumerGroupMetadataKey(group_id=group_id), group
        case TargetAssignmentEpochSet():
            epoch = records.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=event.epoch)
            return records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), epoch
        case MemberMetadataSet():
            member = None if event.member_metadata is None else _member_metadata_value(event.member_metadata)
            return records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=event.member_id), member
        case TargetAssignmentSet():
            target = None if event.partitions is None else _target_assignment_value(event.partitions)
            return records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=event.member_id), target
        case CurrentAssignmentSet():
            current = None if event.current_assignment is None else _current_assignment_value(event.current_assignment)
            return records.ConsumerGroupCurrentMemberAssignmentKey(
                group_id=group_id, member_id=event.member_id
            ), current
        case RegularExpressionResolved():
            resolved = None
            if event.topics is not None:
                resolved = records.ConsumerGroupRegularExpressionValue(topics=sorted(event.topics), timestamp=now_ms)
            return records.ConsumerGroupRegularExpressionKey(
                group_id=group_id, regular_expression=event.regex
            ), resolved


def _event(key: records.ConsumerGroupKey, value: Any) -> ConsumerGroupEvent:
    match key:
        case records.ConsumerGroupMetadataKey():
            return GroupEpochSet(value.epoch, value.metadata_hash)
        case records.ConsumerGroupTargetAssignmentMetadataKey():
            return TargetAssignmentEpochSet(0 if value is None else value.assignment_epoch)
        case records.ConsumerGroupMemberMetadataKey():
            return MemberMetadataSet(key.member_id, None if value is None else _member_metadata(value))
        case records.ConsumerGroupTargetAssignmentMemberKey():
            return TargetAssignmentSet(key.member_id, None if value is None else _target_assignment(value))
        case records.ConsumerGroupCurrentMemberAssignmentKey():
            return CurrentAssignmentSet(key.member_id, None if value is None else _current_assignment(value))
        case records.ConsumerGroupRegularExpressionKey():
            return RegularExpressionResolved(key.regular_expression, None if value is None else frozenset(value.topics))


def _member_metadata_value(member_metadata: MemberMetadata) -> records.ConsumerGroupMemberMetadataValue:
    return records.ConsumerGroupMemberMetadataValue(
        instance_id=member_metadata.instance_id,
        rack_id=member_metadata.rack_id,
        client_id=member_metadata.client_id,
        client_host=member_metadata.client_host,
        subscribed_topic_names=sorted(member_metadata.topics),
        subscribed_topic_regex=member_metadata.regex,
        rebalance_timeout_ms=member_metadata.rebalance_timeout_ms,
        server_assignor=member_metadata.assignor,
        classic_member_metadata=None if member_metadata.classic is None else _classic_value(member_metadata.classic),
    )


def _classic_value(classic: ClassicProfile) -> records.ClassicMemberMetadata:
    return records.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            records.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
        ],
    )


def _member_metadata(value: records.ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    return MemberMetadata(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None if value.classic_member_metadata is None else _classic(value.classic_member_metadata),
    )


def _classic(value: records.ClassicMemberMetadata) -> ClassicProfile:
    if not value.supported_protocols:
        raise MalformedFrame("a classic member has no protocols")
    return ClassicProfile(
        session_timeout_ms=value.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in value.supported_protocols),
    )


def _target_assignment_value(
    partitions: Iterable[TopicIdPartition],
) -> records.ConsumerGroupTargetAssignmentMemberValue:
    topics = [
        records.TargetPartitions(topic_id=id_, partitions=indexes)
        for id_, indexes in partitions_by_topic_id(partitions).items()
    ]
    return records.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)


def _target_assignment(value: records.ConsumerGroupTargetAssignmentMemberValue) -> frozenset[TopicIdPartition]:
    return frozenset((topic.topic_id, index) for topic in value.topic_partitions for index in topic.partitions)


def _current_assignment_value(
    current_assignment: CurrentAssignment,
) -> records.ConsumerGroupCurrentMemberAssignmentValue:
    return records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current_assignment.epoch,
        previous_member_epoch=current_assignment.previous_epoch,
        state=current_assignment.state,
        assigned_partitions=_partitions_value(current_assignment.assigned),
        partitions_pending_revocation=_partitions_value(current_assignment.revoking),
    )


def _partitions_value(held: Mapping[TopicIdPartition, int]) -> list[records.HeldPartitions]:
    return [
        records.HeldPartitions(
            topic_id=topic_id, partitions=indexes, assignment_epochs=[held[topic_id, index] for index in indexes]
        )
        for topic_id, indexes in partitions_by_topic_id(held).items()
    ]


def _current_assignment(value: records.ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    try:
        state = MemberState(value.state)
    except ValueError:
        raise MalformedFrame(f"a member has an unknown state {value.state}") from None
    return CurrentAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=_partitions_with_epochs(value.assigned_partitions, value.member_epoch),
        revoking=_partitions_with_epochs(value.partitions_pending_revocation, value.member_epoch),
    )


def _partitions_with_epochs(topics: Iterable[records.HeldPartitions], member_epoch: int) -> dict[TopicIdPartition, int]:
    """Before Kafka 4.3 the epochs were not stored; the member epoch is the latest possible one."""
    held: dict[TopicIdPartition, int] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None:
            epochs = [member_epoch] * len(topic.partitions)
        if len(epochs) != len(topic.partitions):
            raise MalformedFrame(f"{len(topic.partitions)} partitions, but {len(epochs)} assignment epochs")
        held.update(zip(((topic.topic_id, index) for index in topic.partitions), epochs, strict=True))
    return held
