"""Lease messages of several partitions for one member of one subscription, and wait if there are none.

A poll visits its partitions in order and leases available messages. It watches an empty partition from that moment on,
so that it misses no message, and visits only woken partitions again. It ends with messages, with an error, or when its
time is up.

If a subscription had to be created in a partition first, a poll that already has messages leaves those of that
partition to the next poll. Kafka returns the records of share partitions as each is initialized, and librdkafka's tests
rely on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.leases import ColdLease, Leased, Verdict
from headrace.broker.subscriptions import Subscriptions
from headrace.machines.subscription_answers import Release
from headrace.model.errors import CoordinatorLoading, HeadraceError
from headrace.runtime.clock import Clock

if TYPE_CHECKING:
    from headrace.broker.led_subscriptions import LedSubscriptions


class WantedLeases(NamedTuple):
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
        self.led: LedSubscriptions | None = None
        self.leased: Leased | None = None
        self.error: HeadraceError | None = None
        self._poll = poll

    def wake(self) -> None:
        self.is_ready = True
        self._poll.wake()


class LeasePoll:
    def __init__(
        self,
        subscriptions: Subscriptions,
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

    async def run(self, wanted: WantedLeases) -> None:
        """Wait until there is a result or the time is up. If the call is cancelled, nothing stays leased."""
        deadline = self._clock.monotonic() + wanted.seconds
        try:
            while not await self._look(wanted):
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
                verdicts = [Verdict(first, last, Release(), attempt) for first, last, attempt in target.leased.granted]
                with suppress(HeadraceError):  # the leases ended with the leadership
                    target.led.settle(self._name, self._member, verdicts)
                target.leased = None

    async def _look(self, wanted: WantedLeases) -> bool:
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
                led, is_new = await self._led(target)
                if is_new and has_news:
                    continue
                leased = target.leased = await self._lease(target, led, count_max, bytes_max)
            except HeadraceError as error:
                target.error = error
                has_news = True
                continue
            if leased is not None:
                count_max -= sum(last - first + 1 for first, last, _ in leased.granted)
                bytes_max -= len(leased.records)
                has_news = True
        return has_news

    async def _lease(self, target: LeaseTarget, led: LedSubscriptions, count_max: int, bytes_max: int) -> Leased | None:
        target.led = led
        leased = led.lease(self._name, self._member, count_max, bytes_max, self._lease_ms)
        if isinstance(leased, ColdLease):
            leased = await leased.load()
        if leased is None:
            # Watch immediately, so that new messages are not missed while other partitions are visited.
            target.is_ready = False
            target.is_watching = True
            led.watch(self._name, target)
        return leased

    async def _led(self, target: LeaseTarget) -> tuple[LedSubscriptions, bool]:
        """Return the subscriptions of the partition, and whether this one was just created in it."""
        try:
            led = self._subscriptions.find(target.topic, target.index)
        except CoordinatorLoading:
            led = None
        if led is None:
            if self._must_exist:
                await self._subscriptions.when_loaded(target.topic, target.index)
                self._subscriptions.of(target.topic, target.index)
            led = await self._subscriptions.ensure(target.topic, target.index)
        is_new = not led.has(self._name)
        if is_new:
            if self._must_exist:
                led.find(self._name)
            await led.ensure(self._name)
        return led, is_new

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
