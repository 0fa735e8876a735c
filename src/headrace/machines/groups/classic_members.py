"""The members of a consumer group (KIP-848) that use the classic protocol, as during a migration. Pure.

The coordinator assigns their partitions as well. To these members the group looks like a classic group with another
leader: the generation is the member epoch, and the response to a JoinGroup is immediate.

- A JoinGroup contains the subscription and the owned partitions, like a heartbeat of the consumer protocol. It takes
  the member one step towards its target assignment.
- SyncGroup returns the partitions that the member may own now. Heartbeat requests it to rejoin if there is another
  step. An eager member owns nothing when it joins; a cooperative member rejoins when it has revoked the partitions that
  the last SyncGroup did not contain.
- `join` and `departing` change nothing. `joined`, `sync` and `heartbeat` change deadlines only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.consumer_group import ConsumerGroup, StateDraft
from headrace.machines.groups.consumer_group_state import (
    ClassicProfile,
    ConsumerGroupEvent,
    ConsumerGroupState,
    MemberMetadata,
    MemberState,
)
from headrace.machines.groups.group_rebalance import check_session_timeout
from headrace.machines.groups.group_roster import rebalance_timeout_of
from headrace.machines.groups.group_state import GroupConfig, JoinRequest, LeavingMember, Protocols, SyncRequest
from headrace.machines.groups.group_topics import CONSUMER_PROTOCOL_TYPE, TopicsImage
from headrace.model.errors import (
    HeadraceError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MalformedFrame,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.codec.codec import version_of
from headrace.wire.messages.groups import JoinGroupResponse, MemberResponse, SyncGroupResponse
from headrace.wire.state_records.consumer_protocol import (
    NEWEST_VERSION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_subscription,
    encode_assignment,
)
from headrace.wire.state_records.consumer_protocol import NamedTopicPartitions as NamedPartitions


class ClassicJoin(msgspec.Struct, frozen=True):
    """The events to store and apply, the resulting state, and the response to send when the events are durable."""

    events: tuple[ConsumerGroupEvent, ...]
    state: ConsumerGroupState
    result: JoinGroupResponse


class ClassicMembers:
    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group

    # JoinGroup

    def join(self, request: JoinRequest, config: GroupConfig, view: TopicsImage) -> ClassicJoin:
        """Return the decision; raise if the member may not join."""
        group, member_id = self._group, request.member_id or request.new_member_id
        check_session_timeout(config, request.session_timeout_ms)
        group.ensure_room(member_id)
        self._ensure_protocols(request)
        subscription = _subscription(request.protocols)
        draft = StateDraft(group.state)
        if request.instance_id is None:
            # An unknown member id is that of a new member: the group does not remember which ids it has handed out.
            if not request.member_id and request.require_known_member_id:
                raise MemberIdRequired(f"join again as {member_id}")
        elif request.member_id:
            group.ensure_instance(request.instance_id, member_id)
        else:
            group.replace_instance(draft, request.instance_id, member_id, is_classic=True)
        replaced_member = draft.state.metadata_by_member.get(member_id) or MemberMetadata()
        owned = named_partitions(subscription.owned_partitions, view)
        updated = _updated(replaced_member, request, subscription)
        current_assignment = group.advance(draft, member_id, updated, owned, view)
        result = JoinGroupResponse(
            member_id=member_id,
            generation_id=current_assignment.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0][0],
        )
        return ClassicJoin(tuple(draft.events), draft.state, result)

    def joined(self, member_id: str, now_ms: int) -> None:
        """The JoinGroup response is sent: the member must send its SyncGroup in time."""
        group = self._group
        group.renew_session(member_id, now_ms)
        group.deadlines.joins.pop(member_id, None)
        group.deadlines.syncs[member_id] = now_ms + group.state.metadata_by_member[member_id].rebalance_timeout_ms

    # SyncGroup, Heartbeat, LeaveGroup

    def sync(self, request: SyncRequest, view: TopicsImage, now_ms: int) -> SyncGroupResponse:
        member_id = request.member_id
        classic = self._present_member(member_id, request.generation_id, request.instance_id)
        name, metadata = classic.protocols[0]
        has_same_type = request.protocol_type in (None, CONSUMER_PROTOCOL_TYPE)
        if not has_same_type or request.protocol_name not in (None, name):
            raise InconsistentGroupProtocol(f"member {member_id} joined with protocol {name}")
        group, current = self._group, self._group.state.current_assignment(member_id)
        if group.state.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(member_id, now_ms)
            raise RebalanceInProgress(f"member {member_id} must join again: group {group.group_id} rebalances")
        group.deadlines.syncs.pop(member_id, None)
        group.renew_session(member_id, now_ms)
        return SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=name,
            assignment=encode_partitions(current.assigned, metadata, view),
        )

    def heartbeat(self, member_id: str, generation_id: int, now_ms: int, *, instance_id: str | None = None) -> None:
        """Renew the member's session; raise `RebalanceInProgress` if it must rejoin."""
        self._present_member(member_id, generation_id, instance_id)
        self._group.renew_session(member_id, now_ms)
        if self._must_join(member_id):
            self._await_join(member_id, now_ms)
            raise RebalanceInProgress

    def departing(self, departures: Sequence[LeavingMember]) -> tuple[list[MemberResponse], list[str]]:
        """Return the response, and the members to remove."""
        departed, removed = [], []
        for departure in departures:
            member_id, error_code = departure.member_id, 0
            try:
                if departure.instance_id is not None:
                    # An administrator removes a static member by its instance id alone.
                    member_id = member_id or self._group.state.instances.get(departure.instance_id, "")
                    self._group.ensure_instance(departure.instance_id, member_id)
                self._classic(member_id)
                removed.append(member_id)
            except HeadraceError as error:
                error_code = error.code
            departed.append(MemberResponse(departure.member_id, departure.instance_id, error_code))
        return departed, list(dict.fromkeys(removed))

    # Checks

    def _must_join(self, member_id: str) -> bool:
        """The group epoch has changed, the member must revoke partitions, or partitions that it lacks are free now."""
        state = self._group.state
        current_assignment = state.current_assignment(member_id)
        if state.epoch > current_assignment.epoch or current_assignment.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        lacking = state.target(member_id) - current_assignment.assigned.keys()
        return current_assignment.state is MemberState.UNRELEASED_PARTITIONS and state.owners.keys().isdisjoint(lacking)

    def _await_join(self, member_id: str, now_ms: int) -> None:
        deadline_ms = now_ms + self._group.state.metadata_by_member[member_id].rebalance_timeout_ms
        self._group.deadlines.joins.setdefault(member_id, deadline_ms)

    def _ensure_protocols(self, request: JoinRequest) -> None:
        """Check that all classic members support a common protocol, which the group needs after a downgrade."""
        shared = {name for name, _ in request.protocols}
        for member_id, member_metadata in self._group.state.metadata_by_member.items():
            if member_metadata.classic is not None and member_id != request.member_id:
                shared.intersection_update(name for name, _ in member_metadata.classic.protocols)
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not shared:
            raise InconsistentGroupProtocol(
                f"group {self._group.group_id} is a consumer group, whose members have no protocol in common with "
                f"{sorted(name for name, _ in request.protocols)} of type '{request.protocol_type}'"
            )

    def _present_member(self, member_id: str, generation_id: int, instance_id: str | None) -> ClassicProfile:
        if instance_id is not None:
            self._group.ensure_instance(instance_id, member_id)
        classic = self._classic(member_id)
        epoch = self._group.state.current_assignment(member_id).epoch
        if generation_id != epoch:
            raise IllegalGeneration(f"member {member_id} is at generation {epoch}, not at {generation_id}")
        return classic

    def _classic(self, member_id: str) -> ClassicProfile:
        member_metadata = self._group.state.metadata_by_member.get(member_id)
        if member_metadata is None or member_metadata.classic is None:
            raise UnknownMemberId(
                f"Member {member_id} is not a member of group {self._group.group_id} that uses the classic protocol."
            )
        return member_metadata.classic


