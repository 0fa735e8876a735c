"""Wait for messages to lease, in one partition or in several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headrace.broker.queues.subscriptions import SubscriptionCoordinator
from headrace.machines.queues.subscription_values import GrantedRange, Range, Release, Settlement, SubscriptionCounts
from headrace.model.errors import CoordinatorLoading, HeadraceError
from headrace.runtime.clock import Clock
from headrace.storage.log.reading import ColdRead, LogSlice

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard


# What a lease brings, and what is said about it afterwards.


class LeaseResult(NamedTuple):
    """`records` are whole batches that hold what is `granted`, and perhaps more. A slice must be sent or released."""

    granted: Sequence[GrantedRange]
    records: LogSlice | bytes
    until_ms: int
    epoch: int

    def release(self) -> None:
        """The records will not be sent."""
        if isinstance(self.records, LogSlice):
            self.records.release()


class ExtendLease(NamedTuple):
    """More time: from now on `lease_ms`, or, if that is None, what the subscription gives."""

    lease_ms: int | None = None


class RangeSettlement(NamedTuple):
    """What becomes of the offsets from `first` to `last`, if they are leased by who says so, in this attempt if that is
    not None."""

    first: int
    last: int
    how: Settlement | ExtendLease
    attempt: int | None = None


class SubscriptionDescription(NamedTuple):
    name: str
    floor: int
    end: int
    counts: SubscriptionCounts


class ColdLease:
    """A lease that must wait for the disk, or for more batches to be opened. `load` it once: nothing is granted
    before."""

    __slots__ = ("_again", "_read")

    def __init__(self, read: ColdRead | None, again: RetryLease) -> None:
        self._read = read
        self._again = again

    async def load(self) -> LeaseResult | None:
        """Raises `NotLeader` if it is too late for that."""
        cold = self
        while True:
            data = b""
            if cold._read is None:
                await asyncio.sleep(0)  # others shall have their turn
            else:
                data = await cold._read.load()
            outcome = cold._again(data, 0 if cold._read is None else cold._read.next_offset)
            if not isinstance(outcome, ColdLease):
                return outcome
            cold = outcome


RetryLease: TypeAlias = Callable[[bytes, int], LeaseResult | ColdLease | None]
"""Goes on with what was loaded, and the offset behind it."""


def subtract_hidden(granted: Sequence[GrantedRange], hidden: Sequence[Range]) -> list[GrantedRange]:
    """What is left of the granted ranges when the hidden ones are taken away; both are ascending."""
    left: list[GrantedRange] = []
    for first, last, attempt in granted:
        begin = first
        for hide_first, hide_last in hidden:
            if hide_last < begin or hide_first > last:
                continue
            if hide_first > begin:
                left.append(GrantedRange(begin, hide_first - 1, attempt))
            begin = hide_last + 1
        if begin <= last:
            left.append(GrantedRange(begin, last, attempt))
    return left


def intersect_hidden(granted: Sequence[GrantedRange], hidden: Sequence[Range]) -> list[Range]:
    """Those of the hidden offsets that were granted."""
    return [
        Range(max(first, hide_first), min(last, hide_last))
        for first, last, _ in granted
        for hide_first, hide_last in hidden
        if hide_first <= last and hide_last >= first
    ]


# Wait for messages to lease, in one partition or in several.
#
# A poll visits its partitions in order and leases available messages. It watches an empty partition from that moment
# on, so that it misses no message, and visits only woken partitions again. It ends with messages, with an error, or
# when its time is up.
#
# If a subscription had to be created in a partition first, a poll that already has messages leaves those of that
# partition to the next poll. Kafka returns the records of share partitions as each is initialized, and librdkafka's
# tests rely on it.


# The waiters for messages of one subscription in one partition, in FIFO order.
#
# One waiter is woken at a time. It keeps its position until it leaves, so a waiter that finds nothing loses nothing.
# When a waiter has leased messages, or leaves without looking, the next one is woken. Thus there are no unnecessary
# wakeups, and no message stays available while a waiter exists.


class LeaseWaiter(Protocol):
    def wake(self) -> None:
        """Notify that there may be messages to lease. Called within other operations: the waiter must look later."""
        ...


class LeaseWaits:
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


class LeaseLimits(NamedTuple):
    count_max: int
    bytes_max: int
    seconds: float


class LeaseTarget:
    """One partition of a poll, and its result: `leased`, `error`, or neither."""

    __slots__ = ("_poll", "error", "index", "is_ready", "is_watching", "leased", "led", "topic")

    def __init__(self, topic: str, index: int, poll: LeasePoll) -> None:
        self.topic = topic
        self.index = index
        self.is_ready = True
        self.is_watching = False
        self.led: SubscriptionShard | None = None
        self.leased: LeaseResult | None = None
        self.error: HeadraceError | None = None
        self._poll = poll

    def wake(self) -> None:
        self.is_ready = True
        self._poll.wake()


class LeasePoll:
    def __init__(
        self,
        subscriptions: SubscriptionCoordinator,
        clock: Clock,
        name: str,
        member: str,
        places: Iterable[tuple[str, int]],
        lease_ms: int | None = None,
        *,
        must_exist: bool = False,
    ) -> None:
        self.targets = [LeaseTarget(topic, index, self) for topic, index in places]
        self._subscriptions = subscriptions
        self._clock = clock
        self._lease_ms = lease_ms
        self._must_exist = must_exist
        self._name = name
        self._member = member
        self._future: asyncio.Future[None] | None = None
        self._is_woken = False
        self._is_stopped = False

    async def run(self, wanted: LeaseLimits) -> None:
        """Wait until there is a result or the time is up. If the call is cancelled, nothing stays leased."""
        deadline = self._clock.monotonic() + wanted.seconds
        try:
            while not await self._lease_available(wanted):
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._is_stopped:
                    break
                await self._wait(left)
        except BaseException:
            self.give_back()
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

    def give_back(self) -> None:
        """Release all leases of the poll, because its response will not be sent."""
        for target in self.targets:
            if target.leased is not None and target.led is not None:
                target.leased.release()
                settlements = [
                    RangeSettlement(first, last, Release(), attempt) for first, last, attempt in target.leased.granted
                ]
                with suppress(HeadraceError):  # the leases ended with the leadership
                    target.led.settle(self._name, self._member, settlements)
                target.leased = None

    async def _lease_available(self, wanted: LeaseLimits) -> bool:
        """Lease available messages; return whether there is a result."""
        self._is_woken = False
        has_news = False
        count_max, bytes_max = wanted.count_max, wanted.bytes_max
        for target in self.targets:
            if not target.is_ready:
                continue
            if count_max <= 0 or bytes_max <= 0 or self._is_stopped:
                break
            try:
                shard, is_new = await self._shard_of(target)
                if is_new and has_news:
                    continue
                leased = target.leased = await self._lease(target, shard, count_max, bytes_max)
            except HeadraceError as error:
                target.error = error
                has_news = True
                continue
            if leased is not None:
                count_max -= sum(last - first + 1 for first, last, _ in leased.granted)
                bytes_max -= len(leased.records)
                has_news = True
        return has_news

    async def _lease(
        self, target: LeaseTarget, shard: SubscriptionShard, count_max: int, bytes_max: int
    ) -> LeaseResult | None:
        target.led = shard
        leased = shard.lease(self._name, self._member, count_max, bytes_max, self._lease_ms)
        if isinstance(leased, ColdLease):
            leased = await leased.load()
        if leased is None:
            # Watch immediately, so that new messages are not missed while other partitions are visited.
            target.is_ready = False
            target.is_watching = True
            shard.watch(self._name, target)
        return leased

    async def _shard_of(self, target: LeaseTarget) -> tuple[SubscriptionShard, bool]:
        """Return the subscriptions of the partition, and whether this one was just created in it."""
        try:
            shard = self._subscriptions.find(target.topic, target.index)
        except CoordinatorLoading:
            shard = None
        if shard is None:
            if self._must_exist:
                await self._subscriptions.when_loaded(target.topic, target.index)
                self._subscriptions.of(target.topic, target.index)
            shard = await self._subscriptions.ensure(target.topic, target.index)
        is_new = not shard.has(self._name)
        if is_new:
            if self._must_exist:
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
            if target.is_watching and target.led is not None:
                target.led.unwatch(self._name, target)
