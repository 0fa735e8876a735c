"""The messages of a subscription, one after the other, each leased to this client until it is settled.

    async for message in client.subscribe("orders", "billing"):
        async with message:
            ...                     the end acks it; an exception nacks it, to be redelivered

- The client extends its leases every third of the lease time, for prefetched and delivered messages, until they are
  settled, but none for longer than `work_seconds_max`.
- Closing releases the prefetched messages; that does not count as a delivery attempt.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Self, overload

import msgspec

from headrace.client.admin.subscription_admin import Position, SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.client.queues.leased_messages import LeasedMessage as Leased
from headrace.client.queues.leased_messages import LeaseReceipt
from headrace.client.queues.settling import EXTEND, RELEASE, FailedSettlement, settle
from headrace.client.queues.subscription import Subscription
from headrace.model.errors import HeadraceError
from headrace.runtime.tasks import Supervisor, wait_until_set
from headrace.sdk.arguments import check_count
from headrace.sdk.errors import LeaseLost, Reject, Retry
from headrace.sdk.incoming import Received
from headrace.sdk.stopping import StopSignal
from headrace.sdk.times import Duration, duration_seconds
from headrace.wire.messages.queues import SettleItem

log = logging.getLogger("headrace")

_WAIT_SECONDS = 30.0  # long poll of one Lease request
_RELEASE_SECONDS = 5.0
_LEASE_CONFIG, _LEASE_DEFAULT_MS = "share.record.lock.duration.ms", 30_000
_EXTENSIONS_PER_LEASE = 3  # one failed extension does no harm


class SubscribeOptions(msgspec.Struct, frozen=True):
    """The options of a consumer; `AsyncClient.subscribe` documents them."""

    start: Position
    prefetch: int
    concurrency: int | None
    lease_seconds: float | None
    work_seconds_max: float


class AsyncMessage(Received):
    """A leased message. Settle it with `async with`, or by one of the methods, which raise `LeaseLost` if the lease
    has ended."""

    __slots__ = ("_messages", "attempt", "delivered_at", "is_settled", "leased")

    def __init__(self, leased: Leased, messages: AsyncMessages, delivered_at: float) -> None:
        super().__init__(leased.id, leased.timestamp_ms, leased.key, leased.value, leased.headers)
        self.attempt = leased.attempt
        self.leased = leased
        self.delivered_at = delivered_at
        self.is_settled = False
        self._messages = messages

    async def ack(self) -> None:
        """Mark the message as done: it is never redelivered. Returns when that is on disk."""
        await self._settle(lambda: self._messages.subscription.ack([self.leased]))

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Redeliver the message, after the delay or after the subscription's back-off."""
        seconds = None if delay is None else duration_seconds(delay)
        subscription = self._messages.subscription
        await self._settle(lambda: subscription.nack([self.leased], delay_seconds=seconds, reason=reason))

    async def reject(self, reason: str | None = None) -> None:
        """Make the message a dead letter."""
        await self._settle(lambda: self._messages.subscription.reject([self.leased], reason))

    async def extend(self, time: Duration | None = None) -> None:
        """Set the rest of the lease to this time. Not needed during normal work: the client extends its leases."""
        self._check_unsettled()
        seconds = None if time is None else duration_seconds(time)
        _raise_failed(await self._messages.subscription.extend([self.leased], seconds))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        """Settle the message by the outcome of the block. An `Exception` is logged and leads to a redelivery; it is not
        raised, so that a loop over messages survives a message that fails."""
        try:
            if self.is_settled:
                if isinstance(error, Exception):
                    log.warning("handler failed after it settled the message message=%s", self.id, exc_info=error)
            elif error is None:
                await self.ack()
            elif isinstance(error, Exception):
                await self._fail(error)
            else:
                await self._messages.give_back([self])
        except LeaseLost as lost:
            log.warning("message was processed but not settled message=%s error=%r", self.id, lost.message)
        except HeadraceError as failure:
            log.warning("settling failed, message may be redelivered message=%s error=%r", self.id, failure.message)
        return isinstance(error, Exception)

    async def _fail(self, error: Exception) -> None:
        if isinstance(error, Reject):
            log.warning("message rejected message=%s reason=%r", self.id, str(error))
            await self.reject(str(error))
        elif isinstance(error, Retry):
            await self.nack(error.delay, str(error))
        else:
            log.warning("handler failed message=%s attempt=%d", self.id, self.attempt, exc_info=error)
            await self.nack(reason=f"{type(error).__name__}: {error}")

    async def _settle(self, send: Callable[[], Awaitable[list[FailedSettlement]]]) -> None:
        self._check_unsettled()
        self.is_settled = True
        try:
            _raise_failed(await send())
        finally:
            self._messages.remove(self)

    def _check_unsettled(self) -> None:
        if self.is_settled:
            raise LeaseLost(f"{self.id} was settled before")


