"""A map from ranges of offsets to values, such as leases. Ranges are found by offset and can be split anywhere. Pure.

- Ranges do not overlap. Each is stored under its last offset: the range that may contain an offset is the first that
  ends at or after it, and a roaring bitmap of last offsets finds it without a search through the ranges.
- An operation on a whole range costs the same for one offset and for a thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from headrace.machines.queues.settled_offsets import new_bitmap


class OffsetInterval(msgspec.Struct, gc=False):
    first: int
    last: int


S = TypeVar("S", bound=OffsetInterval)


def total_offset_count(spans: Iterable[OffsetInterval]) -> int:
    return sum(span.last - span.first + 1 for span in spans)


class IntervalMap(Generic[S]):
    """`offset_count` is the number of offsets in all ranges. No range has ever contained `end` or a higher offset."""

    __slots__ = ("_by_last", "_lasts", "end", "offset_count")

    def __init__(self) -> None:
        self._by_last: dict[int, S] = {}
        self._lasts = new_bitmap()
        self.end = 0
        self.offset_count = 0

    def __iter__(self) -> Iterator[S]:
        """Iterate in ascending order; the map must not change meanwhile."""
        return (self._by_last[last] for last in self._lasts)

    def at(self, offset: int) -> S | None:
        """Return the range that contains the offset."""
        span = self._first_from(offset)
        return span if span is not None and span.first <= offset else None

    def overlapping(self, first: int, last: int) -> list[S]:
        """Return the ranges that overlap with `first` to `last`, ascending and not clipped."""
        span = self._by_last.get(last)
        if span is not None and span.first <= first:
            return [span]
        found = []
        span = self._first_from(first)
        while span is not None and span.first <= last:
            found.append(span)
            if span.last >= last:
                break
            span = self._first_from(span.last + 1)
        return found

    def put(self, span: S) -> None:
        """Add a range, which must not overlap with others."""
        self._by_last[span.last] = span
        self._lasts.add(span.last)
        if span.last >= self.end:
            self.end = span.last + 1
        self.offset_count += span.last - span.first + 1

    def cut(self, first: int, last: int) -> list[S]:
        """Remove the offsets from `first` to `last`; return the removed ranges, clipped to these offsets."""
        if first >= self.end:
            return []
        removed = []
        for span in self.overlapping(first, last):
            begin = span.first
            if begin < first or last < span.last:
                removed.append(msgspec.structs.replace(span, first=max(first, begin), last=min(last, span.last)))
            else:
                removed.append(span)
            if last < span.last:  # the rest keeps its last offset, so its entry stays
                self.offset_count -= last - begin + 1
                span.first = last + 1
            else:
                self.offset_count -= span.last - begin + 1
                del self._by_last[span.last]
                self._lasts.discard(span.last)
            if begin < first:
                self.put(msgspec.structs.replace(removed[-1], first=begin, last=first - 1))
        return removed

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return the parts of `first` to `last` that are in no range."""
        if first >= self.end:
            yield first, last
            return
        for span in self.overlapping(first, last):
            if first < span.first:
                yield first, span.first - 1
            first = span.last + 1
        if first <= last:
            yield first, last

    def _first_from(self, offset: int) -> S | None:
        if offset >= self.end or not self._by_last:
            return None
        try:
            return self._by_last[self._lasts.next_set_bit(offset)]
        except ValueError:
            return None
