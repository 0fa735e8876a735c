"""Wait for messages to lease, in one partition or in several.

A poll visits its partitions in order and leases available messages. It ends with messages, with an error, or when its
time is up.

- The step that finds a partition empty also registers the poll to be woken by new messages, so the poll misses none. It
  visits only woken partitions again.
- If a subscription has to be created in a partition first, a poll that already has messages leaves the messages of that
  partition to the next poll. Kafka returns the records of share partitions as each is initialized, and librdkafka's
  tests rely on it.
- If the response of a poll cannot be sent, the poll releases its leases.

The path of a lease: request handler > `LeasePoll` > `SubscriptionShard.lease` > state machine and log > response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.machines.queues.subscription_values import GrantedRange, Release, Settlement, SubscriptionCounts
from headrace.model.errors import CoordinatorLoading, HeadraceError
from headrace.runtime.clock import Clock
from headrace.storage.log.reading import ColdRead, LogSlice

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard


class LeaseLimits(NamedTuple):
    count_max: int
    bytes_max: int
    seconds: float


class LeasePoll:
    def __init__(
        self,
        subscriptions: SubscriptionCoordinator,
        clock: Clock,
        name: str,
        member: str,
        partitions: Iterable[tuple[str, int]],
        lease_ms: int | None = None,
        *,
        must_exist: bool = False,
    ) -> None:
        self.targets = [LeaseTarget(topic, index, self) for topic, index in partitions]
        self._subscriptions = subscriptions
        self._clock = clock
        self._lease_ms = lease_ms
        self._must_exist = must_exist
        self._name = name
        self._member = member
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False
        self._is_stopped = False

    async def run(self, limits: LeaseLimits) -> None:
        """Wait until there is a result or the time is up. If the call is cancelled, nothing stays leased."""
        deadline = self._clock.monotonic() + limits.seconds
        try:
            while not await self._lease_available(limits):
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._is_stopped:
                    break
                await self._wait(left)
        except BaseException:
            self.release_leases()
            raise
        finally:
            self._unwatch()

    def stop(self) -> None:
        """End the wait."""
        self._is_stopped = True
        self.wake()

    def wake(self) -> None:
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def release_leases(self) -> None:
        """Release all leases of the poll, because its response will not be sent."""
        for target in self.targets:
            if target.leased is not None and target.shard is not None:
                target.leased.release()
                settlements = [
                    RangeSettlement(first, last, Release(), attempt) for first, last, attempt in target.leased.granted
                ]
                with suppress(HeadraceError):  # the leases ended with the leadership
                    target.shard.settle(self._name, self._member, settlements)
                target.leased = None

    async def _lease_available(self, limits: LeaseLimits) -> bool:
        """Lease available messages; return whether there is a result."""
        self._is_woken = False
        has_result = False
        count_max, bytes_max = limits.count_max, limits.bytes_max
        for target in self.targets:
            if not target.is_ready:
                continue
            if count_max <= 0 or bytes_max <= 0 or self._is_stopped:
                break
            try:
                shard, is_new = await self._shard_of(target)
                if is_new and has_result:
                    continue
                leased = target.leased = await self._lease(target, shard, count_max, bytes_max)
            except HeadraceError as error:
                target.error = error
                has_result = True
                continue
            if leased is not None:
                count_max -= sum(last - first + 1 for first, last, _ in leased.granted)
                bytes_max -= len(leased.records)
                has_result = True
        return has_result

    async def _lease(
        self, target: LeaseTarget, shard: SubscriptionShard, count_max: int, bytes_max: int
    ) -> LeaseResult | None:
        target.shard = shard
        spec = LeaseSpec(self._name, self._member, count_max, bytes_max, self._lease_ms)
        leased = shard.lease(spec, target)
        while isinstance(leased, ColdLease):
            leased = shard.lease(spec, target, await leased.load())
        if leased is None:
            target.is_ready = False
            target.is_watching = True
        return leased

    async def _shard_of(self, target: LeaseTarget) -> tuple[SubscriptionShard, bool]:
        """Return the shard of the partition, and whether the subscription was just created in it."""
        try:
            shard = self._subscriptions.find(target.topic, target.index)
        except CoordinatorLoading:
            shard = None
        if shard is None and self._must_exist:
            await self._subscriptions.when_loaded(target.topic, target.index)
            shard = self._subscriptions.of(target.topic, target.index)
        elif shard is None:
            shard = await self._subscriptions.ensure(target.topic, target.index)
        is_new = not shard.has(self._name)
        if is_new:
            if self._must_exist:
                shard.source()
                shard.find(self._name)
            await shard.ensure(self._name)
        return shard, is_new

    async def _wait(self, seconds: float) -> None:
        if self._is_woken:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None

    def _unwatch(self) -> None:
        for target in self.targets:
            if target.is_watching and target.shard is not None:
                target.shard.unwatch(self._name, target)


class LeaseTarget:
    """One partition of a poll, and its result: `leased`, `error`, or neither."""

    __slots__ = ("_poll", "error", "index", "is_ready", "is_watching", "leased", "shard", "topic")

    def __init__(self, topic: str, index: int, poll: LeasePoll) -> None:
        self.topic = topic
        self.index = index
        self.is_ready = True
        self.is_watching = False
        self.shard: SubscriptionShard | None = None
        self.leased: LeaseResult | None = None
        self.error: HeadraceError | None = None
        self._poll = poll

    def wake(self) -> None:
        self.is_ready = True
        self._poll.wake()


# Arguments and results of `SubscriptionShard`


class LeaseSpec(NamedTuple):
    """The messages that a member requests from one partition. Without `lease_ms`, the subscription's lease duration
    applies."""

    name: str
    member: str
    count_max: int
    bytes_max: int
    lease_ms: int | None


class LeaseResult(NamedTuple):
    """`records` are whole batches that contain all `granted` offsets, and perhaps more. A slice must be sent or
    released."""

    granted: Sequence[GrantedRange]
    records: LogSlice | bytes
    until_ms: int
    epoch: int

    def release(self) -> None:
        """Release the records, because they will not be sent."""
        if isinstance(self.records, LogSlice):
            self.records.release()


class LoadedBatches(NamedTuple):
    """Batches that were read from the disk for a lease, from `first_offset` to below `next_offset`. `is_for_window`:
    they were read to be decoded, not to be granted."""

    first_offset: int
    data: bytes
    next_offset: int
    is_for_window: bool


class ColdLease(NamedTuple):
    """A lease that must wait before anything is granted: for the disk, or, without `read`, for other tasks of the event
    loop, because many batches have to be decoded. Call `load` once, then lease again with its result."""

    read: ColdRead | None
    first_offset: int
    is_for_window: bool

    async def load(self) -> LoadedBatches | None:
        if self.read is None:
            await asyncio.sleep(0)
            return None
        data = await self.read.load()
        return LoadedBatches(self.first_offset, data, self.read.next_offset, self.is_for_window)


class ExtendLease(NamedTuple):
    """The lease lasts `lease_ms` from now on, or the subscription's lease duration if that is None."""

    lease_ms: int | None = None


