"""Failed deliveries of a subscription: the attempts of each message, and when it is due again. Pure.

A failed message stays here until it is settled, also while it is leased again. It is waiting (for its due time), dying
(never delivered again, to become a dead letter), or else ready or leased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Literal

from headrace.machines.queues.offset_ranges import IntervalMap, OffsetInterval
from headrace.machines.queues.settled_offsets import new_bitmap, next_present
from headrace.machines.queues.subscription_values import GrantedRange, Range, UndeliverableMessage
from headrace.model.subscription_configs import SubscriptionConfig

_SLACK = 1024
_DOUBLINGS_MAX = 64  # by then any back-off is at its limit, and the power does not overflow a float yet


class Deadlines:
    """A heap of deadlines: of leases, retries and message expiries. `at_of` returns the current deadline of a key, or
    None.

    An outdated entry is not removed when it becomes outdated, but when it is at the top, or when most entries are
    outdated. So setting a deadline costs one push, and the heap stays within a constant factor of the valid entries.
    """

    __slots__ = ("_at_of", "_heap", "_size_max")

    def __init__(self, at_of: Callable[[int], int | None]) -> None:
        self._at_of = at_of
        self._heap: list[tuple[int, int]] = []
        self._size_max = _SLACK

    def set(self, at_ms: int, key: int) -> None:
        """Must be called whenever `at_of` of a key becomes `at_ms`."""
        heappush(self._heap, (at_ms, key))
        if len(self._heap) > self._size_max:
            at_of = self._at_of
            self._heap = [entry for entry in set(self._heap) if at_of(entry[1]) == entry[0]]
            heapify(self._heap)
            self._size_max = 2 * len(self._heap) + _SLACK

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap:
            at_ms, key = heap[0]
            if self._at_of(key) == at_ms:
                return at_ms
            heappop(heap)
        return None

    def passed(self, now_ms: int) -> list[int]:
        """Return the keys whose deadline has passed, earliest first. Their entries stay until they are outdated."""
        passed: dict[int, int] = {}
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            passed[heappop(self._heap)[1]] = at_ms
        for key, at_ms in passed.items():
            heappush(self._heap, (at_ms, key))
        return list(passed)


class DeliveryFailure(OffsetInterval):
    attempts: int
    due_ms: int
    reason: str
    is_dying: bool


class DeliveryFailures(IntervalMap[DeliveryFailure]):
    """The waiting and the dying offsets are in two bitmaps; a range is completely in one of them, or in neither."""

    __slots__ = ("_attempts_max", "dying", "retries", "waiting")

    def __init__(self, attempts_max: int) -> None:
        super().__init__()
        self._attempts_max = attempts_max
        self.retries = Deadlines(self._due_of)
        self.waiting = new_bitmap()
        self.dying = new_bitmap()

    def fail(self, failure: DeliveryFailure, *, waits: bool = True) -> Literal["ready", "waiting", "dying"]:
        """Replace earlier failures of these messages; return their new state."""
        first, last = failure.first, failure.last
        self.forget(first, last)
        is_dying = failure.is_dying or failure.attempts >= self._attempts_max
        if is_dying:
            self.dying.add_range(first, last + 1)
        elif waits:
            self.waiting.add_range(first, last + 1)
        self.put(failure)
        return "dying" if is_dying else "waiting" if waits else "ready"

    def put(self, span: DeliveryFailure) -> None:
        super().put(span)
        if span.last in self.waiting:
            self.retries.set(span.due_ms, span.last)

    def forget(self, first: int, last: int) -> list[DeliveryFailure]:
        removed = self.cut(first, last)
        if removed:
            self.waiting.remove_range(first, last + 1)
            self.dying.remove_range(first, last + 1)
        return removed

    def lease(self, first: int, last: int) -> None:
        """Clear the waiting and dying state of messages that are leased."""
        for failure in self.forget(first, last):
            self.put(failure)

    def attempts_in(self, first: int, last: int) -> Iterator[GrantedRange]:
        """Split the range by delivery attempt, counting the delivery that happens now."""
        for failure in self.overlapping(first, last):
            if first < failure.first:
                yield GrantedRange(first, failure.first - 1, 1)
            end = min(last, failure.last)
            yield GrantedRange(max(first, failure.first), end, failure.attempts + 1)
            first = end + 1
        if first <= last:
            yield GrantedRange(first, last, 1)

    def take_due(self, now_ms: int) -> list[Range]:
        """Return the ranges whose due time has come, and remove them from the waiting ones."""
        if not self.waiting:
            return []
        ranges = []
        for last in self.retries.passed(now_ms):
            first = self._by_last[last].first
            self.waiting.remove_range(first, last + 1)
            ranges.append(Range(first, last))
        return ranges

    def next_dying(self, offset: int) -> UndeliverableMessage | None:
        """Return the first dying message at or after an offset."""
        offset = next_present(self.dying, offset, self.end)
        if offset >= self.end:
            return None
        failure = self.at(offset)
        assert failure is not None, "a dying message has a failure"
        return UndeliverableMessage(offset, failure.attempts, failure.reason)

    def _due_of(self, last: int) -> int | None:
        failure = self._by_last.get(last)
        return failure.due_ms if failure is not None and last in self.waiting else None


def backoff_ms(config: SubscriptionConfig, attempts: int, chance: float) -> int:
    """Return the exponential back-off after so many attempts, with random jitter."""
    growth = config.headrace_retry_backoff_multiplier ** min(attempts - 1, _DOUBLINGS_MAX)
    wait = min(config.headrace_retry_backoff_ms * growth, config.headrace_retry_backoff_max_ms)
    return int(wait * (1 - config.headrace_retry_jitter * chance))
