"""A power failure at any disk operation of a compaction pass, while appends, reads and other maintenance continue.

- Every record in the log is the one that was written, and the newest record of every key is there.
- No record returns after a finished pass removed it, and no other flushed record is lost.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import COMPACT, CompactedLogHarness, VisibleRecord
from tests.unit.storage.log_harness import split

from headrace.runtime.tasks import Supervisor
from headrace.storage.config import StoreConfig
from headrace.storage.log.log import ColdRead, Log
from headrace.testkit.disk import SimulatedPowerCut
from headrace.wire.batches.batch import read_records

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "200"))


class History:
    """All records that were written to the log, and the offsets that a finished pass removed."""

    def __init__(self, seed: int, bench: CompactedLogHarness) -> None:
        self.random = Random(f"compaction {seed}")
        self.bench = bench
        self.written: list[VisibleRecord] = []
        self.dropped: set[int] = set()
        self.number = 0

    def append(self) -> None:
        bench, pairs = self.bench, []
        for _ in range(self.random.randint(1, 4)):
            self.number += 1
            key = b"%d" % self.random.randrange(self.random.choice((3, 30)))
            pairs.append((key, b"%d" % self.number + b"." * self.random.choice((0, 10, 400))))
        producer_id = self.random.choice((-1, -1, 1, 2))
        offset = bench.put(*pairs, producer_id=producer_id, compression=self.random.choice((0, 0, 3)))
        now_ms = bench.now_ms
        self.written += [VisibleRecord(offset + at, key, value, now_ms + at) for at, (key, value) in enumerate(pairs)]

    def note_dropped(self) -> None:
        """Note which records the finished pass removed."""
        there = {line.offset for line in self.bench.lines()}
        self.dropped = {line.offset for line in self.written if line.offset not in there}

    def check(self) -> None:
        bench = self.bench
        log = bench.log
        assert log.quarantined is None, log.quarantined
        assert bench.durable_end <= log.end_offset <= len(self.written)
        found = bench.lines(size_bytes_max=self.random.choice((1, 500, 1 << 20)))
        assert found == [self.written[line.offset] for line in found]
        assert [line.offset for line in found] == sorted({line.offset for line in found})
        there = {line.offset for line in found}
        assert not there & self.dropped
        newest = {line.key: line.offset for line in self.written[: log.end_offset]}
        assert set(newest.values()) <= there
        assert log.size_bytes == sum(segment.size for segment in log.segments)
        for _ in range(5):
            offset = self.random.randint(0, log.end_offset)
            behind = [line for line in bench.lines(offset) if line.offset >= offset]
            assert behind == [line for line in found if line.offset >= offset]

    def forget_what_was_lost(self) -> None:
        del self.written[self.bench.log.end_offset :]
        self.bench.durable_end = self.bench.log.flushed_offset
        self.bench.sequences.clear()

    def recover(self) -> None:
        bench = self.bench
        while True:  # the power may fail again during recovery
            bench.world.disk.crash_after(self.random.choice((2, 10, 30, 1 << 40)))
            try:
                bench.open()
                break
            except SimulatedPowerCut:
                bench.cut_power()
        bench.world.disk.crash_after(1 << 40)
        self.check()
        self.forget_what_was_lost()


def make_bench(seed: int) -> CompactedLogHarness:
    return CompactedLogHarness(seed, replace(COMPACT, segment_bytes=Random(seed).choice((700, 2000, 6000))))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_at_any_disk_operation_of_a_pass_leaves_the_log_right(seed: int) -> None:
    bench = make_bench(seed)
    history = History(seed, bench)
    for _ in range(3):
        for _ in range(history.random.randint(5, 40)):
            history.append()
            if history.random.random() < 0.05:
                bench.checkpoint()
        bench.roll()
        if history.random.random() < 0.7:
            history.append()
        bench.world.disk.crash_after(history.random.randint(0, 110))
        with suppress(SimulatedPowerCut):
            for _ in range(2):
                if bench.run(bench.store.cleaner.clean(bench.log)):
                    history.note_dropped()
                history.append()
                bench.flush()
        if history.random.random() < 0.2 and bench.world.disk.alive:
            bench.kill()
        else:
            bench.cut_power()
        history.recover()
    history.append()
    bench.roll()
    assert bench.run(bench.store.cleaner.clean(bench.log))
    history.check()
    newest = {line.key: line.offset for line in history.written}
    assert {line.offset for line in bench.lines()} == set(newest.values())


class Load:
    """Writers, readers and all background tasks of the store, until the power fails."""

    def __init__(self, seed: int) -> None:
        store_config = StoreConfig(
            reserve_bytes=0,
            checkpoint_bytes=3000,
            retention_check_seconds=0.05,
            scrub_bytes_per_second=100_000,
            cleaner_backoff_seconds=0.02,
            cleaner_map_bytes=36 * 20,
        )
        self.bench = CompactedLogHarness(seed, replace(COMPACT, segment_bytes=3000), store_config)
        self.history = History(seed, self.bench)
        self.random = self.history.random

    async def work(self) -> None:
        bench, supervisor = self.bench, Supervisor()
        bench.store.start(supervisor.spawn)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(self.write())
            group.create_task(self.read(bench.log))
            group.create_task(self.search(bench.log))
            group.create_task(supervisor.failure())

    async def write(self) -> None:
        bench = self.bench
        while True:
            for _ in range(self.random.randint(1, 4)):
                bench.wait(10)
                self.history.append()
            bench.store.flusher.mark(bench.log)
            if self.random.random() < 0.3:
                await bench.store.flusher.flush(bench.log)
            await asyncio.sleep(self.random.choice((0, 0.0001, 0.02)))

    async def read(self, log: Log) -> None:
        """Read from the start repeatedly; a record that is missing must have been replaced by a newer one."""
        while True:
            offset, seen = 0, dict[bytes | None, int]()
            while offset < log.flushed_offset:
                await asyncio.sleep(self.random.choice((0, 0.001)))
                found = log.read(offset, self.random.choice((1, 1000, 10_000)), log.flushed_offset)
                data = await found.load() if isinstance(found, ColdRead) else found.bytes()
                for batch, header in split(data):
                    assert header.next_offset > offset
                    offset = header.next_offset
                    for record in read_records(batch, header, 1 << 20):
                        assert record.value == self.history.written[record.offset].value
                        seen[record.key] = record.offset
                if not isinstance(found, ColdRead):
                    found.release()
                if self.random.random() < 0.02:
                    break
            else:
                newest = {line.key: line.offset for line in self.history.written[:offset]}
                assert {key: at for key, at in seen.items() if at < offset} == newest
            await asyncio.sleep(0.01)

    async def search(self, log: Log) -> None:
        while True:
            await asyncio.sleep(self.random.choice((0.001, 0.02)))
            if not log.flushed_offset:
                continue
            last = self.history.written[log.flushed_offset - 1]
            for found in (
                await log.max_timestamp(last.offset + 1),
                await log.offset_for_timestamp(last.timestamp_ms, last.offset + 1),
            ):
                if found is None or found.offset != last.offset:  # it was removed meanwhile
                    assert last.key in [line.key for line in self.history.written[last.offset + 1 :]]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_under_load_leaves_the_log_right(seed: int) -> None:
    load = Load(seed)
    bench, history = load.bench, load.history
    for _ in range(2):
        bench.world.disk.crash_after(history.random.randint(50, 600))
        with pytest.raises(SimulatedPowerCut):
            bench.run(load.work())
        assert bench.store.cleaner.passes_failed == 0
        bench.cut_power()
        history.recover()
