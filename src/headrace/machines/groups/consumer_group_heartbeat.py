"""Heartbeats of the consumer protocol (KIP-848), and how a member moves to its target assignment. Pure.

- A member moves from its current to its target assignment in steps, one per heartbeat.
- A partition is assigned to a member only if no other member holds it. A member holds a partition until it reports that
  it has revoked it, leaves, or is fenced. So a partition never has two owners (I18).
- The member reaches the epoch of the target when it has revoked everything it must. It gets the partitions that others
  still hold later, in the same epoch.
"""

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
    """A field that is None or -1 has not changed since the last heartbeat."""

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
        """Whether all fields are set. A member sends all fields if it may have missed a response."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None

    def updated(self, member_metadata: MemberMetadata) -> MemberMetadata:
        if member_metadata.classic is not None:
            # From now on the member uses the consumer protocol, and this is its whole subscription.
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
    """None: unchanged."""


class HeartbeatDecision(msgspec.Struct, frozen=True):
    """The events to store and apply, and the response to send when they are durable."""

    events: tuple[ConsumerGroupEvent, ...]
    result: ConsumerHeartbeatResult
    removed: tuple[str, ...] = ()
    """The members that these events remove from the group."""


def check_heartbeat(heartbeat: ConsumerHeartbeat, version: int, assignors: Collection[str]) -> None:
    """Raise if the request is invalid for any group; the checks and messages are Kafka's, in Kafka's order."""
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


def reconcile_assignment(
    current: CurrentAssignment,
    target_epoch: int,
    target: frozenset[TopicIdPartition],
    owned: Collection[TopicIdPartition] | None,
    held_by_others: Collection[TopicIdPartition],
) -> CurrentAssignment:
    """Return the member's next step. `owned` are the partitions that it reports, or None if it reports none."""
    if current.is_reconciled(target_epoch):
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, current.revoking):
        return current
    kept = {partition: since for partition, since in current.assigned.items() if partition in target}
    surplus = {partition: since for partition, since in current.assigned.items() if partition not in target}
    if surplus and _still_owns(owned, surplus):
        return replace(current, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=surplus)
    wanted = target - kept.keys()
    free = wanted.difference(held_by_others)
    return CurrentAssignment(
        epoch=target_epoch,
        previous_epoch=current.epoch if current.epoch != target_epoch else current.previous_epoch,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=kept | dict.fromkeys(free, target_epoch),
    )


def _still_owns(owned: Collection[TopicIdPartition] | None, partitions: Mapping[TopicIdPartition, int]) -> bool:
    """A member that does not report its partitions still owns them."""
    return owned is None or any(partition in partitions for partition in owned)
