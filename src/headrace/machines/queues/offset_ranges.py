"""Ranges of offsets that have something in common, such as a lease: found by offset, cut at any place. Pure.

Spans do not overlap. Each is filed under its last offset: then the one that may cover an offset is the first that
ends there or later, which a roaring bitmap finds without a search through the spans. What is done to a whole span
costs the same for one offset and for a thousand.
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
    """How many offsets they cover."""
    return sum(span.last - span.first + 1 for span in spans)


class IntervalMap(Generic[S]):
    """`offset_count` is how many offsets they cover; none has ever been at `end` or above."""

    __slots__ = ("_by_last", "_lasts", "end", "offset_count")

    def __init__(self) -> None:
        self._by_last: dict[int, S] = {}
        self._lasts = new_bitmap()
        self.end = 0
        self.offset_count = 0

    def __len__(self) -> int:
        return len(self._by_last)

    def __iter__(self) -> Iterator[S]:
        """In ascending order; they must not change meanwhile."""
        return (self._by_last[last] for last in self._lasts)

    def at(self, offset: int) -> S | None:
        """The span that covers the offset."""
        span = self._first_from(offset)
        return span if span is not None and span.first <= offset else None

    def overlapping(self, first: int, last: int) -> list[S]:
        """The spans that have a part of the range, ascending, as they are: they may reach beyond it."""
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
        """The range must be free."""
        self._by_last[span.last] = span
        self._lasts.add(span.last)
        if span.last >= self.end:
            self.end = span.last + 1
        self.offset_count += span.last - span.first + 1

    def cut(self, first: int, last: int) -> list[S]:
        """Free the range; returns what was there, cut to it."""
        if first >= self.end:
            return []
        removed = []
        for span in self.overlapping(first, last):
            begin = span.first
            if begin < first or last < span.last:
                removed.append(msgspec.structs.replace(span, first=max(first, begin), last=min(last, span.last)))
            else:
                removed.append(span)
            if last < span.last:  # filed under its last offset, the rest stays where it is
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
        """The parts of the range that no span covers."""
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
