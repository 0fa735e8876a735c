"""A simulated host with a log of messages and the acks log beside it, and a reference of what was settled."""

from __future__ import annotations

from uuid import UUID

from tests.unit.storage.compaction.compacted_log_harness import QUIET, CompactedLogHarness, Transactions
from tests.unit.storage.log_harness import create_log

from headrace.storage.config import LogConfig, StoreConfig
from headrace.storage.log.acked_retention import RetentionSweep
from headrace.storage.log.log import Log
from headrace.storage.store.log_store import Opening
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header
from headrace.wire.state_records.acks_records import (
    AcksEvent,
    Created,
    Deleted,
    Reconciled,
    Settled,
    SnapshotEvent,
    Sought,
    encode_event,
)

ACKS = UUID(int=0xACC5)
SMALL = LogConfig(segment_bytes=1550, index_interval_bytes=200, retention_ms=-1)


class QueueLogHarness(CompactedLogHarness):
    """`settled` are the offsets with which each subscription has no more to do."""

    def __init__(self, seed: int = 0, config: LogConfig = SMALL, store_config: StoreConfig = QUIET) -> None:
        self.settled: dict[str, set[int]] = {}
        self.acks: Log
        self.sweep: RetentionSweep
        super().__init__(seed, config, store_config)

    def open(self) -> None:
        super().open()
        self.acks = self.run(create_log(self.store, ACKS, 0, Opening(self.config, Transactions())))
        self.sweep = RetentionSweep(self.log, self.acks)

    def messages(self, count: int, size_bytes: int = 100, per_batch: int = 1, producer_id: int = -1) -> None:
        for at in range(0, count, per_batch):
            number = self.log.end_offset
            values = [b"%05d" % (number + one) + b"." * size_bytes for one in range(min(per_batch, count - at))]
            self.put(*((None, value) for value in values), producer_id=producer_id)

    # What subscriptions do

    def create(self, *names: str, floor: int = 0) -> None:
        for name in names:
            self.tell(name, Created(at=1, floor=floor), Reconciled(at=1, epoch=0))
            self.settled[name] = set(range(floor))

    def settle(self, name: str, *ranges: tuple[int, int]) -> None:
        self.tell(name, Settled(at=1, how="ack", ranges=ranges))
        for first, last in ranges:
            self.settled[name].update(range(first, last + 1))

    def seek(self, name: str, floor: int) -> None:
        self.tell(name, Sought(at=1, floor=floor))
        self.settled[name] = set(range(floor))

    def delete(self, name: str) -> None:
        self.tell(name, Deleted(at=1))
        del self.settled[name]

    def tell(self, name: str, *events: AcksEvent | SnapshotEvent) -> None:
        records = []
        for event in events:
            key, value = encode_event(name, event)
            records.append(BatchRecord(key=key, value=value, timestamp_ms=self.now_ms))
        batch = memoryview(build_batch(records))
        self.acks.append(batch, parse_header(batch), 0)
        self.run(self.store.flusher.flush(self.acks))

    # Looking

    def enforce_retention(self, *, leads: bool = True, committed_offset: int | None = None) -> bool:
        committed = self.acks.flushed_offset if committed_offset is None else committed_offset
        return self.run(self.sweep.run(self.store.cleaner, committed, leads=lambda: leads, rewrites=True))

    @property
    def needed(self) -> list[int]:
        """The messages that a subscription has not settled; all if there is no subscription."""
        if not self.settled:
            return list(range(self.log.end_offset))
        done = set.intersection(*self.settled.values())
        return [offset for offset in range(self.log.end_offset) if offset not in done]

    @property
    def offsets(self) -> list[int]:
        return [line.offset for line in self.lines()]
