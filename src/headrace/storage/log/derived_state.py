"""What is derived from the batches of a log: its leader epochs, and the state of its partition.

- Leader epochs and their start offsets both grow strictly. A follower uses them to find where its log diverged from
  the leader's.
- The log stores a snapshot of the partition's state in each checkpoint as opaque bytes and never interprets it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Protocol

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.storage.segments.scan import ReplayedBatch
from headrace.storage.segments.segment import Segment

UNKNOWN_EPOCH = (-1, -1)

_epoch_of, _start_of = itemgetter(0), itemgetter(1)


class LeaderEpochCache:
    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = list(entries)
        self.latest = self._entries[-1][0] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that the batch at `start_offset` is the first of `epoch`; entries that contradict this are dropped."""
        if epoch < 0 or epoch == self.latest:
            return
        entries = self._entries
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((epoch, start_offset))
        self.latest = epoch

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch`, and its end offset."""
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN_EPOCH
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._entries, epoch, key=_epoch_of)
        floor = self._entries[above - 1][0] if above else epoch
        return floor, self._entries[above][1]

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written; -1 if it is not known."""
        above = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[above - 1][0] if above else -1

    def truncate_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or above the new end of the log."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()
        self.latest = self._entries[-1][0] if self._entries else -1

    def truncate_start(self, start_offset: int) -> None:
        """Drop the epochs that end at or below the new start of the log; the epoch that covers it begins there."""
        entries = self._entries
        first = bisect_right(entries, start_offset, key=_start_of) - 1
        if first >= 0:
            entries[: first + 1] = [(entries[first][0], start_offset)]

    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)


class DerivedState(Protocol):
    """The state that a partition derives from its log. Called on the event loop only."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by this snapshot; an empty one means the initial state."""

    def replay(self, batch: ReplayedBatch) -> None:
        """Apply the next batch of the log."""

    def snapshot(self) -> bytes:
        """The state at the end of the log."""

    def aborted(self, start_offset: int, end_offset: int, /) -> Sequence[AbortedTransaction]:
        """The aborted transactions with records between these offsets."""

    def producer_ids(self) -> frozenset[int]:
        """The idempotent producers in the state: compaction keeps the header of each producer's last batch."""

    def forget_aborted(self, markers: Sequence[int]) -> None:
        """Forget the aborted transactions whose markers were at these offsets; compaction has removed both.

        A reader that still learned of one would wait for its marker and skip everything its producer wrote since.
        """


def forget_dropped_transactions(state: DerivedState, segments: Iterable[Segment]) -> None:
    """Forget the transactions that compaction removed from these segments: an older snapshot still has them."""
    for segment in segments:
        if segment.cleaned is not None and segment.cleaned.markers:
            state.forget_aborted(segment.cleaned.markers)
