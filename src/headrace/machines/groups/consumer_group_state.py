"""The state of a group of the consumer protocol (KIP-848), its events, and the deadlines of its members.

- The state is exactly what `__consumer_offsets` stores. One event is one record. `ConsumerGroupState.apply` changes the
  state and cannot fail.
- Applying the records of the log, whole or compacted, restores the same state: the last record of a key wins. Owners
  and instances are derived.
- The group epoch grows when members or topics change. The target assignment follows the group epoch, and each member
  follows the target assignment at its own pace. The member epoch shows how far it is:

    STABLE --new target--> UNREVOKED_PARTITIONS --revoked everything it must--> STABLE
       |                            |                                             ^
       '--nothing to revoke---------+--other members still own some partitions--> UNRELEASED_PARTITIONS
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.group_state import Protocols

V = TypeVar("V")


class MemberState(IntEnum):
    """The numbers are Kafka's, as stored in its log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ConsumerGroupPhase(StrEnum):
    """The values appear in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ClassicProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The last JoinGroup of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols
    """Never empty; each contains the member's subscription."""


class MemberMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and the subscription of a member."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProfile | None = None
    """None: the member uses the consumer protocol."""


class CurrentAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The member's progress, and the partitions it holds, each with the epoch since which it holds it. It holds
    partitions to revoke until it reports that it has revoked them."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = msgspec.field(default_factory=dict)
    revoking: Mapping[TopicIdPartition, int] = msgspec.field(default_factory=dict)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def held_since(self, partition: TopicIdPartition) -> int | None:
        since = self.assigned.get(partition)
        return self.revoking.get(partition) if since is None else since


EMPTY_ASSIGNMENT = CurrentAssignment()


class GroupEpochSet(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int
    """A hash of the subscribed topics: if it differs, they have changed."""


class TargetAssignmentEpochSet(msgspec.Struct, frozen=True):
    epoch: int


class MemberMetadataSet(msgspec.Struct, frozen=True):
    member_id: str
    member_metadata: MemberMetadata | None


class TargetAssignmentSet(msgspec.Struct, frozen=True):
    member_id: str
    partitions: frozenset[TopicIdPartition] | None


class CurrentAssignmentSet(msgspec.Struct, frozen=True):
    member_id: str
    current_assignment: CurrentAssignment | None


class RegularExpressionResolved(msgspec.Struct, frozen=True):
    regex: str
    topics: frozenset[str] | None


ConsumerGroupEvent = (
    GroupEpochSet
    | TargetAssignmentEpochSet
    | MemberMetadataSet
    | TargetAssignmentSet
    | CurrentAssignmentSet
    | RegularExpressionResolved
)
"""A field that is None stands for a tombstone."""


class ConsumerGroupState:
    def __init__(self) -> None:
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.metadata_by_member: dict[str, MemberMetadata] = {}
        self.targets: dict[str, frozenset[TopicIdPartition]] = {}
        self.current_assignments: dict[str, CurrentAssignment] = {}
        self.resolved: dict[str, frozenset[str]] = {}
        self.owners: dict[TopicIdPartition, str] = {}
        self.instances: dict[str, str] = {}

    def copy(self) -> ConsumerGroupState:
        twin = ConsumerGroupState()
        twin.epoch, twin.metadata_hash, twin.target_epoch = self.epoch, self.metadata_hash, self.target_epoch
        twin.metadata_by_member, twin.targets = dict(self.metadata_by_member), dict(self.targets)
        twin.current_assignments, twin.resolved = dict(self.current_assignments), dict(self.resolved)
        twin.owners, twin.instances = dict(self.owners), dict(self.instances)
        return twin

    def apply(self, event: ConsumerGroupEvent) -> None:
        match event:
            case GroupEpochSet():
                self.epoch, self.metadata_hash = event.epoch, event.metadata_hash
            case TargetAssignmentEpochSet():
                self.target_epoch = event.epoch
            case MemberMetadataSet():
                self._set_member_metadata(event.member_id, event.member_metadata)
            case TargetAssignmentSet():
                _set_or_remove(self.targets, event.member_id, event.partitions)
            case CurrentAssignmentSet():
                self._set_current_assignment(event.member_id, event.current_assignment)
            case RegularExpressionResolved():
                _set_or_remove(self.resolved, event.regex, event.topics)

    @property
    def phase(self) -> ConsumerGroupPhase:
        if not self.metadata_by_member:
            return ConsumerGroupPhase.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupPhase.ASSIGNING
        current_assignments = map(self.current_assignment, self.metadata_by_member)
        is_stable = all(current.is_reconciled(self.target_epoch) for current in current_assignments)
        return ConsumerGroupPhase.STABLE if is_stable else ConsumerGroupPhase.RECONCILING

    def current_assignment(self, member_id: str) -> CurrentAssignment:
        return self.current_assignments.get(member_id, EMPTY_ASSIGNMENT)

    def target(self, member_id: str) -> frozenset[TopicIdPartition]:
        return self.targets.get(member_id, frozenset())

    def topics_of(self, member_metadata: MemberMetadata) -> frozenset[str]:
        """The names of the subscribed topics, including those that do not exist."""
        return member_metadata.topics | self.resolved.get(member_metadata.regex, frozenset())

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*map(self.topics_of, self.metadata_by_member.values()))

    def regexes(self) -> set[str]:
        return {member_metadata.regex for member_metadata in self.metadata_by_member.values() if member_metadata.regex}

    def _set_member_metadata(self, member_id: str, member_metadata: MemberMetadata | None) -> None:
        replaced_member = self.metadata_by_member.get(member_id)
        instance_id = None if replaced_member is None else replaced_member.instance_id
        if instance_id is not None and self.instances.get(instance_id) == member_id:
            del self.instances[instance_id]
        _set_or_remove(self.metadata_by_member, member_id, member_metadata)
        if member_metadata is not None and member_metadata.instance_id is not None:
            self.instances[member_metadata.instance_id] = member_id

    def _set_current_assignment(self, member_id: str, current_assignment: CurrentAssignment | None) -> None:
        replaced_member = self.current_assignment(member_id)
        for partition in (*replaced_member.assigned, *replaced_member.revoking):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        _set_or_remove(self.current_assignments, member_id, current_assignment)
        if current_assignment is not None:
            self.owners.update(dict.fromkeys((*current_assignment.assigned, *current_assignment.revoking), member_id))


def partitions_by_topic_id(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """Sorted, so the same partitions always have the same representation."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics


def _set_or_remove(values: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


class MemberDeadlines:
    """When a member is removed from its group: it sends no heartbeat (session), or does not revoke partitions in time
    (revocation), or, with the classic protocol, sends no JoinGroup in a rebalance (join) or no SyncGroup after its
    JoinGroup response (sync)."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.revocations: dict[str, int] = {}
        self.joins: dict[str, int] = {}
        self.syncs: dict[str, int] = {}

    def earliest(self) -> int | None:
        return min((deadline_ms for kind in self._kinds() for deadline_ms in kind.values()), default=None)

    def late(self, now_ms: int) -> list[str]:
        late = (id_ for kind in self._kinds() for id_, deadline_ms in kind.items() if deadline_ms <= now_ms)
        return list(dict.fromkeys(late))

    def forget(self, member_id: str) -> None:
        for kind in self._kinds():
            kind.pop(member_id, None)

    def _kinds(self) -> tuple[dict[str, int], ...]:
        return self.sessions, self.revocations, self.joins, self.syncs
