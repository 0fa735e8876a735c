"""The groups of the consumer protocol (KIP-848): runs their machines, keeps what they decide in `__consumer_offsets`.

What a machine decides is appended, applied in the same step, and told when it is durable: also a heartbeat that changes
nothing tells what an earlier one has changed. Whether a group may be of this kind at all is for `LedGroups` to say. A
group that is left with classic members only is downgraded here, and handed to `on_downgrade`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from headrace.broker.alarms import Alarms
from headrace.broker.catalogue import Catalogue
from headrace.broker.consumer_group_records import ConsumerGroupStored, consumer_group_records, end_records
from headrace.broker.group_records import group_record
from headrace.broker.offsets_log import OffsetsLead, durable
from headrace.broker.state_log import KeyValue
from headrace.machines.classic_members import ClassicMembers
from headrace.machines.consumer_group_heartbeat import JOIN_EPOCH, Decision, Heartbeat, HeartbeatAnswer
from headrace.machines.consumer_group_state import ConsumerGroupEvent, ConsumerGroupPhase, ConsumerGroupState
from headrace.machines.consumer_group_topics import TopicShape, TopicView
from headrace.machines.consumer_groups import ConsumerGroup, ConsumerGroupConfig
from headrace.machines.group_effects import Departed, Departure, JoinAnswer, JoinRequest, SyncAnswer
from headrace.machines.group_migration import MigrationPolicy, can_downgrade, downgrade, tombstones
from headrace.machines.group_state import GroupConfig
from headrace.machines.groups import Group
from headrace.model.errors import GroupIdNotFound, HeadraceError, MemberIdRequired

log = logging.getLogger(__name__)

_RETRY_MS = 1000


class ConsumerGroups:
    """Those of one partition of the log, during one lead."""

    def __init__(
        self,
        lead: OffsetsLead,
        view: Callable[[], TopicView],
        config_of: Callable[[str], ConsumerGroupConfig],
        classic_config: GroupConfig,
        policy: MigrationPolicy,
        now_ms: Callable[[], int],
    ) -> None:
        self.on_downgrade: Callable[[Group, bool], None] | None = None
        """Takes over a group that is a classic one from now on, and is told whether it must rebalance."""
        self.groups: dict[str, ConsumerGroup] = {}
        self._lead = lead
        self._view = view
        self._config_of = config_of
        self._classic_config = classic_config
        self._policy = policy
        self._now_ms = now_ms
        self._alarms = Alarms(now_ms)
        self._replayed: dict[str, ConsumerGroupState] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    # Coming back

    def replay(self, stored: ConsumerGroupStored) -> None:
        """Take in a record of the log; when all are read, `restore`."""
        if stored.event is None:
            self._replayed.pop(stored.group_id, None)
        else:
            self._replayed.setdefault(stored.group_id, ConsumerGroupState()).apply(stored.event)

    def restore(self) -> None:
        now_ms = self._now_ms()
        for group_id, state in self._replayed.items():
            if state.epoch:  # else only tombstones were left of it
                config = self._config_of(group_id)
                group = self.groups[group_id] = ConsumerGroup.restore(group_id, config, state, now_ms)
                self._arm(group)
        self._replayed.clear()

    # Members

    def decide(self, beat: Heartbeat, upgraded: Sequence[ConsumerGroupEvent] = ()) -> Decision:
        """What becomes of this heartbeat; nothing has changed yet. `upgraded`: what the group is made of, if it is a
        classic one so far."""
        group = self.groups.get(beat.group_id)
        if group is None:
            if beat.member_epoch != JOIN_EPOCH:
                raise GroupIdNotFound(f"Group {beat.group_id} not found.")
            state = ConsumerGroupState()
            for event in upgraded:
                state.apply(event)
            group = ConsumerGroup(beat.group_id, self._config_of(beat.group_id), state)
        self._reconfigure(group)
        if beat.member_epoch < JOIN_EPOCH:
            return group.leave(beat, self._view())
        return group.heartbeat(beat, self._view())

    def store(self, group_id: str, events: Sequence[ConsumerGroupEvent], before: Sequence[KeyValue] = ()) -> None:
        """Append and apply in one step; `before`: what else must be in the log by then. Raises with nothing changed."""
        if not events:
            return
        now_ms = self._now_ms()
        self._append(group_id, [*before, *consumer_group_records(group_id, events, now_ms)])
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ConsumerGroup(group_id, self._config_of(group_id))
        group.apply(events, now_ms)
        self._arm(group)

    def store_without(self, group_id: str, removed: Collection[str], events: Sequence[ConsumerGroupEvent]) -> None:
        """The same for events by which these members are removed, unless the group is downgraded thereby."""
        group = self.groups.get(group_id)
        if group is not None and removed and self._can_downgrade(group.state, removed):
            self._downgrade(group, group.state, removed, rebalances=True)
        else:
            self.store(group_id, events)

    async def answer(self, group_id: str, decision: Decision) -> HeartbeatAnswer:
        """Return the answer when it may be told. `decision` is stored."""
        answer = decision.answer
        if answer.member_epoch > JOIN_EPOCH:
            self.groups[group_id].renew_session(answer.member_id, self._now_ms())
        await durable(self._lead.settled())
        return answer

    # Members that use the classic protocol

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        group = self.groups[group_id]
        self._reconfigure(group)
        members = ClassicMembers(group)
        try:
            join = members.join(request, self._classic_config, self._view())
        except MemberIdRequired as error:
            return JoinAnswer(error_code=error.code, member_id=request.new_member_id)
        former_id = group.state.instances.get(request.instance_id or "")
        former = None if former_id is None else group.state.profiles[former_id]
        if former is not None and former.classic is None and self._can_downgrade(join.state):
            joined = join.state.profiles[join.answer.member_id]
            is_same = (former.topics, former.regex) == (joined.topics, joined.regex)
            is_settled = is_same and join.state.phase is ConsumerGroupPhase.STABLE
            self._downgrade(group, join.state, rebalances=not is_settled)
        else:
            self.store(group_id, join.events)
            members.joined(join.answer.member_id, self._now_ms())
            self._arm(group)
        await durable(self._lead.settled())
        return join.answer

    async def sync(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> SyncAnswer:
        group = self.groups[group_id]
        try:
            answer = ClassicMembers(group).sync(
                member_id,
                generation_id,
                self._view(),
                self._now_ms(),
                instance_id=instance_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
            )
        finally:
            self._arm(group)
        await durable(self._lead.settled())
        return answer

    def heartbeat(self, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> None:
        group = self.groups[group_id]
        try:
            ClassicMembers(group).heartbeat(member_id, generation_id, self._now_ms(), instance_id=instance_id)
        finally:
            self._arm(group)

    async def leave(self, group_id: str, departures: Sequence[Departure]) -> list[Departed]:
        group = self.groups[group_id]
        departed, removed = ClassicMembers(group).departing(departures)
        self.store_without(group_id, removed, group.remove(removed, self._view()))
        await durable(self._lead.settled())
        return departed

    def _can_downgrade(self, state: ConsumerGroupState, removed: Collection[str] = ()) -> bool:
        return can_downgrade(state, self._policy, self._classic_config.max_size, removed)

    def _downgrade(
        self, group: ConsumerGroup, state: ConsumerGroupState, removed: Collection[str] = (), *, rebalances: bool
    ) -> None:
        """Store and hand over the group as a classic one, as `state` says, in one step. Raises with nothing changed."""
        assert self.on_downgrade is not None
        group_id, now_ms = group.group_id, self._now_ms()
        classic = downgrade(group_id, state, self._classic_config, self._view(), now_ms, removed)
        ends = consumer_group_records(group_id, tombstones(group.state), now_ms)
        snapshot = classic.snapshot(rebalances=rebalances)
        self._append(group_id, [*ends, *end_records(group_id), group_record(group_id, snapshot)])
        log.info("downgraded to a classic group group=%s generation=%d", group_id, classic.generation_id)
        self.drop(group_id)
        self.on_downgrade(classic, rebalances)

    # Ending

    def make_way(self, group_id: str) -> None:
        """A group without members ends here, so that it can be a classic one."""
        group = self.groups.get(group_id)
        if group is None:
            return
        assert group.is_vacant
        self._append(group_id, end_records(group_id))
        self.drop(group_id)

    def try_to_end(self, group: ConsumerGroup) -> None:
        """Nobody waits for this: a group that is not ended now is ended another time."""
        try:
            self.make_way(group.group_id)
        except HeadraceError as error:
            log.warning("removing an empty group failed group=%s error=%s", group.group_id, error)

    def drop(self, group_id: str) -> None:
        del self.groups[group_id]
        self._alarms.cancel(group_id)

    def stop(self) -> None:
        self._alarms.stop()

    def _append(self, group_id: str, records: Sequence[KeyValue]) -> None:
        """Store without waiting: responses that depend on it wait until the whole log is committed."""
        wait = self._lead.append(group_id, records)
        if wait is not None:
            wait.add_done_callback(asyncio.Future.exception)

    def _reconfigure(self, group: ConsumerGroup) -> None:
        """Take in what was set since. Sessions that become shorter by it may end before the alarm that is set."""
        config = self._config_of(group.group_id)
        if config != group.config:
            group.config = config
            self._alarms.set(group.group_id, self._now_ms() + config.session_timeout_ms, partial(self._on_alarm, group))

    def _arm(self, group: ConsumerGroup) -> None:
        deadline_ms = group.deadline()
        if deadline_ms is not None:
            self._alarms.set(group.group_id, deadline_ms, partial(self._on_alarm, group))

    def _on_alarm(self, group: ConsumerGroup) -> None:
        group_id = group.group_id
        if self.groups.get(group_id) is not group:
            return
        late = group.late_members(self._now_ms())
        if not late:
            self._arm(group)
            return
        try:
            self.store_without(group_id, late, group.remove(late, self._view()))
        except HeadraceError as error:
            log.warning("removing expired members failed group=%s error=%s", group_id, error)
            self._alarms.set(group_id, self._now_ms() + _RETRY_MS, partial(self._on_alarm, group))


class TopicsSeen:
    """What the groups of all partitions know of the topics: made once per version of the catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._view = TopicView({})
        self._version = -1

    def view(self) -> TopicView:
        """The topics as they are; the same object until they change."""
        if self._version != self._catalogue.version:
            self._version = self._catalogue.version
            self._view = TopicView(
                {topic.name: TopicShape(topic.id, topic.partition_count) for topic in self._catalogue}
            )
        return self._view