class RangeSettlement(NamedTuple):
    """How to settle the offsets from `first` to `last`. It applies only if the member has leased them, in this attempt
    unless that is None."""

    first: int
    last: int
    how: Settlement | ExtendLease
    attempt: int | None = None


class SubscriptionDescription(NamedTuple):
    name: str
    floor: int
    end: int
    counts: SubscriptionCounts


class LeaseWaiter(Protocol):
    def wake(self) -> None:
        """Notify that there may be messages to lease. Called within other operations: the waiter must look later."""
        ...


class LeaseWaits:
    """The waiters for messages of one subscription in one partition, in FIFO order.

    One waiter is woken at a time. It keeps its position until it leaves, so a waiter that finds nothing loses nothing.
    When a waiter has leased messages, or leaves without looking, the next one is woken. Thus there are no unnecessary
    wakeups, and no message stays available while a waiter exists.
    """

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken: dict[LeaseWaiter, bool] = {}

    def __len__(self) -> int:
        return len(self._woken)

    def add(self, waiter: LeaseWaiter) -> None:
        """Add a waiter, or let a woken one that found nothing continue to wait."""
        self._woken[waiter] = False

    def remove(self, waiter: LeaseWaiter) -> None:
        if self._woken.pop(waiter, False):
            self.wake_next()

    def wake_next(self) -> None:
        for waiter, is_woken in self._woken.items():
            if not is_woken:
                self._woken[waiter] = True
                waiter.wake()
                return

    def wake_all(self) -> None:
        for waiter in list(self._woken):
            self._woken[waiter] = True
            waiter.wake()
