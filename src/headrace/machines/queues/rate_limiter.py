"""Limit an average rate: after more than the rate allows was taken, nothing is available for a while. Pure."""

from __future__ import annotations


class RateLimiter:
    """`per_second` may change at any time; None means no limit."""

    __slots__ = ("free_at", "per_second")

    def __init__(self, per_second: int | None = None) -> None:
        self.per_second = per_second
        self.free_at = float("-inf")  # the time at which more is available

    def take(self, amount: int, now: float) -> None:
        if self.per_second is not None:
            self.free_at = max(self.free_at, now) + amount / self.per_second

    def is_free(self, now: float) -> bool:
        return self.per_second is None or now >= self.free_at

    def wait_seconds(self, now: float, burst: int = 1) -> float:
        """Return the time until one more may be taken, 0 for now, if up to `burst` may be taken in advance."""
        if self.per_second is None:
            return 0.0
        return max(0.0, self.free_at - now - (burst - 1) / self.per_second)
