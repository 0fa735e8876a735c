"""What a lease brings, and what is said about it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from headrace.machines.queues.subscription_values import GrantedRange, Range, Settlement, SubscriptionCounts
from headrace.storage.log.reading import ColdRead, LogSlice


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
