"""The groups of the newer protocol (KIP-848): runs their machines, and keeps what they decide in `__consumer_offsets`.

What a machine decides is appended, applied in the same step, and told when it is durable: also a heartbeat that changes
nothing tells what an earlier one has changed. Whether a group may be of this kind at all is for `LedGroups` to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from headrace.broker.alarms import Alarms
from headrace.broker.catalogue import Catalogue
from headrace.broker.consumer_group_records import ConsumerGroupStored, consumer_group_records, end_records
from headrace.broker.offsets_log import OffsetsLead, durable
from headrace.broker.state_log import KeyValue
from headrace.machines.consumer_group_heartbeat import JOIN_EPOCH, Decision, Heartbeat, HeartbeatAnswer
from headrace.machines.consumer_group_state import ConsumerGroupEvent, ConsumerGroupState
from headrace.machines.consumer_group_topics import TopicShape, TopicView
from headrace.machines.consumer_groups import ConsumerGroup, ConsumerGroupConfig
from headrace.model.errors import GroupIdNotFound, HeadraceError, InconsistentGroupProtocol

log = logging.getLogger(__name__)

_RETRY_MS = 1000


class ConsumerGroups:
    """Those of one partition of the log, during one lead."""

    def __init__(
        self,
        lead: OffsetsLead,
        view: Callable[[], TopicView],
        config_of: Callable[[str], ConsumerGroupConfig],
        now_ms: Callable[[], int],
    ) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._lead = lead
        self._view = view
        self._config_of = config_of
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

    def decide(self, beat: Heartbeat) -> Decision:
        """What becomes of this heartbeat; nothing has changed yet."""
        group = self.groups.get(beat.group_id)
        if group is None:
            if beat.member_epoch != JOIN_EPOCH:
                raise GroupIdNotFound(f"Group {beat.group_id} not found.")
            group = ConsumerGroup(beat.group_id, self._config_of(beat.group_id))
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

    async def answer(self, group_id: str, decision: Decision) -> HeartbeatAnswer:
        """Return the answer when it may be told. `decision` is stored."""
        answer = decision.answer
        if answer.member_epoch > JOIN_EPOCH:
            self.groups[group_id].renew_session(answer.member_id, self._now_ms())
        await durable(self._lead.settled())
        return answer

    # Ending

    def make_way(self, group_id: str) -> None:
        """Somebody wants to join by the classic protocol: a group without members becomes one of that kind."""
        group = self.groups.get(group_id)
        if group is None:
            return
        if not group.is_vacant:
            raise InconsistentGroupProtocol(
                f"group {group_id} has members of the newer protocol (group.protocol=consumer); join it by that"
            )
        self._append(group_id, end_records(group_id))
        self.drop(group_id)

    def try_to_end(self, group: ConsumerGroup) -> None:
        """Nobody waits for this: a group that is not ended now is ended another time."""
        try:
            self.make_way(group.group_id)
        except HeadraceError as error:
            log.warning("group %s, which is empty, stays for now: %s", group.group_id, error)

    def drop(self, group_id: str) -> None:
        del self.groups[group_id]
        self._alarms.cancel(group_id)

    def stop(self) -> None:
        self._alarms.stop()

    def _append(self, group_id: str, records: Sequence[KeyValue]) -> None:
        """Nobody is told yet: whoever is going to be waits for all that is in the log."""
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
        events = group.tick(self._now_ms(), self._view())
        if not events:
            self._arm(group)
            return
        try:
            self.store(group_id, events)
        except HeadraceError as error:
            log.warning("members of group %s whose time is up stay for now: %s", group_id, error)
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
