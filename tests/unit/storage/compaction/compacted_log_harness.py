"""A simulated host with one compacted log, and a reference that says what of it must be left.

The reference is not a second cleaner: it keeps every batch ever written, and after a pass decides for each record by
looking at all of them.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tests.unit.storage.log_harness import DATA, FOLDER, TOPIC, create_log, lead_alone, split

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.storage.config import LogConfig, StoreConfig
from headrace.storage.log.log import ColdRead, Log
from headrace.storage.segments.scan import ReplayedBatch
from headrace.storage.store.log_store import LogStore, Opening, open_store
from headrace.testkit.world import World
from headrace.wire.batches.batch import (
    TRANSACTIONAL,
    BatchHeader,
    BatchRecord,
    Marker,
    build_batch,
    build_marker,
    parse_header,
    read_records,
)

__all__ = ["DATA", "FOLDER", "CompactedLogHarness", "Transactions"]

T = TypeVar("T")

COMPACT = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    retention_ms=-1,
    compacts=True,
    min_cleanable_dirty_ratio=0.0,
)
QUIET = StoreConfig(scrub_bytes_per_second=0, reserve_bytes=0)


class Transactions:
    """A derived state that knows the transactions, open ones and those that were aborted, and the producers."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}
        self.ended: list[list[int]] = []
        self.producers: list[int] = []

    def restore(self, snapshot: bytes) -> None:
        self.open, self.ended, self.producers = json.loads(snapshot) if snapshot else ({}, [], [])

    def replay(self, batch: ReplayedBatch) -> None:
        header, marker = batch
        producer = str(header.producer_id)
        if header.producer_id >= 0 and header.producer_id not in self.producers:
            self.producers.append(header.producer_id)
        if marker is not None:
            first = self.open.pop(producer, None)
            if first is not None and not marker.is_commit:
                self.ended.append([header.producer_id, first, header.base_offset])
        elif header.is_transactional:
            self.open.setdefault(producer, header.base_offset)

    def snapshot(self) -> bytes:
        return json.dumps([self.open, self.ended, self.producers]).encode()

    def producer_ids(self) -> frozenset[int]:
        return frozenset(self.producers)

    def aborted(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        return [AbortedTransaction(*one) for one in self.ended if one[1] < end_offset and one[2] >= start_offset]

    def forget_aborted(self, markers: Sequence[int]) -> None:
        self.ended = [one for one in self.ended if one[2] not in markers]

    @property
    def stable_offset(self) -> int:
        return min(self.open.values(), default=1 << 62)


class ManualClock:
    """The wall clock stands between `CompactedLogHarness.wait` and the next, so that the reference knows the time of a
    pass."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.at_ms = world.clock.now_ms()

    def monotonic(self) -> float:
        return self._world.clock.monotonic()

    def now_ms(self) -> int:
        return self.at_ms


class VisibleRecord(NamedTuple):
    """A record as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class ReferenceBatch:
    """A batch as it was written, and what became of it."""

    header: BatchHeader
    lines: list[VisibleRecord]
    is_marker: bool = False
    is_aborted: bool = False
    horizon_ms: int | None = None
    is_there: bool = True

    @property
    def producer_id(self) -> int:
        return self.header.producer_id


@dataclass
class ReferenceLog:
    batches: list[ReferenceBatch] = field(default_factory=list)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Before its marker is written: what the producer wrote since its last one is decided now."""
        for batch in reversed(self.batches):
            if batch.producer_id == producer_id:
                if batch.is_marker:
                    break
                if batch.header.is_transactional:
                    batch.is_aborted = not is_commit

    def clean(
        self,
        end_offset: int,
        range_end: int,
        now_ms: int,
        config: LogConfig,
        producer_ids: frozenset[int],
        *,
        keeps_last: bool,
    ) -> None:
        """A pass that knew the keys below `end_offset`, over segments up to `range_end`, where the log may end."""
        known = [batch for batch in self.batches if batch.header.base_offset < end_offset and batch.is_there]
        newest = {
            line.key: line.offset
            for batch in known
            if not batch.is_marker and not batch.is_aborted
            for line in batch.lines
        }
        ranged = [batch for batch in self.batches if batch.header.base_offset < range_end and batch.is_there]
        last = self._last_batches(ranged, producer_ids)
        open_producers: set[int] = set()
        for batch in known:
            is_last = last.get(batch.producer_id) is batch or (keeps_last and batch.header.next_offset == range_end)
            if batch.is_marker:
                self._clean_marker(batch, batch.producer_id in open_producers, is_last, now_ms, config)
                open_producers.discard(batch.producer_id)
                continue
            if batch.header.is_transactional:
                open_producers.add(batch.producer_id)
            is_over = batch.horizon_ms is not None and now_ms >= batch.horizon_ms
            batch.lines = [
                line
                for line in batch.lines
                if line.key is not None
                and not batch.is_aborted
                and newest[line.key] == line.offset
                and not (line.value is None and is_over)
            ]
            if batch.horizon_ms is None and any(line.value is None for line in batch.lines):
                batch.horizon_ms = now_ms + config.delete_retention_ms
            batch.is_there = bool(batch.lines) or is_last

    @staticmethod
    def _last_batches(batches: list[ReferenceBatch], producer_ids: frozenset[int]) -> dict[int, ReferenceBatch]:
        alive = [batch for batch in batches if batch.producer_id in producer_ids]
        markers = {batch.producer_id: batch for batch in alive if batch.is_marker}
        return markers | {batch.producer_id: batch for batch in alive if not batch.is_marker}

    @staticmethod
    def _clean_marker(batch: ReferenceBatch, is_needed: bool, is_last: bool, now_ms: int, config: LogConfig) -> None:
        if is_needed:
            return
        if batch.horizon_ms is None:
            batch.horizon_ms = now_ms + config.delete_retention_ms
        elif now_ms >= batch.horizon_ms and not is_last:
            batch.is_there = False

    def left(self) -> list[ReferenceBatch]:
        return [batch for batch in self.batches if batch.is_there]


class CompactedLogHarness:
    def __init__(self, seed: int = 0, config: LogConfig = COMPACT, store_config: StoreConfig = QUIET) -> None:
        self.world = World(seed)
        self.clock = ManualClock(self.world)
        self.config = config
        self.store_config = store_config
        self.reference = ReferenceLog()
        self.sequences: dict[int, int] = {}
        self.durable_end = 0
        self.store: LogStore
        self.log: Log
        self.state: Transactions
        self.open()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def open(self) -> None:
        self.state = Transactions()
        self.store = self.run(open_store(self.world.disk, DATA, self.clock, self.store_config))
        opening = Opening(self.config, self.state)
        self.run(self.store.open_all(lambda *_: opening))
        self.log = self.run(create_log(self.store, TOPIC, 0, opening))
        lead_alone(self.log)
        self.log.compactable_offset = lambda: self.state.stable_offset
        self.log.on_flushed = self._flushed

    def _flushed(self, log: Log) -> None:
        self.durable_end = max(self.durable_end, log.flushed_offset)

    # Writing

    def put(self, *pairs: tuple[bytes | None, bytes | None], producer_id: int = -1, **options: Any) -> int:
        """One batch of keys and values; returns its offset."""
        now_ms = self.now_ms
        records = [BatchRecord(key=key, value=value, timestamp_ms=now_ms + at) for at, (key, value) in enumerate(pairs)]
        return self.put_records(records, producer_id=producer_id, **options)

    def put_records(
        self, records: list[BatchRecord], *, producer_id: int = -1, in_transaction: bool = False, **options: Any
    ) -> int:
        if producer_id >= 0:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(records)
            options |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        if in_transaction:
            options["attributes"] = options.get("attributes", 0) | TRANSACTIONAL
        return self._append(memoryview(build_batch(records, **options)), None)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> int:
        self.reference.end_transaction(producer_id, is_commit=is_commit)
        marker = Marker(is_commit, 0)
        return self._append(memoryview(build_marker(producer_id, 0, marker, self.now_ms)), marker)

    def _append(self, batch: memoryview, marker: Marker | None) -> int:
        offset = self.log.append(batch, parse_header(batch), 0)
        header = parse_header(batch)
        self.state.replay(ReplayedBatch(header, marker))
        self.reference.batches.append(ReferenceBatch(header, lines_of(batch, header), is_marker=marker is not None))
        return offset

    def flush(self) -> None:
        self.run(self.store.flusher.flush(self.log))

    def roll(self) -> None:
        """So that all that was written can be cleaned."""
        self.flush()
        if self.log.active.size:
            self.log.roll()

    def checkpoint(self) -> None:
        self.run(self.log.save_checkpoint())

    def trim(self, offset: int) -> None:
        """Whole segments below `offset` go, and nothing below it can be read."""
        self.run(self.log.advance_start(offset))
        for batch in self.reference.batches:
            batch.is_there = batch.is_there and batch.header.base_offset >= self.log.segments[0].base_offset

    def wait(self, milliseconds: int) -> None:
        self.clock.at_ms += milliseconds

    # Cleaning

    def clean(self) -> bool:
        """One pass; the reference has one, too, with the same knowledge."""
        ranged = [
            following.base_offset
            for following in self.log.segments[1:]
            if following.base_offset <= min(self.log.flushed_offset, self.log.compactable_offset())
        ]
        now_ms, keeps_last = self.now_ms, not self.log.active.size
        producer_ids = self.state.producer_ids()
        cleaned = self.run(self.store.cleaner.clean(self.log))
        if cleaned:
            self.reference.clean(
                self.log.cleaned_offset, ranged[-1], now_ms, self.config, producer_ids, keeps_last=keeps_last
            )
        return cleaned

    # The end of the process

    def cut_power(self) -> None:
        self.world.reboot()

    def kill(self) -> None:
        self.world.reboot(keep_page_cache=True)

    # Looking

    def read(self, offset: int, size_bytes_max: int = 1 << 20) -> bytes:
        found = self.log.read(offset, size_bytes_max, self.log.end_offset)
        if isinstance(found, ColdRead):
            return self.run(found.load())
        data = found.bytes()
        found.release()
        return data

    def batches(self, offset: int | None = None, size_bytes_max: int = 1 << 20) -> list[tuple[memoryview, BatchHeader]]:
        """Every batch that a consumer gets who goes on behind the last one of each answer."""
        offset = self.log.start_offset if offset is None else offset
        found: list[tuple[memoryview, BatchHeader]] = []
        while batches := split(self.read(offset, size_bytes_max)) if offset < self.log.end_offset else []:
            found += batches
            offset = batches[-1][1].next_offset
        return found

    def lines(self, offset: int | None = None, size_bytes_max: int = 1 << 20) -> list[VisibleRecord]:
        batches = self.batches(offset, size_bytes_max)
        return [line for batch, header in batches if not header.is_control for line in lines_of(batch, header)]

    def check(self, size_bytes_max: int = 1 << 20) -> None:
        """The log holds exactly what the reference says."""
        assert self.log.quarantined is None, self.log.quarantined
        found = self.batches(size_bytes_max=size_bytes_max)
        left = [batch for batch in self.reference.left() if batch.header.last_offset >= self.log.start_offset]
        assert [header.base_offset for _, header in found] == [batch.header.base_offset for batch in left]
        for (batch, header), expected in zip(found, left, strict=True):
            assert lines_of(batch, header) == expected.lines
            check_header(header, expected)
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)


def check_header(header: BatchHeader, expected: ReferenceBatch) -> None:
    """What compaction must not change."""
    before = expected.header
    for name in ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(header, name) == getattr(before, name), name
    assert (header.is_control, header.is_transactional) == (before.is_control, before.is_transactional)
    assert header.record_count == len(expected.lines)
    if expected.lines:
        assert header.compression == before.compression
        assert header.max_timestamp == max(line.timestamp_ms for line in expected.lines)
        if len(expected.lines) == before.record_count and expected.horizon_ms is None:
            assert header == before  # byte for byte: the CRC is the same
    if expected.horizon_ms is not None and expected.lines:
        assert header.attributes & 1 << 6
        assert header.base_timestamp == expected.horizon_ms


def lines_of(batch: memoryview, header: BatchHeader) -> list[VisibleRecord]:
    return [
        VisibleRecord(record.offset, record.key, record.value, record.timestamp_ms, tuple(record.headers))
        for record in read_records(batch, header, 1 << 24)
    ]
