"""Exponential back-off with full jitter, so that clients do not retry at the same times."""

from __future__ import annotations

from headrace.runtime.entropy import Entropy


class Backoff:
    """The pauses of one series of retries."""

    __slots__ = ("_attempts", "_cap_seconds", "_entropy", "_first_seconds")

    def __init__(self, entropy: Entropy, *, first_seconds: float = 0.05, cap_seconds: float = 1.0) -> None:
        assert 0 < first_seconds <= cap_seconds
        self._entropy = entropy
        self._first_seconds = first_seconds
        self._cap_seconds = cap_seconds
        self._attempts = 0

    def next_seconds(self) -> float:
        self._attempts += 1
        return self.seconds_after(self._attempts)

    def seconds_after(self, attempts: int) -> float:
        """A random pause up to a ceiling that doubles with every attempt, up to the cap."""
        assert attempts > 0
        ceiling = min(self._cap_seconds, self._first_seconds * 2.0 ** min(attempts - 1, 30))
        return self._entropy.uniform(0.0, ceiling)
