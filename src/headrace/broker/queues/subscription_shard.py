"""All subscriptions of one partition, while this broker leads the partition's acks log in one epoch.

- The events that a subscription's state machine returns are appended to the acks log and applied in the same step. The
  response is sent when they are committed.
- Leases exist in memory only: they end with the leadership, and their messages are delivered again.
- A shard begins with `load` and ends with `close`; afterwards all calls fail.
- The messages are in the topic's own partition, which this broker must lead as well. Every operation looks that
  partition up once and raises if this broker does not lead it; callers repeat the operation after an await.
- Leases and settlements do not wait: a lease that needs the disk returns a `ColdLease`, a settlement returns the future
  of its commit.
- Messages that exhausted their delivery attempts, or were rejected, are written to the dead-letter topic, then settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from headrace.broker.coordination.shards import Shard
from headrace.broker.coordination.timers import Timers
from headrace.broker.partition import Partition
from headrace.broker.queues.acks_log import AcksLog
from headrace.broker.queues.dead_letters import CopyDeadLetter
from headrace.broker.queues.lease_reader import (
    LeasedRanges,
    LeaseSource,
    MessageClassifier,
    clip_below,
    cut_to_ranges,
    intersect_ranges,
    newest_publish_time_ms,
    offsets_without_message,
    read_ranges,
    subtract_ranges,
)
from headrace.broker.queues.leases import (
    ColdLease,
    ExtendLease,
    LeaseResult,
    LeaseSpec,
    LeaseWaiter,
    LeaseWaits,
    LoadedBatches,
    RangeSettlement,
    SubscriptionDescription,
)
from headrace.broker.queues.start_position import (
    READ_COMMITTED,
    InheritedSubscriptions,
    deliverable_end,
    initial_ack_floor,
    readable_end,
)
from headrace.broker.transactions.transaction_markers import retry_pauses
from headrace.machines.queues.leases import UNKNOWN
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.machines.queues.subscription_stats import SubscriptionStats
from headrace.machines.queues.subscription_values import Ack, GrantedRange, OffsetGap, UndeliverableMessage
from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.model.errors import (
    CoordinatorLoading,
    GroupIdNotFound,
    HeadraceError,
    InvalidRequest,
    NotLeader,
    PolicyViolation,
    StorageFailure,
)
from headrace.model.names import ACKS_PREFIX, check_group_id
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.runtime.clock import Clock
from headrace.storage.log.reading import ColdRead
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Settled,
    SettledHow,
    SnapshotEvent,
    Sought,
)

log = logging.getLogger(__name__)

SUBSCRIPTIONS_MAX = 1000  # per partition, so that a buggy client cannot exhaust the memory
_SNAPSHOT_PART_BYTES = 1 << 18
_REPLAYED_MAX = 10_000  # events; after replaying more, write a snapshot for the next load
_CLASSIFIED_BYTES = 1 << 16  # per read
_CLASSIFIED_BYTES_MAX = 1 << 18  # per iteration of the event loop: some milliseconds
_CONCURRENT_DEAD_LETTERS = 32
_UNLIMITED = 1 << 62


class SubscriptionDependencies(NamedTuple):
    """Shared by the shards of a broker."""

    clock: Clock
    now_ms: Callable[[], int]
    chance: Callable[[], float]
    config_of: Callable[[str], SubscriptionConfig]
    stats_of: Callable[[str, str], SubscriptionStats]  # by topic and subscription
    dead_letter: CopyDeadLetter
    start: Callable[..., asyncio.Task[None]]
    session_valid: Callable[[], bool]
    inherited: InheritedSubscriptions


class SubscriptionShard(Shard):
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
        super().__init__(partition)
        self.config_of = dependencies.config_of
        """Returns the configuration of a subscription, which need not exist yet."""
        self.subscriptions: dict[str, PartitionSubscription] = {}
        self.epoch = partition.leader_epoch
        self._source = source
        self._dependencies = dependencies
        self.now_ms = dependencies.now_ms
        self.acks = AcksLog(partition, dependencies.clock, self._snapshot, partial(on_lost, self))
        self._timers = Timers(dependencies.now_ms)
        self._waits: dict[str, LeaseWaits] = {}
        self._classifiers: dict[str, MessageClassifier] = {}
        self._dead_letter_task: asyncio.Task[None] | None = None
        self._creating: set[str] = set()  # subscriptions whose creation is not committed yet
        self._watched: Partition | None = None
        self._reconciled_epoch = -1  # last seen leader epoch of the source
        self._closed: HeadraceError | None = None
        self._failure: HeadraceError | None = None
        self._older_partitions = older_partitions
        self.is_loaded = self.is_loaded and not older_partitions

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    # Load and close

    async def load(self) -> None:
        """Rebuild the state from the acks log; raise `NotLeader` if the leadership is lost meanwhile."""
        try:
            replay = await self.acks.load(self._make)
        except HeadraceError as error:
            self.acks.ensure_leader()
            self._failure = error
            log.critical("subscriptions are out of service partition=%s error=%s", self, error)
            self.is_loaded = True
            return
        self.subscriptions = replay.subscriptions
        if self.has_no_records:
            inherited = await self._dependencies.inherited.find(self.acks, self._older_partitions)
            for name in inherited[:SUBSCRIPTIONS_MAX]:
                self.create(name, 0)
        self.is_loaded = True
        if replay.event_count:
            counts = replay.event_count, len(self.subscriptions)
            log.info("subscriptions loaded partition=%s events=%d subscriptions=%d", self, *counts)
        if replay.event_count > _REPLAYED_MAX:
            self.acks.write_snapshot()
        for name, subscription in self.subscriptions.items():
            self._update_timer(name, subscription)
        self.reconcile()
        self._start_dead_letters()

    def close(self, error: HeadraceError) -> None:
        """Fail all waiting and later calls; the subscriptions continue to exist in the log."""
        self._closed = error
        self._source.stop_serving()
        self.acks.close(error)
        self._timers.stop()
        if self._dead_letter_task is not None:
            self._dead_letter_task.cancel()
        self.is_loaded = True
        if self._watched is not None:
            self._watched.unwatch(self)
        for waits in self._waits.values():
            waits.wake_all()

    def ensure_open(self) -> None:
        """Raise unless requests can be served now; call it again after every await."""
        if self._closed is not None:
            raise self._closed
        if not self.is_loaded:
            raise CoordinatorLoading(f"the subscriptions of {self} are still being loaded; retry")
        if self._failure is not None:
            raise StorageFailure(f"the subscriptions are out of service: {self._failure.message}")
        self.acks.ensure_leader()

    def source(self) -> Partition:
        """Return the partition with the messages; raise unless requests can be served now."""
        self.ensure_open()
        partition = self._source.find()
        if partition.leader_epoch != self._reconciled_epoch:
            self._reconcile_with(partition)
        return partition

    def _ensure_session_valid(self) -> None:
        """Raise if another broker may be the leader: it may have settled messages that must not be delivered here.
        Leases are in memory only, so no commit confirms that this broker still leads."""
        if not self._dependencies.session_valid():
            raise NotLeader(f"this broker may no longer be the leader of {self}, so it grants and extends no leases")

    def has(self, name: str) -> bool:
        """Whether the subscription exists, and its creation is committed."""
        return name in self.subscriptions and name not in self._creating

    def find(self, name: str) -> PartitionSubscription:
        found = self.subscriptions.get(name)
        if found is None:
            raise GroupIdNotFound(f"{self} has no subscription {name}")
        return found

    # Create and delete

    async def ensure(self, name: str) -> None:
        """Create a missing subscription at its configured start; return when that is committed. Before that nothing may
        be leased, because after a crash the subscription could start at another position."""
        partition = self.source()
        if name not in self.subscriptions:
            config = self.config_of(name)
            floor = await initial_ack_floor(partition, config, self._dependencies.clock.now_ms())
            self.source()
            self.create(name, floor)
        if name in self._creating:
            wait = self.acks.committed()
            if wait is not None:
                await wait

    def create(self, name: str, floor: int) -> asyncio.Future[None] | None:
        """Create the subscription unless it exists; return the future to await."""
        check_group_id(name)
        self.acks.ensure_writable()
        if name not in self.subscriptions:
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
                raise PolicyViolation(f"a partition can have at most {SUBSCRIPTIONS_MAX} subscriptions")
            self.subscriptions[name] = subscription = self._make(name)
            self._creating.add(name)
            self._append(name, subscription, [Created(at=self.now_ms(), floor=floor)])
            self.acks.record_reconciled(self.subscriptions, self._reconciled_epoch, self.now_ms())
            committed = self.acks.committed()
            if committed is None:
                self._creating.discard(name)
            else:
                committed.add_done_callback(partial(self._on_created, name))
        return self.acks.committed() if name in self._creating else None

    def _on_created(self, name: str, committed: asyncio.Future[None]) -> None:
        if committed.exception() is None:
            self._creating.discard(name)

    def delete(self, name: str) -> asyncio.Future[None] | None:
        self.acks.ensure_writable()
        self._append(name, self.find(name), [Deleted(at=self.now_ms())])
        del self.subscriptions[name]
        self._creating.discard(name)
        self._classifiers.pop(name, None)
        self._timers.cancel(name)
        if name in self._waits:
            self._waits[name].wake_all()
        return self.acks.committed()

    def seek(self, name: str, floor: int) -> asyncio.Future[None] | None:
        self.acks.ensure_writable()
        self._append(name, self.find(name), [Sought(at=self.now_ms(), floor=floor)])
        self._wake(name)
        return self.acks.committed()

    def reconfigure(self, name: str) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is not None and self._closed is None:
            subscription.reconfigure(self.config_of(name))
            self._update_timer(name, subscription)
            self._start_dead_letters()
            self._wake(name)

    # Lease

    def lease(
        self, spec: LeaseSpec, waiter: LeaseWaiter, loaded: LoadedBatches | None = None
    ) -> LeaseResult | ColdLease | None:
        """Lease available messages, at least one if there is any, whatever the size of its batch.

        Choose messages, read their batches, grant what was read: all in one step, so the chosen messages are still
        available when they are granted. If there are none, return None, and wake the waiter when there may be some, or
        when this broker can no longer lease any. A `ColdLease` has granted nothing: load it and call again with the
        `loaded` batches.
        """
        self._ensure_session_valid()
        partition = self.source()
        subscription = self.find(spec.name)
        self._catch_up(spec.name, subscription, partition)
        leased: LeaseResult | ColdLease | None = None
        if loaded is not None:
            leased = self._lease_loaded(spec, subscription, partition, loaded)
        if leased is None:
            if subscription.config.opens_messages:
                leased = self._lease_classified(spec, subscription, partition)
            else:
                leased = self._lease_chosen(spec, subscription, partition)
        self._update_timer(spec.name, subscription)
        if leased is None:
            self._watch(spec.name, partition, waiter)
        elif isinstance(leased, LeaseResult):
            self._wake(spec.name)  # there may be more messages for other waiters
        return leased

    def lease_offsets(
        self, name: str, member: str, offsets: Sequence[tuple[int, int]], lease_ms: int | None
    ) -> tuple[list[GrantedRange], int]:
        """Lease the available messages in these ascending ranges without reading them; return also the lease end."""
        self._ensure_session_valid()
        partition = self.source()
        subscription = self.find(name)
        if subscription.config.opens_messages:
            raise InvalidRequest(
                f"subscription {name} selects messages by their contents, so they cannot be leased by offset"
            )
        self._catch_up(name, subscription, partition)
        now_ms = self.now_ms()
        available = subscription.choose(now_ms, _UNLIMITED, readable_end(partition, subscription.config))
        granted = subscription.grant(intersect_ranges(available, offsets), member, now_ms, lease_ms)
        self._update_timer(name, subscription)
        return granted, now_ms + (lease_ms or subscription.config.share_record_lock_duration_ms)

    def _lease_chosen(
        self, spec: LeaseSpec, subscription: PartitionSubscription, partition: Partition
    ) -> LeaseResult | ColdLease | None:
        end_offset = readable_end(partition, subscription.config)
        while ranges := subscription.choose(self.now_ms(), spec.count_max, end_offset):
            read = read_ranges(partition, ranges, spec.bytes_max, end_offset)
            if isinstance(read, ColdRead):
                return ColdLease(read, ranges[0].first, is_for_window=False)
            assert read.ranges, "each read makes progress"
            leased = self._grant(spec, subscription, partition, read)
            if leased is not None:
                return leased
        return None

    def _lease_classified(
        self, spec: LeaseSpec, subscription: PartitionSubscription, partition: Partition
    ) -> LeaseResult | ColdLease | None:
        """Lease in the order that depends on the contents of messages. With priorities, decode the whole window before
        choosing."""
        has_priorities = bool(subscription.config.headrace_priority_slack_ms)
        leased = None if has_priorities else self._lease_chosen(spec, subscription, partition)
        if leased is not None:
            return leased
        pending = self._fill_window(spec.name, subscription, partition)
        if pending is None or not has_priorities:
            leased = self._lease_chosen(spec, subscription, partition)
        return pending if leased is None else leased

    def _lease_loaded(
        self, spec: LeaseSpec, subscription: PartitionSubscription, partition: Partition, loaded: LoadedBatches
    ) -> LeaseResult | None:
        """Use loaded batches: decode them for the window, or choose again, since the state may have changed while they
        were read."""
        if loaded.is_for_window:
            # The window may have moved meanwhile: a seek or a new configuration may have moved it before the loaded
            # batches. Offsets before them were not read, and must not be treated as a gap.
            if subscription.wants_classified and loaded.first_offset <= subscription.classified_to < loaded.next_offset:
                self._classify(spec.name, subscription, partition, loaded.data, loaded.next_offset)
            return None
        end_offset = readable_end(partition, subscription.config)
        # `choose` must know the end of the log, but only loaded records may be granted: the client settles a leased
        # offset without a record as a gap, and the message would be lost.
        chosen = subscription.choose(self.now_ms(), spec.count_max, end_offset)
        ranges = clip_below(chosen, min(loaded.next_offset, end_offset))
        if not ranges or ranges[0].first < loaded.first_offset:
            return None
        return self._grant(spec, subscription, partition, LeasedRanges(ranges, cut_to_ranges(loaded.data, ranges)))

    def _grant(
        self, spec: LeaseSpec, subscription: PartitionSubscription, partition: Partition, read: LeasedRanges
    ) -> LeaseResult | None:
        """Grant the chosen offsets; return None if none of them is a message."""
        now_ms = self.now_ms()
        published_ms = (
            newest_publish_time_ms(read.records) if subscription.stats.needs_publish_time(now_ms) else UNKNOWN
        )
        granted = subscription.grant(read.ranges, spec.member, now_ms, spec.lease_ms, published_ms)
        hidden = offsets_without_message(partition, subscription.config, granted, read.records)
        for first, last in hidden:
            gaps = subscription.settle(first, last, OffsetGap(), spec.member, None, now_ms)
            self._append(spec.name, subscription, gaps)
        granted = subtract_ranges(granted, hidden)
        lease_ms = spec.lease_ms or subscription.config.share_record_lock_duration_ms
        leased = LeaseResult(granted, read.records, now_ms + lease_ms, self.epoch)
        if granted:
            return leased
        leased.release()
        return None

    def _fill_window(self, name: str, subscription: PartitionSubscription, partition: Partition) -> ColdLease | None:
        """Decode the batches that the subscription needs, as far as that takes little time and no wait for the disk;
        otherwise return how to continue."""
        end_offset = readable_end(partition, subscription.config)
        classified_bytes = 0
        while subscription.wants_classified and subscription.classified_to < end_offset:
            if classified_bytes >= _CLASSIFIED_BYTES_MAX:
                return ColdLease(None, subscription.classified_to, is_for_window=True)
            read = partition.read(subscription.classified_to, _CLASSIFIED_BYTES, end_offset)
            if isinstance(read, ColdRead):
                return ColdLease(read, subscription.classified_to, is_for_window=True)
            data = read.bytes()
            read.release()
            assert read.next_offset > subscription.classified_to, "each read makes progress"
            self._classify(name, subscription, partition, data, read.next_offset)
            classified_bytes += len(data)
        return None

    def _classify(
        self, name: str, subscription: PartitionSubscription, partition: Partition, data: bytes, next_offset: int
    ) -> None:
        classifier = self._classifiers.get(name)
        if classifier is None or classifier.config is not subscription.config:
            classifier = self._classifiers[name] = MessageClassifier(subscription.config)
        classified_to = subscription.classified_to
        aborted: Sequence[AbortedTransaction] = ()
        if subscription.config.share_isolation_level == READ_COMMITTED:
            aborted = partition.state.aborted(classified_to, next_offset)
        messages = classifier.classify(data, classified_to, aborted)
        self._append(name, subscription, subscription.offer(messages, next_offset, self.now_ms()))

    # Settle

    def settle(
        self, name: str, member: str | None, settlements: Iterable[RangeSettlement]
    ) -> tuple[list[HeadraceError | None], asyncio.Future[None] | None]:
        """Settle messages; return an error or None for each settlement, and the future to await for the others."""
        self.source()
        self.acks.ensure_writable()
        if not self._dependencies.session_valid():
            settlements = list(settlements)
            if any(isinstance(how, ExtendLease) for _, _, how, _ in settlements):
                self._ensure_session_valid()
        subscription = self.find(name)
        now_ms = self.now_ms()
        errors: list[HeadraceError | None] = []
        has_settled = comes_back = False
        for first, last, how, attempt in settlements:
            try:
                if isinstance(how, ExtendLease):
                    subscription.extend(first, last, member, attempt, now_ms, how.lease_ms)
                else:
                    self._append(name, subscription, subscription.settle(first, last, how, member, attempt, now_ms))
                    has_settled = True
                    comes_back = comes_back or not isinstance(how, (Ack, OffsetGap))
            except HeadraceError as error:
                errors.append(error)
                subscription.stats.refused += 1
            else:
                errors.append(None)
        if comes_back:
            self._update_timer(name, subscription)
            self._start_dead_letters()
        config = subscription.config
        if comes_back or config.opens_messages or config.share_partition_max_record_locks:
            self._wake(name)
        return errors, self.acks.committed() if has_settled else None

    def release_member(self, name: str, member: str) -> None:
        """Release all leases of a removed member; they count as failed deliveries."""
        self.source()
        subscription = self.subscriptions.get(name)
        if subscription is None:
            return
        self._append(name, subscription, subscription.release_member(member, self.now_ms()))
        self._update_timer(name, subscription)
        self._start_dead_letters()
        self._wake(name)

    # Redrive

    def redrive(self, name: str, messages: Sequence[tuple[int, int]]) -> asyncio.Future[None] | None:
        """Deliver settled messages again; return the future to await. Each is an offset and its count of redrives."""
        self.source()
        self.acks.ensure_writable()
        subscription = self.find(name)
        self._append(name, subscription, subscription.redrive(messages, self.now_ms()))
        self._wake(name)
        return self.acks.committed()

    # Write dead letters

    def _start_dead_letters(self) -> None:
        """Start to write dead letters if there are undeliverable messages and no task writes them yet."""
        if self._dead_letter_task is None and next(self._undeliverable(), None) is not None:
            self._dead_letter_task = self._dependencies.start(self._write_dead_letters())

    def _undeliverable(self) -> Iterator[tuple[str, UndeliverableMessage]]:
        for name, subscription in list(self.subscriptions.items()):
            for message in subscription.dying():
                yield name, message

    async def _write_dead_letters(self) -> None:
        """Write the dead letters of undeliverable messages, then settle these messages.

        This order ensures that no message is lost: after a crash in between, the message is written again, and the
        dead-letter topic drops the duplicate by its dedup id. A failed write is retried with exponential backoff;
        meanwhile the message is not delivered, and other messages are not affected.
        """
        try:
            for pause in retry_pauses():
                failed: dict[tuple[str, int], HeadraceError] = {}
                try:
                    while await self._write_untried_dead_letters(failed):
                        pass
                    error = next(reversed(failed.values()), None)
                except HeadraceError as not_served:
                    error = not_served
                if error is None:
                    return
                log.warning(
                    "writing dead letters failed, will retry partition=%s messages=%d error=%s",
                    self,
                    len(failed),
                    error,
                )
                await asyncio.sleep(pause)
        finally:
            self._dead_letter_task = None

    async def _write_untried_dead_letters(self, failed: dict[tuple[str, int], HeadraceError]) -> bool:
        """Try messages that did not fail in this round; return whether there were any."""
        self.source()
        untried = (one for one in self._undeliverable() if (one[0], one[1].offset) not in failed)
        some = list(islice(untried, _CONCURRENT_DEAD_LETTERS))
        async with asyncio.TaskGroup() as tasks:
            for name, message in some:
                tasks.create_task(self._write_dead_letter(name, message, failed))
        return bool(some)

    async def _write_dead_letter(
        self, name: str, message: UndeliverableMessage, failed: dict[tuple[str, int], HeadraceError]
    ) -> None:
        how: SettledHow = "dead"
        offset = message.offset
        try:
            source = self.source()
            if offset < source.log.start_offset:
                how = "expired"
            elif not self.find(name).config.headrace_dead_letters_enable:
                how = "discarded"
            else:
                await self._dependencies.dead_letter(
                    source.topic, source.index, offset, name, message.attempts, message.reason, message.redriven
                )
                self.source()
            subscription = self.find(name)
        except HeadraceError as error:
            failed[name, offset] = error
            return
        if subscription.state_of(offset).state == "dying":  # no seek has changed it meanwhile
            self._append(name, subscription, [Settled(at=self.now_ms(), how=how, ranges=[(offset, offset)])])
            subscription.stats.dead_lettered(how)
            self._wake(name)  # messages with the same key may have waited for it

    # Wait for messages

    def _watch(self, name: str, partition: Partition, waiter: LeaseWaiter) -> None:
        """Let the waiter wait. One that was woken and found nothing keeps its position in the queue."""
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

    def _wake(self, name: str) -> None:
        waits = self._waits.get(name)
        if waits is not None:
            waits.wake_next()

    # Queries

    def describe(self, names: Sequence[str] | None = None) -> list[SubscriptionDescription]:
        """Raise `OffsetNotAvailable` while a new leader does not know the high watermark: a backlog that is counted up
        to a lagging one is too small, and a caller that waits for 0 would stop with messages left."""
        partition = self.source()
        descriptions: list[SubscriptionDescription] = []
        for name in self.subscriptions if names is None else names:
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                self._catch_up(name, subscription, partition)
                end_offset = deliverable_end(partition, subscription.config)
                descriptions.append(
                    SubscriptionDescription(name, subscription.floor, end_offset, subscription.counts(end_offset))
                )
        return descriptions

    # Change state

    def tick(self) -> None:
        """Delete history that is old enough."""
        if self._closed is None and self.is_loaded:
            self._dependencies.start(self.acks.trim())

    def _make(self, name: str) -> PartitionSubscription:
        stats = self._dependencies.stats_of(self.partition.topic.removeprefix(ACKS_PREFIX), name)
        return PartitionSubscription(self.config_of(name), self._dependencies.chance, stats)

    def _snapshot(self, snapshot_id: int) -> Iterator[tuple[str, SnapshotEvent]]:
        count = len(self.subscriptions)
        with suppress(HeadraceError):
            log_start = self._source.find().log.start_offset
            for subscription in self.subscriptions.values():
                subscription.forget_redriven(log_start)
        for name, subscription in self.subscriptions.items():
            for part in subscription.snapshot(snapshot_id, _SNAPSHOT_PART_BYTES, self.now_ms(), count):
                yield name, part

    def _append(self, name: str, subscription: PartitionSubscription, events: Iterable[AcksEvent]) -> None:
        """Append events to the acks log and apply them."""
        for event in events:
            self.acks.put(name, event)
            subscription.apply(event)

    def _catch_up(self, name: str, subscription: PartitionSubscription, partition: Partition) -> None:
        """Apply a changed log start of the partition to the subscription."""
        trimmed = subscription.trimmed(partition.log.start_offset, self.now_ms())
        if trimmed is not None:
            self._append(name, subscription, [trimmed])

    def reconcile(self) -> None:
        """Called when a leadership of the acks log or of the partition begins, before anything is appended."""
        with suppress(HeadraceError):
            self.source()

    def _reconcile_with(self, partition: Partition) -> None:
        """Adapt to a new leadership of the partition. If its log was truncated, acknowledgements after its end concern
        messages that no longer exist, so the subscription is reset to the end; messages that were settled out of order
        before it are delivered again."""
        self._reconciled_epoch = partition.leader_epoch
        end_offset = self._source.end_before(partition, self.acks.reconciled_epoch)
        for name, subscription in self.subscriptions.items():
            if subscription.end > end_offset:
                floor = min(subscription.floor, end_offset)
                log.error(
                    "log end moved back; subscription reset topic=%s subscription=%s offset=%d",
                    partition.topic,
                    name,
                    floor,
                )
                self._append(name, subscription, [Sought(at=self.now_ms(), floor=floor)])
        self.acks.record_reconciled(self.subscriptions, self._reconciled_epoch, self.now_ms())

    def _update_timer(self, name: str, subscription: PartitionSubscription) -> None:
        due_ms = subscription.next_due_ms()
        if due_ms is not None:
            self._timers.set(name, due_ms, partial(self._on_timer, name))

    def _on_timer(self, name: str) -> None:
        subscription = self.subscriptions[name]
        self._append(name, subscription, subscription.expire(self.now_ms()))
        self._update_timer(name, subscription)
        self._start_dead_letters()
        self._wake(name)
