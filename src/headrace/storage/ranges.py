"""A set of byte ranges: which bytes of a segment have been checked since it was opened."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Disjoint half-open ranges, kept as one sorted list [start, end, start, end, ...]."""

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        self._bounds: list[int] = []

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        # An odd place in the list lies inside a range: that range swallows the new bound.
        left, right = bisect_left(self._bounds, start), bisect_right(self._bounds, end)
        bounds = [] if left % 2 else [start]
        if right % 2 == 0:
            bounds.append(end)
        self._bounds[left:right] = bounds

    def cut(self, limit: int) -> None:
        """Forget everything from `limit` on."""
        left = bisect_left(self._bounds, limit)
        self._bounds[left:] = [limit] if left % 2 else []

    def covers(self, start: int, end: int) -> bool:
        right = bisect_right(self._bounds, start)
        return right % 2 == 1 and self._bounds[right] >= end

    def first_gap(self, limit: int) -> tuple[int, int] | None:
        """The first range below `limit` that is not in the set."""
        bounds = self._bounds
        if bounds and bounds[0] == 0:
            start, end = bounds[1], bounds[2] if len(bounds) > 2 else limit
        else:
            start, end = 0, bounds[0] if bounds else limit
        end = min(end, limit)
        return (start, end) if start < end else None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._bounds[::2], self._bounds[1::2], strict=True)
