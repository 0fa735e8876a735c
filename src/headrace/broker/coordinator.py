"""The coordinator of consumer groups: runs the group machines, and keeps what they decide in `__consumer_offsets`.

It carries out what a group's machine returns: answers go to the requests that wait for them, and what must be stored is
appended before the answers that depend on it leave. A commit is checked, appended, applied in the same step, and
answered when it is durable. While the log is still being read after a start, everything is refused as "loading"; groups
whose records turn out to be damaged are refused from then on, and the others go on.
A group with an empty id cannot be joined, but offsets may be kept under it: very old clients do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial

from headrace.broker.alarms import Alarms
from headrace.broker.catalogue import Catalogue
from headrace.broker.consumer_group_records import ConsumerGroupStored, end_records
from headrace.broker.consumer_groups import ConsumerGroups
from headrace.broker.forgotten_offsets import ForgottenOffsets
from headrace.broker.group_records import GroupStored, group_record, offset_record, read_record
from headrace.broker.offsets_log import OffsetsLog, durable
from headrace.broker.state_log import StoredMarker
from headrace.machines.assignors import TopicPartition
from headrace.machines.consumer_group_heartbeat import JOIN_EPOCH, Heartbeat, HeartbeatAnswer
from headrace.machines.consumer_groups import ConsumerGroup, ConsumerGroupConfig
from headrace.machines.group_effects import (
    Answer,
    Departed,
    Departure,
    Effect,
    JoinAnswer,
    JoinRequest,
    StoreMetadata,
    SyncAnswer,
)
from headrace.machines.group_state import GroupConfig, GroupState
from headrace.machines.groups import Group
from headrace.machines.offsets import GroupOffsets, OffsetCommitted, OffsetForgotten
from headrace.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupNotEmpty,
    HeadraceError,
    UnknownMemberId,
)
from headrace.model.names import check_group_id
from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)


class Coordinator:
    """`groups` are those of the classic protocol, `consumers` has those of the newer one: an id is never in both."""

    def __init__(
        self,
        offsets_log: OffsetsLog,
        catalogue: Catalogue,
        config: GroupConfig,
        consumer_config: ConsumerGroupConfig,
        metadata_bytes_max: int,
        clock: Clock,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = GroupOffsets(metadata_bytes_max)
        self.is_loaded = False
        self._log = offsets_log
        self._config = config
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started = clock.monotonic()
        self._loop = asyncio.get_running_loop()
        self._alarms = Alarms(self._now_ms)
        self._is_stopped = False
        self._forgotten = ForgottenOffsets(self.offsets, offsets_log)
        self.consumers = ConsumerGroups(offsets_log, catalogue, consumer_config, self._now_ms)

    async def load(self) -> None:
        """Rebuild groups and offsets from the log; until then every request is told to come again."""
        stored: dict[str, GroupStored] = {}
        count = 0
        async for record in self._log.replay():
            if isinstance(record, StoredMarker):
                self.offsets.end_transaction(record.transaction, is_commit=record.is_commit)
                continue
            event = read_record(record.key, record.value)
            if record.transaction is not None and isinstance(event, OffsetCommitted):
                self.offsets.add_pending(record.transaction, event)
            elif isinstance(event, GroupStored):
                stored[event.group_id] = event
            elif isinstance(event, ConsumerGroupStored):
                self.consumers.replay(event)
            elif event is not None:
                self.offsets.apply(event)
            count += 1
        now_ms = self._now_ms()
        self.consumers.restore()
        for group_id, event in stored.items():
            if event.snapshot is not None and group_id not in self.consumers:
                self.groups[group_id] = Group.restore(group_id, self._config, event.snapshot, now_ms)
        for group_id in self.offsets.groups():
            if self.find(group_id) is None:
                self.groups[group_id] = Group(group_id, self._config, now_ms)
        for group in self.groups.values():
            self._arm(group)
        self.is_loaded = True
        if count:
            known = len(self.groups) + len(self.consumers.groups)
            log.info("read %d records of groups and offsets: %d groups", count, known)

    def ensure_loaded(self, group_id: str | None = None) -> None:
        """Raise unless requests (for this group) can be answered now."""
        if self._is_stopped:
            raise CoordinatorNotAvailable("the broker is going down")
        if not self.is_loaded:
            raise CoordinatorLoading("the coordinator is still reading its log")
        if group_id is not None:
            self._log.ensure_readable(group_id)

    def find(self, group_id: str) -> Group | ConsumerGroup | None:
        return self.groups.get(group_id) or self.consumers.groups.get(group_id)

    # Membership

    async def consumer_heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """A member of the newer protocol joins, reports or leaves."""
        self.ensure_loaded()
        await self._log.ensure()
        self.ensure_loaded(beat.group_id)
        classic = self.groups.get(beat.group_id)
        if classic is not None and (beat.member_epoch != JOIN_EPOCH or classic.state is not GroupState.EMPTY):
            raise GroupIdNotFound(f"Group {beat.group_id} is not a consumer group.")
        decision = self.consumers.decide(beat)
        if classic is None:
            self.consumers.store(beat.group_id, decision.events)
        else:
            self.consumers.store(beat.group_id, decision.events, [group_record(beat.group_id, None)])
            self._end(classic)
        return await self.consumers.answer(beat.group_id, decision)

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        check_group_id(group_id)
        self.ensure_loaded()
        await self._log.ensure()
        self.ensure_loaded(group_id)
        self.consumers.make_way(group_id)
        group = self._group_or_new(group_id)
        token: asyncio.Future[JoinAnswer] = self._loop.create_future()
        self._carry_out(group, group.join(token, request, self._now_ms()))
        return await token

    async def sync(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes],
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> SyncAnswer:
        group = self._member_group(group_id)
        token: asyncio.Future[SyncAnswer] = self._loop.create_future()
        effects = group.sync(
            token,
            member_id,
            generation_id,
            assignments,
            self._now_ms(),
            instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
        )
        self._carry_out(group, effects)
        return await token

    def heartbeat(self, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> None:
        group = self._member_group(group_id)
        group.heartbeat(member_id, generation_id, self._now_ms(), instance_id=instance_id)
        self._arm(group)

    def leave(self, group_id: str, departures: Sequence[Departure]) -> list[Departed]:
        group = self._member_group(group_id)
        departed, effects = group.leave(departures, self._now_ms())
        self._carry_out(group, effects)
        return departed

    async def delete(self, group_id: str) -> None:
        self.ensure_loaded(group_id)
        group, consumers = self.groups.get(group_id), self.consumers.groups.get(group_id)
        if consumers is not None:
            consumers.check_delete()
            wait = self._forgotten.forget_group(group_id, end_records(group_id))
            self.consumers.drop(group_id)
        elif group is not None and group.state is GroupState.EMPTY:
            wait = self._forgotten.forget_group(group_id, [group_record(group_id, None)])
            self._end(group)
        elif group is not None:
            raise GroupNotEmpty(f"group {group_id} has members")
        else:
            raise GroupIdNotFound(f"there is no group {group_id}")
        await durable(wait)

    # Offsets

    def committing_group(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
        unknown: type[HeadraceError],
        partitions: Iterable[TopicPartition] | None = None,
    ) -> None:
        """Check that this member may commit for the group now; for a group without members anybody may.

        `unknown` is the error for a group that does not exist: it changed with the versions of the protocol. A member
        of the newer protocol that lags behind may still commit `partitions` that it holds.
        """
        self.ensure_loaded(group_id)
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None:
            consumers.check_commit(member_id, generation_id, partitions)
            return
        group = self.groups.get(group_id)
        if group is None:
            if generation_id >= 0:
                raise unknown(f"there is no group {group_id} with a generation {generation_id}")
            group = self._group_or_new(group_id)
        group.check_commit(member_id, generation_id, self._now_ms(), instance_id=instance_id)
        self._arm(group)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Check that this caller may see the group's offsets. What the classic protocol keeps is for everybody."""
        self.ensure_loaded(group_id)
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None:
            consumers.check_fetch(member_id, member_epoch)

    async def commit(self, group_id: str, events: Sequence[OffsetCommitted]) -> None:
        """Append the checked commits, apply them in the same step, and return when they are durable."""
        if not events:
            return
        wait = self._log.append(group_id, [offset_record(event) for event in events])
        for event in events:
            self.offsets.apply(event)
        self.note_offsets(group_id)
        await durable(wait)

    def note_offsets(self, group_id: str) -> None:
        """Whoever has offsets is a group, also without members."""
        if group_id not in self.consumers:
            self._group_or_new(group_id)

    async def settle(self, group_id: str) -> None:
        """Return when all that is known of the group is durable: nobody may be told what a crash could take back."""
        await durable(self._log.settled(group_id))

    async def ensure_log(self) -> None:
        await self._log.ensure()

    async def forget(self, events: Sequence[OffsetForgotten]) -> None:
        await self._forgotten.forget(events)

    def forget_topic(self, topic: str) -> None:
        """A deleted topic's offsets are of no use; its successor of the same name would not find them anyway."""
        if self.is_loaded:
            self._forgotten.try_to_forget(self.offsets.forget_topic(topic))

    def expire(self, retention_ms: int) -> None:
        """Forget offsets that are older than the retention, and groups that are empty and have none left."""
        if not self.is_loaded:
            return
        now_ms = self._now_ms()
        everybody: list[Group | ConsumerGroup] = [*self.groups.values(), *self.consumers.groups.values()]
        for group in everybody:
            gone = self.offsets.expired(group.group_id, group.offset_retention(), now_ms, retention_ms)
            self._forgotten.try_to_forget(gone)
            if self.offsets.has_offsets(group.group_id) or not group.is_vacant:
                continue
            if isinstance(group, Group):
                self._carry_out(group, group.delete(now_ms))
            else:
                self.consumers.try_to_end(group)

    def stop(self) -> None:
        """Answer everybody who waits: the broker is going down, the groups live on in the log."""
        self._is_stopped = True
        self._alarms.stop()
        self.consumers.stop()
        now_ms = self._now_ms()
        for group in list(self.groups.values()):
            for effect in group.close(CoordinatorNotAvailable.code, now_ms):
                if isinstance(effect, Answer):
                    _give(effect)

    # Carrying out

    def _carry_out(self, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                _give(effect)
            else:
                self._store(group, effect)
        self._arm(group)

    def _store(self, group: Group, effect: StoreMetadata) -> None:
        if effect.snapshot is None:
            self._drop(group)
        try:
            wait = self._log.append(group.group_id, [group_record(group.group_id, effect.snapshot)])
        except HeadraceError as error:
            self._carry_out(group, group.store_failed(effect.ticket, error.code, self._now_ms()))
            return
        if wait is None:
            self._carry_out(group, group.stored(effect.ticket, self._now_ms()))
        else:
            wait.add_done_callback(partial(self._on_stored, group, effect.ticket))

    def _on_stored(self, group: Group, ticket: int, wait: asyncio.Future[None]) -> None:
        now_ms = self._now_ms()
        if wait.exception() is None:
            self._carry_out(group, group.stored(ticket, now_ms))
        else:
            self._carry_out(group, group.store_failed(ticket, CoordinatorNotAvailable.code, now_ms))

    def _arm(self, group: Group) -> None:
        """Set the group's alarm to its next deadline."""
        group_id = group.group_id
        if self.groups.get(group_id, group) is not group:
            return  # another group has its name by now, and its alarm
        deadline = group.deadline() if group_id in self.groups else None
        if deadline is not None:
            self._alarms.set(group_id, deadline, partial(self._on_alarm, group))
            return
        self._alarms.cancel(group_id)
        if group.is_vacant and not self.offsets.has_offsets(group_id) and not group.generation_id:
            self._drop(group)

    def _on_alarm(self, group: Group) -> None:
        self._carry_out(group, group.tick(self._now_ms()))

    def _end(self, group: Group) -> None:
        """It is empty, and its tombstone is in the log already."""
        group.delete(self._now_ms())
        self._drop(group)
        self._arm(group)

    def _drop(self, group: Group) -> None:
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    def _now_ms(self) -> int:
        """Wall time as of the start, carried on by the monotonic clock: a jump must not expire every session."""
        return self._started_ms + int((self._clock.monotonic() - self._started) * 1000)

    def _group_or_new(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self._config, self._now_ms())
        return group

    def _member_group(self, group_id: str) -> Group:
        """The group of somebody who says that he is a member of it."""
        check_group_id(group_id)
        self.ensure_loaded(group_id)
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownMemberId(f"there is no group {group_id}")
        return group


def _give(effect: Answer) -> None:
    token = effect.token
    assert isinstance(token, asyncio.Future)
    if not token.done():  # the connection may be gone, and its request with it
        token.set_result(effect.answer)
