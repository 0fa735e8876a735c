"""A group of the consumer protocol with its topics, its clock and its log, and realistic clients."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Protocol
from uuid import UUID

from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.consumer_group import ConsumerGroup, ConsumerGroupConfig
from headrace.machines.groups.consumer_group_heartbeat import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    HeartbeatDecision,
)
from headrace.machines.groups.consumer_group_state import ConsumerGroupEvent, ConsumerGroupState
from headrace.machines.groups.group_topics import TopicImage, TopicsImage
from headrace.model.errors import FencedMemberEpoch, UnknownMemberId

SESSION_MS = 45_000
REBALANCE_MS = 20_000
GROUP = "g"


class ConsumerGroupDriver:
    def __init__(self, config: ConsumerGroupConfig | None = None, **topics: int) -> None:
        self.config = config or ConsumerGroupConfig(session_timeout_ms=SESSION_MS)
        self.now_ms = 1_000
        self.group = ConsumerGroup(GROUP, self.config)
        self.log: list[ConsumerGroupEvent] = []
        self.has_disk = True
        self._shapes: dict[str, TopicImage] = {}
        self._topics_made = 0
        self.view = TopicsImage({})
        for name, partitions in topics.items():
            self.create_topic(name, partitions)

    @property
    def state(self) -> ConsumerGroupState:
        return self.group.state

    # Topics

    def create_topic(self, name: str, partitions: int) -> None:
        self._topics_made += 1
        self._look({**self._shapes, name: TopicImage(UUID(int=self._topics_made), partitions)})

    def grow(self, name: str, partitions: int) -> None:
        self._look({**self._shapes, name: TopicImage(self._shapes[name].id, partitions)})

    def delete_topic(self, name: str) -> None:
        self._look({other: shape for other, shape in self._shapes.items() if other != name})

    def partitions(self, *names: str) -> Set[TopicIdPartition]:
        shapes = (self._shapes[name] for name in names)
        return {(shape.id, index) for shape in shapes for index in range(shape.partitions)}

    def _look(self, shapes: dict[str, TopicImage]) -> None:
        self._shapes = shapes
        self.view = TopicsImage(shapes)

    # Members

    def beat(self, member_id: str, member_epoch: int, **more: Any) -> ConsumerHeartbeatResult:
        beat = ConsumerHeartbeat(group_id=GROUP, member_id=member_id, member_epoch=member_epoch, **more)
        decide = self.group.heartbeat if member_epoch >= 0 else self.group.leave
        decision: HeartbeatDecision = decide(beat, self.view)
        assert self.has_disk or not decision.events
        self.store(decision.events)
        if decision.result.member_epoch > 0:
            self.group.renew_session(member_id, self.now_ms)
        return decision.result

    def join(self, member_id: str, *topics: str, **more: Any) -> ConsumerHeartbeatResult:
        subscription = {"topics": frozenset(topics), "rebalance_timeout_ms": REBALANCE_MS, "owned": frozenset()}
        return self.beat(member_id, 0, **{**subscription, **more})

    def pass_time(self, elapsed_ms: int) -> None:
        """Tick at every deadline on the way."""
        end_ms = self.now_ms + elapsed_ms
        while (deadline_ms := self.group.deadline()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            events = self.group.remove(self.group.late_members(self.now_ms), self.view)
            assert events, "an alarm rang for nothing"
            self.store(events)
        self.now_ms = end_ms

    def restart(self) -> None:
        self.group = ConsumerGroup.restore(GROUP, self.config, replayed(self.log), self.now_ms)

    def store(self, events: Iterable[ConsumerGroupEvent]) -> None:
        self.log += events
        self.group.apply(events, self.now_ms)


def replayed(events: Iterable[ConsumerGroupEvent]) -> ConsumerGroupState:
    state = ConsumerGroupState()
    for event in events:
        state.apply(event)
    return state


class AnyClient(Protocol):
    """A client of either protocol."""

    id: str
    topics: frozenset[str]
    regex: str | None
    more: dict[str, Any]
    owned: set[TopicIdPartition]

    @property
    def is_member(self) -> bool: ...
    def beat(self, *, has_response: bool = True, is_full: bool = False) -> object: ...
    def revoke(self) -> None: ...
    def leave(self, epoch: int = -1) -> None: ...


class Client:
    """Uses what it is given at once, and gives up when it gets round to it (`revoke`)."""

    def __init__(
        self, driver: ConsumerGroupDriver, member_id: str, *topics: str, regex: str | None = None, **more: Any
    ) -> None:
        self.driver = driver
        self.id = member_id
        self.epoch = 0
        self.topics = frozenset(topics)
        self.regex = regex
        self.more = more
        self.owned: set[TopicIdPartition] = set()
        self.wanted: set[TopicIdPartition] = set()
        self._is_unsure = False

    @property
    def is_member(self) -> bool:
        return self.id in self.driver.state.metadata_by_member

    def beat(self, *, has_response: bool = True, is_full: bool = False) -> ConsumerHeartbeatResult | None:
        """Report; the answer may be lost on the way, then the next time it says everything. Once thrown out it lets go
        of everything and joins again."""
        fields: dict[str, Any] = {"owned": frozenset(self.owned), **self.more}
        if is_full or self._is_unsure or self.epoch == 0:
            fields |= {"topics": self.topics, "regex": self.regex, "rebalance_timeout_ms": REBALANCE_MS}
        try:
            response = self.driver.beat(self.id, self.epoch, **fields)
        except (FencedMemberEpoch, UnknownMemberId):
            self.epoch, self.owned, self.wanted = 0, set(), set()
            return None
        self._is_unsure = not has_response
        if has_response:
            self.epoch = response.member_epoch
            if response.assigned is not None:
                self.wanted = set(response.assigned)
                self.owned |= self.wanted
        return response

    def revoke(self) -> None:
        self.owned &= self.wanted

    def leave(self, epoch: int = -1) -> None:
        self.driver.beat(self.id, epoch, **self.more)
        self.owned, self.wanted = set(), set()


def settle(clients: Iterable[AnyClient], rounds: int = 10) -> None:
    """Everybody reports and gives up what it must, until nothing moves any more."""
    for _ in range(rounds):
        for client in clients:
            client.beat(is_full=True)
            client.revoke()
