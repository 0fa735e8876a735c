"""The groups of the consumer protocol (KIP-848) in one partition of `__consumer_offsets`.

- The decisions of a group's state machine are appended and applied in the same step, and responses wait until they are
  durable. This includes a heartbeat that changes nothing, because its response may contain an earlier change.
- `GroupShard` decides whether a group id may be used for this protocol.
- A group that only has classic members left is downgraded, and passed to `on_downgrade`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from headrace.broker.coordination.state_log import KeyValue
from headrace.broker.coordination.timers import Timers
from headrace.broker.groups.consumer_group_records import (
    StoredConsumerGroupEvent,
    consumer_group_records,
    group_tombstones,
)
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.group_records import group_record
from headrace.broker.groups.offsets_log import OffsetsLogPartition, wait_until_durable
from headrace.broker.topic_catalogue import Catalogue
from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.classic_members import ClassicMembers
from headrace.machines.groups.consumer_group import ConsumerGroup
from headrace.machines.groups.consumer_group_heartbeat import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    HeartbeatDecision,
)
from headrace.machines.groups.consumer_group_state import ConsumerGroupEvent, ConsumerGroupPhase, ConsumerGroupState
from headrace.machines.groups.group_migration import can_downgrade, downgrade, tombstones
from headrace.machines.groups.group_state import JoinRequest, LeavingMember, SyncRequest, failed_join
from headrace.machines.groups.group_topics import TopicImage, TopicsImage
from headrace.model.errors import GroupIdNotFound, HeadraceError, MemberIdRequired
from headrace.wire.messages.groups import JoinGroupResponse, MemberResponse, SyncGroupResponse

log = logging.getLogger(__name__)

_RETRY_MS = 1000


class ConsumerGroups:
    """The groups of one partition of the log for one leadership."""

    def __init__(
        self,
        log_partition: OffsetsLogPartition,
        view: Callable[[], TopicsImage],
        configs: GroupConfigs,
        now_ms: Callable[[], int],
    ) -> None:
        self.on_downgrade: Callable[[ClassicGroup, bool], None] | None = None
        """Called with a group that is a classic group from now on, and whether it must rebalance."""
        self.groups: dict[str, ConsumerGroup] = {}
        self._log_partition = log_partition
        self._view = view
        self._configs = configs
        self._now_ms = now_ms
        self._timers = Timers(now_ms)
        self._replayed: dict[str, ConsumerGroupState] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    # Coming back

    def replay(self, stored: StoredConsumerGroupEvent) -> None:
        """Apply a record of the log. Call `restore` after the last one."""
        if stored.event is None:
            self._replayed.pop(stored.group_id, None)
        else:
            self._replayed.setdefault(stored.group_id, ConsumerGroupState()).apply(stored.event)

    def restore(self) -> None:
        now_ms = self._now_ms()
        for group_id, state in self._replayed.items():
            if state.epoch:  # otherwise the log only had tombstones of the group
                config = self._configs.consumer_config_of(group_id)
                group = self.groups[group_id] = ConsumerGroup.restore(group_id, config, state, now_ms)
                self._update_timer(group)
        self._replayed.clear()

    # Members

    def decide(self, request: ConsumerHeartbeat, upgraded: Sequence[ConsumerGroupEvent] = ()) -> HeartbeatDecision:
        """Return the decision about this heartbeat, which changes nothing yet. `upgraded` are the events that create
        the group if it is still a classic one."""
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_epoch != JOIN_EPOCH:
                raise GroupIdNotFound(f"Group {request.group_id} not found.")
            state = ConsumerGroupState()
            for event in upgraded:
                state.apply(event)
            group = ConsumerGroup(request.group_id, self._configs.consumer_config_of(request.group_id), state)
        self._reconfigure(group)
        if request.member_epoch < JOIN_EPOCH:
            return group.leave(request, self._view())
        return group.heartbeat(request, self._view())

    def store(self, group_id: str, events: Sequence[ConsumerGroupEvent], before: Sequence[KeyValue] = ()) -> None:
        """Append and apply in one step, `before` first in the same batch. If it raises, nothing has changed."""
        if not events:
            return
        now_ms = self._now_ms()
        self._append(group_id, [*before, *consumer_group_records(group_id, events, now_ms)])
        group = self.groups.get(group_id)
        if group is None:
            config = self._configs.consumer_config_of(group_id)
            group = self.groups[group_id] = ConsumerGroup(group_id, config)
        group.apply(events, now_ms)
        self._update_timer(group)

    def store_without(self, group_id: str, removed: Collection[str], events: Sequence[ConsumerGroupEvent]) -> None:
        """Like `store`, for events that remove these members, unless their removal downgrades the group."""
        group = self.groups.get(group_id)
        if group is not None and removed and self._can_downgrade(group.state, removed):
            self._downgrade(group, group.state, removed, rebalances=True)
        else:
            self.store(group_id, events)

    async def when_durable(self, group_id: str, decision: HeartbeatDecision) -> ConsumerHeartbeatResult:
        result = decision.result
        if result.member_epoch > JOIN_EPOCH:
            self.groups[group_id].renew_session(result.member_id, self._now_ms())
        await wait_until_durable(self._log_partition.settled())
        return result

    # Members that use the classic protocol

    async def join(self, group_id: str, request: JoinRequest) -> JoinGroupResponse:
        group = self.groups[group_id]
        self._reconfigure(group)
        members = ClassicMembers(group)
        try:
            join = members.join(request, self._configs.classic, self._view())
        except MemberIdRequired as error:
            return failed_join(error.code, request.new_member_id)
        former_id = group.state.instances.get(request.instance_id or "")
        replaced_member = None if former_id is None else group.state.metadata_by_member[former_id]
        if replaced_member is not None and replaced_member.classic is None and self._can_downgrade(join.state):
            joined = join.state.metadata_by_member[join.result.member_id]
            is_same = (replaced_member.topics, replaced_member.regex) == (joined.topics, joined.regex)
            is_settled = is_same and join.state.phase is ConsumerGroupPhase.STABLE
            self._downgrade(group, join.state, rebalances=not is_settled)
        else:
            self.store(group_id, join.events)
            members.joined(join.result.member_id, self._now_ms())
            self._update_timer(group)
        await wait_until_durable(self._log_partition.settled())
        return join.result

    async def sync(self, group_id: str, request: SyncRequest) -> SyncGroupResponse:
        group = self.groups[group_id]
        try:
            result = ClassicMembers(group).sync(request, self._view(), self._now_ms())
        finally:
            self._update_timer(group)
        await wait_until_durable(self._log_partition.settled())
        return result

    def heartbeat(self, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> None:
        group = self.groups[group_id]
        try:
            ClassicMembers(group).heartbeat(member_id, generation_id, self._now_ms(), instance_id=instance_id)
        finally:
            self._update_timer(group)

    async def leave(self, group_id: str, departures: Sequence[LeavingMember]) -> list[MemberResponse]:
        group = self.groups[group_id]
        departed, removed = ClassicMembers(group).departing(departures)
        self.store_without(group_id, removed, group.remove(removed, self._view()))
        await wait_until_durable(self._log_partition.settled())
        return departed

    def _can_downgrade(self, state: ConsumerGroupState, removed: Collection[str] = ()) -> bool:
        return can_downgrade(state, self._configs.migration_policy, self._configs.classic.max_size, removed)

    def _downgrade(
        self, group: ConsumerGroup, state: ConsumerGroupState, removed: Collection[str] = (), *, rebalances: bool
    ) -> None:
        """Store the group as a classic group, and hand it over, in one step. If it raises, nothing has changed."""
        assert self.on_downgrade is not None
        group_id, now_ms = group.group_id, self._now_ms()
        classic = downgrade(group_id, state, self._configs.classic, self._view(), now_ms, removed)
        ends = consumer_group_records(group_id, tombstones(group.state), now_ms)
        snapshot = classic.snapshot(rebalances=rebalances)
        self._append(group_id, [*ends, *group_tombstones(group_id), group_record(group_id, snapshot)])
        log.info("downgraded to a classic group group=%s generation=%d", group_id, classic.generation_id)
        self.drop(group_id)
        self.on_downgrade(classic, rebalances)

    # Ending

    def convert_to_classic(self, group_id: str) -> None:
        """Delete a group without members, so that its id can be used by a classic group."""
        group = self.groups.get(group_id)
        if group is None:
            return
        assert group.has_no_members
        self._append(group_id, group_tombstones(group_id))
        self.drop(group_id)

    def try_delete(self, group: ConsumerGroup) -> None:
        """Delete the group if that is possible now. Otherwise the next expiration tries again."""
        try:
            self.convert_to_classic(group.group_id)
        except HeadraceError as error:
            log.warning("removing an empty group failed group=%s error=%s", group.group_id, error)

    def drop(self, group_id: str) -> None:
        del self.groups[group_id]
        self._timers.cancel(group_id)

    def stop(self) -> None:
        self._timers.stop()

    def _append(self, group_id: str, records: Sequence[KeyValue]) -> None:
        """Append without waiting: responses that depend on it wait until the whole log is committed."""
        wait = self._log_partition.append(group_id, records)
        if wait is not None:
            wait.add_done_callback(asyncio.Future.exception)

    def _reconfigure(self, group: ConsumerGroup) -> None:
        """Apply a changed configuration. A session that becomes shorter may end before the timer that is set."""
        config = self._configs.consumer_config_of(group.group_id)
        if config != group.config:
            group.config = config
            self._timers.set(group.group_id, self._now_ms() + config.session_timeout_ms, partial(self._on_timer, group))

    def _update_timer(self, group: ConsumerGroup) -> None:
        deadline_ms = group.deadline()
        if deadline_ms is not None:
            self._timers.set(group.group_id, deadline_ms, partial(self._on_timer, group))

    def _on_timer(self, group: ConsumerGroup) -> None:
        group_id = group.group_id
        if self.groups.get(group_id) is not group:
            return
        late = group.late_members(self._now_ms())
        if not late:
            self._update_timer(group)
            return
        try:
            self.store_without(group_id, late, group.remove(late, self._view()))
        except HeadraceError as error:
            log.warning("removing expired members failed group=%s error=%s", group_id, error)
            self._timers.set(group_id, self._now_ms() + _RETRY_MS, partial(self._on_timer, group))


class TopicsImageCache:
    """The topics for the groups of all partitions, computed once per version of the catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._view = TopicsImage({})
        self._version = -1

    def view(self) -> TopicsImage:
        """Return the current topics: the same object until they change."""
        if self._version != self._catalogue.version:
            self._version = self._catalogue.version
            self._view = TopicsImage(
                {topic.name: TopicImage(topic.id, topic.partition_count) for topic in self._catalogue}
            )
        return self._view
