"""Migration of a group with members from the classic to the consumer protocol (KIP-848), and back. Pure.

- Upgrade: a member of the consumer protocol joins a classic group. The group becomes a consumer group; the other
  members stay in it as classic members (`classic_members`), with their assigned partitions.
- Downgrade: the last member of the consumer protocol is removed, or replaced by a classic static member. The group
  becomes a classic group, whose generation is the group epoch.
- A converted group is stored in one batch together with the tombstones of its former records, so the log never contains
  half of a migration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.classic_members import encode_partitions, named_partitions
from headrace.machines.groups.consumer_group_state import (
    ClassicProfile,
    ConsumerGroupEvent,
    ConsumerGroupState,
    CurrentAssignment,
    CurrentAssignmentSet,
    GroupEpochSet,
    MemberMetadata,
    MemberMetadataSet,
    RegularExpressionResolved,
    TargetAssignmentEpochSet,
    TargetAssignmentSet,
)
from headrace.machines.groups.group_roster import GroupMember
from headrace.machines.groups.group_state import GroupConfig
from headrace.machines.groups.group_topics import CONSUMER_PROTOCOL_TYPE, TopicsImage
from headrace.model.errors import GroupIdNotFound, MalformedFrame
from headrace.wire.state_records.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
)

BUILT_IN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""The assignors of Kafka's clients. They keep no state that matters in the user data of an assignment; librdkafka's
cooperative-sticky repeats the member's own data there. Other assignors may keep state in it, which would be lost."""


class MigrationPolicy(StrEnum):
    """The values of `group.consumer.migration.policy`."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


# Upgrade


def upgrade(group: ClassicGroup, policy: MigrationPolicy, max_size: int, view: TopicsImage) -> list[ConsumerGroupEvent]:
    """Return the events that create the consumer group; raise `GroupIdNotFound` if the group must stay classic."""
    if not policy.allows_upgrade:
        raise _stays_classic(group, "online upgrade is disabled")
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _stays_classic(group, "the group does not use the consumer embedded protocol")
    if len(group.roster) > max_size:
        raise _stays_classic(group, "the group size exceeds the consumer group maximum size")
    metadata_by_member: dict[str, MemberMetadata] = {}
    held: dict[str, frozenset[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    for member in group.roster:
        metadata = member.metadata(group.protocol_name) or member.protocols[0][1]
        try:
            subscription = decode_subscription(metadata)
            partitions = _held_partitions(group, member, subscription, view)
        except MalformedFrame as error:
            raise _stays_classic(group, "the embedded consumer protocol is malformed") from error
        metadata_by_member[member.member_id] = _profile(member, subscription)
        held[member.member_id] = partitions - taken  # a client's assignor may have given a partition to two members
        taken |= partitions
    epoch = group.generation_id
    current_assignments = (
        CurrentAssignment(epoch=epoch, previous_epoch=epoch, assigned=dict.fromkeys(partitions, epoch))
        for partitions in held.values()
    )
    return [
        *map(MemberMetadataSet, metadata_by_member.keys(), metadata_by_member.values()),
        GroupEpochSet(epoch, 0),  # a hash of no topics, so the next join computes a new assignment
        *map(TargetAssignmentSet, held.keys(), held.values()),
        TargetAssignmentEpochSet(epoch),
        *map(CurrentAssignmentSet, held.keys(), current_assignments),
    ]


def _held_partitions(
    group: ClassicGroup, member: GroupMember, subscription: ConsumerProtocolSubscription, view: TopicsImage
) -> frozenset[TopicIdPartition]:
    if not member.assignment:
        # It had no assignment yet, or a rebalance restarted: then a cooperative member still owns what it reports.
        return named_partitions(subscription.owned_partitions, view)
    assignment = decode_assignment(member.assignment)
    if assignment.user_data and group.protocol_name not in BUILT_IN_ASSIGNORS:
        raise _stays_classic(
            group,
            "an unsupported custom assignor is in use. "
            "Please refer to the documentation or switch to a default assignor before re-attempting the upgrade",
        )
    return named_partitions(assignment.assigned_partitions, view)


def _profile(member: GroupMember, subscription: ConsumerProtocolSubscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProfile(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )


def _stays_classic(group: ClassicGroup, reason: str) -> GroupIdNotFound:
    return GroupIdNotFound(f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.")


# Downgrade


def can_downgrade(
    state: ConsumerGroupState, policy: MigrationPolicy, max_size: int, removed: Collection[str] = ()
) -> bool:
    """Whether the group becomes a classic group when `removed` are gone."""
    remaining = [member.classic for id_, member in state.metadata_by_member.items() if id_ not in removed]
    classic = [profile for profile in remaining if profile is not None]
    if not remaining or len(classic) < len(remaining):
        return False
    shared = set.intersection(*({name for name, _ in profile.protocols} for profile in classic))
    return policy.allows_downgrade and len(remaining) <= max_size and bool(shared)


def downgrade(
    group_id: str,
    state: ConsumerGroupState,
    config: GroupConfig,
    view: TopicsImage,
    now_ms: int,
    removed: Collection[str],
) -> ClassicGroup:
    """Return the consumer group as a stable classic group without `removed`; members get their target assignments."""
    members = [
        _member(member_id, member_metadata, state.target(member_id), view)
        for member_id, member_metadata in state.metadata_by_member.items()
        if member_id not in removed
    ]
    return ClassicGroup.of_generation(group_id, config, members, state.epoch, now_ms)


def tombstones(state: ConsumerGroupState) -> Iterator[ConsumerGroupEvent]:
    """The tombstones of all records of a consumer group except its epochs."""
    for member_id in state.metadata_by_member:
        yield CurrentAssignmentSet(member_id, None)
        yield TargetAssignmentSet(member_id, None)
        yield MemberMetadataSet(member_id, None)
    for regex in state.resolved:
        yield RegularExpressionResolved(regex, None)


def _member(
    member_id: str, member_metadata: MemberMetadata, target: frozenset[TopicIdPartition], view: TopicsImage
) -> GroupMember:
    assert member_metadata.classic is not None
    return GroupMember(
        member_id=member_id,
        instance_id=member_metadata.instance_id,
        client_id=member_metadata.client_id,
        client_host=member_metadata.client_host,
        rebalance_timeout_ms=member_metadata.rebalance_timeout_ms,
        session_timeout_ms=member_metadata.classic.session_timeout_ms,
        protocols=member_metadata.classic.protocols,
        assignment=encode_partitions(target, member_metadata.classic.protocols[0][1], view),
    )