def named_partitions(named: Sequence[NamedPartitions], view: TopicsImage) -> frozenset[TopicIdPartition]:
    """Topics that do not exist are left out."""
    shapes = {one.topic: view.topics[one.topic] for one in named if one.topic in view.topics}
    return frozenset((shapes[one.topic].id, index) for one in named if one.topic in shapes for index in one.partitions)


def encode_partitions(
    partitions: Mapping[TopicIdPartition, int] | frozenset[TopicIdPartition], metadata: bytes, view: TopicsImage
) -> bytes:
    """The assignment in the version in which the member wrote its subscription."""
    topics: dict[str, list[int]] = {}
    for topic_id, index in sorted(partitions):
        name = view.names.get(topic_id)
        if name is not None:
            topics.setdefault(name, []).append(index)
    assigned = [NamedPartitions(topic=name, partitions=indexes) for name, indexes in topics.items()]
    version = min(version_of(metadata), NEWEST_VERSION)
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def _subscription(protocols: Protocols) -> ConsumerProtocolSubscription:
    """The subscription, which is the same in all protocols of a member for our purposes."""
    try:
        return decode_subscription(protocols[0][1])
    except MalformedFrame as error:
        raise InconsistentGroupProtocol(f"the subscription of the member cannot be read: {error}") from error


def _updated(
    member_metadata: MemberMetadata, request: JoinRequest, subscription: ConsumerProtocolSubscription
) -> MemberMetadata:
    return replace(
        member_metadata,
        instance_id=request.instance_id if request.instance_id is not None else member_metadata.instance_id,
        rack_id=subscription.rack_id if subscription.rack_id is not None else member_metadata.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        assignor=None,
        rebalance_timeout_ms=rebalance_timeout_of(request),
        classic=ClassicProfile(session_timeout_ms=request.session_timeout_ms, protocols=request.protocols),
    )
