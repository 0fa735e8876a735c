"""A circuit breaker: whoever fails again and again is left alone for a while, then tried by one at a time. Pure.

    closed     everybody may try; after `failures_max` failures in a row it opens
    open       nobody may try, until `retry_at_ms`
    half-open  one has gone to try: success closes the circuit, failure opens it for twice as long, up to a cap

A trial of which nothing is heard any more (its caller was cancelled) does not hold up the others: the next one may go
after the time that the circuit was open.
"""

from __future__ import annotations

from typing import Literal

CircuitState = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Times are of one clock that does not go back."""

    __slots__ = ("_failures", "_failures_max", "_open_first_ms", "_open_max_ms", "_open_ms", "_retry_at_ms", "_state")

    def __init__(self, failures_max: int, open_ms: int, open_max_ms: int) -> None:
        assert failures_max > 0
        assert 0 < open_ms <= open_max_ms
        self._failures_max = failures_max
        self._open_first_ms = open_ms
        self._open_max_ms = open_max_ms
        self._state: CircuitState = "closed"
        self._failures = 0
        self._open_ms = open_ms
        self._retry_at_ms = 0

    @property
    def state(self) -> CircuitState:
        return self._state

    @property
    def retry_at_ms(self) -> int:
        """When the next one may try; 0 while everybody may."""
        return self._retry_at_ms

    def may_try(self, now_ms: int) -> bool:
        """Whoever is told yes goes and tries, and says `succeeded` or `failed` afterwards."""
        if self._state == "closed":
            return True
        if now_ms < self._retry_at_ms:
            return False
        self._state = "half-open"
        self._retry_at_ms = now_ms + self._open_ms
        return True

    def succeeded(self) -> None:
        """It works. This may be told late, by one who went before the circuit opened: it works all the same."""
        self._state = "closed"
        self._failures = 0
        self._open_ms = self._open_first_ms
        self._retry_at_ms = 0

    def failed(self, now_ms: int) -> None:
        """While the circuit is open, this tells of a try that began before, and changes nothing."""
        if self._state == "closed":
            self._failures += 1
            if self._failures >= self._failures_max:
                self._open(now_ms)
        elif self._state == "half-open":
            self._open_ms = min(2 * self._open_ms, self._open_max_ms)
            self._open(now_ms)

    def _open(self, now_ms: int) -> None:
        self._state = "open"
        self._retry_at_ms = now_ms + self._open_ms
