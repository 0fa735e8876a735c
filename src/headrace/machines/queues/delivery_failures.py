"""Messages that were delivered in vain: how often, and when they are due again. Pure.

Pure.

Only what failed is kept here, until it is settled, also while it is leased again. Of it, some wait for their time,
some are dying (never delivered again, to be kept as dead letters), and the rest is ready or leased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Literal

from headrace.machines.queues.offset_ranges import IntervalMap, OffsetInterval
from headrace.machines.queues.settled_offsets import new_bitmap, next_present
from headrace.machines.queues.subscription_values import GrantedRange, Range, UndeliverableMessage
from headrace.model.subscription_configs import SubscriptionConfig

# Times at which something is over: leases, waits, lives of messages. Pure.
#
# An alarm that no longer holds is not looked for when that happens; it is thrown away when its turn comes, or when
# such alarms have become the majority. So setting one costs a push, and the heap stays within a constant factor of
# those that hold.


_SLACK = 1024


class Deadlines:
    """`at_of` says when the alarm of a key is due at present, or None if it has none."""

    __slots__ = ("_at_of", "_heap", "_size_max")

    def __init__(self, at_of: Callable[[int], int | None]) -> None:
        self._at_of = at_of
        self._heap: list[tuple[int, int]] = []
        self._size_max = _SLACK

    def set(self, at_ms: int, key: int) -> None:
        """To be called whenever `at_of` a key becomes this."""
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

    def over(self, now_ms: int) -> list[int]:
        """The keys whose time has come, earliest first. Their alarms stay until they do not hold any more."""
        over: dict[int, int] = {}
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            over[heappop(self._heap)[1]] = at_ms
        for key, at_ms in over.items():
            heappush(self._heap, (at_ms, key))
        return list(over)


_DOUBLINGS_MAX = 64  # by then any wait is at its longest, and the power is not yet too large for a float


class DeliveryFailure(OffsetInterval):
    attempts: int
    due_ms: int
    reason: str
    is_dying: bool


class DeliveryFailures(IntervalMap[DeliveryFailure]):
    """What waits and what is dying lies in two bitmaps; a span is in one of them, or in neither, as a whole."""

    __slots__ = ("_attempts_max", "_dues", "dying", "waiting")

    def __init__(self, attempts_max: int) -> None:
        super().__init__()
        self._attempts_max = attempts_max
        self._dues = Deadlines(self._due_of)
        self.waiting = new_bitmap()
        self.dying = new_bitmap()

    def fail(self, failure: DeliveryFailure, *, waits: bool = True) -> Literal["ready", "waiting", "dying"]:
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

    def put(self, span: DeliveryFailure) -> None:
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

    def attempts_in(self, first: int, last: int) -> Iterator[GrantedRange]:
        """The range, divided by how often its messages have been delivered, if they are now."""
        for failure in self.overlapping(first, last):
            if first < failure.first:
                yield GrantedRange(first, failure.first - 1, 1)
            end = min(last, failure.last)
            yield GrantedRange(max(first, failure.first), end, failure.attempts + 1)
            first = end + 1
        if first <= last:
            yield GrantedRange(first, last, 1)

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

    def next_dying(self, offset: int) -> UndeliverableMessage | None:
        """The first from here on."""
        offset = next_present(self.dying, offset, self.end)
        if offset >= self.end:
            return None
        failure = self.at(offset)
        assert failure is not None, "what is dying has failed"
        return UndeliverableMessage(offset, failure.attempts, failure.reason)

    def _due_of(self, last: int) -> int | None:
        failure = self._by_last.get(last)
        return failure.due_ms if failure is not None and last in self.waiting else None


def backoff_ms(config: SubscriptionConfig, attempts: int, chance: float) -> int:
    """How long a message waits that failed so often: longer each time, up to a limit, and a part of it up to chance."""
    growth = config.headrace_retry_backoff_multiplier ** min(attempts - 1, _DOUBLINGS_MAX)
    wait = min(config.headrace_retry_backoff_ms * growth, config.headrace_retry_backoff_max_ms)
    return int(wait * (1 - config.headrace_retry_jitter * chance))