class AsyncMessages:
    """Iterate over it, which closes it at the end; within `async with` any number of iterations are possible."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        name: str,
        options: SubscribeOptions,
        ensure_topic: Callable[[str], Awaitable[None]],
    ) -> None:
        self.subscription = Subscription(cluster, topic, name, options.lease_seconds)
        self._cluster = cluster
        self._options = options
        self._ensure_topic = ensure_topic
        self._stopping = StopSignal()
        self._prefetched: deque[Leased] = deque()  # leased, not delivered to the application yet
        self._leased: dict[LeaseReceipt, AsyncMessage] = {}  # delivered to the application, not settled
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

    @overload
    async def take(self, count: None = None, timeout: Duration | None = None) -> AsyncMessage | None: ...  # noqa: ASYNC109
    @overload
    async def take(self, count: int, timeout: Duration | None = None) -> list[AsyncMessage]: ...  # noqa: ASYNC109
    async def take(self, count: int | None = None, timeout: Duration | None = None) -> object:  # noqa: ASYNC109
        """The next message; with `count` a list of up to so many. Waits for the first one, at most for `timeout`.

        After the timeout, `stop` or `close` it returns None, or an empty list.
        """
        if count is not None:
            check_count("count", count)
        seconds = None if timeout is None else duration_seconds(timeout)
        if not self._is_begun and not self._stopping.is_requested:
            await self._begin()
        taken = await self._stopping.wait_unless_stopped(partial(self._take, count or 1, seconds)) or []
        if count is not None:
            return taken
        return taken[0] if taken else None

    def stop(self) -> None:
        """Deliver no more messages."""
        self._stopping.request_stop()

    async def close(self) -> None:
        """Lease no more, and release the messages that were not delivered; delivered ones keep their leases."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        await self.subscription.close()  # first: a Lease request that still waits would lease again what is released
        prefetched, self._prefetched = self._prefetched, deque()
        await self._release(message.receipt for message in prefetched)

    async def end(self) -> None:
        """Close, and release also the delivered messages."""
        await self.close()
        await self.give_back(list(self._leased.values()))
        await self._extender.stop()

    async def give_back(self, messages: Iterable[AsyncMessage]) -> None:
        """End the leases, as if the messages had not been delivered: other consumers can lease them at once."""
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
            if self._is_begun or self._is_closed:
                return
            await self._ensure_topic(self.subscription.topic)
            topic, name = self.subscription.topic, self.subscription.name
            admin = SubscriptionAdmin(self._cluster)
            await admin.create(topic, name, self._options.start)
            lease_seconds = self._options.lease_seconds
            if lease_seconds is None:
                configs = await admin.configs(topic, name)
                lease_seconds = int(configs.get(_LEASE_CONFIG) or _LEASE_DEFAULT_MS) / 1000
            if not self._is_closed:
                self._extender.spawn(self._extend_leases(lease_seconds), f"leases of {name}")
            self._is_begun = True

    async def _take(self, count: int, seconds: float | None) -> list[AsyncMessage]:
        """At least one message, and up to `count` of those that are leased at once; none after `seconds`."""
        until = None if seconds is None else self._cluster.clock.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._take_lock.acquire()
        except TimeoutError:
            return []
        try:
            count = min(count, await self._wait_for_room(until))
            if count and not self._prefetched:
                await self._prefetch(count, until)
            now = self._cluster.clock.monotonic()
            given = [self._prefetched.popleft() for _ in range(min(count, len(self._prefetched)))]
            messages = [AsyncMessage(leased, self, now) for leased in given]
            self._leased.update((message.leased.receipt, message) for message in messages)
            return messages
        finally:
            self._take_lock.release()

    async def _wait_for_room(self, until: float | None) -> int:
        """The number of messages that may be delivered, at least one; 0 when the time is up."""
        if self._options.concurrency is None:
            return sys.maxsize
        while (room := self._options.concurrency - len(self._leased)) <= 0:
            self._room.clear()
            if not await wait_until_set(self._room, self._seconds_left(until)):
                return 0
        return room

    async def _prefetch(self, count: int, until: float | None) -> None:
        """Lease messages; returns when there are some, or when the time is up. Asks the leaders at least once."""
        while not self._prefetched:
            left = self._seconds_left(until)
            wait_seconds = _WAIT_SECONDS if left is None else min(left, _WAIT_SECONDS)
            leased = await self.subscription.lease(max(self._options.prefetch, count), wait_seconds)
            self._prefetched.extend(leased)  # looked up after the wait: `_drop_lost_leases` replaces the deque
            if not leased and left is not None and left <= wait_seconds:
                return

    def _seconds_left(self, until: float | None) -> float | None:
        return None if until is None else max(0.0, until - self._cluster.clock.monotonic())

    async def _extend_leases(self, lease_seconds: float) -> None:
        """Extend all leases of this client periodically, until it is closed and all are settled."""
        pause = lease_seconds / _EXTENSIONS_PER_LEASE
        how = SettleItem(how=EXTEND, lease_ms=int(lease_seconds * 1000))
        while self._leased or not self._is_closed:
            await asyncio.sleep(pause)
            since = self._cluster.clock.monotonic() - self._options.work_seconds_max
            receipts = [receipt for receipt, message in self._leased.items() if message.delivered_at > since]
            receipts += [message.receipt for message in (*self._prefetched, *self.subscription.ready_messages)]
            failed = await settle(self._cluster, self.subscription.name, receipts, how, deadline_seconds=pause)
            self._drop_lost_leases(failed)

    def _drop_lost_leases(self, failed: Iterable[FailedSettlement]) -> None:
        """Do not deliver messages whose lease has ended. For delivered ones, settling raises `LeaseLost`."""
        lost = {one.receipt for one in failed if not one.error.retriable}
        self._prefetched = deque(message for message in self._prefetched if message.receipt not in lost)
        for receipt in lost:
            message = self._leased.get(receipt)
            if message is not None and not message.is_settled:
                log.warning("lease ended during processing, message will be redelivered message=%s", receipt.id)

    async def _release(self, receipts: Iterable[LeaseReceipt]) -> None:
        how = SettleItem(how=RELEASE)
        await settle(self._cluster, self.subscription.name, receipts, how, deadline_seconds=_RELEASE_SECONDS)


def _raise_failed(failed: list[FailedSettlement]) -> None:
    for one in failed:
        if one.error.retriable:
            raise one.error
        raise LeaseLost(f"{one.receipt.id} is not leased to this client any more: {one.error.message}")
