"""The messages of a subscription, one after the other, each leased to this client until it is settled.

    async for message in client.subscribe("orders", "billing"):
        async with message:
            ...                     the end acks it; an exception gives it back, to come again later

Whatever is leased here is extended every third of a lease, whether it is in somebody's hands or waits for them, until
it is settled; but nobody has it for longer than `work_seconds_max`. What nobody has taken at the end is given back, and
that does not count as a delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

import msgspec

from headrace.client.admin.subscription_admin import END, START, Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.leased_messages import LeasedMessage as Leased
from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.client.queues.settling import EXTEND, RELEASE, FailedSettlement, settle
from headrace.client.queues.subscription import LeasingRules, Subscription
from headrace.model.errors import HeadraceError
from headrace.runtime.tasks import Supervisor
from headrace.sdk.errors import LeaseLost, Reject, Retry
from headrace.sdk.incoming import Received
from headrace.sdk.stopping import ClientStopped, StopSignal
from headrace.sdk.times import Duration, duration_seconds
from headrace.wire.messages.queues import SettleItem

log = logging.getLogger("headrace")

_WAIT_SECONDS = 30.0  # of one Lease; then it is asked again
_GIVE_BACK_SECONDS = 5.0
_LEASE_CONFIG, _LEASE_DEFAULT_MS = "share.record.lock.duration.ms", 30_000
_EXTENSIONS_PER_LEASE = 3  # extensions, so that one miss is no harm


class SubscribeOptions(msgspec.Struct, frozen=True):
    """How messages are taken; what the fields mean stands at `AsyncClient.subscribe`."""

    start: str
    prefetch: int
    concurrency: int | None
    lease_seconds: float | None
    work_seconds_max: float


class AsyncMessage(Received):
    """A leased message. Settle it by `async with`, or by one of the methods, which raise `LeaseLost` if it is no
    longer this client's."""

    __slots__ = ("_messages", "attempt", "delivered_at", "is_settled", "leased")

    def __init__(self, leased: Leased, messages: AsyncMessages, delivered_at: float) -> None:
        super().__init__(leased.id, leased.timestamp_ms, leased.key, leased.value, leased.headers)
        self.attempt = leased.attempt
        self.leased = leased
        self.delivered_at = delivered_at
        self.is_settled = False
        self._messages = messages

    async def ack(self) -> None:
        """It is done, and never comes back. Returns when that is on disk."""
        await self._settled(lambda: self._messages.subscription.ack([self.leased]))

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """It is to come again: after the delay, or after the subscription's back-off."""
        seconds = None if delay is None else duration_seconds(delay)
        subscription = self._messages.subscription
        await self._settled(lambda: subscription.nack([self.leased], delay_seconds=seconds, reason=reason))

    async def reject(self, reason: str | None = None) -> None:
        """Nobody can work on it: it becomes a dead letter."""
        await self._settled(lambda: self._messages.subscription.reject([self.leased], reason))

    async def extend(self, time: Duration | None = None) -> None:
        """Have it for so long from now on. Nobody needs to call this to keep a message while he works on it."""
        self._check_unsettled()
        seconds = None if time is None else duration_seconds(time)
        _raise_failed(await self._messages.subscription.extend([self.leased], seconds))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        """An `Exception` has gone into the log and the message's next delivery when this returns; it goes no further,
        so that a loop over messages survives what is wrong with one of them."""
        try:
            if self.is_settled:
                if isinstance(error, Exception):
                    log.warning("%s was settled, and then failed", self.id, exc_info=error)
            elif error is None:
                await self.ack()
            elif isinstance(error, Exception):
                await self._fail(error)
            else:
                await self._messages.give_back([self])
        except LeaseLost as lost:
            log.warning("%s was worked on, but not settled: %s", self.id, lost.message)
        except HeadraceError as failure:
            log.warning("%s was worked on; it may come again: %s", self.id, failure.message)
        return isinstance(error, Exception)

    async def _fail(self, error: Exception) -> None:
        if isinstance(error, Reject):
            log.warning("%s is rejected: %s", self.id, error)
            await self.reject(str(error))
        elif isinstance(error, Retry):
            await self.nack(error.delay, str(error))
        else:
            log.warning("%s failed at attempt %d", self.id, self.attempt, exc_info=error)
            await self.nack(reason=f"{type(error).__name__}: {error}")

    async def _settled(self, ask: _SettleCall) -> None:
        self._check_unsettled()
        self.is_settled = True
        try:
            _raise_failed(await ask())
        finally:
            self._messages.remove(self)

    def _check_unsettled(self) -> None:
        if self.is_settled:
            raise LeaseLost(f"{self.id} was settled before")


