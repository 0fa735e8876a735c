"""All subscriptions of one partition, while this broker leads the partition's acks log in one epoch.

- The events that a subscription's state machine returns are appended to the acks log and applied in the same step. The
  request is answered when they are committed.
- Leases exist in memory only: they end with the leadership, and their messages are delivered again.
- An object is loaded with `load` and ends with `close`; afterwards all calls fail.
- The messages are in the topic's own partition, which this broker must lead as well; every call checks that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from headrace.broker.coordination.timers import Timers
from headrace.broker.partition import Partition
from headrace.broker.queues.acks_log import AcksLog
from headrace.broker.queues.dead_letters import CopyDeadLetter, DeadLetterWriter
from headrace.broker.queues.lease_poll import (
    ColdLease,
    ExtendLease,
    LeaseResult,
    LeaseWaiter,
    LeaseWaits,
    RangeSettlement,
    SubscriptionDescription,
)
from headrace.broker.queues.lease_reader import LeaseRequestSpec, LeaseSource, Leasing
from headrace.broker.queues.start_position import InheritedSubscriptions, deliverable_end, initial_ack_floor
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.machines.queues.subscription_stats import SubscriptionStats
from headrace.machines.queues.subscription_values import Ack, OffsetGap
from headrace.model.errors import (
    CoordinatorLoading,
    GroupIdNotFound,
    HeadraceError,
    NotLeader,
    PolicyViolation,
    StorageFailure,
)
from headrace.model.names import ACKS_PREFIX, check_group_id
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.runtime.clock import Clock
from headrace.wire.state_records.acks_records import AcksEvent, Created, Deleted, Failed, Settled, SnapshotEvent

# What the subscriptions of a broker share, whichever partitions they are of.


class SubscriptionDependencies(NamedTuple):
    clock: Clock
    now_ms: Callable[[], int]
    chance: Callable[[], float]
    config_of: Callable[[str], SubscriptionConfig]
    stats_of: Callable[[str, str], SubscriptionStats]  # by topic and subscription
    dead_letter: CopyDeadLetter
    start: Callable[..., asyncio.Task[None]]
    session_valid: Callable[[], bool]
    inherited: InheritedSubscriptions


log = logging.getLogger(__name__)

SUBSCRIPTIONS_MAX = 1000  # per partition, so that a buggy client cannot exhaust the memory
_SNAPSHOT_PART_BYTES = 1 << 18
_REPLAYED_MAX = 10_000  # events; after replaying more, write a snapshot for the next load


class SubscriptionShard:
    """`source` is the partition with the messages, if this broker leads it. `on_lost` is called when acknowledgements
    could not be written: then this state is invalid and must be loaded again. `older_partitions` is the partition count
    of the topic before this one was added; 0 if they were created together."""

    def __init__(
        self,
        partition: Partition,
        source: LeaseSource,
        dependencies: SubscriptionDependencies,
        on_lost: Callable[[SubscriptionShard, HeadraceError], None],
        older_partitions: int = 0,
    ) -> None:
        self.subscriptions: dict[str, PartitionSubscription] = {}
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.loaded = asyncio.Event()
        self._source = source
        self._dependencies = dependencies
        self._now_ms = dependencies.now_ms
        self._acks = AcksLog(partition, dependencies.clock, self._snapshot, partial(on_lost, self))
        self._timers = Timers(dependencies.now_ms)
        self._waits: dict[str, LeaseWaits] = {}
        self._leasing = Leasing(self, dependencies.now_ms)
        self._dead_letter_writer = DeadLetterWriter(
            self, dependencies.dead_letter, dependencies.start, dependencies.now_ms
        )
        self._creating: set[str] = set()  # subscriptions whose creation is not committed yet
        self._watched: Partition | None = None
        self._reconciled_epoch = -1  # last seen leader epoch of the source
        self._closed: HeadraceError | None = None
        self._failure: HeadraceError | None = None
        self._older_partitions = older_partitions
        if self._acks.has_no_records and not older_partitions:
            self.loaded.set()

    def __iter__(self) -> Iterator[str]:
        return iter(self.subscriptions)

    # Load and close

    async def load(self) -> None:
        """Rebuild the state from the acks log; raise `NotLeader` if the leadership is lost meanwhile."""
        try:
            replay = await self._acks.load(self._make)
        except HeadraceError as error:
            self._acks.ensure_leader()
            self._failure = error
            log.critical("subscriptions are out of service partition=%s-%d error=%s", *self.place, error)
            self.loaded.set()
            return
        self.subscriptions = replay.subscriptions
        if self._acks.has_no_records:
            inherited = await self._dependencies.inherited.find(self._acks, self._older_partitions)
            for name in inherited[:SUBSCRIPTIONS_MAX]:
                self.create(name, 0)
        self.loaded.set()
        if replay.event_count:
            known = len(self.subscriptions)
            log.info(
                "subscriptions loaded events=%d partition=%s-%d subscriptions=%d",
                replay.event_count,
                *self.place,
                known,
            )
        if replay.event_count > _REPLAYED_MAX:
            self._acks.write_snapshot()
        for name, subscription in self.subscriptions.items():
            self.update_timer(name, subscription)
        self.reconcile()
        self._dead_letter_writer.look()

    def close(self, error: HeadraceError) -> None:
        """Fail all waiting and later calls; the subscriptions continue to exist in the log."""
        self._closed = error
        self._source.served()
        self._acks.close(error)
        self._timers.stop()
        self._dead_letter_writer.stop()
        self.loaded.set()
        if self._watched is not None:
            self._watched.unwatch(self)
        for waits in self._waits.values():
            waits.wake_all()

    def ensure_open(self) -> None:
        """Raise unless requests can be served now; call it again after every await."""
        if self._closed is not None:
            raise self._closed
        if not self.loaded.is_set():
            raise CoordinatorLoading(
                f"the subscriptions of {self.place[0]}-{self.place[1]} are still being loaded; retry"
            )
        if self._failure is not None:
            raise StorageFailure(f"the subscriptions are out of service: {self._failure.message}")
        self._acks.ensure_leader()

    @property
    def place(self) -> tuple[str, int]:
        return self.partition.topic, self.partition.index

    def source(self) -> Partition:
        """Return the partition with the messages; raise unless requests can be served now."""
        self.ensure_open()
        partition = self._source.find()
        if partition.leader_epoch != self._reconciled_epoch:
            self._reconcile_with(partition)
        return partition

    def leasable_partition(self) -> Partition:
        """Like `source`, for leases: raise also if another broker may be the leader, since messages that were settled
        there must not be delivered here."""
        if not self._dependencies.session_valid():
            raise self._not_leader()
        return self.source()

    def _not_leader(self) -> NotLeader:
        """Return the error for leases, which exist in memory only: no other broker confirms that this one leads."""
        topic, index = self.place
        return NotLeader(
            f"this broker may no longer be the leader of {topic}-{index}, so it grants and extends no leases"
        )

    def has(self, name: str) -> bool:
        """Whether the subscription exists, and its creation is committed."""
        return name in self.subscriptions and name not in self._creating

    def find(self, name: str) -> PartitionSubscription:
        found = self.subscriptions.get(name)
        if found is None:
            raise GroupIdNotFound(f"{self.place[0]}-{self.place[1]} has no subscription {name}")
        return found

    def config_of(self, name: str) -> SubscriptionConfig:
        """Return the configuration of a subscription, which need not exist yet."""
        return self._dependencies.config_of(name)

    # Create and delete

    async def ensure(self, name: str) -> None:
        """Create a missing subscription at its configured start; return when that is committed. Before that nothing may
        be leased, because after a crash the subscription could start at another position."""
        if name not in self.subscriptions:
            config = self._dependencies.config_of(name)
            floor = await initial_ack_floor(self.source(), config, self._dependencies.clock.now_ms())
            self.source()
            self.create(name, floor)
        if name in self._creating:
            wait = self._acks.committed()
            if wait is not None:
                await wait

    def create(self, name: str, floor: int) -> asyncio.Future[None] | None:
        """Create the subscription unless it exists; return the future to await."""
        check_group_id(name)
        self._acks.ensure_writable()
        if name not in self.subscriptions:
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
                raise PolicyViolation(f"a partition can have at most {SUBSCRIPTIONS_MAX} subscriptions")
            self.subscriptions[name] = subscription = self._make(name)
            self._creating.add(name)
            self.put(name, subscription, [Created(at=self._now_ms(), floor=floor)])
            self._acks.record_reconciled(self.subscriptions, self._reconciled_epoch, self._now_ms())
            committed = self._acks.committed()
            if committed is None:
                self._creating.discard(name)
            else:
                committed.add_done_callback(partial(self._on_created, name))
        return self._acks.committed() if name in self._creating else None

    def _on_created(self, name: str, committed: asyncio.Future[None]) -> None:
        if committed.exception() is None:
            self._creating.discard(name)

    def delete(self, name: str) -> asyncio.Future[None] | None:
        self._acks.ensure_writable()
        self.put(name, self.find(name), [Deleted(at=self._now_ms())])
        del self.subscriptions[name]
        self._creating.discard(name)
        self._leasing.forget(name)
        self._timers.cancel(name)
        if name in self._waits:
            self._waits[name].wake_all()
        return self._acks.committed()

    def seek(self, name: str, floor: int) -> asyncio.Future[None] | None:
        self._acks.ensure_writable()
        subscription = self.find(name)
        self.put(name, subscription, subscription.seek(floor, self._now_ms()))
        self.wake(name)
        return self._acks.committed()

    def reconfigure(self, name: str) -> None:
        """Apply a possibly changed configuration."""
        subscription = self.subscriptions.get(name)
        if subscription is not None and self._closed is None:
            subscription.reconfigure(self._dependencies.config_of(name))
            self.update_timer(name, subscription)
            self._dead_letter_writer.look()
            self.wake(name)

    # Leasing

    def lease(
        self, name: str, member: str, count_max: int, bytes_max: int, lease_ms: int | None = None
    ) -> LeaseResult | ColdLease | None:
        """Lease available messages, at least one if there is any, whatever the size of its batch. None means that there
        is nothing until watchers are woken."""
        return self._leasing.lease(LeaseRequestSpec(name, member, count_max, bytes_max, lease_ms))

    # Settling

    def settle(
        self, name: str, member: str | None, settlements: Iterable[RangeSettlement]
    ) -> tuple[list[HeadraceError | None], asyncio.Future[None] | None]:
        """Settle messages; return the error or None for each verdict, and the future to await for the others."""
        self.source()
        self._acks.ensure_writable()
        if not self._dependencies.session_valid():
            settlements = list(settlements)
            if any(isinstance(how, ExtendLease) for _, _, how, _ in settlements):
                raise self._not_leader()
        subscription = self.find(name)
        now_ms = self._now_ms()
        errors: list[HeadraceError | None] = []
        has_settled = comes_back = False
        for first, last, how, attempt in settlements:
            try:
                if isinstance(how, ExtendLease):
                    subscription.extend(first, last, member, attempt, now_ms, how.lease_ms)
                else:
                    self.put(name, subscription, subscription.settle(first, last, how, member, attempt, now_ms))
                    has_settled = True
                    comes_back = comes_back or not isinstance(how, (Ack, OffsetGap))
            except HeadraceError as error:
                errors.append(error)
                subscription.stats.refused += 1
            else:
                errors.append(None)
        if comes_back:
            self.update_timer(name, subscription)
            self._dead_letter_writer.look()
        config = subscription.config
        if comes_back or config.opens_messages or config.share_partition_max_record_locks:
            self.wake(name)
        return errors, self._acks.committed() if has_settled else None

    def release_member(self, name: str, member: str, *, counts: bool = True) -> None:
        """Release all leases of a removed member; `counts` makes them count as failed deliveries."""
        subscription = self.subscriptions.get(name)
        if subscription is None or self._closed is not None:
            return
        self.put(name, subscription, subscription.release_member(member, self._now_ms(), counts=counts))
        self.update_timer(name, subscription)
        self._dead_letter_writer.look()
        self.wake(name)

    # Waiting

    def watch(self, name: str, waiter: LeaseWaiter) -> None:
        """Wake the waiter when there may be messages to lease, or when this broker can no longer lease any. A waiter
        that finds nothing watches again, and keeps its position in the queue."""
        partition = self.source()
        if self._watched is not partition:
            if self._watched is not None:
                self._watched.unwatch(self)
            self._watched = partition
            partition.watch(self)
        self._waits.setdefault(name, LeaseWaits()).add(waiter)

    def unwatch(self, name: str, waiter: LeaseWaiter) -> None:
        waits = self._waits.get(name)
        if waits is not None:
            waits.remove(waiter)
            if not waits:
                del self._waits[name]

    def on_data_available(self, new_bytes: int) -> None:
        """The partition has new messages, or, with 0 bytes, this broker no longer leads it."""
        for waits in list(self._waits.values()):
            if new_bytes:
                waits.wake_next()
            else:
                waits.wake_all()

    def on_high_watermark(self) -> None:
        """Called for followers only."""

    def wake(self, name: str) -> None:
        waits = self._waits.get(name)
        if waits is not None:
            waits.wake_next()

    # Queries

    def committed(self) -> asyncio.Future[None] | None:
        """Return None if all appended events are committed, else the future to await: before that they may be lost."""
        return self._acks.committed()

    def describe(self, names: Sequence[str] | None = None) -> list[SubscriptionDescription]:
        """Raise `OffsetNotAvailable` while a new leader does not know the high watermark: a backlog that is counted up
        to a lagging one is too small, and a caller that waits for 0 would stop with messages left."""
        partition = self.source()
        descriptions: list[SubscriptionDescription] = []
        for name in self.subscriptions if names is None else names:
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                self.catch_up(name, subscription, partition)
                end_offset = deliverable_end(partition, subscription.config)
                descriptions.append(
                    SubscriptionDescription(name, subscription.floor, end_offset, subscription.counts(end_offset))
                )
        return descriptions

    async def history(self, offsets: Collection[int]) -> dict[tuple[str, int], Settled | Failed]:
        """Return the last events of messages in the acks log, by subscription and offset."""
        self.source()
        return await self._acks.history(offsets)

    # Apply

    def trim(self) -> None:
        """Delete history that is old enough."""
        if self._closed is None and self.loaded.is_set():
            self._dependencies.start(self._acks.trim())

    def _make(self, name: str) -> PartitionSubscription:
        stats = self._dependencies.stats_of(self.partition.topic.removeprefix(ACKS_PREFIX), name)
        return PartitionSubscription(self._dependencies.config_of(name), self._dependencies.chance, stats)

    def _snapshot(self, snapshot_id: int) -> Iterator[tuple[str, SnapshotEvent]]:
        count = len(self.subscriptions)
        for name, subscription in self.subscriptions.items():
            for part in subscription.snapshot(snapshot_id, _SNAPSHOT_PART_BYTES, self._now_ms(), count):
                yield name, part

    def put(self, name: str, subscription: PartitionSubscription, events: Iterable[AcksEvent]) -> None:
        for event in events:
            self._acks.put(name, event)
            subscription.apply(event)

    def catch_up(self, name: str, subscription: PartitionSubscription, partition: Partition) -> None:
        """Apply a changed log start of the partition to the subscription."""
        trimmed = subscription.trimmed(partition.log.start_offset, self._now_ms())
        if trimmed is not None:
            self.put(name, subscription, [trimmed])

    def reconcile(self) -> None:
        """Called when a leadership of the acks log or of the partition begins, before anything is appended."""
        with suppress(HeadraceError):
            self.source()

    def _reconcile_with(self, partition: Partition) -> None:
        """Adapt to a new leadership of the partition. If its log was truncated, acknowledgements after its end concern
        messages that no longer exist, so the subscription is reset to the end; messages that were settled out of order
        before it are delivered again."""
        self._reconciled_epoch = partition.leader_epoch
        end_offset = self._source.end_before(partition, self._acks.reconciled_epoch)
        for name, subscription in self.subscriptions.items():
            if subscription.end > end_offset:
                floor = min(subscription.floor, end_offset)
                log.error(
                    "log end moved back; subscription reset topic=%s subscription=%s offset=%d",
                    partition.topic,
                    name,
                    floor,
                )
                self.put(name, subscription, subscription.seek(floor, self._now_ms()))
        self._acks.record_reconciled(self.subscriptions, self._reconciled_epoch, self._now_ms())

    def update_timer(self, name: str, subscription: PartitionSubscription) -> None:
        due_ms = subscription.next_due_ms()
        if due_ms is not None:
            self._timers.set(name, due_ms, partial(self._on_timer, name))

    def _on_timer(self, name: str) -> None:
        subscription = self.subscriptions[name]
        self.put(name, subscription, subscription.expire(self._now_ms()))
        self.update_timer(name, subscription)
        self._dead_letter_writer.look()
        self.wake(name)
