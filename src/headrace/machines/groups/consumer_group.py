"""A consumer group of the consumer protocol (KIP-848): the coordinator assigns the partitions. Pure.

No member waits for other members. The heartbeat contains the subscription and the owned partitions; the response
contains the partitions that the member may own now.

- `heartbeat`, `leave` and `remove` return events and change nothing. `apply` changes the state and cannot fail.
- Time is an argument. When `deadline` has passed, the `late_members` must be removed.
- A member that misses its session timeout, or does not revoke partitions in time, is removed: its partitions become
  free, and requests with its old epoch are rejected (I18).

`consumer_group_heartbeat` decides the next step of one member, `consumer_group_state` is the stored state, and
`classic_members` serves members that use the classic protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from headrace.machines.groups.assignors import ASSIGNORS, MemberSubscription, TopicIdPartition
from headrace.machines.groups.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    HeartbeatDecision,
    reconcile_assignment,
)
from headrace.machines.groups.consumer_group_state import (
    ConsumerGroupEvent,
    ConsumerGroupPhase,
    ConsumerGroupState,
    CurrentAssignment,
    CurrentAssignmentSet,
    GroupEpochSet,
    MemberDeadlines,
    MemberMetadata,
    MemberMetadataSet,
    RegularExpressionResolved,
    TargetAssignmentEpochSet,
    TargetAssignmentSet,
)
from headrace.machines.groups.group_state import OffsetRetention
from headrace.machines.groups.group_topics import TopicsImage
from headrace.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    GroupNotEmpty,
    HeadraceError,
    IllegalGeneration,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from headrace.model.names import compiled


class ConsumerGroupConfig(msgspec.Struct, frozen=True):
    """Kafka's `consumer.*` settings of a group and `group.consumer.*` settings of a broker, with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first one applies to groups whose members do not select an assignor."""


class StateDraft:
    """A copy of the state with events applied; the state itself is unchanged."""

    def __init__(self, state: ConsumerGroupState) -> None:
        self.state = state
        self.events: list[ConsumerGroupEvent] = []

    def add(self, event: ConsumerGroupEvent) -> None:
        if not self.events:
            self.state = self.state.copy()
        self.events.append(event)
        self.state.apply(event)


