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
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.queues.leases import ColdLease, LeaseResult, LeaseSpec, RangeSettlement
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.machines.queues.subscription_values import Release
from headrace.model.errors import CoordinatorLoading, HeadraceError
from headrace.runtime.clock import Clock

if TYPE_CHECKING:
    from headrace.broker.queues.subscription_shard import SubscriptionShard


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

    async def run(self, count_max: int, bytes_max: int, seconds: float) -> None:
        """Wait until there is a result or the time is up. If the call is cancelled, nothing stays leased."""
        deadline = self._clock.monotonic() + seconds
        try:
            while not await self._lease_available(count_max, bytes_max):
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._is_stopped:
                    break
                await self._wait(left)
        except BaseException:
            self.release_leases()
            raise
        finally:
            for target in self.targets:
                if target.is_watching and target.shard is not None:
                    target.shard.unwatch(self._name, target)

    def stop(self) -> None:
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

    async def _lease_available(self, count_max: int, bytes_max: int) -> bool:
        """Lease available messages; return whether there is a result."""
        self._is_woken = False
        has_result = False
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


class LeaseTarget(msgspec.Struct, eq=False):
    """One partition of a poll, and its result: `leased`, `error`, or neither."""

    topic: str
    index: int
    poll: LeasePoll
    is_ready: bool = True
    is_watching: bool = False
    shard: SubscriptionShard | None = None
    leased: LeaseResult | None = None
    error: HeadraceError | None = None

    def wake(self) -> None:
        self.is_ready = True
        self.poll.wake()