class AsyncMessages:
    """Iterate over it; or take it by `async with` and iterate as often as you like within."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        name: str,
        how: SubscribeOptions,
        ensure_topic: Callable[[str], Awaitable[None]],
    ) -> None:
        rules = LeasingRules(lease_seconds=how.lease_seconds)
        self.subscription = Subscription(cluster, topic, name, rules)
        self._cluster = cluster
        self._options = how
        self._ensure_topic = ensure_topic
        self._stopping = StopSignal()
        self._prefetched: deque[Leased] = deque()  # leased, and in nobody's hands yet
        self._leased: dict[LeaseReceipt, AsyncMessage] = {}  # in somebody's hands
        self._room = asyncio.Event()
        self._take_lock = asyncio.Lock()
        self._extender = Supervisor()
        self._is_begun = False
        self._is_closed = False
        self._is_entered = False

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        try:
            while (message := await self.take()) is not None:
                yield message
        finally:
            if not self._is_entered:
                await self.close()

    async def take(self) -> AsyncMessage | None:
        """The next message; None when this is stopped or closed."""
        try:
            if not self._is_begun:
                await self._begin()
            return await self._stopping.wait_unless_stopped(self._take)
        except ClientStopped:
            return None

    def stop(self) -> None:
        """Hand out no more."""
        self._stopping.request_stop()

    async def close(self) -> None:
        """Take no more, and give back what nobody has taken; what is in somebody's hands stays there."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        await self.subscription.close()  # first: a Lease that still waits would take again what is given back
        ahead, self._prefetched = self._prefetched, deque()
        await self._release(message.receipt for message in ahead)

    async def end(self) -> None:
        """Close, and give back also what is still in somebody's hands."""
        await self.close()
        await self.give_back(list(self._leased.values()))
        await self._extender.stop()

    async def give_back(self, messages: Iterable[AsyncMessage]) -> None:
        """Let somebody else have them at once, as if they had not been delivered."""
        unsettled = [message for message in messages if not message.is_settled]
        for message in unsettled:
            message.is_settled = True
            self.remove(message)
        await self._release(message.leased.receipt for message in unsettled)

    def remove(self, message: AsyncMessage) -> None:
        self._leased.pop(message.leased.receipt, None)
        self._room.set()

    # --- inside ---

    async def _begin(self) -> None:
        async with self._take_lock:
            if self._is_begun:
                return
            await self._ensure_topic(self.subscription.topic)
            topic, name = self.subscription.topic, self.subscription.name
            admin = SubscriptionAdmin(self._cluster)
            await admin.create(topic, name, Position(START if self._options.start == "earliest" else END))
            lease_seconds = self._options.lease_seconds
            if lease_seconds is None:
                configs = await admin.configs(topic, name)
                lease_seconds = int(configs.get(_LEASE_CONFIG) or _LEASE_DEFAULT_MS) / 1000
            self._extender.spawn(self._extend_leases(lease_seconds), f"leases of {name}")
            self._is_begun = True

    async def _take(self) -> AsyncMessage:
        async with self._take_lock:
            while self._options.concurrency is not None and len(self._leased) >= self._options.concurrency:
                self._room.clear()
                await self._room.wait()
            while not self._prefetched:
                self._prefetched.extend(await self.subscription.lease(self._options.prefetch, _WAIT_SECONDS))
            message = AsyncMessage(self._prefetched.popleft(), self, self._cluster.clock.monotonic())
            self._leased[message.leased.receipt] = message
            return message

    async def _extend_leases(self, lease_seconds: float) -> None:
        """Extend what is leased here, again and again."""
        pause = lease_seconds / _EXTENSIONS_PER_LEASE
        how = SettleItem(how=EXTEND, lease_ms=int(lease_seconds * 1000))
        while self._leased or not self._is_closed:
            await asyncio.sleep(pause)
            since = self._cluster.clock.monotonic() - self._options.work_seconds_max
            receipts = [receipt for receipt, message in self._leased.items() if message.delivered_at > since]
            receipts += [message.receipt for message in (*self._prefetched, *self.subscription.ready_messages)]
            if receipts:
                refused = await settle(self._cluster, self.subscription.name, receipts, how, deadline_seconds=pause)
                self._forget_lost_leases(refused)

    def _forget_lost_leases(self, refused: Iterable[FailedSettlement]) -> None:
        """What is over waits here in vain. Whoever has it in his hands hears of it when he settles it."""
        lost = {one.receipt for one in refused if not one.error.retriable}
        self._prefetched = deque(message for message in self._prefetched if message.receipt not in lost)
        for receipt in lost:
            message = self._leased.get(receipt)
            if message is not None and not message.is_settled:
                log.warning("the lease of %s is over while it is worked on: it will be delivered again", receipt.id)

    async def _release(self, receipts: Iterable[LeaseReceipt]) -> None:
        given = list(receipts)
        if given:
            how = SettleItem(how=RELEASE)
            await settle(self._cluster, self.subscription.name, given, how, deadline_seconds=_GIVE_BACK_SECONDS)


_SettleCall = Callable[[], Awaitable[list[FailedSettlement]]]


def _raise_failed(refused: list[FailedSettlement]) -> None:
    for one in refused:
        if one.error.retriable:
            raise one.error
        raise LeaseLost(f"{one.receipt.id} is not leased to this client any more: {one.error.message}")
