"""What a member of a consumer group reports and is told, and how it moves to its target assignment."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.consumer_group_state import (
    ConsumerGroupEvent,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from headrace.model.errors import InvalidRequest, UnsupportedAssignor

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
_OWN_MEMBER_ID_SINCE = 1


class ConsumerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """None (or -1) says that it is as it was."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, as it does when it is not sure what the coordinator knows."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None

    def updated(self, member_metadata: MemberMetadata) -> MemberMetadata:
        if (
            member_metadata.classic is not None
        ):  # from now on the member uses the consumer protocol, and this is all it wants
            member_metadata = replace(member_metadata, topics=frozenset(), classic=None)
        return replace(
            member_metadata,
            instance_id=self.instance_id if self.instance_id is not None else member_metadata.instance_id,
            rack_id=self.rack_id if self.rack_id is not None else member_metadata.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=self.topics if self.topics is not None else member_metadata.topics,
            regex=self.regex if self.regex is not None else member_metadata.regex,
            rebalance_timeout_ms=(
                self.rebalance_timeout_ms if self.rebalance_timeout_ms != -1 else member_metadata.rebalance_timeout_ms
            ),
            assignor=self.assignor if self.assignor is not None else member_metadata.assignor,
        )


class ConsumerHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: frozenset[TopicIdPartition] | None = None
    """None: as it was."""


class HeartbeatDecision(msgspec.Struct, frozen=True):
    """What is to be stored and applied, and what the member is told once that is durable."""

    events: tuple[ConsumerGroupEvent, ...]
    answer: ConsumerHeartbeatResult
    removed: tuple[str, ...] = ()
    """The members that are no longer in the group by these events."""


def check_heartbeat(heartbeat: ConsumerHeartbeat, version: int, assignors: Collection[str]) -> None:
    """Raise what is wrong with the request whatever the group is like; in Kafka's order and words."""
    epoch = heartbeat.member_epoch
    if version >= _OWN_MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH:
        _reject_blank(heartbeat.member_id, "MemberId")
    _reject_blank(heartbeat.group_id, "GroupId")
    _reject_blank(heartbeat.instance_id, "InstanceId")
    _reject_blank(heartbeat.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        if heartbeat.rebalance_timeout_ms == -1:
            raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
        if heartbeat.owned is None or heartbeat.owned:
            raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
        if heartbeat.topics is None and heartbeat.regex is None:
            raise InvalidRequest(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == STATIC_LEAVE_EPOCH:
        if heartbeat.instance_id is None:
            raise InvalidRequest("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    if heartbeat.assignor is not None and heartbeat.assignor not in assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {heartbeat.assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        )


def _reject_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise InvalidRequest(f"{name} can't be empty.")


# How a member moves from what it holds to what it shall hold: one step for each of its heartbeats.
#
# A partition is given to a member only when nobody else holds it, and it is held until its holder says that it has
# given it up, leaves, or is fenced. So no partition ever has two owners (I18). The member reaches the epoch of the
# target when it has given up all that it must; what others still hold it gets later, at that same epoch.


def reconcile_assignment(
    current_assignment: CurrentAssignment,
    target_epoch: int,
    target: frozenset[TopicIdPartition],
    owned: Collection[TopicIdPartition] | None,
    held_by_others: Collection[TopicIdPartition],
) -> CurrentAssignment:
    """The member's next step; `owned` is what it says that it owns, None when it said nothing."""
    if current_assignment.is_reconciled(target_epoch):
        return current_assignment
    if current_assignment.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, current_assignment.revoking):
        return current_assignment
    kept = {partition: since for partition, since in current_assignment.assigned.items() if partition in target}
    surplus = {partition: since for partition, since in current_assignment.assigned.items() if partition not in target}
    if surplus and _still_owns(owned, surplus):
        return replace(current_assignment, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=surplus)
    wanted = target - kept.keys()
    free = wanted.difference(held_by_others)
    return CurrentAssignment(
        epoch=target_epoch,
        previous_epoch=current_assignment.epoch
        if current_assignment.epoch != target_epoch
        else current_assignment.previous_epoch,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=kept | dict.fromkeys(free, target_epoch),
    )


def _still_owns(owned: Collection[TopicIdPartition] | None, partitions: Mapping[TopicIdPartition, int]) -> bool:
    """A member that says nothing of what it owns has given up nothing."""
    return owned is None or any(partition in partitions for partition in owned)
