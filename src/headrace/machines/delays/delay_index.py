"""The messages of one delayed log that wait for their due time, replayed from the log. Pure.

    far      arrays of (due, offset), 16 bytes per message, in buckets of 64 days, an hour and a minute
    near     messages that are due in this minute or the next: a heap
    pending  the offsets of waiting messages, a roaring bitmap

- A bucket is split into finer ones one bucket ahead of time, in slices, so that no step takes long.
- Cancelling or rescheduling a message searches nothing. The old entry stays, and is skipped when it becomes due,
  because its offset is not pending, or the message has another due time. If such entries outnumber the others, buckets
  are swept.
- An announced release is open until its messages are known to be committed in the topic.
- A message is pending, or part of an open release, or completed. A repeating message may be both of the first two.
  Everything below `floor` is completed.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.machines.delays.due_time import due_time_ms
from headrace.wire.batches.batch import BatchHeader, parse_marker, split_batches
from headrace.wire.state_records.delayed_records import (
    Cancelled,
    DelayedEvent,
    Dropped,
    Released,
    Releasing,
    Rescheduled,
    is_event,
    read_event,
    scan_waiting,
)

_WIDTHS_MS: Final = (60_000, 3_600_000, 64 * 86_400_000)
_OPENED_AT_ONCE: Final = 5000
_STALE_MIN: Final = 10_000
_NEVER: Final = 1 << 50  # as a bucket number; as a time, far beyond the year 9999
_OFFSET_BITS: Final = 63
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1


class DueMessage(NamedTuple):
    due_ms: int
    offset: int


class OpenRelease(msgspec.Struct, gc=False):
    """A release that was announced at this offset of the delayed log. It is completed when T is committed up to
    `committed_at`, which is None if unknown."""

    offset: int
    announced: Releasing
    committed_at: int | None = None


class _Bucket(NamedTuple):
    dues: array[int]
    offsets: array[int]


class DelayIndex:
    def __init__(self, start_offset: int, now_ms: int) -> None:
        self.replayed_to = start_offset
        """Everything below this offset has been replayed."""
        self.open: list[OpenRelease] = []
        """In the order of their announcements."""
        self._pending = BitMap64()
        self._events = BitMap64()
        self.rescheduled: dict[int, int] = {}
        """The due times of pending messages that were rescheduled or repeat."""
        self._undecided: dict[int, list[DueMessage]] = {}  # by producer id: messages of open transactions
        self._near: list[int] = []
        self._far: tuple[dict[int, _Bucket], ...] = ({}, {}, {})
        self._ends = [0, 0, 0]  # for each width: earlier messages are in finer buckets
        self._first = [_NEVER, _NEVER, _NEVER]  # for each width: the first bucket, or one before it
        self._opening: deque[_Bucket] = deque()
        self._entries = 0  # in all buckets, including entries to skip
        self._to_sweep: list[tuple[int, int]] = []
        self._open_buckets(now_ms, 0)

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, offset: int) -> bool:
        return offset >= 0 and offset in self._pending

    @property
    def floor(self) -> int:
        """Everything below is needed neither for a release nor to know that it is completed."""
        lowest = [self.replayed_to]
        if self._pending:
            lowest.append(self._pending.min())
        for release in self.open:
            lowest += (release.offset, min(release.announced.offsets))
        lowest += (held[0].offset for held in self._undecided.values())
        return min(lowest)

    def over(self, start_offset: int) -> BitMap64:
        """Return the offsets of completed messages in a log with this start offset. Events are not included: as long as
        one of an event's messages is left in the log, the event must say that it is completed."""
        over = BitMap64()
        over.add_range(start_offset, max(self.replayed_to, start_offset))
        over -= self._pending
        over -= self._events
        for release in self.open:
            over -= BitMap64(release.announced.offsets)
        for held in self._undecided.values():
            over -= BitMap64(due.offset for due in held)
        return over

    def is_current(self, due: DueMessage) -> bool:
        """Whether this is still the message's due time."""
        return due.offset in self._pending and self.rescheduled.get(due.offset, due.due_ms) == due.due_ms

    # Changes from the log

    def add(self, offset: int, due_ms: int) -> None:
        self._pending.add(offset)
        self._put(due_ms, offset)

    def hold(self, producer_id: int, offset: int, due_ms: int) -> None:
        """Add a message of a transaction, which becomes pending when the transaction commits."""
        self._undecided.setdefault(producer_id, []).append(DueMessage(due_ms, offset))

    def decide(self, producer_id: int, *, is_commit: bool) -> None:
        for due_ms, offset in self._undecided.pop(producer_id, ()):
            if is_commit:
                self.add(offset, due_ms)

    def apply(self, event: DelayedEvent, offset: int) -> None:
        self._events.add(offset)
        if isinstance(event, Releasing):
            self.open.append(OpenRelease(offset, event))
            again = dict(event.again)
            for released in event.offsets:
                if released in again:
                    self._move(released, again[released])
                else:
                    self._settle(released)
            self._close(event.done)
        elif isinstance(event, Released):
            self._close(event.done)
        elif isinstance(event, Rescheduled):
            self._move(event.offset, event.due)
        else:
            assert isinstance(event, Cancelled | Dropped)
            for settled in event.offsets:
                self._settle(settled)

    # Due messages

    def take(self, now_ms: int, count_max: int) -> list[DueMessage]:
        """Return the messages that are due, ordered by due time. They stay pending until an event changes that;
        messages that are not released must be `put_back`."""
        self._open_buckets(now_ms, _OPENED_AT_ONCE)
        found: dict[int, DueMessage] = {}
        end = now_ms + 1 << _OFFSET_BITS
        while self._near and self._near[0] < end and len(found) < count_max:
            due = _unpacked(heappop(self._near))
            self._entries -= 1
            if self.is_current(due):
                found[due.offset] = due
        return list(found.values())

    def put_back(self, due: DueMessage) -> None:
        if self.is_current(due):
            self._put(due.due_ms, due.offset)

    def next_ms(self) -> int | None:
        """When to call `take` next; it may return nothing then. None: not before another message is added."""
        if self._opening:
            return 0
        # A bucket is split when the one before it begins.
        found = min((first - 1) * width for first, width in zip(self._first, _WIDTHS_MS, strict=True))
        if self._near:
            found = min(found, self._near[0] >> _OFFSET_BITS)
        return found if found < _NEVER else None

    def first_ms(self) -> int | None:
        """Return when the first message is due, if that is soon."""
        while self._near and not self.is_current(_unpacked(self._near[0])):
            heappop(self._near)
            self._entries -= 1
        return self._near[0] >> _OFFSET_BITS if self._near else None

    def page(self, after: DueMessage, count_max: int) -> list[DueMessage]:
        """Return the next messages after this one, ordered by due time."""
        self._open_slice(self._entries)
        found: list[DueMessage] = []
        for group in self._groups(after.due_ms):
            wanted = {due for due in group if due > after and self.is_current(due)}
            found += nsmallest(count_max - len(found), wanted)
            if len(found) == count_max:
                break
        return found

    def sweep(self) -> None:
        """Do one slice of the work of removing entries of completed or rescheduled messages."""
        if self._entries - len(self._pending) < max(len(self._pending), _STALE_MIN):
            return
        if not self._to_sweep:
            self._near = [one for one in self._near if self.is_current(_unpacked(one))]
            heapify(self._near)
            self._to_sweep = [(level, index) for level, far in enumerate(self._far) for index in far]
        else:
            level, index = self._to_sweep.pop()
            bucket = self._far[level].pop(index, None)
            if bucket is not None:
                for due in zip(bucket.dues, bucket.offsets, strict=True):
                    if self.is_current(DueMessage(*due)):
                        self._put_far(level, *due)
        self._entries = len(self._near) + sum(
            len(bucket.dues) for buckets in (*map(dict.values, self._far), self._opening) for bucket in buckets
        )

    # Buckets

    def _settle(self, offset: int) -> None:
        self._pending.discard(offset)
        self.rescheduled.pop(offset, None)

    def _move(self, offset: int, due_ms: int) -> None:
        if offset in self._pending:
            self.rescheduled[offset] = due_ms
            self._put(due_ms, offset)

    def _close(self, done: int) -> None:
        while self.open and self.open[0].offset <= done:
            del self.open[0]

    def _put(self, due_ms: int, offset: int) -> None:
        self._entries += 1
        if due_ms < self._ends[0]:
            heappush(self._near, due_ms << _OFFSET_BITS | offset)
        else:
            self._put_far(0 if due_ms < self._ends[1] else 1 if due_ms < self._ends[2] else 2, due_ms, offset)

    def _put_far(self, level: int, due_ms: int, offset: int) -> None:
        index = due_ms // _WIDTHS_MS[level]
        bucket = self._far[level].get(index)
        if bucket is None:
            bucket = self._far[level][index] = _Bucket(array("q"), array("q"))
            self._first[level] = min(self._first[level], index)
        bucket.dues.append(due_ms)
        bucket.offsets.append(offset)

    def _open_buckets(self, now_ms: int, count_max: int) -> None:
        """Split the current and the next bucket of every width."""
        for level, width in enumerate(_WIDTHS_MS):
            end = (now_ms // width + 2) * width
            if end > self._ends[level]:
                self._ends[level] = end
                far = self._far[level]
                ripe = sorted(index for index in far if index * width < end)
                self._opening.extend(far.pop(index) for index in ripe)
                self._first[level] = min(far, default=_NEVER)
        self._open_slice(count_max)

    def _open_slice(self, count_max: int) -> None:
        while self._opening and count_max > 0:
            dues, offsets = self._opening[0].dues, self._opening[0].offsets
            if not dues:
                self._opening.popleft()
                continue
            count_max -= 1
            self._entries -= 1
            due = DueMessage(dues.pop(), offsets.pop())
            if self.is_current(due):
                self._put(*due)

    def _groups(self, from_ms: int) -> Iterator[Iterator[DueMessage]]:
        """Iterate over groups of all entries that may be due at or after this time; each group is due before the
        next."""
        yield map(_unpacked, self._near)
        for far, width in zip(self._far, _WIDTHS_MS, strict=True):
            for index in sorted(far):
                if (index + 1) * width > from_ms:
                    yield map(DueMessage, far[index].dues, far[index].offsets)


def _unpacked(packed: int) -> DueMessage:
    return DueMessage(packed >> _OFFSET_BITS, packed & _OFFSET_MASK)


# Replay of a delayed log

UNPACKED_BYTES_MAX = 64 << 20


def replay(delays: DelayIndex, data: bytes, events_end: int) -> None:
    """Apply the data, which begins at `delays.replayed_to`. Events at or after `events_end` are known: the leader
    applies its own events when it writes them. Raise `InvalidRecord` for invalid data."""
    for batch, header in split_batches(data):
        if is_event(header):
            if delays.replayed_to <= header.base_offset < events_end:
                delays.apply(read_event(batch, header), header.base_offset)
        elif header.is_control:
            marker = parse_marker(batch, header)
            if marker is not None:
                delays.decide(header.producer_id, is_commit=marker.is_commit)
        else:
            _replay_batch(delays, batch, header)
        delays.replayed_to = max(delays.replayed_to, header.next_offset)


def _replay_batch(delays: DelayIndex, batch: memoryview, header: BatchHeader) -> None:
    # A log may begin in the middle of a batch: messages below its start offset were released before it was trimmed.
    start_offset = delays.replayed_to
    for message in scan_waiting(batch, header, UNPACKED_BYTES_MAX):
        offset = message[0]
        if offset < start_offset:
            continue
        if header.is_transactional:
            delays.hold(header.producer_id, offset, due_time_ms(message))
        else:
            delays.add(offset, due_time_ms(message))
