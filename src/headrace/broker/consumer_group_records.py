"""Between the events of groups of the newer protocol and the records of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.broker.state_log import KeyValue
from headrace.machines.assignors import TopicPartition
from headrace.machines.consumer_group_state import (
    ClassicProfile,
    ConsumerGroupEvent,
    EpochSet,
    Holding,
    HoldingSet,
    MemberState,
    Profile,
    ProfileSet,
    RegexResolved,
    TargetEpochSet,
    TargetSet,
    by_topic,
)
from headrace.model.errors import MalformedFrame
from headrace.wire.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    HeldPartitions,
    TargetPartitions,
    decode_consumer_group_key,
    decode_consumer_group_value,
    encode_consumer_group_key,
    encode_consumer_group_value,
)


class ConsumerGroupStored(msgspec.Struct, frozen=True):
    """A change of a group, or (None) the end of the group."""

    group_id: str
    event: ConsumerGroupEvent | None


def consumer_group_records(group_id: str, events: Iterable[ConsumerGroupEvent], now_ms: int) -> list[KeyValue]:
    return [_record(*_key_and_value(group_id, event, now_ms)) for event in events]


def end_records(group_id: str) -> list[KeyValue]:
    """Of a group without members; theirs were ended when they left."""
    keys = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), ConsumerGroupMetadataKey(group_id=group_id)
    return [_record(key, None) for key in keys]


def read_consumer_group_record(key: bytes, value: bytes | None) -> ConsumerGroupStored | None:
    """What a record tells; None for kinds that are not of the newer protocol."""
    known = decode_consumer_group_key(key)
    if known is None:
        return None
    if isinstance(known, ConsumerGroupMetadataKey) and value is None:
        return ConsumerGroupStored(known.group_id, None)
    event = _event(known, None if value is None else decode_consumer_group_value(known, value))
    return ConsumerGroupStored(known.group_id, event)


def _record(key: ConsumerGroupKey, value: object | None) -> KeyValue:
    return encode_consumer_group_key(key), None if value is None else encode_consumer_group_value(value)


def _key_and_value(group_id: str, event: ConsumerGroupEvent, now_ms: int) -> tuple[ConsumerGroupKey, object | None]:
    match event:
        case EpochSet():
            group = ConsumerGroupMetadataValue(epoch=event.epoch, metadata_hash=event.metadata_hash)
            return ConsumerGroupMetadataKey(group_id=group_id), group
        case TargetEpochSet():
            epoch = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=event.epoch)
            return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), epoch
        case ProfileSet():
            member = None if event.profile is None else _profile_value(event.profile)
            return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=event.member_id), member
        case TargetSet():
            target = None if event.partitions is None else _target_value(event.partitions)
            return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=event.member_id), target
        case HoldingSet():
            holding = None if event.holding is None else _holding_value(event.holding)
            return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=event.member_id), holding
        case RegexResolved():
            resolved = None
            if event.topics is not None:
                resolved = ConsumerGroupRegularExpressionValue(topics=sorted(event.topics), timestamp=now_ms)
            return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=event.regex), resolved


def _event(key: ConsumerGroupKey, value: Any) -> ConsumerGroupEvent:
    match key:
        case ConsumerGroupMetadataKey():
            return EpochSet(value.epoch, value.metadata_hash)
        case ConsumerGroupTargetAssignmentMetadataKey():
            return TargetEpochSet(0 if value is None else value.assignment_epoch)
        case ConsumerGroupMemberMetadataKey():
            return ProfileSet(key.member_id, None if value is None else _profile(value))
        case ConsumerGroupTargetAssignmentMemberKey():
            return TargetSet(key.member_id, None if value is None else _target(value))
        case ConsumerGroupCurrentMemberAssignmentKey():
            return HoldingSet(key.member_id, None if value is None else _holding(value))
        case ConsumerGroupRegularExpressionKey():
            return RegexResolved(key.regular_expression, None if value is None else frozenset(value.topics))


def _profile_value(profile: Profile) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=profile.instance_id,
        rack_id=profile.rack_id,
        client_id=profile.client_id,
        client_host=profile.client_host,
        subscribed_topic_names=sorted(profile.topics),
        subscribed_topic_regex=profile.regex,
        rebalance_timeout_ms=profile.rebalance_timeout_ms,
        server_assignor=profile.assignor,
        classic_member_metadata=None if profile.classic is None else _classic_value(profile.classic),
    )


def _classic_value(classic: ClassicProfile) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols],
    )


def _profile(value: ConsumerGroupMemberMetadataValue) -> Profile:
    return Profile(
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


def _classic(value: ClassicMemberMetadata) -> ClassicProfile:
    if not value.supported_protocols:
        raise MalformedFrame("a classic member has no protocols")
    return ClassicProfile(
        session_timeout_ms=value.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in value.supported_protocols),
    )


def _target_value(partitions: Iterable[TopicPartition]) -> ConsumerGroupTargetAssignmentMemberValue:
    topics = [TargetPartitions(topic_id=id_, partitions=indexes) for id_, indexes in by_topic(partitions).items()]
    return ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)


def _target(value: ConsumerGroupTargetAssignmentMemberValue) -> frozenset[TopicPartition]:
    return frozenset((topic.topic_id, index) for topic in value.topic_partitions for index in topic.partitions)


def _holding_value(holding: Holding) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=holding.epoch,
        previous_member_epoch=holding.previous_epoch,
        state=holding.state,
        assigned_partitions=_held_value(holding.assigned),
        partitions_pending_revocation=_held_value(holding.revoking),
    )


def _held_value(held: Mapping[TopicPartition, int]) -> list[HeldPartitions]:
    return [
        HeldPartitions(
            topic_id=topic_id, partitions=indexes, assignment_epochs=[held[topic_id, index] for index in indexes]
        )
        for topic_id, indexes in by_topic(held).items()
    ]


def _holding(value: ConsumerGroupCurrentMemberAssignmentValue) -> Holding:
    try:
        state = MemberState(value.state)
    except ValueError:
        raise MalformedFrame(f"a member has an unknown state {value.state}") from None
    return Holding(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=_held(value.assigned_partitions, value.member_epoch),
        revoking=_held(value.partitions_pending_revocation, value.member_epoch),
    )


def _held(topics: Iterable[HeldPartitions], member_epoch: int) -> dict[TopicPartition, int]:
    """Before Kafka 4.3 the epochs were not kept; the member's own is the latest that they can be."""
    held: dict[TopicPartition, int] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None:
            epochs = [member_epoch] * len(topic.partitions)
        if len(epochs) != len(topic.partitions):
            raise MalformedFrame(f"{len(topic.partitions)} partitions, but {len(epochs)} assignment epochs")
        held.update(zip(((topic.topic_id, index) for index in topic.partitions), epochs, strict=True))
    return held
