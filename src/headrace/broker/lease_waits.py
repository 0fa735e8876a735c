"""The waiters for messages of one subscription in one partition, in FIFO order.

One waiter is woken at a time. It keeps its position until it leaves, so a waiter that finds nothing loses nothing. When
a waiter has leased messages, or leaves without looking, the next one is woken. Thus there are no unnecessary wakeups,
and no message stays available while a waiter exists.
"""

from __future__ import annotations

from typing import Protocol


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
