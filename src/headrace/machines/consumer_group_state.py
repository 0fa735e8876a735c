"""What is known of a group of the newer protocol: exactly what `__consumer_offsets` keeps of it.

An event is one record; `ConsumerGroupState.apply` changes and cannot fail. Applying the records of the log, whole or
compacted, gives the same state again: the last one of a key wins. Everything else (owners, instances) follows from it.

The epoch of the group moves when members or topics do; the target assignment follows it, and each member follows the
target at its own pace, which its own epoch tells:

    STABLE --a newer target--> UNREVOKED_PARTITIONS --has given up what it must--> STABLE
       |                                   |                                         ^
       '--nothing to give up---------------+--some of the rest has an owner still--> UNRELEASED_PARTITIONS
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from headrace.machines.assignors import TopicPartition
from headrace.machines.group_effects import Protocols

V = TypeVar("V")


class MemberState(IntEnum):
    """The numbers are Kafka's, as its log has them."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class ConsumerGroupPhase(StrEnum):
    """The values are what ConsumerGroupDescribe and ListGroups say."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ClassicProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a member that uses the classic protocol sent with its last JoinGroup."""

    session_timeout_ms: int
    protocols: Protocols
    """Never empty; each holds the member's subscription."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Who a member is and what it wants."""

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


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """How far a member has got, and what it holds: by partition, since which epoch.

    What it was told to give up is its own until it says that it has.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)
    revoking: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def held_since(self, partition: TopicPartition) -> int | None:
        since = self.assigned.get(partition)
        return self.revoking.get(partition) if since is None else since


NOTHING_HELD = Holding()


class EpochSet(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int
    """Of the topics that the group subscribes to: when it differs, they have changed."""


class TargetEpochSet(msgspec.Struct, frozen=True):
    epoch: int


class ProfileSet(msgspec.Struct, frozen=True):
    member_id: str
    profile: Profile | None


class TargetSet(msgspec.Struct, frozen=True):
    member_id: str
    partitions: frozenset[TopicPartition] | None


class HoldingSet(msgspec.Struct, frozen=True):
    member_id: str
    holding: Holding | None


class RegexResolved(msgspec.Struct, frozen=True):
    regex: str
    topics: frozenset[str] | None


ConsumerGroupEvent = EpochSet | TargetEpochSet | ProfileSet | TargetSet | HoldingSet | RegexResolved
"""None in an event: a tombstone."""


class ConsumerGroupState:
    def __init__(self) -> None:
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.profiles: dict[str, Profile] = {}
        self.targets: dict[str, frozenset[TopicPartition]] = {}
        self.holdings: dict[str, Holding] = {}
        self.resolved: dict[str, frozenset[str]] = {}
        self.owners: dict[TopicPartition, str] = {}
        self.instances: dict[str, str] = {}

    def copy(self) -> ConsumerGroupState:
        twin = ConsumerGroupState()
        twin.epoch, twin.metadata_hash, twin.target_epoch = self.epoch, self.metadata_hash, self.target_epoch
        twin.profiles, twin.targets = dict(self.profiles), dict(self.targets)
        twin.holdings, twin.resolved = dict(self.holdings), dict(self.resolved)
        twin.owners, twin.instances = dict(self.owners), dict(self.instances)
        return twin

    def apply(self, event: ConsumerGroupEvent) -> None:
        match event:
            case EpochSet():
                self.epoch, self.metadata_hash = event.epoch, event.metadata_hash
            case TargetEpochSet():
                self.target_epoch = event.epoch
            case ProfileSet():
                self._set_profile(event.member_id, event.profile)
            case TargetSet():
                _put(self.targets, event.member_id, event.partitions)
            case HoldingSet():
                self._set_holding(event.member_id, event.holding)
            case RegexResolved():
                _put(self.resolved, event.regex, event.topics)

    @property
    def phase(self) -> ConsumerGroupPhase:
        if not self.profiles:
            return ConsumerGroupPhase.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupPhase.ASSIGNING
        if all(self.holding(member_id).is_reconciled(self.target_epoch) for member_id in self.profiles):
            return ConsumerGroupPhase.STABLE
        return ConsumerGroupPhase.RECONCILING

    def holding(self, member_id: str) -> Holding:
        return self.holdings.get(member_id, NOTHING_HELD)

    def target(self, member_id: str) -> frozenset[TopicPartition]:
        return self.targets.get(member_id, frozenset())

    def topics_of(self, profile: Profile) -> frozenset[str]:
        """The names that the member subscribes to, whether or not there are such topics."""
        return profile.topics | self.resolved.get(profile.regex, frozenset())

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*map(self.topics_of, self.profiles.values()))

    def regexes(self) -> set[str]:
        return {profile.regex for profile in self.profiles.values() if profile.regex}

    def _set_profile(self, member_id: str, profile: Profile | None) -> None:
        former = self.profiles.get(member_id)
        if (
            former is not None
            and former.instance_id is not None
            and self.instances.get(former.instance_id) == member_id
        ):
            del self.instances[former.instance_id]
        _put(self.profiles, member_id, profile)
        if profile is not None and profile.instance_id is not None:
            self.instances[profile.instance_id] = member_id

    def _set_holding(self, member_id: str, holding: Holding | None) -> None:
        former = self.holding(member_id)
        for partition in (*former.assigned, *former.revoking):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        _put(self.holdings, member_id, holding)
        if holding is not None:
            self.owners.update(dict.fromkeys((*holding.assigned, *holding.revoking), member_id))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[UUID, list[int]]:
    """In order, so that the same partitions look the same wherever they are told."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics


def _put(values: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
