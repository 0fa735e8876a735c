"""The membership of a consumer in its group (classic protocol).

    OUT --join, sync--> MEMBER --heartbeat returns REBALANCE_IN_PROGRESS, or the generation is outdated--> must rejoin
     ^------ leave --------'

- Heartbeats run in the background, so a slow application stays a member until it has not polled for
  `poll_interval_max_seconds`.
- Joining happens inside the application's poll, so that it never loses a partition while it processes a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.errors import error_of_code, raise_for_code
from headrace.client.groups.assignors import ASSIGNORS, Assignor, ConsumerSubscription
from headrace.client.groups.offsets import ConsumerGroupMetadata
from headrace.client.metadata import TopicPartition, partitions_by_topic
from headrace.model.errors import (
    FencedInstanceId,
    HeadraceError,
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from headrace.runtime.tasks import Supervisor
from headrace.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace.wire.state_records import consumer_protocol as wire


def encode_subscription(topics: list[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """The topics of a member, and the partitions that it owns since `generation`."""
    return wire.encode_subscription(
        wire.ConsumerProtocolSubscription(topics=topics, owned_partitions=_by_topic(owned), generation_id=generation)
    )


def decode_subscription(data: bytes) -> ConsumerSubscription:
    decoded = wire.decode_subscription(data)
    return ConsumerSubscription(decoded.topics, _flat(decoded.owned_partitions), decoded.generation_id)


def encode_assignment(targets: Iterable[TopicPartition]) -> bytes:
    return wire.encode_assignment(wire.ConsumerProtocolAssignment(assigned_partitions=_by_topic(targets)))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    return _flat(wire.decode_assignment(data).assigned_partitions)


def _by_topic(targets: Iterable[TopicPartition]) -> list[wire.NamedTopicPartitions]:
    topics = partitions_by_topic(sorted(targets))
    return [wire.NamedTopicPartitions(topic=topic, partitions=partitions) for topic, partitions in topics.items()]


def _flat(topics: Iterable[wire.NamedTopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(entry.topic, partition) for entry in topics for partition in entry.partitions]


_PROTOCOL_TYPE = "consumer"
_RESPONSE_SLACK_SECONDS = 10.0
_LEAVE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class GroupRules:
    group: str
    instance_id: str | None = None
    session_timeout_seconds: float = 45.0
    heartbeat_seconds: float = 3.0
    poll_interval_max_seconds: float = 300.0
    assignors: Sequence[str] = ("range", "roundrobin")


class GroupMembership:
    """Joins, stays alive and leaves. `changed` is called when the member must join again."""

    def __init__(
        self,
        cluster: Cluster,
        rules: GroupRules,
        topics: Iterable[str],
        connection_key: str,
        changed: Callable[[], None],
    ) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self.needs_join = True
        self._cluster = cluster
        self._rules = rules
        self._topics = sorted(set(topics))
        self._assignors = [_known_assignor(name) for name in rules.assignors]
        self._connection_key = connection_key
        self._on_rejoin_needed = changed
        self._member_id = ""
        self._generation = -1
        self._assignor = self._assignors[0]
        self._assigned_partition_counts: dict[str, int] | None = None
        self._polled_at = 0.0
        self._failure: HeadraceError | None = None
        self._tasks = Supervisor()

    @property
    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(self._generation, self._member_id, self._rules.instance_id)

    @property
    def cooperative(self) -> bool:
        """Whether partitions that this member keeps are read during a rebalance."""
        return self._assignor.cooperative

    def start(self) -> None:
        self.record_poll()
        self._tasks.spawn(self._run_heartbeats(), "group heartbeat")

    async def stop(self) -> None:
        """Stop the heartbeat and leave, so that the other members need not wait for the session timeout. A static
        member does not leave: it is expected to return."""
        await self._tasks.stop()
        if self._member_id and self._rules.instance_id is None:
            try:
                await self._leave("the consumer is closing", _LEAVE_SECONDS)
            except HeadraceError:
                return  # the session timeout removes the member
            finally:
                self._member_id = ""

    def record_poll(self) -> None:
        """Record that the application is alive; raises the error that ended the membership."""
        self._polled_at = self._cluster.clock.monotonic()
        if self._failure is not None:
            raise self._failure

    async def join(self) -> frozenset[TopicPartition]:
        """Join the next generation; returns the assigned partitions."""
        backoff = self._cluster.backoff()
        while True:
            self.record_poll()
            try:
                joined = await self._join()
                assigned = await self._sync(joined)
            except (RebalanceInProgress, IllegalGeneration, UnknownMemberId, MemberIdRequired) as error:
                self._handle_error(error)
                if isinstance(error, MemberIdRequired):
                    continue
            except HeadraceError as error:
                if not error.retriable:
                    raise
                self._cluster.forget_coordinator(self._rules.group)
                self._cluster.invalidate_metadata()
            else:
                self.owned = assigned
                self.needs_join = False
                return assigned
            await asyncio.sleep(backoff.next_seconds())

    def request_rejoin(self) -> None:
        self.needs_join = True
        self._on_rejoin_needed()

    async def _join(self) -> JoinGroupResponse:
        rules = self._rules
        protocols = [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=encode_subscription(
                    self._topics, self.owned if assignor.cooperative else (), self._generation
                ),
            )
            for assignor in self._assignors
        ]
        request = JoinGroupRequest(
            group_id=rules.group,
            session_timeout_ms=int(rules.session_timeout_seconds * 1000),
            rebalance_timeout_ms=int(rules.poll_interval_max_seconds * 1000),
            member_id=self._member_id,
            group_instance_id=rules.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocols=protocols,
        )
        timeout_seconds = rules.poll_interval_max_seconds + _RESPONSE_SLACK_SECONDS
        response: JoinGroupResponse = await self._call_coordinator(request, timeout_seconds)
        if response.error_code == MemberIdRequired.code:
            self._member_id = response.member_id
        raise_for_code(response.error_code)
        self._member_id = response.member_id
        self._generation = response.generation_id
        self._assignor = _known_assignor(response.protocol_name or "")
        return response

    async def _sync(self, joined: JoinGroupResponse) -> frozenset[TopicPartition]:
        assignments = []
        self._assigned_partition_counts = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            shared = await self._compute_assignment({member.member_id: member.metadata for member in joined.members})
            assignments = [
                SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(targets))
                for member_id, targets in shared.items()
            ]
        request = SyncGroupRequest(
            group_id=self._rules.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._rules.instance_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        timeout_seconds = self._rules.poll_interval_max_seconds + _RESPONSE_SLACK_SECONDS
        response: SyncGroupResponse = await self._call_coordinator(request, timeout_seconds)
        raise_for_code(response.error_code)
        return frozenset(decode_assignment(response.assignment)) if response.assignment else frozenset()

    async def _compute_assignment(self, metadata: Mapping[str, bytes]) -> Mapping[str, Sequence[TopicPartition]]:
        members = {member_id: decode_subscription(blob) for member_id, blob in metadata.items()}
        counts = await self._count(members.values())
        self._assigned_partition_counts = counts
        return self._assignor.assign(members, counts)

    async def _count(self, members: Iterable[ConsumerSubscription]) -> dict[str, int]:
        counts = {}
        for topic in sorted({topic for member in members for topic in member.topics}):
            try:
                counts[topic] = len((await self._cluster.topic(topic)).partitions)
            except UnknownTopicOrPartition:
                continue  # it may appear later; then the leader starts a rebalance
        return counts

    async def _run_heartbeats(self) -> None:
        rules = self._rules
        while True:
            await asyncio.sleep(rules.heartbeat_seconds)
            if self.needs_join:
                continue
            if self._cluster.clock.monotonic() - self._polled_at > rules.poll_interval_max_seconds:
                await self._leave_for_poll_timeout()
                continue
            await self._attempt(self._heartbeat)
            await self._attempt(self._watch_partition_counts)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HeadraceError as error:
            self._handle_error(error)

    async def _heartbeat(self) -> None:
        generation = self._generation
        request = HeartbeatRequest(
            group_id=self._rules.group,
            generation_id=generation,
            member_id=self._member_id,
            group_instance_id=self._rules.instance_id,
        )
        response: HeartbeatResponse = await self._call_coordinator(request, self._rules.session_timeout_seconds)
        if response.error_code and generation == self._generation and not self.needs_join:
            raise error_of_code(response.error_code)

    async def _watch_partition_counts(self) -> None:
        """As the leader, start a rebalance when subscribed topics have new partitions or were created."""
        if self._assigned_partition_counts is None or self.needs_join:
            return
        counts = await self._count([ConsumerSubscription(sorted({*self._topics, *self._assigned_partition_counts}))])
        if self._assigned_partition_counts is not None and counts != self._assigned_partition_counts:
            self.request_rejoin()

    async def _leave_for_poll_timeout(self) -> None:
        """Leave the group because the application has not polled for too long; it rejoins with the next poll."""
        await self._attempt(lambda: self._leave("the application has stopped polling"))
        self._reset_membership()

    async def _leave(self, reason: str, timeout_seconds: float | None = None) -> None:
        leaving = MemberIdentity(member_id=self._member_id, reason=reason)
        request = LeaveGroupRequest(group_id=self._rules.group, member_id=self._member_id, members=[leaving])
        await self._call_coordinator(request, timeout_seconds)

    async def _call_coordinator(self, request: Any, timeout_seconds: float | None) -> Any:
        return await self._cluster.call_coordinator(
            self._rules.group, request, timeout_seconds=timeout_seconds, connection_key=self._connection_key
        )

    def _handle_error(self, error: HeadraceError) -> None:
        if isinstance(error, FencedInstanceId):
            self._failure = error
            self._on_rejoin_needed()
        elif isinstance(error, UnknownMemberId):
            self._reset_membership()
        elif isinstance(error, RebalanceInProgress | IllegalGeneration):
            self.request_rejoin()
        elif error.retriable:
            self._cluster.forget_coordinator(self._rules.group)

    def _reset_membership(self) -> None:
        self._member_id = ""
        self._generation = -1
        self.owned = frozenset()
        self.request_rejoin()


def _known_assignor(name: str) -> Assignor:
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        raise ValueError(f"assignor {name!r} is none of {', '.join(ASSIGNORS)}")
    return assignor
