"""What is derived from a partition's log: producers and transactions. Rebuilt by replay, kept in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.machines.produce.producer_states import ProducerStates
from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.storage.segments.scan import ReplayedBatch


class PartitionState:
    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers = ProducerStates()

    def restore(self, snapshot: bytes) -> None:
        self.producers = ProducerStates.restore(snapshot) if snapshot else ProducerStates()

    def replay(self, batch: ReplayedBatch) -> None:
        header, marker = batch
        if header.producer_id < 0:
            return
        if marker is not None:
            self.producers.apply_marker(
                header, header.base_offset, marker.coordinator_epoch, is_commit=marker.is_commit
            )
        elif not header.is_control:
            self.producers.apply(header, header.base_offset)

    def snapshot(self) -> bytes:
        return self.producers.snapshot()

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The transactions with anything between these offsets that came to nothing."""
        return self.producers.transactions.aborted(start_offset, end_offset)

    def forget_aborted(self, markers: Sequence[int]) -> None:
        self.producers.transactions.forget(markers)

    def producer_ids(self) -> frozenset[int]:
        return self.producers.ids()

    def expire(self, start_offset: int, now: float, expiration_ms: int) -> None:
        """Forget producers that were idle for so long, and what was aborted below the log's start."""
        self.producers.expire(now, expiration_ms)
        self.producers.transactions.trim(start_offset)
