"""The members of one share group (KIP-932), and which partitions each of them reads.

A partition may be read by several members, so nobody waits until another has given up something: a member reports by
heartbeat, and the answer tells what it reads from now on. Who holds which message is not decided here, but where the
partition is led.

`heartbeat`, `leave` and `tick` are questions: they return events and change nothing. `apply` changes and cannot fail.
What is stored is the group's epoch and who its members are; assignments follow from that, and after a restart they are
made anew. A member's epoch is that of the group when it was last told its assignment: with the one before it is let in
too, since the answer may have been lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from headrace.machines.assignors import Claim, TopicPartition
from headrace.machines.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from headrace.machines.consumer_group_topics import TopicView
from headrace.machines.share_assignor import assign_shares
from headrace.model.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    GroupNotEmpty,
    InvalidRequest,
    UnknownMemberId,
)

SHARE_ASSIGNOR = "simple"
MEMBERS_MAX = 1000


class ShareGroupPhase(StrEnum):
    """The values are what ShareGroupDescribe and ListGroups say."""

    EMPTY = "Empty"
    STABLE = "Stable"


class ShareHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """None says that it is as it was."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""


class ShareAnswer(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: frozenset[TopicPartition] | None = None
    """None: as it was."""


class ShareProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Who a member is and what it wants."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()

    def updated(self, beat: ShareHeartbeat) -> ShareProfile:
        return replace(
            self,
            rack_id=self.rack_id if beat.rack_id is None else beat.rack_id,
            client_id=beat.client_id,
            client_host=beat.client_host,
            topics=self.topics if beat.topics is None else beat.topics,
        )


class ShareEpochSet(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int
    """Of the topics that the group subscribes to: when it differs, they have changed."""


class ShareProfileSet(msgspec.Struct, frozen=True):
    """None: the member is gone."""

    member_id: str
    profile: ShareProfile | None


ShareGroupEvent = ShareEpochSet | ShareProfileSet


class ShareTiming(msgspec.Struct, frozen=True):
    """Of the group's configuration, as it is now."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class ShareMember:
    """What is known of a member besides its profile; nothing of it is stored."""

    __slots__ = ("assigned", "deadline_ms", "epoch", "previous_epoch", "told")

    def __init__(self, epoch: int, deadline_ms: int) -> None:
        self.epoch = epoch
        self.previous_epoch = 0
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.told: frozenset[TopicPartition] | None = None
        self.deadline_ms = deadline_ms


class ShareGroup:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.profiles: dict[str, ShareProfile] = {}
        self.members: dict[str, ShareMember] = {}
        self._metadata_hash = 0
        self._assigned_epoch = 0
        self._settled_view: TopicView | None = None  # one of which is known that it changes nothing: not asked again

    def restored(self, timing: ShareTiming, now_ms: int) -> ShareGroup:
        """All that was stored is applied: members go on with their epochs, and have whole sessions to report."""
        for member_id in self.profiles:
            self.members[member_id] = ShareMember(self.epoch, now_ms + timing.session_timeout_ms)
        return self

    @property
    def phase(self) -> ShareGroupPhase:
        return ShareGroupPhase.STABLE if self.profiles else ShareGroupPhase.EMPTY

    def ensure_vacant(self) -> None:
        if self.profiles:
            raise GroupNotEmpty(f"group {self.group_id} has members")

    # Heartbeats

    def heartbeat(self, beat: ShareHeartbeat, view: TopicView) -> list[ShareGroupEvent]:
        """A member joins (epoch 0) or reports. Raises what it is to be told if it may not."""
        self._admit(beat)
        profile = self.profiles.get(beat.member_id)
        updated = (profile or ShareProfile()).updated(beat)
        events: list[ShareGroupEvent] = []
        if updated != profile:
            events.append(ShareProfileSet(beat.member_id, updated))
        if events or view is not self._settled_view:
            is_other = profile is None or updated.topics != profile.topics
            events += self._follow_topics({**self.profiles, beat.member_id: updated}, view, is_bumped=is_other)
        return events

    def leave(self, beat: ShareHeartbeat, view: TopicView) -> list[ShareGroupEvent]:
        if beat.member_id not in self.profiles:
            raise self._unknown(beat.member_id)
        return self._without([beat.member_id], view)

    def apply(self, events: Iterable[ShareGroupEvent]) -> None:
        for event in events:
            if isinstance(event, ShareEpochSet):
                self.epoch, self._metadata_hash = event.epoch, event.metadata_hash
            elif event.profile is not None:
                self.profiles[event.member_id] = event.profile
            else:
                self.profiles.pop(event.member_id, None)
                self.members.pop(event.member_id, None)

    def report(self, beat: ShareHeartbeat, view: TopicView, timing: ShareTiming, now_ms: int) -> ShareAnswer:
        """The member has been heard of, and what follows of that is applied: tell it what it reads."""
        member = self.members.get(beat.member_id)
        if member is None:
            member = self.members[beat.member_id] = ShareMember(0, 0)
        member.deadline_ms = now_ms + timing.session_timeout_ms
        if self._assigned_epoch < self.epoch:
            self._assign(view)
        self._settled_view = view
        if member.epoch < self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        is_told = beat.member_epoch < member.epoch or member.told != member.assigned
        member.told = member.assigned
        return ShareAnswer(
            member_id=beat.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=timing.heartbeat_interval_ms,
            assigned=member.assigned if is_told else None,
        )

    # Time

    def deadline(self) -> int | None:
        """When `tick` is due. It comes nearer only with a new member."""
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def tick(self, now_ms: int, view: TopicView) -> list[ShareGroupEvent]:
        """Those whose time is up are out."""
        late = [member_id for member_id, member in self.members.items() if member.deadline_ms <= now_ms]
        return self._without(late, view) if late else []

    # Deciding

    def _admit(self, beat: ShareHeartbeat) -> None:
        if beat.member_id not in self.profiles:
            if len(self.profiles) >= MEMBERS_MAX:
                raise GroupMaxSizeReached(f"The share group has reached its maximum capacity of {MEMBERS_MAX} members.")
            if beat.member_epoch != JOIN_EPOCH:
                raise self._unknown(beat.member_id)
            return
        member = self.members[beat.member_id]
        if beat.member_epoch != JOIN_EPOCH and not member.previous_epoch <= beat.member_epoch <= member.epoch:
            raise FencedMemberEpoch(
                f"The share group member has epoch {beat.member_epoch}, and the group coordinator knows it at epoch "
                f"{member.epoch}. The member must abandon all its partitions and rejoin."
            )

    def _without(self, gone: Iterable[str], view: TopicView) -> list[ShareGroupEvent]:
        left = dict(self.profiles)
        events: list[ShareGroupEvent] = []
        for member_id in gone:
            del left[member_id]
            events.append(ShareProfileSet(member_id, None))
        return [*events, *self._follow_topics(left, view, is_bumped=True)]

    def _follow_topics(
        self, profiles: dict[str, ShareProfile], view: TopicView, *, is_bumped: bool
    ) -> list[ShareGroupEvent]:
        """Move the epoch if what the group subscribes to is not what it was."""
        metadata_hash = view.hash_of(_subscribed(profiles.values()))
        if is_bumped or metadata_hash != self._metadata_hash:
            return [ShareEpochSet(self.epoch + 1, metadata_hash)]
        return []

    def _assign(self, view: TopicView) -> None:
        ids = {topics: frozenset(view.sizes(topics)) for topics in {one.topics for one in self.profiles.values()}}
        claims = {
            member_id: Claim(ids[profile.topics], self.members[member_id].assigned)
            for member_id, profile in self.profiles.items()
        }
        for member_id, partitions in assign_shares(claims, view.sizes(_subscribed(self.profiles.values()))).items():
            self.members[member_id].assigned = frozenset(partitions)
        self._assigned_epoch = self.epoch

    def _unknown(self, member_id: str) -> UnknownMemberId:
        return UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")


def check_share_heartbeat(beat: ShareHeartbeat) -> None:
    """Raise what is wrong with the request whatever the group is like; in Kafka's order and words."""
    for value, name in ((beat.member_id, "MemberId"), (beat.group_id, "GroupId"), (beat.rack_id, "RackId")):
        if value is not None and not value.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if beat.member_epoch == JOIN_EPOCH and not beat.topics:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if beat.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")


def _subscribed(profiles: Iterable[ShareProfile]) -> set[str]:
    return set().union(*(profile.topics for profile in profiles))
