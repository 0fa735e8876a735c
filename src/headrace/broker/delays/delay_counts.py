"""Counters of the delayed messages of a topic: plain numbers, converted to metrics on a scrape."""

from __future__ import annotations

from headrace.model.histogram import Histogram


class DelayCounts:
    __slots__ = ("late_seconds", "released")

    def __init__(self) -> None:
        self.released = 0
        self.late_seconds = Histogram()

    def record_release(self, now_ms: int, due_ms: int, count: int) -> None:
        """A batch of so many has come to its topic, the first of which was due then."""
        self.released += count
        self.late_seconds.observe(max(now_ms - due_ms, 0) / 1000, count)
