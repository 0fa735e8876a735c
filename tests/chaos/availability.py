"""Availability for writes during faults, computed from the times of acknowledgements. Pure.

A stall is a time without any acknowledgement, from the beginning of a round of faults. It may extend past the healing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class RoundAvailability:
    """Writes during one round of faults."""

    acknowledged: int
    stall_seconds: float
    """the longest time without an acknowledgement"""
    partition_stall_seconds: float
    """the longest one of a single partition"""


class Acknowledgements:
    """All acknowledgements, as (seconds, partition)."""

    def __init__(self, moments: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(moments)
        self.moments = [moment for moment, _ in ordered]
        self._by_partition = defaultdict[int, list[float]](list)
        for moment, partition in ordered:
            self._by_partition[partition].append(moment)

    def availability(self, began: float, ended: float, until: float) -> RoundAvailability:
        """Return the availability from the beginning of a round to its end; stalls count until some time after it."""
        count = bisect_right(self.moments, ended) - bisect_left(self.moments, began)
        worst = max((_longest_gap(moments, began, until) for moments in self._by_partition.values()), default=0.0)
        return RoundAvailability(count, _longest_gap(self.moments, began, until), worst)

    def per_second(self, began: float, ended: float) -> list[int]:
        """Return the number of acknowledgements in each second."""
        series = [0] * max(1, int(ended - began) + 1)
        for moment in self.moments[bisect_left(self.moments, began) : bisect_right(self.moments, ended)]:
            series[int(moment - began)] += 1
        return series


def _longest_gap(moments: Sequence[float], began: float, until: float) -> float:
    inside = moments[bisect_left(moments, began) : bisect_right(moments, until)]
    return max(later - earlier for earlier, later in pairwise([began, *inside, until]))
