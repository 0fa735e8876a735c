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

from headrace.machines.groups.assignors import MemberSubscription, TopicIdPartition
from headrace.machines.groups.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from headrace.machines.groups.group_topics import TopicsImage
from headrace.machines.share_groups.share_assignor import assign_share_partitions
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


class ShareHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: frozenset[TopicIdPartition] | None = None
    """None: as it was."""


class ShareMemberMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Who a member is and what it wants."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()

    def updated(self, heartbeat_request: ShareHeartbeat) -> ShareMemberMetadata:
        return replace(
            self,
            rack_id=self.rack_id if heartbeat_request.rack_id is None else heartbeat_request.rack_id,
            client_id=heartbeat_request.client_id,
            client_host=heartbeat_request.client_host,
            topics=self.topics if heartbeat_request.topics is None else heartbeat_request.topics,
        )


class ShareGroupEpochSet(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int
    """Of the topics that the group subscribes to: when it differs, they have changed."""


class ShareMemberMetadataSet(msgspec.Struct, frozen=True):
    """None: the member is gone."""

    member_id: str
    member_metadata: ShareMemberMetadata | None


ShareGroupEvent = ShareGroupEpochSet | ShareMemberMetadataSet


class ShareSessionConfig(msgspec.Struct, frozen=True):
    """Of the group's configuration, as it is now."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class ShareMember:
    """What is known of a member besides its profile; nothing of it is stored."""

    __slots__ = ("assigned", "deadline_ms", "epoch", "previous_epoch", "told")

    def __init__(self, epoch: int, deadline_ms: int) -> None:
        self.epoch = epoch
        self.previous_epoch = 0
        self.assigned: frozenset[TopicIdPartition] = frozenset()
        self.told: frozenset[TopicIdPartition] | None = None
        self.deadline_ms = deadline_ms


class ShareGroup:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_by_member: dict[str, ShareMemberMetadata] = {}
        self.members: dict[str, ShareMember] = {}
        self._metadata_hash = 0
        self._assigned_epoch = 0
        self._assigned_image: TopicsImage | None = (
            None  # one of which is known that it changes nothing: not asked again
        )

    def restored(self, timing: ShareSessionConfig, now_ms: int) -> ShareGroup:
        """All that was stored is applied: members go on with their epochs, and have whole sessions to report."""
        for member_id in self.metadata_by_member:
            self.members[member_id] = ShareMember(self.epoch, now_ms + timing.session_timeout_ms)
        return self

    @property
    def phase(self) -> ShareGroupPhase:
        return ShareGroupPhase.STABLE if self.metadata_by_member else ShareGroupPhase.EMPTY

    def ensure_no_members(self) -> None:
        if self.metadata_by_member:
            raise GroupNotEmpty(f"group {self.group_id} has members")

    # Heartbeats

    def heartbeat(self, heartbeat_request: ShareHeartbeat, view: TopicsImage) -> list[ShareGroupEvent]:
        """A member joins (epoch 0) or reports. Raises what it is to be told if it may not."""
        self._admit(heartbeat_request)
        member_metadata = self.metadata_by_member.get(heartbeat_request.member_id)
        updated = (member_metadata or ShareMemberMetadata()).updated(heartbeat_request)
        events: list[ShareGroupEvent] = []
        if updated != member_metadata:
            events.append(ShareMemberMetadataSet(heartbeat_request.member_id, updated))
        if events or view is not self._assigned_image:
            is_other = member_metadata is None or updated.topics != member_metadata.topics
            events += self._follow_topics(
                {**self.metadata_by_member, heartbeat_request.member_id: updated}, view, is_bumped=is_other
            )
        return events

    def leave(self, heartbeat_request: ShareHeartbeat, view: TopicsImage) -> list[ShareGroupEvent]:
        if heartbeat_request.member_id not in self.metadata_by_member:
            raise self._unknown_member(heartbeat_request.member_id)
        return self._without([heartbeat_request.member_id], view)

    def apply(self, events: Iterable[ShareGroupEvent]) -> None:
        for event in events:
            if isinstance(event, ShareGroupEpochSet):
                self.epoch, self._metadata_hash = event.epoch, event.metadata_hash
            elif event.member_metadata is not None:
                self.metadata_by_member[event.member_id] = event.member_metadata
            else:
                self.metadata_by_member.pop(event.member_id, None)
                self.members.pop(event.member_id, None)

    def report(
        self, heartbeat_request: ShareHeartbeat, view: TopicsImage, timing: ShareSessionConfig, now_ms: int
    ) -> ShareHeartbeatResult:
        """The member has been heard of, and what follows of that is applied: tell it what it reads."""
        member = self.members.get(heartbeat_request.member_id)
        if member is None:
            member = self.members[heartbeat_request.member_id] = ShareMember(0, 0)
        member.deadline_ms = now_ms + timing.session_timeout_ms
        if self._assigned_epoch < self.epoch:
            self._assign(view)
        self._assigned_image = view
        if member.epoch < self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        is_told = heartbeat_request.member_epoch < member.epoch or member.told != member.assigned
        member.told = member.assigned
        return ShareHeartbeatResult(
            member_id=heartbeat_request.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=timing.heartbeat_interval_ms,
            assigned=member.assigned if is_told else None,
        )

    # Time

    def deadline(self) -> int | None:
        """When `tick` is due. It comes nearer only with a new member."""
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def tick(self, now_ms: int, view: TopicsImage) -> list[ShareGroupEvent]:
        """Those whose time is up are out."""
        late = [member_id for member_id, member in self.members.items() if member.deadline_ms <= now_ms]
        return self._without(late, view) if late else []

    # Deciding

    def _admit(self, heartbeat_request: ShareHeartbeat) -> None:
        if heartbeat_request.member_id not in self.metadata_by_member:
            if len(self.metadata_by_member) >= MEMBERS_MAX:
                raise GroupMaxSizeReached(f"The share group has reached its maximum capacity of {MEMBERS_MAX} members.")
            if heartbeat_request.member_epoch != JOIN_EPOCH:
                raise self._unknown_member(heartbeat_request.member_id)
            return
        member = self.members[heartbeat_request.member_id]
        if (
            heartbeat_request.member_epoch != JOIN_EPOCH
            and not member.previous_epoch <= heartbeat_request.member_epoch <= member.epoch
        ):
            raise FencedMemberEpoch(
                f"The share group member has epoch {heartbeat_request.member_epoch}, and the group coordinator knows "
                f"it at epoch {member.epoch}. The member must abandon all its partitions and rejoin."
            )

    def _without(self, gone: Iterable[str], view: TopicsImage) -> list[ShareGroupEvent]:
        left = dict(self.metadata_by_member)
        events: list[ShareGroupEvent] = []
        for member_id in gone:
            del left[member_id]
            events.append(ShareMemberMetadataSet(member_id, None))
        return [*events, *self._follow_topics(left, view, is_bumped=True)]

    def _follow_topics(
        self, metadata_by_member: dict[str, ShareMemberMetadata], view: TopicsImage, *, is_bumped: bool
    ) -> list[ShareGroupEvent]:
        """Move the epoch if what the group subscribes to is not what it was."""
        metadata_hash = view.hash_of(_subscribed(metadata_by_member.values()))
        if is_bumped or metadata_hash != self._metadata_hash:
            return [ShareGroupEpochSet(self.epoch + 1, metadata_hash)]
        return []

    def _assign(self, view: TopicsImage) -> None:
        ids = {
            topics: frozenset(view.sizes(topics)) for topics in {one.topics for one in self.metadata_by_member.values()}
        }
        claims = {
            member_id: MemberSubscription(ids[member_metadata.topics], self.members[member_id].assigned)
            for member_id, member_metadata in self.metadata_by_member.items()
        }
        for member_id, partitions in assign_share_partitions(
            claims, view.sizes(_subscribed(self.metadata_by_member.values()))
        ).items():
            self.members[member_id].assigned = frozenset(partitions)
        self._assigned_epoch = self.epoch

    def _unknown_member(self, member_id: str) -> UnknownMemberId:
        return UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")


def check_share_heartbeat(heartbeat_request: ShareHeartbeat) -> None:
    """Raise what is wrong with the request whatever the group is like; in Kafka's order and words."""
    for value, name in (
        (heartbeat_request.member_id, "MemberId"),
        (heartbeat_request.group_id, "GroupId"),
        (heartbeat_request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if heartbeat_request.member_epoch == JOIN_EPOCH and not heartbeat_request.topics:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if heartbeat_request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")


def _subscribed(metadata_by_member: Iterable[ShareMemberMetadata]) -> set[str]:
    return set().union(*(member_metadata.topics for member_metadata in metadata_by_member))
