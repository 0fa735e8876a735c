"""Figures over time that can be added up: what tasks count, and what a report makes of the sums. Pure.

Tasks count in windows that are fine enough; their sums are merged to the windows of the report, each of which is made
of whole fine ones. Latencies are counted in buckets that grow by 2 %, so that a percentile is right within 1 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
WINDOWS_MS: Final = (
    *(_SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(_MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY),
)
"""Each is a multiple of those before it."""

_POINTS = 120
_GROWTH = math.log(1.02)


class Throughput(msgspec.Struct):
    messages: int = 0
    bytes: int = 0

    def add(self, other: Throughput) -> None:
        self.messages += other.messages
        self.bytes += other.bytes


class SettleFigures(msgspec.Struct):
    """What happened to messages of a subscription: acked; failed, to be tried again; dead; settled in any other way.
    `gone` is by how many the backlog fell for it; `latencies` counts those that were acked, by bucket."""

    acked: int = 0
    failed: int = 0
    dead: int = 0
    other: int = 0
    gone: int = 0
    latencies: Counter[int] = msgspec.field(default_factory=Counter)

    def add(self, other: SettleFigures) -> None:
        self.acked += other.acked
        self.failed += other.failed
        self.dead += other.dead
        self.other += other.other
        self.gone += other.gone
        self.latencies.update(other.latencies)


def window_for(span_ms: int, points: int = _POINTS) -> int:
    """The smallest window of which no more than so many make up the span."""
    return next((window for window in WINDOWS_MS if window * points >= span_ms), WINDOWS_MS[-1])


def window_of(time_ms: int, window_ms: int) -> int:
    """When the window began in which this lies."""
    return time_ms // window_ms * window_ms


def times_of(starts: Iterable[int], window_ms: int) -> list[int]:
    """All windows from the first to the last of these, also those in which nothing happened."""
    found = {window_of(start, window_ms) for start in starts}
    return list(range(min(found), max(found) + window_ms, window_ms)) if found else []


def bucket_of(latency_ms: int) -> int:
    return round(math.log1p(max(latency_ms, 0)) / _GROWTH)


def percentile(latencies: Mapping[int, int], share: float) -> float | None:
    """The latency in ms below which such a share of them lies; None if there are none."""
    total = sum(latencies.values())
    wanted = math.ceil(total * share)
    reached = 0
    for bucket in sorted(latencies):
        reached += latencies[bucket]
        if reached >= wanted:
            return math.expm1(bucket * _GROWTH)
    return None


def depths(now: int, arrived: Sequence[int], gone: Sequence[int]) -> list[int]:
    """The backlog at the end of each window, counted back from what it is now."""
    found = [0] * len(arrived)
    for index in range(len(arrived) - 1, -1, -1):
        found[index] = max(now, 0)
        now += gone[index] - arrived[index]
    return found
