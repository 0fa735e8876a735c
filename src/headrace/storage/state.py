"""What a partition derives from its log, and how recovery hands it back.

The log keeps the snapshots in its checkpoints as opaque bytes; it never looks into them.
"""

from __future__ import annotations

from typing import Protocol

from headrace.wire.batch import BatchHeader


class DerivedState(Protocol):
    """Called on the loop only."""

    def restore(self, snapshot: bytes) -> None:
        """Begin from this snapshot; empty means from nothing."""

    def replay(self, header: BatchHeader) -> None:
        """Take in the next batch of the log."""

    def snapshot(self) -> bytes:
        """The state at the end of the log."""


class NoState:
    """For logs from which nothing is derived."""

    def restore(self, snapshot: bytes) -> None:
        pass

    def replay(self, header: BatchHeader) -> None:
        pass

    def snapshot(self) -> bytes:
        return b""


NO_STATE: DerivedState = NoState()
