"""What a partition derives from its log, and how recovery hands it back.

The log keeps the snapshots in its checkpoints as opaque bytes; it never looks into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.storage.segments.scan import ReplayedBatch
from headrace.storage.segments.segment import Segment


class DerivedState(Protocol):
    """Called on the loop only."""

    def restore(self, snapshot: bytes) -> None:
        """Begin from this snapshot; empty means from nothing."""

    def replay(self, batch: ReplayedBatch) -> None:
        """Take in the next batch of the log."""

    def snapshot(self) -> bytes:
        """The state at the end of the log."""

    def aborted(self, start_offset: int, end_offset: int, /) -> Sequence[AbortedTransaction]:
        """The transactions with anything between these offsets that came to nothing."""

    def producer_ids(self) -> frozenset[int]:
        """The idempotent producers that are remembered: compaction keeps the header of the last batch of each."""

    def forget_aborted(self, markers: Sequence[int]) -> None:
        """Compaction has dropped these aborted transactions with their markers, which lay at these offsets: a reader
        who were told of one would wait for its marker, and skip whatever its producer has written since."""


def forget_dropped_transactions(state: DerivedState, segments: Iterable[Segment]) -> None:
    """A snapshot from before these segments were cleaned still tells of transactions that they no longer hold."""
    for segment in segments:
        if segment.cleaned is not None and segment.cleaned.markers:
            state.forget_aborted(segment.cleaned.markers)


class NoDerivedState:
    """For logs from which nothing is derived."""

    def restore(self, snapshot: bytes) -> None:
        pass

    def replay(self, batch: ReplayedBatch) -> None:
        pass

    def snapshot(self) -> bytes:
        return b""

    def aborted(self, _start_offset: int, _end_offset: int) -> Sequence[AbortedTransaction]:
        return ()

    def producer_ids(self) -> frozenset[int]:
        return frozenset()

    def forget_aborted(self, markers: Sequence[int]) -> None:
        pass


NO_DERIVED_STATE: DerivedState = NoDerivedState()