class ConsumerGroup:
    def __init__(self, group_id: str, config: ConsumerGroupConfig, state: ConsumerGroupState | None = None) -> None:
        self.group_id = group_id
        self.state = state or ConsumerGroupState()
        self.config = config
        """May be replaced at any time. Its session timeout applies to sessions that begin or are renewed afterwards."""
        self.deadlines = MemberDeadlines()
        # An image of which it is known that it changes nothing.
        self._assigned_image: TopicsImage | None = None

    @classmethod
    def restore(
        cls, group_id: str, config: ConsumerGroupConfig, state: ConsumerGroupState, now_ms: int
    ) -> ConsumerGroup:
        """Return the group as stored: members keep their epochs, and each has a whole session timeout."""
        group = cls(group_id, config, state)
        for member_id in state.current_assignments.keys() - state.metadata_by_member.keys():
            state.apply(CurrentAssignmentSet(member_id, None))
        for member_id in state.metadata_by_member:
            group._set_session(member_id, now_ms)
            group._set_revocation(member_id, now_ms)
        return group

    @property
    def phase(self) -> ConsumerGroupPhase:
        return self.state.phase

    @property
    def has_no_members(self) -> bool:
        return not self.state.metadata_by_member

    @property
    def assignor(self) -> str:
        return self._preferred_assignor(self.state)

    # Heartbeats

    def heartbeat(self, request: ConsumerHeartbeat, view: TopicsImage) -> HeartbeatDecision:
        """A member joins (epoch 0) or reports. Raise the error for a member that may not."""
        self.ensure_room(request.member_id)
        draft = StateDraft(self.state)
        before = self._admit(draft, request)
        member_metadata = draft.state.metadata_by_member.get(request.member_id) or MemberMetadata()
        after = self.advance(draft, request.member_id, request.updated(member_metadata), request.owned, view)
        has_news = after.assigned.keys() != before.assigned.keys()
        is_told = request.member_epoch == JOIN_EPOCH or request.is_full or has_news
        result = ConsumerHeartbeatResult(
            member_id=request.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self.config.heartbeat_interval_ms,
            assigned=frozenset(after.assigned) if is_told else None,
        )
        return HeartbeatDecision(tuple(draft.events), result)

    def leave(self, request: ConsumerHeartbeat, view: TopicsImage) -> HeartbeatDecision:
        """A member leaves for good or, if static, temporarily: its partitions are reserved until its session ends."""
        member_id = request.member_id
        if request.instance_id is not None:
            self.ensure_instance(request.instance_id, member_id)
        elif member_id not in self.state.metadata_by_member:
            raise self._unknown_member(member_id)
        draft = StateDraft(self.state)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(self.state.current_assignment(member_id), epoch=STATIC_LEAVE_EPOCH, revoking={})
            draft.add(CurrentAssignmentSet(member_id, away))
        else:
            assert request.member_epoch == LEAVE_EPOCH
            self._remove_member(draft, [member_id], view)
        result = ConsumerHeartbeatResult(member_id=member_id, member_epoch=request.member_epoch)
        removed = () if member_id in draft.state.metadata_by_member else (member_id,)
        return HeartbeatDecision(tuple(draft.events), result, removed)

    def advance(
        self,
        draft: StateDraft,
        member_id: str,
        updated: MemberMetadata,
        owned: Collection[TopicIdPartition] | None,
        view: TopicsImage,
    ) -> CurrentAssignment:
        """Apply the member's subscription, compute a new target assignment if subscriptions or topics have changed, and
        take the member one step towards its target assignment."""
        member_metadata = draft.state.metadata_by_member.get(member_id)
        replaced_member = member_metadata or MemberMetadata()
        has_changed = (updated.topics, updated.regex) != (replaced_member.topics, replaced_member.regex)
        if updated.regex != replaced_member.regex:
            compiled(updated.regex)
        if updated != member_metadata:
            draft.add(MemberMetadataSet(member_id, updated))
        if draft.events or view is not self._assigned_image:
            self._follow_topics(draft, view, is_bumped=has_changed or not draft.state.epoch)
        if draft.state.epoch > draft.state.target_epoch:
            self._assign(draft, view)
        after = self._reconcile(draft, member_id, owned)
        if not draft.events:
            self._assigned_image = view
        return after

    def apply(self, events: Iterable[ConsumerGroupEvent], now_ms: int) -> None:
        for event in events:
            self.state.apply(event)
            if isinstance(event, CurrentAssignmentSet):
                self._set_revocation(event.member_id, now_ms)
            elif isinstance(event, MemberMetadataSet):
                self._set_session(event.member_id, now_ms)

    def renew_session(self, member_id: str, now_ms: int) -> None:
        """The member has sent a request."""
        classic = self.state.metadata_by_member[member_id].classic
        timeout_ms = self.config.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.deadlines.sessions[member_id] = now_ms + timeout_ms

    # Time

    def deadline(self) -> int | None:
        """When there will be `late_members`. It moves earlier only by `apply`, by a request of a classic member, or
        with the session timeout of another `config`."""
        return self.deadlines.earliest()

    def late_members(self, now_ms: int) -> list[str]:
        return self.deadlines.late(now_ms)

    def remove(self, member_ids: Collection[str], view: TopicsImage) -> list[ConsumerGroupEvent]:
        draft = StateDraft(self.state)
        if member_ids:
            self._remove_member(draft, member_ids, view)
        return draft.events

    # Offsets

    def check_commit(
        self, member_id: str, member_epoch: int, partitions: Iterable[TopicIdPartition] | None = None
    ) -> None:
        """Raise unless this caller may commit offsets. A member with an old epoch may commit `partitions`, if they are
        given and it has held each of them since that epoch (KIP-1251)."""
        if member_epoch < 0 and self.has_no_members:
            return  # an administrator, or a consumer without group management
        current_assignment = self._current_assignment(member_id)
        if member_epoch == current_assignment.epoch:
            return
        may_lag = partitions is not None and self.state.metadata_by_member[member_id].classic is None
        if may_lag and member_epoch < current_assignment.epoch:
            assert partitions is not None
            since = [current_assignment.held_since(partition) for partition in partitions]
            if all(epoch is not None and epoch <= member_epoch for epoch in since):
                return
        raise self._stale_epoch_error(member_id, member_epoch, current_assignment)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise unless this caller may read the group's offsets; a caller that does not identify as a member may."""
        if member_id is None and member_epoch < 0:
            return
        current_assignment = self._current_assignment(member_id or "")
        if member_epoch != current_assignment.epoch:
            raise self._stale_epoch_error(member_id or "", member_epoch, current_assignment)

    def check_offset_delete(self) -> None:
        """Offsets may be deleted by request; check each topic with `is_subscribed_to`."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.state.subscribed_topics()

    def offset_retention(self) -> OffsetRetention:
        return OffsetRetention(None, self.state.subscribed_topics())

    def check_delete(self) -> None:
        if not self.has_no_members:
            raise GroupNotEmpty(f"group {self.group_id} has members")

    # Deciding

    def ensure_room(self, member_id: str) -> None:
        members = self.state.metadata_by_member
        if len(members) >= self.config.max_size and member_id not in members:
            raise GroupMaxSizeReached(
                f"The consumer group has reached its maximum capacity of {self.config.max_size} members."
            )

    def _admit(self, draft: StateDraft, request: ConsumerHeartbeat) -> CurrentAssignment:
        """Return the member's current assignment, or raise if it may not join or continue."""
        if request.instance_id is not None and request.member_epoch == JOIN_EPOCH:
            self.replace_instance(draft, request.instance_id, request.member_id, is_classic=False)
        elif request.instance_id is not None:
            self.ensure_instance(request.instance_id, request.member_id)
        elif request.member_epoch != JOIN_EPOCH and request.member_id not in self.state.metadata_by_member:
            raise self._unknown_member(request.member_id)
        current_assignment = draft.state.current_assignment(request.member_id)
        if request.member_epoch in (JOIN_EPOCH, current_assignment.epoch):
            return current_assignment
        # The response with the new epoch may have been lost; then the member owns no partition that is not in it.
        has_lost_response = current_assignment.previous_epoch == request.member_epoch < current_assignment.epoch
        if has_lost_response and request.owned is not None and request.owned <= current_assignment.assigned.keys():
            return current_assignment
        raise FencedMemberEpoch(
            f"The consumer group member has epoch {request.member_epoch}, and the group coordinator knows it "
            f"at epoch {current_assignment.epoch}. The member must abandon all its partitions and rejoin."
        )

    def replace_instance(self, draft: StateDraft, instance_id: str, member_id: str, *, is_classic: bool) -> None:
        """A static member that returns with a new member id takes over the state of its former one. If both processes
        use the consumer protocol, the former one must have left: the classic protocol has no such request."""
        former_id = self.state.instances.get(instance_id)
        if former_id is None or former_id == member_id:
            return
        replaced_member = self.state.current_assignment(former_id)
        member_metadata = self.state.metadata_by_member[former_id]
        if replaced_member.epoch != STATIC_LEAVE_EPOCH and not is_classic and member_metadata.classic is None:
            raise UnreleasedInstanceId(
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {former_id} member."
            )
        target = self.state.target(former_id)
        _end_member(draft, former_id)
        draft.add(MemberMetadataSet(member_id, member_metadata))
        draft.add(TargetAssignmentSet(member_id, target))
        draft.add(CurrentAssignmentSet(member_id, replace(replaced_member, epoch=0, previous_epoch=0)))

    def _follow_topics(self, draft: StateDraft, view: TopicsImage, *, is_bumped: bool) -> None:
        """Bump the epoch if the subscribed topics have changed."""
        state = draft.state
        regexes = state.regexes()
        for regex in sorted(state.resolved.keys() - regexes):
            draft.add(RegularExpressionResolved(regex, None))
        for regex in sorted(regexes):
            topics = view.matching(regex)
            if topics != state.resolved.get(regex):
                draft.add(RegularExpressionResolved(regex, topics))
                is_bumped = True
        metadata_hash = view.hash_of(draft.state.subscribed_topics())
        if is_bumped or metadata_hash != draft.state.metadata_hash:
            draft.add(GroupEpochSet(draft.state.epoch + 1, metadata_hash))

    def _assign(self, draft: StateDraft, view: TopicsImage) -> None:
        state = draft.state
        names = {member_id: state.topics_of(member) for member_id, member in state.metadata_by_member.items()}
        ids = {topics: frozenset(view.sizes(topics)) for topics in set(names.values())}
        claims = {
            member_id: MemberSubscription(ids[names[member_id]], state.target(member_id), member.instance_id)
            for member_id, member in state.metadata_by_member.items()
        }
        assign = ASSIGNORS[self._preferred_assignor(state)]
        assignment = assign(claims, view.sizes(state.subscribed_topics()))
        for member_id, partitions in assignment.items():
            if partitions != state.target(member_id):
                draft.add(TargetAssignmentSet(member_id, frozenset(partitions)))
        draft.add(TargetAssignmentEpochSet(draft.state.epoch))

    def _preferred_assignor(self, state: ConsumerGroupState) -> str:
        """Return the assignor that most members select; of equals, the one that the broker lists first."""
        votes = Counter(member_metadata.assignor for member_metadata in state.metadata_by_member.values())
        return max(self.config.assignors, key=lambda name: votes[name])

    def _reconcile(
        self, draft: StateDraft, member_id: str, owned: Collection[TopicIdPartition] | None
    ) -> CurrentAssignment:
        state = draft.state
        target = state.target(member_id)
        held_by_others = [partition for partition in target if state.owners.get(partition, member_id) != member_id]
        before = state.current_assignment(member_id)
        after = reconcile_assignment(before, state.target_epoch, target, owned, held_by_others)
        if after != before:
            draft.add(CurrentAssignmentSet(member_id, after))
        return after

    def _remove_member(self, draft: StateDraft, member_ids: Iterable[str], view: TopicsImage) -> None:
        for member_id in member_ids:
            _end_member(draft, member_id)
        self._follow_topics(draft, view, is_bumped=True)

    # Checks

    def ensure_instance(self, instance_id: str, member_id: str) -> None:
        present_id = self.state.instances.get(instance_id)
        if present_id is None:
            raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
        if present_id != member_id:
            raise FencedInstanceId(
                f"Static member {member_id} with instance id {instance_id} was fenced by member {present_id}."
            )

    def _current_assignment(self, member_id: str) -> CurrentAssignment:
        if member_id not in self.state.metadata_by_member:
            raise self._unknown_member(member_id)
        return self.state.current_assignment(member_id)

    def _unknown_member(self, member_id: str) -> UnknownMemberId:
        return UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")

    def _stale_epoch_error(self, member_id: str, member_epoch: int, current: CurrentAssignment) -> HeadraceError:
        error = StaleMemberEpoch if self.state.metadata_by_member[member_id].classic is None else IllegalGeneration
        return error(f"member {member_id} is at epoch {current.epoch}, not at {member_epoch}")

    # Deadlines

    def _set_session(self, member_id: str, now_ms: int) -> None:
        if member_id not in self.state.metadata_by_member:
            self.deadlines.forget(member_id)
            return
        if member_id not in self.deadlines.sessions:
            self.renew_session(member_id, now_ms)
        if self.state.metadata_by_member[member_id].classic is None:
            self.deadlines.joins.pop(member_id, None)
            self.deadlines.syncs.pop(member_id, None)

    def _set_revocation(self, member_id: str, now_ms: int) -> None:
        member_metadata = self.state.metadata_by_member.get(member_id)
        if member_metadata is not None and self.state.current_assignment(member_id).revoking:
            self.deadlines.revocations[member_id] = now_ms + member_metadata.rebalance_timeout_ms
        else:
            self.deadlines.revocations.pop(member_id, None)


def _end_member(draft: StateDraft, member_id: str) -> None:
    """In the order in which Kafka removes a member."""
    draft.add(CurrentAssignmentSet(member_id, None))
    draft.add(TargetAssignmentSet(member_id, None))
    draft.add(MemberMetadataSet(member_id, None))
