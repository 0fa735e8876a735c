"""How long something took, counted into buckets: cheap enough for every request, exact enough for a dashboard."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Timings:
    __slots__ = ("count", "counts", "total_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.count = 0
        self.total_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.count += 1
        self.total_seconds += seconds
