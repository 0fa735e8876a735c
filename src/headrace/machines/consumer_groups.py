"""One consumer group of the newer protocol (KIP-848): the coordinator assigns, and each member follows at its own pace.

Nobody waits for anybody: a member tells in its heartbeat what it wants and what it owns, and is told in the answer what
it may own now. `heartbeat`, `leave` and `tick` are questions: they return events and change nothing. `apply` changes
and cannot fail. Time is an argument; `tick` is due once `deadline` has come. What happens to one member is decided in
`consumer_group_reconciliation`, what is remembered stands in `consumer_group_state`.

A member that misses its session, or does not give up in time what it was told to, is out: its partitions are free, and
when it comes back with an epoch of its own it is refused (I18).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from headrace.machines.assignors import ASSIGNORS, Claim, TopicPartition
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
        self._sessions: dict[str, int] = {}
        self._revocations: dict[str, int] = {}
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
        self._ensure_room(beat)
        draft = Draft(self.state)
        before = self._admit(draft, beat)
        profile = draft.state.profiles.get(beat.member_id) or Profile()
        updated = beat.updated(profile)
        has_changed = (updated.topics, updated.regex) != (profile.topics, profile.regex)
        if updated.regex != profile.regex:
            compiled(updated.regex)
        if beat.member_id not in draft.state.profiles or updated != profile:
            draft.add(ProfileSet(beat.member_id, updated))
        if draft.events or view is not self._settled_view:
            self._follow_topics(draft, view, is_bumped=has_changed or not draft.state.epoch)
        if draft.state.epoch > draft.state.target_epoch:
            self._assign(draft, view)
        after = self._reconcile(draft, beat)
        if not draft.events:
            self._settled_view = view
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
            self._ensure_instance(beat)
        elif member_id not in self.state.profiles:
            raise self._unknown(member_id)
        draft = Draft(self.state)
        if beat.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(self.state.holding(member_id), epoch=STATIC_LEAVE_EPOCH, revoking={})
            draft.add(HoldingSet(member_id, away))
        else:
            assert beat.member_epoch == LEAVE_EPOCH
            self._fence(draft, [member_id], view)
        return Decision(tuple(draft.events), HeartbeatAnswer(member_id=member_id, member_epoch=beat.member_epoch))

    def apply(self, events: Iterable[ConsumerGroupEvent], now_ms: int) -> None:
        for event in events:
            self.state.apply(event)
            if isinstance(event, HoldingSet):
                self._set_revocation(event.member_id, now_ms)
            elif isinstance(event, ProfileSet):
                self._set_session(event.member_id, now_ms)

    def renew_session(self, member_id: str, now_ms: int) -> None:
        """The member has been heard of."""
        self._sessions[member_id] = now_ms + self.config.session_timeout_ms

    # Time

    def deadline(self) -> int | None:
        """When `tick` is due. It comes nearer only by `apply`, or as near as the session of another `config`."""
        return min((*self._sessions.values(), *self._revocations.values()), default=None)

    def tick(self, now_ms: int, view: TopicView) -> list[ConsumerGroupEvent]:
        """Those whose time is up are out."""
        deadlines = [*self._sessions.items(), *self._revocations.items()]
        late = dict.fromkeys(member_id for member_id, deadline_ms in deadlines if deadline_ms <= now_ms)
        draft = Draft(self.state)
        if late:
            self._fence(draft, late, view)
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
        if member_epoch < holding.epoch and partitions is not None:
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

    def _ensure_room(self, beat: Heartbeat) -> None:
        if len(self.state.profiles) >= self.config.max_size and beat.member_id not in self.state.profiles:
            raise GroupMaxSizeReached(
                f"The consumer group has reached its maximum capacity of {self.config.max_size} members."
            )

    def _admit(self, draft: Draft, beat: Heartbeat) -> Holding:
        """Return what the member holds, or raise why it is not let in."""
        if beat.instance_id is not None and beat.member_epoch == JOIN_EPOCH:
            self._replace_instance(draft, beat)
        elif beat.instance_id is not None:
            self._ensure_instance(beat)
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

    def _replace_instance(self, draft: Draft, beat: Heartbeat) -> None:
        """A static member that comes back under a new member id takes over what it left."""
        assert beat.instance_id is not None
        former_id = self.state.instances.get(beat.instance_id)
        if former_id is None or former_id == beat.member_id:
            return
        former = self.state.holding(former_id)
        if former.epoch != STATIC_LEAVE_EPOCH:
            raise UnreleasedInstanceId(
                f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join the group because the "
                f"instance id is owned by {former_id} member."
            )
        profile, target = self.state.profiles[former_id], self.state.target(former_id)
        _remove(draft, former_id)
        draft.add(ProfileSet(beat.member_id, profile))
        draft.add(TargetSet(beat.member_id, target))
        draft.add(HoldingSet(beat.member_id, replace(former, epoch=0, previous_epoch=0)))

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

    def _reconcile(self, draft: Draft, beat: Heartbeat) -> Holding:
        state, member_id = draft.state, beat.member_id
        target = state.target(member_id)
        held_by_others = [partition for partition in target if state.owners.get(partition, member_id) != member_id]
        before = state.holding(member_id)
        after = reconciled(before, state.target_epoch, target, beat.owned, held_by_others)
        if after != before:
            draft.add(HoldingSet(member_id, after))
        return after

    def _fence(self, draft: Draft, member_ids: Iterable[str], view: TopicView) -> None:
        for member_id in member_ids:
            _remove(draft, member_id)
        self._follow_topics(draft, view, is_bumped=True)

    # Checks

    def _ensure_instance(self, beat: Heartbeat) -> None:
        assert beat.instance_id is not None
        member_id = self.state.instances.get(beat.instance_id)
        if member_id is None:
            raise UnknownMemberId(f"Instance id {beat.instance_id} is unknown.")
        if member_id != beat.member_id:
            raise FencedInstanceId(
                f"Static member {beat.member_id} with instance id {beat.instance_id} was fenced by member {member_id}."
            )

    def _holding(self, member_id: str) -> Holding:
        if member_id not in self.state.profiles:
            raise self._unknown(member_id)
        return self.state.holding(member_id)

    def _unknown(self, member_id: str) -> UnknownMemberId:
        return UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")

    def _stale(self, member_id: str, member_epoch: int, holding: Holding) -> StaleMemberEpoch:
        return StaleMemberEpoch(f"member {member_id} is at epoch {holding.epoch}, not at {member_epoch}")

    # Deadlines

    def _set_session(self, member_id: str, now_ms: int) -> None:
        if member_id not in self.state.profiles:
            self._sessions.pop(member_id, None)
        elif member_id not in self._sessions:
            self.renew_session(member_id, now_ms)

    def _set_revocation(self, member_id: str, now_ms: int) -> None:
        profile = self.state.profiles.get(member_id)
        if profile is not None and self.state.holding(member_id).revoking:
            self._revocations[member_id] = now_ms + profile.rebalance_timeout_ms
        else:
            self._revocations.pop(member_id, None)


def _remove(draft: Draft, member_id: str) -> None:
    """In the order in which Kafka removes a member."""
    draft.add(HoldingSet(member_id, None))
    draft.add(TargetSet(member_id, None))
    draft.add(ProfileSet(member_id, None))
