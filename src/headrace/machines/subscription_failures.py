"""Messages that were delivered in vain: how often, and when they are due again. Pure.

Only what failed is kept here, until it is settled, also while it is leased again. Of it, some wait for their time,
some are dying (never delivered again, to be kept as dead letters), and the rest is ready or leased.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from headrace.machines.settled import new_bitmap, next_present
from headrace.machines.subscription_alarms import Alarms
from headrace.machines.subscription_answers import Dying, Granted, Range
from headrace.machines.subscription_spans import Span, Spans
from headrace.model.subscription_configs import SubscriptionConfig

_GROWTHS_MAX = 64  # by then any wait is at its longest, and the power is not yet too large for a float


class Failure(Span):
    attempts: int
    due_ms: int
    reason: str
    is_dying: bool


class Failures(Spans[Failure]):
    """What waits and what is dying lies in two bitmaps; a span is in one of them, or in neither, as a whole."""

    __slots__ = ("_attempts_max", "_dues", "dying", "waiting")

    def __init__(self, attempts_max: int) -> None:
        super().__init__()
        self._attempts_max = attempts_max
        self._dues = Alarms(self._due_of)
        self.waiting = new_bitmap()
        self.dying = new_bitmap()

    def fail(self, failure: Failure, *, waits: bool = True) -> Literal["ready", "waiting", "dying"]:
        """In place of what was known of its messages. Returns what they are now."""
        first, last = failure.first, failure.last
        self.forget(first, last)
        is_dying = failure.is_dying or failure.attempts >= self._attempts_max
        if is_dying:
            self.dying.add_range(first, last + 1)
        elif waits:
            self.waiting.add_range(first, last + 1)
        self.put(failure)
        return "dying" if is_dying else "waiting" if waits else "ready"

    def put(self, span: Failure) -> None:
        super().put(span)
        if span.last in self.waiting:
            self._dues.set(span.due_ms, span.last)

    def forget(self, first: int, last: int) -> None:
        if first < self.end and self.cut(first, last):
            self.waiting.remove_range(first, last + 1)
            self.dying.remove_range(first, last + 1)

    def lease(self, first: int, last: int) -> None:
        """These are neither waiting nor dying now, because somebody works on them."""
        failures = self.cut(first, last)
        self.waiting.remove_range(first, last + 1)
        self.dying.remove_range(first, last + 1)
        for failure in failures:
            self.put(failure)

    def attempts_in(self, first: int, last: int) -> Iterator[Granted]:
        """The range, divided by how often its messages have been delivered, if they are now."""
        for failure in self.overlapping(first, last):
            if first < failure.first:
                yield Granted(first, failure.first - 1, 1)
            end = min(last, failure.last)
            yield Granted(max(first, failure.first), end, failure.attempts + 1)
            first = end + 1
        if first <= last:
            yield Granted(first, last, 1)

    def next_due_ms(self) -> int | None:
        return self._dues.next_ms()

    def take_due(self, now_ms: int) -> list[Range]:
        """What has waited long enough; it does not wait any more."""
        if not self.waiting:
            return []
        ranges = []
        for last in self._dues.over(now_ms):
            first = self._by_last[last].first
            self.waiting.remove_range(first, last + 1)
            ranges.append(Range(first, last))
        return ranges

    def next_dying(self, offset: int) -> Dying | None:
        """The first from here on."""
        offset = next_present(self.dying, offset, self.end)
        if offset >= self.end:
            return None
        failure = self.at(offset)
        assert failure is not None, "what is dying has failed"
        return Dying(offset, failure.attempts, failure.reason)

    def _due_of(self, last: int) -> int | None:
        failure = self._by_last.get(last)
        return failure.due_ms if failure is not None and last in self.waiting else None


def backoff_ms(config: SubscriptionConfig, attempts: int, chance: float) -> int:
    """How long a message waits that failed so often: longer each time, up to a limit, and a part of it up to chance."""
    growth = config.headrace_retry_backoff_multiplier ** min(attempts - 1, _GROWTHS_MAX)
    wait = min(config.headrace_retry_backoff_ms * growth, config.headrace_retry_backoff_max_ms)
    return int(wait * (1 - config.headrace_retry_jitter * chance))
