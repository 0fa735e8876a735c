"""Choose the messages of a subscription that can be leased now. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

import msgspec

from headrace.machines.queues.delivery_failures import Deadlines, DeliveryFailures
from headrace.machines.queues.leases import Leases
from headrace.machines.queues.settled_offsets import SettledOffsets, new_bitmap, present_ranges
from headrace.machines.queues.subscription_values import ClassifiedMessage, Range

if TYPE_CHECKING:
    from pyroaring import BitMap64


# What can be delivered in plain mode, where nothing depends on what is in a message: ranges of offsets. Pure.
#
# Everything from a cursor on is fresh, unless it is settled or has failed before; of what lies before the cursor,
# that which came back is in a bitmap. So nothing is kept per message of the backlog. What came back goes first.
#
# Invariant: no message before the cursor is ready unless it is in the bitmap, and none from the cursor on is in it
# unless it failed.


class ReadyRanges:
    __slots__ = ("_again", "_cursor", "_failures", "_settled")

    def __init__(self, settled: SettledOffsets, failures: DeliveryFailures, leases: Leases) -> None:
        self._settled = settled
        self._failures = failures
        self._cursor = settled.floor
        self._again = new_bitmap()
        for first, last in self._fresh(leases.end):
            for gap_first, gap_last in leases.gaps(first, last):
                self._again.add_range(gap_first, gap_last + 1)
        self._cursor = max(self._cursor, leases.end)

    def choose(self, count_max: int, end_offset: int, _now_ms: int) -> list[Range]:
        chosen: list[Range] = []
        left = count_max
        if self._again:
            for first, last in present_ranges(self._again, 0, end_offset):
                chosen.append(Range(first, min(last, first + left - 1)))
                left -= last - first + 1
                if left <= 0:
                    return chosen
        for first, last in self._fresh(end_offset):
            chosen.append(Range(first, min(last, first + left - 1)))
            left -= last - first + 1
            if left <= 0:
                break
        return merge_adjacent(chosen)

    def take(self, first: int, last: int) -> None:
        """These are leased now."""
        if self._again:
            self._again.remove_range(first, last + 1)
        if last >= self._cursor:
            for passed_first, passed_last in self._fresh(first):
                self._again.add_range(passed_first, passed_last + 1)
            self._cursor = last + 1

    def put_back(self, first: int, last: int) -> None:
        """These are not leased any more, or have waited long enough."""
        self._again.add_range(first, last + 1)

    def set_aside(self, first: int, last: int) -> None:
        """These wait. In a replay, where nobody leases, they may have been ready before."""
        self._again.remove_range(first, last + 1)

    def drop(self, first: int, last: int) -> None:
        """These are settled or dying."""
        if self._again:
            self._again.remove_range(first, last + 1)
        self._cursor = max(self._cursor, self._settled.floor)

    def _fresh(self, end: int) -> Iterable[tuple[int, int]]:
        """What nobody has had yet, up to `end`."""
        cursor = self._cursor
        if cursor >= self._settled.end and cursor >= self._failures.end:  # as it is nearly always
            return ((cursor, end - 1),) if cursor < end else ()
        return (gap for first, last in self._settled.unsettled(cursor, end) for gap in self._failures.gaps(first, last))


def merge_adjacent(ranges: list[Range]) -> list[Range]:
    """Ascending, with neighbours made one."""
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


# What can be delivered in opened mode, where it depends on what is in the messages. Pure.
#
# The broker opens batches ahead of delivery and offers their messages in the order of the log. Which is delivered
# next:
#
# - Each priority is a class, served in the order of the log; a message that came back has its old place. Of the heads
#   of the classes that one is served whose arrival + slack is the smallest, and of equals the higher priority. So a
#   message of priority q waits for one of a higher priority p only if that arrived less than slack[q] - slack[p] after
#   it: at the latest it is delivered after everything that was there when it came, and everything that came within
#   slack[q] - slack[9] after it. However much arrives, nobody starves.
# - With a limit per key, a message holds one of the key's slots from when it can be delivered until it is settled (or
#   dies), also while it waits for a retry. The others of the key are held back; slots are given in the order of the
#   log.
#
# The window is bounded: at most `WINDOW_MAX` messages that are ready or held back, and not further ahead than
# matters. What lies behind it is not looked at: if one key, or messages of low priority that came within less time
# than the slacks differ, fill the window, then others behind them wait until some are settled. What is leased or
# waits for a retry is kept besides, and does not fill it.


WINDOW_MAX = 100_000
READY_ENOUGH = 2_000
"""So many ready messages satisfy any request; more are opened only if one of them could have to go first."""
_ENDS_INTERVAL_MS = 100
_ENDS_MAX = 4096


class _KeySlots:
    """How many hold a slot of the key, and which wait for one."""

    __slots__ = ("held_back", "slots_used")

    def __init__(self) -> None:
        self.slots_used = 0
        self.held_back: BitMap64 | None = None  # made when the first one waits: most keys have none


class ReadyWindow:
    """All messages that were offered and are neither settled nor dying."""

    __slots__ = (
        "_classes",
        "_ends",
        "_held_back_count",
        "_key_slots",
        "_keys",
        "_leases",
        "_lives",
        "_messages",
        "_newest_ms",
        "_ready_count",
        "_settled",
        "_slacks_ms",
        "classified_to",
    )

    def __init__(self, settled: SettledOffsets, leases: Leases, slacks_ms: tuple[int, ...], key_slots: int) -> None:
        self.classified_to = settled.floor
        self._settled = settled
        self._slacks_ms = slacks_ms or (0,)
        self._key_slots = key_slots
        self._leases = leases
        self._classes = [new_bitmap() for _ in self._slacks_ms]  # what is ready, by priority
        self._messages: dict[int, ClassifiedMessage] = {}
        self._keys: dict[bytes, _KeySlots] = {}
        self._lives = Deadlines(self._expiry_of)
        self._newest_ms = 0
        self._ends: deque[tuple[int, int]] = deque()  # where the log ended at what time, ahead of what was opened
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
        return self._can_be_overtaken(self._lanes()[0][0])

    def admit(self, message: ClassifiedMessage, now_ms: int, *, is_free: bool) -> None:
        """The next message of the log; unless it `is_free`, it is leased or waits, and so has its slot."""
        assert message.priority >= 0
        while self._ends and self._ends[0][0] <= message.offset:
            self._newest_ms = max(self._newest_ms, self._ends.popleft()[1])
        arrived_ms = self._arrival_ms(message.arrived_ms, now_ms)
        if arrived_ms != message.arrived_ms:
            message = msgspec.structs.replace(message, arrived_ms=arrived_ms)
        self._messages[message.offset] = message
        self._newest_ms = max(self._newest_ms, message.arrived_ms)
        if message.expires_ms is not None:
            self._lives.set(message.expires_ms, message.offset)
        if self._key_slots and message.key is not None:
            key = self._keys.get(message.key)
            if key is None:
                key = self._keys[message.key] = _KeySlots()
            if is_free and key.slots_used >= self._key_slots:
                if key.held_back is None:
                    key.held_back = new_bitmap()
                key.held_back.add(message.offset)
                self._held_back_count += 1
                return
            key.slots_used += 1
        if is_free:
            self._make_ready(message)

    def _arrival_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """When the next message of the log arrived, as far as its producer's clock can be trusted. A clock that is
        ahead must not hold back what follows in its class. One that is behind must not let its messages overtake for
        longer than their slack: none arrived before those that precede it, nor while the log ended before it."""
        return max(min(timestamp_ms, now_ms), self._newest_ms)

    def _note_end(self, end_offset: int, now_ms: int) -> None:
        """What comes at the end of the log and behind it has not arrived yet."""
        if self.classified_to >= end_offset:
            self._newest_ms = max(self._newest_ms, now_ms)
        elif not self._ends or (end_offset > self._ends[-1][0] and now_ms >= self._ends[-1][1] + _ENDS_INTERVAL_MS):
            self._ends.append((end_offset, now_ms))
            if len(self._ends) > _ENDS_MAX:
                self._ends = deque([*self._ends][::2])

    def choose(self, count_max: int, end_offset: int, now_ms: int) -> list[Range]:
        self._note_end(end_offset, now_ms)
        lanes = self._lanes()
        may_open_more = self.classified_to < end_offset and not self.is_full
        chosen: list[Range] = []
        while lanes and len(chosen) < count_max:
            deadline_ms, rank, offset, rest = lanes[0]
            if chosen and may_open_more and self._can_be_overtaken(deadline_ms):
                break
            expires_ms = self._messages[offset].expires_ms
            if expires_ms is None or now_ms < expires_ms:
                chosen.append(Range(offset, offset))
            following = next(rest, None)
            if following is None:
                heappop(lanes)
            else:
                heapreplace(lanes, (self._deadline_ms(following), rank, following, rest))
        return merge_adjacent(chosen)

    def take(self, first: int, last: int) -> None:
        """These are leased now."""
        for offset in range(first, last + 1):
            self._classes[self._class_of(self._messages[offset])].remove(offset)
        self._ready_count -= last - first + 1

    def put_back(self, first: int, last: int) -> None:
        """These are not leased any more, or have waited long enough."""
        for message in self._among(first, last):
            self._make_ready(message)
        self.set_aside(first, last)

    def set_aside(self, first: int, last: int) -> None:
        """These are not leased any more, so their time may be over meanwhile."""
        for message in self._among(first, last):
            if message.expires_ms is not None:
                self._lives.set(message.expires_ms, message.offset)

    def drop(self, first: int, last: int) -> None:
        """These are settled or dying."""
        for message in self._among(first, last):
            del self._messages[message.offset]
            ready = self._classes[self._class_of(message)]
            if message.offset in ready:
                ready.remove(message.offset)
                self._ready_count -= 1
            if self._key_slots and message.key is not None:
                self._leave_key(message.key, message.offset)
        self.classified_to = max(self.classified_to, self._settled.floor)

    def expired_ranges(self, now_ms: int) -> list[Range]:
        """Messages whose time is over and on which nobody works."""
        return merge_adjacent([Range(offset, offset) for offset in self._lives.over(now_ms)])

    def next_expiry_ms(self) -> int | None:
        return self._lives.next_ms()

    def _lanes(self) -> list[tuple[int, int, int, Iterator[int]]]:
        """Per class that has something ready, as a heap: when its head should go, its rank among equals, head, rest."""
        lanes = []
        for priority, ready in enumerate(self._classes):
            rest = iter(ready)
            head = next(rest, None)
            if head is not None:
                lanes.append((self._deadline_ms(head), -priority, head, rest))
        heapify(lanes)
        return lanes

    def _can_be_overtaken(self, deadline_ms: int) -> bool:
        """Whether a message that has not been opened yet may have to go before one with this deadline."""
        return deadline_ms > self._newest_ms + self._slacks_ms[-1]

    def _deadline_ms(self, offset: int) -> int:
        message = self._messages[offset]
        return message.arrived_ms + self._slacks_ms[self._class_of(message)]

    def _class_of(self, message: ClassifiedMessage) -> int:
        return min(message.priority, len(self._classes) - 1)

    def _among(self, first: int, last: int) -> list[ClassifiedMessage]:
        """The messages of a range, which may be much larger than the window."""
        messages = self._messages
        if last - first < len(messages):
            return [messages[offset] for offset in range(first, last + 1) if offset in messages]
        return [message for offset, message in messages.items() if first <= offset <= last]

    def _make_ready(self, message: ClassifiedMessage) -> None:
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
            self._make_ready(self._messages[following])
        if not key.slots_used:
            del self._keys[name]

    def _expiry_of(self, offset: int) -> int | None:
        message = self._messages.get(offset)
        return None if message is None or self._leases.at(offset) is not None else message.expires_ms
