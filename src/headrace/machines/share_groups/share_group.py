"""The members of one share group (KIP-932), and the partitions that each of them reads.

- Several members may read a partition, so no member waits until another has released something: a member sends a
  heartbeat, and the response has its assignment. Leases of messages belong to the leaders of the partitions.
- `heartbeat`, `leave` and `tick` are questions: they return events and change nothing. `apply` changes the state and
  cannot fail.
- Only the group epoch and the members are stored; assignments are derived, and computed again after a restart.
- A member's epoch is the group epoch of the last assignment that it was sent. Its previous epoch is accepted as well,
  because the response may have been lost.
"""

from __future__ import annotations

from collections.abc import Iterable

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


class ShareHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """None means unchanged."""

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
    """None means unchanged."""


class ShareMemberMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The stored properties of a member."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()

    def updated(self, request: ShareHeartbeat) -> ShareMemberMetadata:
        return replace(
            self,
            rack_id=self.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topics=self.topics if request.topics is None else request.topics,
        )


class ShareGroupEpochSet(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int
    """Of the subscribed topics: a different hash means that they have changed."""


class ShareMemberMetadataSet(msgspec.Struct, frozen=True):
    """None means that the member has left."""

    member_id: str
    member_metadata: ShareMemberMetadata | None


ShareGroupEvent = ShareGroupEpochSet | ShareMemberMetadataSet


class ShareSessionConfig(msgspec.Struct, frozen=True):
    """The current session settings of the group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class ShareMember(msgspec.Struct):
    """The volatile state of a member."""

    epoch: int
    deadline_ms: int
    previous_epoch: int = 0
    assigned: frozenset[TopicIdPartition] = frozenset()
    reported: frozenset[TopicIdPartition] | None = None


class ShareGroup:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_by_member: dict[str, ShareMemberMetadata] = {}
        self.members: dict[str, ShareMember] = {}
        self._metadata_hash = 0
        self._assigned_epoch = 0
        self._assigned_image: TopicsImage | None = None  # known to change nothing

    def restored(self, timing: ShareSessionConfig, now_ms: int) -> ShareGroup:
        """Create the members after all stored events were applied: with their epochs and a full session timeout."""
        for member_id in self.metadata_by_member:
            self.members[member_id] = ShareMember(self.epoch, now_ms + timing.session_timeout_ms)
        return self

    @property
    def phase(self) -> str:
        """The state in ShareGroupDescribe and ListGroups."""
        return "Stable" if self.metadata_by_member else "Empty"

    def ensure_no_members(self) -> None:
        if self.metadata_by_member:
            raise GroupNotEmpty(f"group {self.group_id} has members")

    # Heartbeats

    def heartbeat(self, request: ShareHeartbeat, image: TopicsImage) -> list[ShareGroupEvent]:
        """Return the events of a member that joins (epoch 0) or reports; raise if it is fenced or unknown."""
        self._admit(request)
        member_metadata = self.metadata_by_member.get(request.member_id)
        updated = (member_metadata or ShareMemberMetadata()).updated(request)
        events: list[ShareGroupEvent] = []
        if updated != member_metadata:
            events.append(ShareMemberMetadataSet(request.member_id, updated))
        if events or image is not self._assigned_image:
            changes_topics = member_metadata is None or updated.topics != member_metadata.topics
            events += self._follow_topics(
                {**self.metadata_by_member, request.member_id: updated}, image, is_bumped=changes_topics
            )
        return events

    def leave(self, request: ShareHeartbeat, image: TopicsImage) -> list[ShareGroupEvent]:
        if request.member_id not in self.metadata_by_member:
            raise self._unknown_member(request.member_id)
        return self._without([request.member_id], image)

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
        self, request: ShareHeartbeat, image: TopicsImage, timing: ShareSessionConfig, now_ms: int
    ) -> ShareHeartbeatResult:
        """Extend the session of the member, after the events of its heartbeat were applied; return its assignment."""
        member = self.members.get(request.member_id)
        if member is None:
            member = self.members[request.member_id] = ShareMember(0, 0)
        member.deadline_ms = now_ms + timing.session_timeout_ms
        if self._assigned_epoch < self.epoch:
            self._assign(image)
        self._assigned_image = image
        if member.epoch < self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        reports_assignment = request.member_epoch < member.epoch or member.reported != member.assigned
        member.reported = member.assigned
        return ShareHeartbeatResult(
            member_id=request.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=timing.heartbeat_interval_ms,
            assigned=member.assigned if reports_assignment else None,
        )

    # Time

    def deadline(self) -> int | None:
        """Return when `tick` is due. Only a new member makes it earlier."""
        return min((member.deadline_ms for member in self.members.values()), default=None)

    def tick(self, now_ms: int, image: TopicsImage) -> list[ShareGroupEvent]:
        """Remove members whose session expired."""
        late = [member_id for member_id, member in self.members.items() if member.deadline_ms <= now_ms]
        return self._without(late, image) if late else []

    # Internal

    def _admit(self, request: ShareHeartbeat) -> None:
        if request.member_id not in self.metadata_by_member:
            if len(self.metadata_by_member) >= MEMBERS_MAX:
                raise GroupMaxSizeReached(f"The share group has reached its maximum capacity of {MEMBERS_MAX} members.")
            if request.member_epoch != JOIN_EPOCH:
                raise self._unknown_member(request.member_id)
            return
        member = self.members[request.member_id]
        if request.member_epoch != JOIN_EPOCH and not member.previous_epoch <= request.member_epoch <= member.epoch:
            raise FencedMemberEpoch(
                f"The share group member has epoch {request.member_epoch}, and the group coordinator knows it at "
                f"epoch {member.epoch}. The member must abandon all its partitions and rejoin."
            )

    def _without(self, gone: Iterable[str], image: TopicsImage) -> list[ShareGroupEvent]:
        left = dict(self.metadata_by_member)
        events: list[ShareGroupEvent] = []
        for member_id in gone:
            del left[member_id]
            events.append(ShareMemberMetadataSet(member_id, None))
        return events + self._follow_topics(left, image, is_bumped=True)

    def _follow_topics(
        self, metadata_by_member: dict[str, ShareMemberMetadata], image: TopicsImage, *, is_bumped: bool
    ) -> list[ShareGroupEvent]:
        """Increment the epoch if the subscribed topics have changed."""
        metadata_hash = image.hash_of(_subscribed(metadata_by_member.values()))
        if is_bumped or metadata_hash != self._metadata_hash:
            return [ShareGroupEpochSet(self.epoch + 1, metadata_hash)]
        return []

    def _assign(self, image: TopicsImage) -> None:
        ids = {
            topics: frozenset(image.sizes(topics))
            for topics in {metadata.topics for metadata in self.metadata_by_member.values()}
        }
        subscriptions = {
            member_id: MemberSubscription(ids[member_metadata.topics], self.members[member_id].assigned)
            for member_id, member_metadata in self.metadata_by_member.items()
        }
        for member_id, partitions in assign_share_partitions(
            subscriptions, image.sizes(_subscribed(self.metadata_by_member.values()))
        ).items():
            self.members[member_id].assigned = frozenset(partitions)
        self._assigned_epoch = self.epoch

    def _unknown_member(self, member_id: str) -> UnknownMemberId:
        return UnknownMemberId(f"Member {member_id} is not a member of group {self.group_id}.")


def check_share_heartbeat(request: ShareHeartbeat) -> None:
    """Validate a request independently of the group, with Kafka's order and texts."""
    names = {"MemberId": request.member_id, "GroupId": request.group_id, "RackId": request.rack_id}
    for name, value in names.items():
        if value is not None and not value.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.topics:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")


def _subscribed(metadata_by_member: Iterable[ShareMemberMetadata]) -> set[str]:
    return set().union(*(member_metadata.topics for member_metadata in metadata_by_member))
