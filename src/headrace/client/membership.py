"""A consumer's place in its group (classic protocol).

    OUT --join, sync--> MEMBER --heartbeat says "rebalance", or the group moved on--> must join again
     ^------ leave --------'

Heartbeats run in the background, so a slow application does not lose its place until
`poll_interval_max_seconds` have passed without a poll; joining happens inside the application's poll, so
that it never loses a partition in the middle of its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.assignors import ASSIGNORS, Assignor, Subscriber
from headrace.client.cluster import Cluster
from headrace.client.errors import raise_for, refusal
from headrace.client.group_blobs import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.metadata import TopicPartition
from headrace.client.offsets import Membership as Seat
from headrace.model.errors import (
    FencedInstanceId,
    HeadraceError,
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from headrace.runtime.supervise import Supervisor
from headrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

_PROTOCOL_TYPE = "consumer"
_ANSWER_SLACK_SECONDS = 10.0
_LEAVE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class GroupRules:
    """How a member behaves in its group."""

    group: str
    instance_id: str | None = None
    session_timeout_seconds: float = 45.0
    heartbeat_seconds: float = 3.0
    poll_interval_max_seconds: float = 300.0
    assignors: Sequence[str] = ("range", "roundrobin")


class GroupMember:
    """Joins, stays alive and leaves. `changed` is called when the member must join again."""

    def __init__(
        self,
        cluster: Cluster,
        rules: GroupRules,
        topics: Iterable[str],
        lane: str,
        changed: Callable[[], None],
    ) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self.must_join = True
        self._cluster = cluster
        self._rules = rules
        self._topics = sorted(set(topics))
        self._assignors = [_known(name) for name in rules.assignors]
        self._lane = lane
        self._changed = changed
        self._member_id = ""
        self._generation = -1
        self._assignor = self._assignors[0]
        self._led_counts: dict[str, int] | None = None
        self._polled_at = 0.0
        self._failure: HeadraceError | None = None
        self._tasks = Supervisor()

    @property
    def seat(self) -> Seat:
        """Who commits, as the coordinator knows it."""
        return Seat(self._generation, self._member_id, self._rules.instance_id)

    @property
    def cooperative(self) -> bool:
        """Whether partitions that stay may be read on through a rebalance."""
        return self._assignor.cooperative

    def start(self) -> None:
        self.polled()
        self._tasks.spawn(self._beat(), "group heartbeat")

    async def stop(self) -> None:
        """Stop the heartbeat and leave, so that the others need not wait for the session to end.

        A static member keeps its place: it is expected back.
        """
        await self._tasks.stop()
        if self._member_id and self._rules.instance_id is None:
            leaving = MemberIdentity(member_id=self._member_id, reason="the consumer is closing")
            request = LeaveGroupRequest(group_id=self._rules.group, member_id=self._member_id, members=[leaving])
            try:
                await self._cluster.call_coordinator(
                    self._rules.group, request, timeout_seconds=_LEAVE_SECONDS, lane=self._lane
                )
            except HeadraceError:
                return  # the session timeout will do it
            finally:
                self._member_id = ""

    def polled(self) -> None:
        """The application is alive; raises what ended the membership for good."""
        self._polled_at = self._cluster.clock.monotonic()
        if self._failure is not None:
            raise self._failure

    async def join(self) -> frozenset[TopicPartition]:
        """Take a place in the next generation; returns the partitions that are this member's now."""
        backoff = self._cluster.backoff()
        while True:
            self.polled()
            try:
                joined = await self._join()
                assigned = await self._sync(joined)
            except (RebalanceInProgress, IllegalGeneration, UnknownMemberId, MemberIdRequired) as error:
                self._learn(error)
                if isinstance(error, MemberIdRequired):
                    continue
            except HeadraceError as error:
                if not error.retriable:
                    raise
                self._cluster.forget_coordinator(self._rules.group)
                self._cluster.distrust()
            else:
                self.owned = assigned
                self.must_join = False
                return assigned
            await asyncio.sleep(backoff.next_seconds())

    def must_join_again(self) -> None:
        self.must_join = True
        self._changed()

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
        answer: JoinGroupResponse = await self._cluster.call_coordinator(
            rules.group,
            request,
            timeout_seconds=rules.poll_interval_max_seconds + _ANSWER_SLACK_SECONDS,
            lane=self._lane,
        )
        if answer.error_code == MemberIdRequired.code:
            self._member_id = answer.member_id
        raise_for(answer.error_code)
        self._member_id = answer.member_id
        self._generation = answer.generation_id
        self._assignor = _known(answer.protocol_name or "")
        return answer

    async def _sync(self, joined: JoinGroupResponse) -> frozenset[TopicPartition]:
        assignments = []
        self._led_counts = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            shared = await self._share_out({member.member_id: member.metadata for member in joined.members})
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
        answer: SyncGroupResponse = await self._cluster.call_coordinator(
            self._rules.group,
            request,
            timeout_seconds=self._rules.poll_interval_max_seconds + _ANSWER_SLACK_SECONDS,
            lane=self._lane,
        )
        raise_for(answer.error_code)
        return frozenset(decode_assignment(answer.assignment)) if answer.assignment else frozenset()

    async def _share_out(self, metadata: Mapping[str, bytes]) -> Mapping[str, Sequence[TopicPartition]]:
        """The leader's work: who gets what."""
        members = {member_id: decode_subscription(blob) for member_id, blob in metadata.items()}
        counts = await self._count(members.values())
        self._led_counts = counts
        return self._assignor.assign(members, counts)

    async def _count(self, members: Iterable[Subscriber]) -> dict[str, int]:
        counts = {}
        for topic in sorted({topic for member in members for topic in member.topics}):
            try:
                counts[topic] = len((await self._cluster.topic(topic)).partitions)
            except UnknownTopicOrPartition:
                continue  # it may appear later; then the leader shares out again
        return counts

    async def _beat(self) -> None:
        """Say that we live, as long as the application does."""
        rules = self._rules
        while True:
            await asyncio.sleep(rules.heartbeat_seconds)
            if self.must_join:
                continue
            if self._cluster.clock.monotonic() - self._polled_at > rules.poll_interval_max_seconds:
                await self._drop_out()
                continue
            await self._attempt(self._heartbeat)
            await self._attempt(self._look_for_partitions)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HeadraceError as error:
            self._learn(error)

    async def _heartbeat(self) -> None:
        generation = self._generation
        request = HeartbeatRequest(
            group_id=self._rules.group,
            generation_id=generation,
            member_id=self._member_id,
            group_instance_id=self._rules.instance_id,
        )
        answer: HeartbeatResponse = await self._cluster.call_coordinator(
            self._rules.group, request, timeout_seconds=self._rules.session_timeout_seconds, lane=self._lane
        )
        if answer.error_code and generation == self._generation and not self.must_join:
            raise refusal(answer.error_code)

    async def _look_for_partitions(self) -> None:
        """The leader notices when subscribed topics have grown or appeared, and calls a rebalance."""
        if self._led_counts is None or self.must_join:
            return
        counts = await self._count([Subscriber(sorted({*self._topics, *self._led_counts}))])
        if self._led_counts is not None and counts != self._led_counts:
            self.must_join_again()

    async def _drop_out(self) -> None:
        """The application has not polled for too long: let others have the partitions until it does."""
        leaving = MemberIdentity(member_id=self._member_id, reason="the application has stopped polling")
        request = LeaveGroupRequest(group_id=self._rules.group, member_id=self._member_id, members=[leaving])
        await self._attempt(lambda: self._cluster.call_coordinator(self._rules.group, request, lane=self._lane))
        self._forget_place()

    def _learn(self, error: HeadraceError) -> None:
        """What an error says about our place."""
        if isinstance(error, FencedInstanceId):
            self._failure = error
            self._changed()
        elif isinstance(error, UnknownMemberId):
            self._forget_place()
        elif isinstance(error, RebalanceInProgress | IllegalGeneration):
            self.must_join_again()
        elif error.retriable:
            self._cluster.forget_coordinator(self._rules.group)

    def _forget_place(self) -> None:
        self._member_id = ""
        self._generation = -1
        self.owned = frozenset()
        self.must_join_again()


def _known(name: str) -> Assignor:
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        raise ValueError(f"assignor {name!r} is none of {', '.join(ASSIGNORS)}")
    return assignor
