"""One consumer group of the newer protocol (KIP-848): the coordinator assigns, and each member follows at its own pace.

Nobody waits for anybody: a member tells in its heartbeat what it wants and what it owns, and is told in the answer what
it may own now. `heartbeat`, `leave` and `remove` are questions: they return events and change nothing. `apply` changes
and cannot fail. Time is an argument; once `deadline` has come, `late_members` are to be removed. What happens to one
member is decided in `consumer_group_reconciliation`, what is remembered stands in `consumer_group_state`. Members that
use the classic protocol come in by `classic_members`.

A member that misses its session, or does not give up in time what it was told to, is out: its partitions are free, and
when it comes back with an epoch of its own it is refused (I18).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from headrace.machines.assignors import ASSIGNORS, Claim, TopicPartition
from headrace.machines.consumer_group_deadlines import MemberDeadlines
from headrace.machines.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Decision,
    Heartbeat,
    HeartbeatAnswer,
)
from headrace.machines.consumer_group_reconciliation import reconciled
from headrace.machines.consumer_group_state import (
    ConsumerGroupEvent,
    ConsumerGroupPhase,
    ConsumerGroupState,
    EpochSet,
    Holding,
    HoldingSet,
    Profile,
    ProfileSet,
    RegexResolved,
    TargetEpochSet,
    TargetSet,
)
from headrace.machines.consumer_group_topics import TopicView
from headrace.machines.group_effects import OffsetRetention
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
from headrace.model.patterns import compiled


class ConsumerGroupConfig(msgspec.Struct, frozen=True):
    """Kafka's `consumer.*` settings of a group and `group.consumer.*` of a broker, with Kafka's defaults."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first is for groups whose members ask for none."""


