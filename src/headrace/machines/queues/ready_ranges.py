"""What can be delivered in plain mode, where nothing depends on what is in a message: ranges of offsets. Pure.

Everything from a cursor on is fresh, unless it is settled or has failed before; of what lies before the cursor,
that which came back is in a bitmap. So nothing is kept per message of the backlog. What came back goes first.

Invariant: no message before the cursor is ready unless it is in the bitmap, and none from the cursor on is in it
unless it failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.machines.queues.delivery_failures import DeliveryFailures
from headrace.machines.queues.leases import Leases
from headrace.machines.queues.settled_offsets import SettledOffsets, new_bitmap, present_ranges
from headrace.machines.queues.subscription_values import Range


class ReadyRanges:
    __slots__ = ("_again", "_cursor", "_failures", "_settled")

    def __init__(self, settled: SettledOffsets, failures: DeliveryFailures, leases: Leases) -> None:
        self._settled = settled
        self._failures = failures
        self._cursor = settled.floor
        self._again = new_bitmap()
        for first, last in self._fresh(leases.end):
            for gap_first, gap_last in leases.gaps(first, last):
                self._again.add_range(gap_first, gap_last + 1)
        self._cursor = max(self._cursor, leases.end)

    def choose(self, count_max: int, end_offset: int, _now_ms: int) -> list[Range]:
        chosen: list[Range] = []
        left = count_max
        if self._again:
            for first, last in present_ranges(self._again, 0, end_offset):
                chosen.append(Range(first, min(last, first + left - 1)))
                left -= last - first + 1
                if left <= 0:
                    return chosen
        for first, last in self._fresh(end_offset):
            chosen.append(Range(first, min(last, first + left - 1)))
            left -= last - first + 1
            if left <= 0:
                break
        return merge_adjacent(chosen)

    def take(self, first: int, last: int) -> None:
        """These are leased now."""
        if self._again:
            self._again.remove_range(first, last + 1)
        if last >= self._cursor:
            for passed_first, passed_last in self._fresh(first):
                self._again.add_range(passed_first, passed_last + 1)
            self._cursor = last + 1

    def put_back(self, first: int, last: int) -> None:
        """These are not leased any more, or have waited long enough."""
        self._again.add_range(first, last + 1)

    def set_aside(self, first: int, last: int) -> None:
        """These wait. In a replay, where nobody leases, they may have been ready before."""
        self._again.remove_range(first, last + 1)

    def drop(self, first: int, last: int) -> None:
        """These are settled or dying."""
        if self._again:
            self._again.remove_range(first, last + 1)
        self._cursor = max(self._cursor, self._settled.floor)

    def _fresh(self, end: int) -> Iterable[tuple[int, int]]:
        """What nobody has had yet, up to `end`."""
        cursor = self._cursor
        if cursor >= self._settled.end and cursor >= self._failures.end:  # as it is nearly always
            return ((cursor, end - 1),) if cursor < end else ()
        return (gap for first, last in self._settled.unsettled(cursor, end) for gap in self._failures.gaps(first, last))


def merge_adjacent(ranges: list[Range]) -> list[Range]:
    """Ascending, with neighbours made one."""
    if len(ranges) < 2:
        return ranges
    ranges.sort()
    result = [ranges[0]]
    for one in ranges[1:]:
        before = result[-1]
        if one.first == before.last + 1:
            result[-1] = Range(before.first, one.last)
        else:
            result.append(one)
    return result
