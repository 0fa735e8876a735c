"""A circuit breaker: pauses calls to an endpoint that fails repeatedly, then allows one trial at a time. Pure.

    closed     calls are allowed; after `failures_max` consecutive failures the circuit opens
    open       no calls are allowed until `retry_at_ms`
    half-open  one trial is in flight: success closes the circuit, failure opens it for twice as long, up to a limit

A trial without a result (its caller was cancelled) does not block the circuit: the next trial is allowed after the time
that the circuit was open.
"""

from __future__ import annotations

from typing import Literal

CircuitState = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Times must come from one monotonic clock."""

    __slots__ = ("_failures", "_failures_max", "_open_first_ms", "_open_max_ms", "_open_ms", "retry_at_ms", "state")

    def __init__(self, failures_max: int, open_ms: int, open_max_ms: int) -> None:
        assert failures_max > 0
        assert 0 < open_ms <= open_max_ms
        self._failures_max = failures_max
        self._open_first_ms = open_ms
        self._open_max_ms = open_max_ms
        self._failures = 0
        self._open_ms = open_ms
        self.state: CircuitState = "closed"
        self.retry_at_ms = 0  # the time of the next trial; 0 while the circuit is closed

    def may_try(self, now_ms: int) -> bool:
        """Return whether a call is allowed. The caller must report its result with `succeeded` or `failed`."""
        if self.state == "closed":
            return True
        if now_ms < self.retry_at_ms:
            return False
        self.state = "half-open"
        self.retry_at_ms = now_ms + self._open_ms
        return True

    def succeeded(self) -> None:
        """Close the circuit. The call may have begun before the circuit opened: its success counts as well."""
        self.state = "closed"
        self._failures = 0
        self._open_ms = self._open_first_ms
        self.retry_at_ms = 0

    def failed(self, now_ms: int) -> None:
        """Count a failure. While the circuit is open, the call began before, and its failure changes nothing."""
        if self.state == "closed":
            self._failures += 1
            if self._failures >= self._failures_max:
                self._open(now_ms)
        elif self.state == "half-open":
            self._open_ms = min(2 * self._open_ms, self._open_max_ms)
            self._open(now_ms)

    def _open(self, now_ms: int) -> None:
        self.state = "open"
        self.retry_at_ms = now_ms + self._open_ms