class Draft:
    """The state as it will be, and the events that make it so; the state itself stays as it is."""

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
        """May be another at any time: what it says of sessions holds for those that begin, or go on, from then on."""
        self.deadlines = MemberDeadlines()
        self._settled_view: TopicView | None = None  # one of which is known that it changes nothing: not asked again

    @classmethod
    def restore(
        cls, group_id: str, config: ConsumerGroupConfig, state: ConsumerGroupState, now_ms: int
    ) -> ConsumerGroup:
        """The group as it was stored: members go on with their epochs, and have whole sessions to report."""
        group = cls(group_id, config, state)
        for member_id in state.holdings.keys() - state.profiles.keys():
            state.apply(HoldingSet(member_id, None))
        for member_id in state.profiles:
            group._set_session(member_id, now_ms)
            group._set_revocation(member_id, now_ms)
        return group

    @property
    def phase(self) -> ConsumerGroupPhase:
        return self.state.phase

    @property
    def is_vacant(self) -> bool:
        return not self.state.profiles

    @property
    def assignor(self) -> str:
        return self._preferred_assignor(self.state)

    # Heartbeats

    def heartbeat(self, beat: Heartbeat, view: TopicView) -> Decision:
        """A member joins (epoch 0) or reports. Raises what it is to be told if it may not."""
        self.ensure_room(beat.member_id)
        draft = Draft(self.state)
        before = self._admit(draft, beat)
        profile = draft.state.profiles.get(beat.member_id) or Profile()
        after = self.advance(draft, beat.member_id, beat.updated(profile), beat.owned, view)
        is_told = beat.member_epoch == JOIN_EPOCH or beat.is_full or after.assigned.keys() != before.assigned.keys()
        answer = HeartbeatAnswer(
            member_id=beat.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self.config.heartbeat_interval_ms,
            assigned=frozenset(after.assigned) if is_told else None,
        )
        return Decision(tuple(draft.events), answer)

    def leave(self, beat: Heartbeat, view: TopicView) -> Decision:
        """A member leaves for good, or (static) for a while: then its partitions wait for it until its session ends."""
        member_id = beat.member_id
        if beat.instance_id is not None:
            self.ensure_instance(beat.instance_id, member_id)
        elif member_id not in self.state.profiles:
            raise self._unknown(member_id)
        draft = Draft(self.state)
        if beat.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(self.state.holding(member_id), epoch=STATIC_LEAVE_EPOCH, revoking={})
            draft.add(HoldingSet(member_id, away))
        else:
            assert beat.member_epoch == LEAVE_EPOCH
            self._remove(draft, [member_id], view)
        answer = HeartbeatAnswer(member_id=member_id, member_epoch=beat.member_epoch)
        removed = () if member_id in draft.state.profiles else (member_id,)
        return Decision(tuple(draft.events), answer, removed)

    def advance(
        self,
        draft: Draft,
        member_id: str,
        updated: Profile,
        owned: Collection[TopicPartition] | None,
        view: TopicView,
    ) -> Holding:
        """Take in what a member wants and owns now, assign anew if that or the topics have changed, and take the member
        one step towards its assignment."""
        profile = draft.state.profiles.get(member_id)
        former = profile or Profile()
        has_changed = (updated.topics, updated.regex) != (former.topics, former.regex)
        if updated.regex != former.regex:
            compiled(updated.regex)
        if updated != profile:
            draft.add(ProfileSet(member_id, updated))
        if draft.events or view is not self._settled_view:
            self._follow_topics(draft, view, is_bumped=has_changed or not draft.state.epoch)
        if draft.state.epoch > draft.state.target_epoch:
            self._assign(draft, view)
        after = self._reconcile(draft, member_id, owned)
        if not draft.events:
            self._settled_view = view
        return after

    def apply(self, events: Iterable[ConsumerGroupEvent], now_ms: int) -> None:
        for event in events:
            self.state.apply(event)
            if isinstance(event, HoldingSet):
                self._set_revocation(event.member_id, now_ms)
            elif isinstance(event, ProfileSet):
                self._set_session(event.member_id, now_ms)

    def renew_session(self, member_id: str, now_ms: int) -> None:
        """The member has been heard of."""
        classic = self.state.profiles[member_id].classic
        timeout_ms = self.config.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.deadlines.sessions[member_id] = now_ms + timeout_ms

    # Time

    def deadline(self) -> int | None:
        """When there are `late_members`. It comes nearer only by `apply`, by a classic member's request, or as near as
        the session of another `config`."""
        return self.deadlines.earliest()

    def late_members(self, now_ms: int) -> list[str]:
        return self.deadlines.late(now_ms)

    def remove(self, member_ids: Collection[str], view: TopicView) -> list[ConsumerGroupEvent]:
        draft = Draft(self.state)
        if member_ids:
            self._remove(draft, member_ids, view)
        return draft.events

    # Offsets

    def check_commit(
        self, member_id: str, member_epoch: int, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """May this caller commit offsets? A member that lags behind its epoch may for `partitions`, if they are known
        and it has held each of them since that epoch (KIP-1251)."""
        if member_epoch < 0 and self.is_vacant:
            return  # An administrator, or a consumer that assigns its partitions by itself.
        holding = self._holding(member_id)
        if member_epoch == holding.epoch:
            return
        may_lag = partitions is not None and self.state.profiles[member_id].classic is None
        if may_lag and member_epoch < holding.epoch:
            assert partitions is not None
            since = [holding.held_since(partition) for partition in partitions]
            if all(epoch is not None and epoch <= member_epoch for epoch in since):
                return
        raise self._stale(member_id, member_epoch, holding)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """May this caller see the group's offsets? Who does not say that it is a member may."""
        if member_id is None and member_epoch < 0:
            return
        holding = self._holding(member_id or "")
        if member_epoch != holding.epoch:
            raise self._stale(member_id or "", member_epoch, holding)

    def check_offset_delete(self) -> None:
        """Offsets may be deleted by hand; ask `is_subscribed_to`, topic by topic."""

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.state.subscribed_topics()

    def offset_retention(self) -> OffsetRetention:
        return OffsetRetention(None, self.state.subscribed_topics())

    def check_delete(self) -> None:
        if not self.is_vacant:
            raise GroupNotEmpty(f"group {self.group_id} has members")

    # Deciding

    def ensure_room(self, member_id: str) -> None:
        if len(self.state.profiles) >= self.config.max_size and member_id not in self.state.profiles:
            raise GroupMaxSizeReached(
                f"The consumer group has reached its maximum capacity of {self.config.max_size} members."
            )

    def _admit(self, draft: Draft, beat: Heartbeat) -> Holding:
        """Return what the member holds, or raise why it is not let in."""
        if beat.instance_id is not None and beat.member_epoch == JOIN_EPOCH:
            self.replace_instance(draft, beat.instance_id, beat.member_id, is_classic=False)
        elif beat.instance_id is not None:
            self.ensure_instance(beat.instance_id, beat.member_id)
        elif beat.member_epoch != JOIN_EPOCH and beat.member_id not in self.state.profiles:
            raise self._unknown(beat.member_id)
        holding = draft.state.holding(beat.member_id)
        if beat.member_epoch in (JOIN_EPOCH, holding.epoch):
            return holding
        # The answer that told it the newer epoch may have been lost; then it owns nothing that is not in there.
        has_lost_answer = holding.previous_epoch == beat.member_epoch < holding.epoch
        if has_lost_answer and beat.owned is not None and beat.owned <= holding.assigned.keys():
            return holding
        raise FencedMemberEpoch(
            f"The consumer group member has epoch {beat.member_epoch}, and the group coordinator knows it at epoch "
            f"{holding.epoch}. The member must abandon all its partitions and rejoin."
        )

    def replace_instance(self, draft: Draft, instance_id: str, member_id: str, *, is_classic: bool) -> None:
        """A static member that comes back under a new member id takes over what it left. If both its processes use the
        consumer protocol, the former one must have left: the classic protocol has no request for that."""
        former_id = self.state.instances.get(instance_id)
        if former_id is None or former_id == member_id:
            return
        former, profile = self.state.holding(former_id), self.state.profiles[former_id]
        if former.epoch != STATIC_LEAVE_EPOCH and not is_classic and profile.classic is None:
            raise UnreleasedInstanceId(
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {former_id} member."
            )
        target = self.state.target(former_id)
        _end_member(draft, former_id)
        draft.add(ProfileSet(member_id, profile))
        draft.add(TargetSet(member_id, target))
        draft.add(HoldingSet(member_id, replace(former, epoch=0, previous_epoch=0)))

    def _follow_topics(self, draft: Draft, view: TopicView, *, is_bumped: bool) -> None:
        """Move the epoch if what the group subscribes to is not what it was."""
        state = draft.state
        regexes = state.regexes()
        for regex in sorted(state.resolved.keys() - regexes):
            draft.add(RegexResolved(regex, None))
        for regex in sorted(regexes):
            topics = view.matching(regex)
            if topics != state.resolved.get(regex):
                draft.add(RegexResolved(regex, topics))
                is_bumped = True
        metadata_hash = view.hash_of(draft.state.subscribed_topics())
        if is_bumped or metadata_hash != draft.state.metadata_hash:
            draft.add(EpochSet(draft.state.epoch + 1, metadata_hash))

    def _assign(self, draft: Draft, view: TopicView) -> None:
        state = draft.state
        names = {member_id: state.topics_of(profile) for member_id, profile in state.profiles.items()}
        ids = {topics: frozenset(view.sizes(topics)) for topics in set(names.values())}
        claims = {
            member_id: Claim(ids[names[member_id]], state.target(member_id), profile.instance_id)
            for member_id, profile in state.profiles.items()
        }
        assign = ASSIGNORS[self._preferred_assignor(state)]
        assignment = assign(claims, view.sizes(state.subscribed_topics()))
        for member_id, partitions in assignment.items():
            if partitions != state.target(member_id):
                draft.add(TargetSet(member_id, frozenset(partitions)))
        draft.add(TargetEpochSet(draft.state.epoch))

    def _preferred_assignor(self, state: ConsumerGroupState) -> str:
        """The one that most members ask for; of equals the one that the broker names first."""
        votes = Counter(profile.assignor for profile in state.profiles.values())
        return max(self.config.assignors, key=lambda name: votes[name])

    def _reconcile(self, draft: Draft, member_id: str, owned: Collection[TopicPartition] | None) -> Holding:
        state = draft.state
        target = state.target(member_id)
        held_by_others = [partition for partition in target if state.owners.get(partition, member_id) != member_id]
        before = state.holding(member_id)
        after = reconciled(before, state.target_epoch, target, owned, held_by_others)
        if after != before:
            draft.add(HoldingSet(member_id, after))
        return after

    def _remove(self, draft: Draft, member_ids: Iterable[str], view: TopicView) -> None:
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

    def _holding(self, member_id: str) -> Holding:
        if member_id not in self.state.profiles:
            raise self._unknown(member_id)
        return self.state.holding(member_id)

    def _unknown(self, member_id: str) -> UnknownMemberId:
        return UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")

    def _stale(self, member_id: str, member_epoch: int, holding: Holding) -> HeadraceError:
        error = StaleMemberEpoch if self.state.profiles[member_id].classic is None else IllegalGeneration
        return error(f"member {member_id} is at epoch {holding.epoch}, not at {member_epoch}")

    # Deadlines

    def _set_session(self, member_id: str, now_ms: int) -> None:
        if member_id not in self.state.profiles:
            self.deadlines.forget(member_id)
            return
        if member_id not in self.deadlines.sessions:
            self.renew_session(member_id, now_ms)
        if self.state.profiles[member_id].classic is None:
            self.deadlines.joins.pop(member_id, None)
            self.deadlines.syncs.pop(member_id, None)

    def _set_revocation(self, member_id: str, now_ms: int) -> None:
        profile = self.state.profiles.get(member_id)
        if profile is not None and self.state.holding(member_id).revoking:
            self.deadlines.revocations[member_id] = now_ms + profile.rebalance_timeout_ms
        else:
            self.deadlines.revocations.pop(member_id, None)


def _end_member(draft: Draft, member_id: str) -> None:
    """In the order in which Kafka removes a member."""
    draft.add(HoldingSet(member_id, None))
    draft.add(TargetSet(member_id, None))
    draft.add(ProfileSet(member_id, None))
