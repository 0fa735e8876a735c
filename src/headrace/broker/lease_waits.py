"""Those who wait for something to lease, of one subscription in one partition: first come, first served.

Of all who wait one is woken at a time. It keeps its place until it leaves, so whoever finds nothing has lost nothing;
when it has taken something, or leaves without having looked, the next is woken. So nobody is woken in vain, and nothing
lies there while somebody waits.
"""

from __future__ import annotations

from typing import Protocol


class LeaseWaiter(Protocol):
    def wake(self) -> None:
        """There may be something to lease. Called in the middle of other work: look later."""
        ...


class LeaseWaits:
    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken: dict[LeaseWaiter, bool] = {}

    def __len__(self) -> int:
        return len(self._woken)

    def add(self, waiter: LeaseWaiter) -> None:
        """Wait, or, who waits already, wait on: it has looked and found nothing."""
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
