"""The groups of one partition of `__consumer_offsets`, for one leadership of this broker.

- It executes the effects that a group's state machine returns: it completes waiting requests, and stores records before
  the responses that depend on them are sent.
- An offset commit is checked, appended and applied in one step, and answered when it is durable.
- A group with an empty id cannot be joined, but may have offsets, because very old clients use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from headrace.broker.coordination.shards import Shard
from headrace.broker.coordination.state_log import KeyValue, StoredTransactionMarker
from headrace.broker.coordination.timers import Timers
from headrace.broker.groups.consumer_group_records import StoredConsumerGroupEvent, group_tombstones
from headrace.broker.groups.consumer_groups import ConsumerGroups
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.group_records import StoredGroup, group_record, offset_record, read_record
from headrace.broker.groups.offsets_log import (
    OffsetsLogPartition,
    as_coordinator_error,
    wait_until_durable,
)
from headrace.broker.share_groups.share_group_records import StoredShareGroupEvent
from headrace.broker.share_groups.share_groups import ShareGroups
from headrace.machines.groups.assignors import TopicIdPartition
from headrace.machines.groups.classic_group import ClassicGroup
from headrace.machines.groups.consumer_group import ConsumerGroup
from headrace.machines.groups.consumer_group_heartbeat import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    HeartbeatDecision,
)
from headrace.machines.groups.group_migration import upgrade
from headrace.machines.groups.group_offsets import GroupOffsets, OffsetCommitted, OffsetForgotten, ProducerTransaction
from headrace.machines.groups.group_state import (
    Effect,
    GroupState,
    JoinRequest,
    LeavingMember,
    SendResponse,
    StoreMetadata,
    SyncRequest,
)
from headrace.machines.groups.group_topics import TopicsImage
from headrace.machines.share_groups.share_group import ShareHeartbeat, ShareHeartbeatResult
from headrace.model.errors import GroupIdNotFound, GroupNotEmpty, HeadraceError, RebalanceInProgress, UnknownMemberId
from headrace.wire.messages.groups import JoinGroupResponse, MemberResponse, SyncGroupResponse

log = logging.getLogger(__name__)

_RECORDS_PER_YIELD = 500  # takes a few milliseconds


class GroupShard(Shard):
    """A group id is in at most one of `classic`, `consumers` and `shares`."""

    def __init__(
        self,
        log_partition: OffsetsLogPartition,
        view: Callable[[], TopicsImage],
        configs: GroupConfigs,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(log_partition.partition)
        self.classic: dict[str, ClassicGroup] = {}
        self.consumers = ConsumerGroups(log_partition, view, configs, now_ms)
        self.consumers.on_downgrade = self._on_downgrade
        self.shares = ShareGroups(log_partition, view, configs.timing_of, now_ms)
        self.offsets = GroupOffsets(configs.metadata_bytes_max)
        self._log_partition = log_partition
        self._configs = configs
        self._view = view
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._timers = Timers(now_ms)
        # Transaction ends during `load`, which it may have missed.
        self._early_markers: list[tuple[ProducerTransaction, bool]] = []
        self.partition.on_marker = self._on_marker

    def __iter__(self) -> Iterator[ClassicGroup | ConsumerGroup]:
        """Iterate over the groups that commit offsets."""
        yield from self.classic.values()
        yield from self.consumers.groups.values()

    def find(self, group_id: str) -> ClassicGroup | ConsumerGroup | None:
        return self.classic.get(group_id) or self.consumers.groups.get(group_id)

    # Load and close

    async def load(self) -> None:
        stored: dict[str, StoredGroup] = {}
        count = 0
        async for record in self._log_partition.load():
            if isinstance(record, StoredTransactionMarker):
                self.offsets.end_transaction(record.transaction, is_commit=record.is_commit)
                continue
            event = read_record(record.key, record.value)
            if record.transaction is not None and isinstance(event, OffsetCommitted):
                self.offsets.add_pending(record.transaction, event)
            elif isinstance(event, StoredGroup):
                stored[event.group_id] = event
            elif isinstance(event, StoredConsumerGroupEvent):
                self.consumers.replay(event)
            elif isinstance(event, StoredShareGroupEvent):
                self.shares.replay(event)
            elif event is not None:
                self.offsets.apply(event)
            count += 1
            if count % _RECORDS_PER_YIELD == 0:
                await asyncio.sleep(0)  # yield to other partitions
        self._log_partition.ensure_leader()
        for transaction, is_commit in self._early_markers:
            self.offsets.end_transaction(transaction, is_commit=is_commit)
        self._restore(stored)
        self.is_loaded = True
        if count:
            known = len(self.classic) + len(self.consumers.groups) + len(self.shares.groups)
            name, index = self.partition.topic, self.partition.index
            log.info("group state loaded records=%d partition=%s-%d groups=%d", count, name, index, known)

    def close(self, error: HeadraceError) -> None:
        self._log_partition.is_over = True
        self.partition.on_marker = None
        self._timers.stop()
        self.consumers.stop()
        self.shares.stop()
        now_ms = self._now_ms()
        for group in list(self.classic.values()):
            for effect in group.close(error.code, now_ms):
                if isinstance(effect, SendResponse):
                    _complete_request(effect)

    def _restore(self, stored: dict[str, StoredGroup]) -> None:
        now_ms = self._now_ms()
        self.consumers.restore()
        self.shares.restore()
        for group_id, event in stored.items():
            if event.snapshot is not None and group_id not in self.consumers and group_id not in self.shares:
                self.classic[group_id] = ClassicGroup.restore(group_id, self._configs.classic, event.snapshot, now_ms)
        for group_id in self.offsets.groups():
            self.ensure_offsets_group(group_id)
        for group in list(self.classic.values()):
            self._update_timer(group)

    # Membership

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """Process the heartbeat of a member of a consumer group, with which it joins, reports or leaves."""
        self.shares.refuse(request.group_id)
        classic = self.classic.get(request.group_id)
        if classic is None:
            decision = self.consumers.decide(request)
            self.consumers.store_without(request.group_id, decision.removed, decision.events)
        elif request.member_epoch == JOIN_EPOCH:
            decision = self._upgrade(classic, request)
        else:
            raise GroupIdNotFound(f"Group {request.group_id} is not a consumer group.")
        return await self.consumers.when_durable(request.group_id, decision)

    def _upgrade(self, classic: ClassicGroup, request: ConsumerHeartbeat) -> HeartbeatDecision:
        """Convert a classic group to a consumer group in one step, when a member with the consumer protocol joins."""
        group_id, events = classic.group_id, []
        if classic.state is not GroupState.EMPTY:
            max_size = self._configs.consumer_config_of(group_id).max_size
            events = upgrade(classic, self._configs.migration_policy, max_size, self._view())
        decision = self.consumers.decide(request, events)
        self.consumers.store(group_id, [*events, *decision.events], [group_record(group_id, None)])
        if events:
            log.info("upgraded to a consumer group group=%s generation=%d", group_id, classic.generation_id)
        self._end(classic)
        return decision

    def _on_downgrade(self, group: ClassicGroup, rebalances: bool) -> None:
        self.classic[group.group_id] = group
        self._carry_out(group, group.rebalance(self._now_ms()) if rebalances else [])

    async def share_heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Process the heartbeat of a member of a share group, with which it joins, reports or leaves."""
        if request.group_id in self.classic or request.group_id in self.consumers:
            raise GroupIdNotFound(f"Group {request.group_id} is not a share group.")
        return await self.shares.heartbeat(request)

    async def join(self, group_id: str, request: JoinRequest) -> JoinGroupResponse:
        self.shares.reject_classic_member(group_id)
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None and not consumers.has_no_members:
            return await self.consumers.join(group_id, request)
        self.consumers.convert_to_classic(group_id)
        group = self._group_or_new(group_id)
        token: asyncio.Future[JoinGroupResponse] = self._loop.create_future()
        self._carry_out(group, group.join(token, request, self._now_ms()))
        return await token

    async def sync(self, group_id: str, request: SyncRequest) -> SyncGroupResponse:
        if group_id in self.consumers:
            return await self.consumers.sync(group_id, request)
        group = self._member_group(group_id)
        token: asyncio.Future[SyncGroupResponse] = self._loop.create_future()
        self._carry_out(group, group.sync(token, request, self._now_ms()))
        return await token

    def heartbeat(self, group_id: str, member_id: str, generation_id: int, instance_id: str | None) -> None:
        if group_id in self.consumers:
            self.consumers.heartbeat(group_id, member_id, generation_id, instance_id)
            return
        group = self._member_group(group_id)
        group.heartbeat(member_id, generation_id, self._now_ms(), instance_id=instance_id)
        self._update_timer(group)

    async def leave(self, group_id: str, departures: Sequence[LeavingMember]) -> list[MemberResponse]:
        if group_id in self.consumers:
            return await self.consumers.leave(group_id, departures)
        group = self._member_group(group_id)
        departed, effects = group.leave(departures, self._now_ms())
        self._carry_out(group, effects)
        return departed

    async def delete(self, group_id: str) -> None:
        if group_id in self.shares:
            await self.shares.end(group_id)
            return
        group, consumers = self.classic.get(group_id), self.consumers.groups.get(group_id)
        if consumers is not None:
            consumers.check_delete()
            wait = self._forget_group(group_id, group_tombstones(group_id))
            self.consumers.drop(group_id)
        elif group is not None and group.state is GroupState.EMPTY:
            wait = self._forget_group(group_id, [group_record(group_id, None)])
            self._end(group)
        elif group is not None:
            raise GroupNotEmpty(f"group {group_id} has members")
        else:
            raise GroupIdNotFound(f"group {group_id} does not exist")
        await wait_until_durable(wait)

    # Offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
        unknown: type[HeadraceError],
        partitions: Iterable[TopicIdPartition] | None = None,
    ) -> None:
        """Check that this member may commit for the group now; any client may commit for a group without members.

        `unknown` is the error for a group that does not exist: it changed with the versions of the protocol. A member
        of the consumer protocol that lags behind may still commit `partitions` that it holds.
        """
        self.shares.refuse(group_id)
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None:
            consumers.check_commit(member_id, generation_id, partitions)
            return
        group = self.classic.get(group_id)
        if group is None:
            if generation_id >= 0:
                raise unknown(f"group {group_id} with generation {generation_id} does not exist")
            group = self._group_or_new(group_id)
        group.check_commit(member_id, generation_id, self._now_ms(), instance_id=instance_id)
        self._update_timer(group)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Check that this client may read the group's offsets; any client may read those of classic groups."""
        self.shares.refuse(group_id)
        consumers = self.consumers.groups.get(group_id)
        if consumers is not None:
            consumers.check_fetch(member_id, member_epoch)

    async def commit(self, group_id: str, events: Sequence[OffsetCommitted]) -> None:
        """Append the checked commits, apply them in the same step, and return when they are durable."""
        if not events:
            return
        wait = self._append_offsets(group_id, events)
        self.ensure_offsets_group(group_id)
        await wait_until_durable(wait)

    async def commit_pending(self, events: Sequence[OffsetCommitted], producer_id: int, producer_epoch: int) -> None:
        """Like `commit`, but in a producer's transaction: the offsets apply when its commit marker is written."""
        if not events:
            return
        wait = self._log_partition.append_transactional(
            [offset_record(event) for event in events], producer_id, producer_epoch
        )
        for event in events:
            self.offsets.add_pending((self.partition.index, producer_id), event)
        await wait_until_durable(wait)

    def ensure_offsets_group(self, group_id: str) -> None:
        """Create the group if it does not exist: a group with offsets exists even without members."""
        if group_id not in self.consumers:
            self._group_or_new(group_id)

    async def settle(self) -> None:
        """Wait until the whole state is durable, so that a response contains nothing that a crash could undo."""
        await wait_until_durable(self._log_partition.settled())

    async def forget(self, events: Sequence[OffsetForgotten]) -> None:
        """Append the tombstones; return when they are durable."""
        for wait in self._append_forgotten(events):
            await wait_until_durable(wait)

    def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic. A later topic of the same name must not use them."""
        self._try_forget(self.offsets.forget_topic(topic))

    def expire(self, retention_ms: int) -> None:
        """Remove offsets that are older than the retention, and empty groups without offsets."""
        now_ms = self._now_ms()
        for group in list(self):
            gone = self.offsets.expired(group.group_id, group.offset_retention(), now_ms, retention_ms)
            self._try_forget(gone)
            if self.offsets.has_offsets(group.group_id) or not group.has_no_members:
                continue
            if isinstance(group, ClassicGroup):
                self._carry_out(group, group.delete(now_ms))
            else:
                self.consumers.try_delete(group)

    def _try_forget(self, events: Sequence[OffsetForgotten]) -> None:
        """Remove what is possible now, without waiting. The next expiration tries the rest again."""
        try:
            for wait in self._append_forgotten(events):
                wait.add_done_callback(asyncio.Future.exception)
        except HeadraceError as error:
            log.warning("removing expired offsets failed error=%s", error)

    def _append_forgotten(self, events: Sequence[OffsetForgotten]) -> list[asyncio.Future[None]]:
        by_group: dict[str, list[OffsetForgotten]] = {}
        for event in events:
            by_group.setdefault(event.group_id, []).append(event)
        waits = [self._append_offsets(group_id, gone) for group_id, gone in by_group.items()]
        return [wait for wait in waits if wait is not None]

    def _forget_group(self, group_id: str, ends: Sequence[KeyValue]) -> asyncio.Future[None] | None:
        """Remove the committed offsets together with the group; `ends` are the group's own tombstones."""
        return self._append_offsets(group_id, self.offsets.forget_group(group_id), ends)

    def _append_offsets(
        self, group_id: str, events: Sequence[OffsetCommitted | OffsetForgotten], ends: Sequence[KeyValue] = ()
    ) -> asyncio.Future[None] | None:
        """Append and apply in one step, in one batch with `ends`."""
        wait = self._log_partition.append(group_id, [*map(offset_record, events), *ends])
        for event in events:
            self.offsets.apply(event)
        return wait

    def _on_marker(self, producer_id: int, is_commit: bool) -> None:
        """Handle the end of a transaction that may have offset commits here."""
        transaction = self.partition.index, producer_id
        if not self.is_loaded:
            self._early_markers.append((transaction, is_commit))
            return
        for event in self.offsets.end_transaction(transaction, is_commit=is_commit):
            self.ensure_offsets_group(event.group_id)

    # Execute effects

    def _carry_out(self, group: ClassicGroup, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendResponse):
                _complete_request(effect)
            else:
                self._store(group, effect)
        self._update_timer(group)

    def _store(self, group: ClassicGroup, effect: StoreMetadata) -> None:
        if effect.snapshot is None:
            self._drop(group)
        try:
            wait = self._log_partition.append(group.group_id, [group_record(group.group_id, effect.snapshot)])
        except HeadraceError as error:
            self._carry_out(group, group.store_failed(effect.ticket, error.code, self._now_ms()))
            return
        if wait is None:
            self._carry_out(group, group.stored(effect.ticket, self._now_ms()))
        else:
            wait.add_done_callback(partial(self._on_stored, group, effect.ticket))

    def _on_stored(self, group: ClassicGroup, ticket: int, wait: asyncio.Future[None]) -> None:
        now_ms, error = self._now_ms(), wait.exception()
        if error is None:
            self._carry_out(group, group.stored(ticket, now_ms))
        else:
            assert isinstance(error, HeadraceError)
            self._carry_out(group, group.store_failed(ticket, as_coordinator_error(error).code, now_ms))

    def _update_timer(self, group: ClassicGroup) -> None:
        group_id = group.group_id
        if self.classic.get(group_id, group) is not group:
            return  # another group now has its name and its timer
        deadline = group.deadline() if group_id in self.classic else None
        if deadline is not None:
            self._timers.set(group_id, deadline, partial(self._on_timer, group))
            return
        self._timers.cancel(group_id)
        if group.has_no_members and not self.offsets.has_offsets(group_id) and not group.generation_id:
            self._drop(group)

    def _on_timer(self, group: ClassicGroup) -> None:
        self._carry_out(group, group.tick(self._now_ms()))

    def _end(self, group: ClassicGroup) -> None:
        """End a classic group whose tombstone is already in the log. Waiting members must rejoin."""
        for effect in group.close(RebalanceInProgress.code, self._now_ms()):
            assert isinstance(effect, SendResponse)
            _complete_request(effect)
        self._drop(group)
        self._update_timer(group)

    def _drop(self, group: ClassicGroup) -> None:
        if self.classic.get(group.group_id) is group:
            del self.classic[group.group_id]

    def _group_or_new(self, group_id: str) -> ClassicGroup:
        group = self.classic.get(group_id)
        if group is None:
            group = self.classic[group_id] = ClassicGroup(group_id, self._configs.classic, self._now_ms())
        return group

    def _member_group(self, group_id: str) -> ClassicGroup:
        """Return the group of a request from a member; raise `UnknownMemberId` if the group does not exist."""
        group = self.classic.get(group_id)
        if group is None:
            raise UnknownMemberId(f"group {group_id} does not exist")
        return group


def _complete_request(effect: SendResponse) -> None:
    token = effect.token
    assert isinstance(token, asyncio.Future)
    if not token.done():  # the connection and its request may be gone
        token.set_result(effect.result)
