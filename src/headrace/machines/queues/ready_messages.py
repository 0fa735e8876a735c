"""Choose the messages of a subscription that can be leased now. Pure.

- `ReadyRanges` serves subscriptions whose delivery depends on offsets only.
- `ReadyWindow` serves subscriptions whose delivery depends on the contents of messages: priority, key order, filter,
  expiry. The broker decodes batches ahead of delivery and offers their messages in log order.

Both are derived from the settled offsets, the leases and the failed deliveries of the subscription.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from headrace.machines.queues.delivery_failures import Deadlines, DeliveryFailures
from headrace.machines.queues.leases import Leases
from headrace.machines.queues.settled_offsets import SettledOffsets, new_bitmap, present_ranges
from headrace.machines.queues.subscription_values import ClassifiedMessage, Range

if TYPE_CHECKING:
    from pyroaring import BitMap64


WINDOW_MAX = 100_000
READY_ENOUGH = 2_000
"""This many ready messages satisfy any request; more are decoded only if one of them might have to go first."""
_ENDS_INTERVAL_MS = 100
_ENDS_MAX = 4096


class ReadyRanges:
    """The ready messages as ranges of offsets.

    All messages from a cursor on are new, unless they are settled or failed before. Messages before the cursor that
    became ready again are in a bitmap, and are chosen first. So no memory is used per message of the backlog.

    Invariant: a message before the cursor is ready only if it is in the bitmap; a message from the cursor on is in the
    bitmap only if it failed.
    """

    __slots__ = ("_cursor", "_failures", "_returned", "_settled")

    def __init__(self, settled: SettledOffsets, failures: DeliveryFailures, leases: Leases) -> None:
        self._settled = settled
        self._failures = failures
        self._cursor = settled.floor
        self._returned = new_bitmap()
        for first, last in self._fresh(leases.end):
            for gap_first, gap_last in leases.gaps(first, last):
                self._returned.add_range(gap_first, gap_last + 1)
        self._cursor = max(self._cursor, leases.end)

    def choose(self, count_max: int, end_offset: int, _now_ms: int) -> list[Range]:
        chosen: list[Range] = []
        left = count_max
        for first, last in chain(present_ranges(self._returned, 0, end_offset), self._fresh(end_offset)):
            chosen.append(Range(first, min(last, first + left - 1)))
            left -= last - first + 1
            if left <= 0:
                break
        return merge_adjacent(chosen)

    def mark_leased(self, first: int, last: int) -> None:
        if self._returned:
            self._returned.remove_range(first, last + 1)
        if last >= self._cursor:
            for passed_first, passed_last in self._fresh(first):
                self._returned.add_range(passed_first, passed_last + 1)
            self._cursor = last + 1

    def make_ready(self, first: int, last: int) -> None:
        """The lease of the messages ended, or their retry is due."""
        self._returned.add_range(first, last + 1)

    def reopen(self, offset: int) -> None:
        """A settled message is unsettled again."""
        if offset < self._cursor:
            self._returned.add(offset)

    def mark_waiting(self, first: int, last: int) -> None:
        """The messages wait for a retry. In a replay, which has no leases, they may have been ready before."""
        self._returned.remove_range(first, last + 1)

    def remove(self, first: int, last: int) -> None:
        """The messages are settled or dying."""
        if self._returned:
            self._returned.remove_range(first, last + 1)
        self._cursor = max(self._cursor, self._settled.floor)

    def _fresh(self, end: int) -> Iterable[tuple[int, int]]:
        """Return the messages below `end` that were never delivered."""
        cursor = self._cursor
        if cursor >= self._settled.end and cursor >= self._failures.end:  # nearly always
            return ((cursor, end - 1),) if cursor < end else ()
        return (gap for first, last in self._settled.unsettled(cursor, end) for gap in self._failures.gaps(first, last))


def merge_adjacent(ranges: list[Range]) -> list[Range]:
    """Sort the ranges and merge adjacent ones."""
    if len(ranges) < 2:
        return ranges
    ranges.sort()
    result = [ranges[0]]
    for one in ranges[1:]:
        before = result[-1]
        if one.first == before.last + 1:
            result[-1] = Range(before.first, one.last)
        else:
            result.append(one)
    return result


class _KeySlots(msgspec.Struct):
    """The slots of one key: the number in use, and the messages that wait for one."""

    slots_used: int = 0
    held_back: BitMap64 | None = None  # created for the first waiting message: most keys have none


class ReadyWindow:
    """All messages that were offered and are neither settled nor dying. The next message to deliver:

    - Each priority is a class, served in log order; a message that becomes ready again has its old position. Of the
      heads of the classes, the one with the smallest arrival time + slack is served; of equals, the higher priority.
      So a message of priority q waits for one of a higher priority p only if that arrived less than slack[q] - slack[p]
      later. At the latest, a message is delivered after everything that arrived before it, and everything that arrived
      within slack[q] - slack[9] after it. No message starves, however many arrive.
    - With a limit per key, a message holds one of the key's slots from the time it is ready until it is settled or
      dies, also while it waits for a retry. Other messages of the key are held back; slots are assigned in log order.

    The window is bounded: it has at most `WINDOW_MAX` messages that are ready or held back, and does not extend further
    ahead than necessary. If one key fills the window, or messages of low priority that arrived within the difference of
    the slacks, later messages wait until some of these are settled. Leased messages and those that wait for a retry do
    not count against the limit.
    """

    def __contains__(self, offset: int) -> bool:
        return offset in self._messages

    def __init__(self, settled: SettledOffsets, leases: Leases, slacks_ms: tuple[int, ...], key_slots: int) -> None:
        self.classified_to = settled.floor
        self._offered_to = 0  # if it is above `classified_to`: how far messages have been offered before
        self._settled = settled
        self._slacks_ms = slacks_ms or (0,)
        self._key_slots = key_slots
        self._leases = leases
        self._classes = [new_bitmap() for _ in self._slacks_ms]  # ready messages, by priority
        self._messages: dict[int, ClassifiedMessage] = {}
        self._keys: defaultdict[bytes, _KeySlots] = defaultdict(_KeySlots)
        self.expiries = Deadlines(self._expiry_of)
        self._newest_ms = 0
        self._ends: deque[tuple[int, int]] = deque()  # log end offsets with their times, beyond the offered messages
        self._ready_count = 0
        self._held_back_count = 0

    @property
    def is_full(self) -> bool:
        return self._ready_count + self._held_back_count >= WINDOW_MAX

    @property
    def wants_classified(self) -> bool:
        if self.is_full:
            return False
        if self._ready_count < READY_ENOUGH:
            return True
        return self._can_be_overtaken(self._heads()[0][0])

    def admit(self, message: ClassifiedMessage, now_ms: int, *, is_free: bool) -> None:
        """Add the next message of the log. Unless it `is_free`, it is leased or waits, and so has its slot."""
        assert message.priority >= 0
        while self._ends and self._ends[0][0] <= message.offset:
            self._newest_ms = max(self._newest_ms, self._ends.popleft()[1])
        arrived_ms = self._arrival_ms(message.arrived_ms, now_ms)
        if arrived_ms != message.arrived_ms:
            message = msgspec.structs.replace(message, arrived_ms=arrived_ms)
        self._messages[message.offset] = message
        self._newest_ms = max(self._newest_ms, message.arrived_ms)
        if message.expires_ms is not None:
            self.expiries.set(message.expires_ms, message.offset)
        if self._key_slots and message.key is not None:
            key = self._keys[message.key]
            if is_free and key.slots_used >= self._key_slots:
                if key.held_back is None:
                    key.held_back = new_bitmap()
                key.held_back.add(message.offset)
                self._held_back_count += 1
                return
            key.slots_used += 1
        if is_free:
            self._add_ready(message)

    def _arrival_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """Return when the next message of the log arrived, as far as its producer's clock can be trusted. A clock that
        is ahead must not hold back later messages of the class. A clock that is behind must not let messages overtake
        for longer than their slack: a message arrived after those that precede it, and after the log ended before
        it."""
        return max(min(timestamp_ms, now_ms), self._newest_ms)

    def _record_end(self, end_offset: int, now_ms: int) -> None:
        """Record that messages at or after the end of the log have not arrived yet."""
        if self.classified_to >= end_offset:
            self._newest_ms = max(self._newest_ms, now_ms)
        elif not self._ends or (end_offset > self._ends[-1][0] and now_ms >= self._ends[-1][1] + _ENDS_INTERVAL_MS):
            self._ends.append((end_offset, now_ms))
            if len(self._ends) > _ENDS_MAX:
                self._ends = deque([*self._ends][::2])

    def choose(self, count_max: int, end_offset: int, now_ms: int) -> list[Range]:
        self._record_end(end_offset, now_ms)
        heads = self._heads()
        may_decode_more = self.classified_to < end_offset and not self.is_full
        chosen: list[Range] = []
        while heads and len(chosen) < count_max:
            deadline_ms, rank, offset, rest = heads[0]
            if chosen and may_decode_more and self._can_be_overtaken(deadline_ms):
                break
            expires_ms = self._messages[offset].expires_ms
            if expires_ms is None or now_ms < expires_ms:
                chosen.append(Range(offset, offset))
            following = next(rest, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (self._deadline_ms(following), rank, following, rest))
        return merge_adjacent(chosen)

    def mark_leased(self, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            self._classes[self._class_of(self._messages[offset])].remove(offset)
        self._ready_count -= last - first + 1

    def make_ready(self, first: int, last: int) -> None:
        for message in self._messages_in(first, last):
            self._add_ready(message)
        self.mark_waiting(first, last)

    def reopen(self, offset: int) -> None:
        """A settled message is unsettled again, so it must be offered again. The window keeps the messages after it
        that it has."""
        self._offered_to = max(self._offered_to, self.classified_to)
        self.classified_to = min(self.classified_to, offset)

    def advance(self, offset: int) -> None:
        """All messages below the offset were offered. Skip settled ones, up to where all have been offered before: else
        a single old message would make the broker read everything after it again."""
        if offset < self._offered_to:
            offset = min(self._settled.next_unsettled(offset), self._offered_to)
        self.classified_to = offset

    def mark_waiting(self, first: int, last: int) -> None:
        """The lease of the messages ended, so they may have expired meanwhile."""
        for message in self._messages_in(first, last):
            if message.expires_ms is not None:
                self.expiries.set(message.expires_ms, message.offset)

    def remove(self, first: int, last: int) -> None:
        for message in self._messages_in(first, last):
            del self._messages[message.offset]
            ready = self._classes[self._class_of(message)]
            if message.offset in ready:
                ready.remove(message.offset)
                self._ready_count -= 1
            if self._key_slots and message.key is not None:
                self._leave_key(message.key, message.offset)
        self.classified_to = max(self.classified_to, self._settled.floor)

    def expired_ranges(self, now_ms: int) -> list[Range]:
        """Return expired messages that are not leased."""
        return merge_adjacent([Range(offset, offset) for offset in self.expiries.passed(now_ms)])

    def _heads(self) -> list[tuple[int, int, int, Iterator[int]]]:
        """Return a heap of the classes with ready messages: deadline of the head, rank among equals, head, rest."""
        heads = []
        for priority, ready in enumerate(self._classes):
            rest = iter(ready)
            head = next(rest, None)
            if head is not None:
                heads.append((self._deadline_ms(head), -priority, head, rest))
        heapify(heads)
        return heads

    def _can_be_overtaken(self, deadline_ms: int) -> bool:
        """Whether a message that was not decoded yet may have to be delivered before one with this deadline."""
        return deadline_ms > self._newest_ms + self._slacks_ms[-1]

    def _deadline_ms(self, offset: int) -> int:
        message = self._messages[offset]
        return message.arrived_ms + self._slacks_ms[self._class_of(message)]

    def _class_of(self, message: ClassifiedMessage) -> int:
        return min(message.priority, len(self._classes) - 1)

    def _messages_in(self, first: int, last: int) -> list[ClassifiedMessage]:
        """Return the messages in a range, which may be much larger than the window."""
        messages = self._messages
        if last - first < len(messages):
            return [messages[offset] for offset in range(first, last + 1) if offset in messages]
        return [message for offset, message in messages.items() if first <= offset <= last]

    def _add_ready(self, message: ClassifiedMessage) -> None:
        self._classes[self._class_of(message)].add(message.offset)
        self._ready_count += 1

    def _leave_key(self, name: bytes, offset: int) -> None:
        key = self._keys[name]
        if key.held_back is not None and offset in key.held_back:
            key.held_back.remove(offset)
            self._held_back_count -= 1
            return
        key.slots_used -= 1
        if key.held_back and key.slots_used < self._key_slots:
            following = key.held_back.min()
            key.held_back.remove(following)
            self._held_back_count -= 1
            key.slots_used += 1
            self._add_ready(self._messages[following])
        if not key.slots_used:
            del self._keys[name]

    def _expiry_of(self, offset: int) -> int | None:
        message = self._messages.get(offset)
        return None if message is None or self._leases.at(offset) is not None else message.expires_ms
