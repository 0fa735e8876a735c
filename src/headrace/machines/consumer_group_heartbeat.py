"""What a member of the newer protocol says and is told, and which of it makes no sense."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from headrace.machines.assignors import TopicPartition
from headrace.machines.consumer_group_state import ConsumerGroupEvent, Profile
from headrace.model.errors import InvalidRequest, UnsupportedAssignor

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
_OWN_MEMBER_ID_SINCE = 1


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
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
    owned: frozenset[TopicPartition] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the member says everything, as it does when it is not sure what the coordinator knows."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None

    def updated(self, profile: Profile) -> Profile:
        if profile.classic is not None:  # from now on the member uses the consumer protocol, and this is all it wants
            profile = replace(profile, topics=frozenset(), classic=None)
        return replace(
            profile,
            instance_id=self.instance_id if self.instance_id is not None else profile.instance_id,
            rack_id=self.rack_id if self.rack_id is not None else profile.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            topics=self.topics if self.topics is not None else profile.topics,
            regex=self.regex if self.regex is not None else profile.regex,
            rebalance_timeout_ms=(
                self.rebalance_timeout_ms if self.rebalance_timeout_ms != -1 else profile.rebalance_timeout_ms
            ),
            assignor=self.assignor if self.assignor is not None else profile.assignor,
        )


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assigned: frozenset[TopicPartition] | None = None
    """None: as it was."""


class Decision(msgspec.Struct, frozen=True):
    """What is to be stored and applied, and what the member is told once that is durable."""

    events: tuple[ConsumerGroupEvent, ...]
    answer: HeartbeatAnswer
    removed: tuple[str, ...] = ()
    """The members that are no longer in the group by these events."""


def check_heartbeat(beat: Heartbeat, version: int, assignors: Collection[str]) -> None:
    """Raise what is wrong with the request whatever the group is like; in Kafka's order and words."""
    epoch = beat.member_epoch
    if version >= _OWN_MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH:
        _refuse_blank(beat.member_id, "MemberId")
    _refuse_blank(beat.group_id, "GroupId")
    _refuse_blank(beat.instance_id, "InstanceId")
    _refuse_blank(beat.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        if beat.rebalance_timeout_ms == -1:
            raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
        if beat.owned is None or beat.owned:
            raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
        if beat.topics is None and beat.regex is None:
            raise InvalidRequest(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == STATIC_LEAVE_EPOCH:
        if beat.instance_id is None:
            raise InvalidRequest("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    if beat.assignor is not None and beat.assignor not in assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        )


def _refuse_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise InvalidRequest(f"{name} can't be empty.")
