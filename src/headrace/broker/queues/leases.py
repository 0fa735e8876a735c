"""Arguments and results of `SubscriptionShard`, and the waiters for its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.machines.queues.subscription_values import GrantedRange, Settlement, SubscriptionCounts
from headrace.storage.log.reading import ColdRead, LogSlice


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
