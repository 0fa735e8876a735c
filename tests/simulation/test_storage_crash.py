"""A power failure or kill at any disk operation: the log recovers to a prefix with all flushed records (I21)."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from random import Random

import pytest
from tests.unit.storage.follower_log_harness import FollowerLogHarness
from tests.unit.storage.log_harness import LogHarness, split

from headrace.model.errors import OffsetOutOfRange
from headrace.runtime.disk import DiskFull
from headrace.runtime.tasks import Supervisor
from headrace.storage.config import LogConfig, StoreConfig
from headrace.storage.log.follower_batches import check_follower_batches
from headrace.storage.log.log import ColdRead
from headrace.storage.log.retention import delete_expired_segments
from headrace.testkit.disk import SimulatedPowerCut

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "200"))
STEPS = 40
CRASHES = 3


class Scenario:
    """Random operations on one log until the power fails, several times."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"storage crash {seed}")
        self.bench = LogHarness(seed)
        self.value = 0

    def work(self) -> None:
        actions = [self.append] * 10 + [self.bench.flush] * 4 + [self.bench.checkpoint] * 2
        actions += [self.advance_start, self.truncate, self.retain, self.roll, self.read, self.append_to_a_full_disk]
        for _ in range(STEPS):
            self.random.choice(actions)()

    def append(self) -> None:
        values = []
        for _ in range(self.random.randint(1, 4)):
            self.value += 1
            values.append(b"%d" % self.value + b"." * self.random.choice((0, 10, 300, 1500)))
        self.bench.append(*values, timestamp_ms=self.bench.world.clock.now_ms(), leader_epoch=self.value // 50)

    def append_to_a_full_disk(self) -> None:
        disk = self.bench.world.disk
        room, disk.capacity_bytes = disk.capacity_bytes, 0
        try:
            self.append()
        except DiskFull:
            pass
        finally:  # also after a power failure
            disk.capacity_bytes = room

    def advance_start(self) -> None:
        log = self.bench.log
        self.bench.advance_start(self.random.randint(log.start_offset, log.flushed_offset))

    def truncate(self) -> None:
        log = self.bench.log
        with suppress(OffsetOutOfRange):  # the first batch may begin below the start offset
            self.bench.truncate(self.random.randint(log.start_offset, log.end_offset))

    def retain(self) -> None:
        bench = self.bench
        bench.run(delete_expired_segments(bench.log, bench.world.clock.now_ms() + self.random.choice((0, 1 << 40))))
        bench.durable_start = bench.log.start_offset

    def roll(self) -> None:
        if self.bench.log.active.size:
            self.bench.log.roll()

    def read(self) -> None:
        self.bench.records(size_bytes_max=self.random.choice((1, 500, 5000)))

    def crash(self) -> None:
        bench = self.bench
        bench.world.disk.crash_after(self.random.randint(0, 150))
        with suppress(SimulatedPowerCut):
            self.work()
        if self.random.random() < 0.3 and bench.world.disk.alive:
            bench.kill()
        else:
            bench.cut_power()

    def recover(self) -> None:
        bench = self.bench
        while True:  # the power may fail again during recovery
            bench.world.disk.crash_after(self.random.choice((3, 20, 1 << 40)))
            try:
                bench.open()
                break
            except SimulatedPowerCut:
                bench.cut_power()
        bench.world.disk.crash_after(1 << 40)
        bench.check()
        bench.forget_what_was_lost()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_at_any_disk_operation_loses_nothing_that_was_flushed(seed: int) -> None:
    scenario = Scenario(seed)
    for _ in range(CRASHES):
        scenario.crash()
        scenario.recover()
    scenario.append()
    scenario.bench.flush()
    scenario.bench.check()


class Following:
    """A follower's log, with gaps, truncations and resets, until the power fails, several times."""

    def __init__(self, seed: int) -> None:
        self.replica = FollowerLogHarness(seed, LogConfig(segment_bytes=2500, index_interval_bytes=200))
        self.random = self.replica.random
        self.restarting_at: int | None = None

    def work(self) -> None:
        replica = self.replica
        actions = [self.copy] * 10 + [replica.flush] * 4 + [replica.checkpoint] * 2
        actions += [self.truncate, self.reset, self.roll, self.copy_to_a_full_disk, self.flush_beside_a_cut]
        for _ in range(STEPS):
            self.random.choice(actions)()

    def copy(self) -> None:
        replica = self.replica
        batches = replica.next_batches(self.random.randint(1, 5))
        rest = replica.next_batches(1)[0].data
        replica.held += batches  # first, because any part of them may be on disk when the power fails
        data = b"".join(batch.data for batch in batches) + rest[: self.random.randrange(len(rest))]
        assert (
            replica.log.append_as_follower(check_follower_batches(memoryview(data))) == batches[-1].header.next_offset
        )

    def copy_to_a_full_disk(self) -> None:
        replica, disk = self.replica, self.replica.world.disk
        room, disk.capacity_bytes = disk.capacity_bytes, disk.capacity_bytes - disk.free_bytes("/")
        disk.capacity_bytes += self.random.choice((0, 20, 500))
        try:
            self.copy()
        except DiskFull:
            replica.held = [one for one in replica.held if one.header.next_offset <= replica.log.end_offset]
        finally:
            disk.capacity_bytes = room

    def truncate(self) -> None:
        self.replica.truncate(self.random.randint(self.replica.log.start_offset, self.replica.log.end_offset))

    def flush_beside_a_cut(self) -> None:
        replica = self.replica
        flush = replica.world.loop.create_task(replica.store.flusher.flush(replica.log))
        self.truncate()
        replica.run(_finished(flush))

    def reset(self) -> None:
        log = self.replica.log
        self.restarting_at = self.random.choice((log.start_offset, log.flushed_offset, log.end_offset + 5))
        self.replica.reset(self.restarting_at)
        self.restarting_at = None

    def roll(self) -> None:
        if self.replica.log.active.size:
            self.replica.log.roll()

    def crash(self) -> None:
        replica = self.replica
        replica.world.disk.crash_after(self.random.randint(0, 150))
        with suppress(SimulatedPowerCut):
            self.work()
        if self.random.random() < 0.3 and replica.world.disk.alive:
            replica.kill()
        else:
            replica.cut_power()

    def recover(self) -> None:
        replica = self.replica
        while True:
            replica.world.disk.crash_after(self.random.choice((3, 20, 1 << 40)))
            try:
                replica.open()
                break
            except SimulatedPowerCut:
                replica.cut_power()
        replica.world.disk.crash_after(1 << 40)
        if self.restarting_at is not None and replica.log.start_offset == replica.log.end_offset == self.restarting_at:
            replica.start_offset = replica.durable_end = self.restarting_at
            replica.held = []
        self.restarting_at = None
        replica.check()
        replica.forget_what_was_lost()


async def _finished(task: asyncio.Task[None]) -> None:
    await task


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_at_any_disk_operation_loses_nothing_that_a_follower_has_flushed(seed: int) -> None:
    following = Following(seed)
    for _ in range(CRASHES):
        following.crash()
        following.recover()
    following.copy()
    following.replica.flush()
    following.replica.check()


class Load:
    """Writers, readers and all background tasks of the store on one log, until the power fails."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"storage load {seed}")
        config = LogConfig(segment_bytes=4000, index_interval_bytes=300, retention_bytes=20_000)
        store_config = StoreConfig(
            reserve_bytes=0,
            checkpoint_bytes=3000,
            retention_check_seconds=0.05,
            scrub_bytes_per_second=100_000,
        )
        self.bench = LogHarness(seed, config, store_config)
        self.value = 0

    async def work(self) -> None:
        bench, supervisor = self.bench, Supervisor()
        bench.store.start(supervisor.spawn)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self.write())
            group.create_task(self.read())
            group.create_task(self.delete())
            group.create_task(supervisor.failure())

    async def write(self) -> None:
        bench = self.bench
        while True:
            for _ in range(self.random.randint(1, 4)):
                self.value += 1
                bench.append(b"%d" % self.value + b"." * self.random.choice((0, 100, 1500)))
            bench.store.flusher.mark(bench.log)
            if self.random.random() < 0.3:
                await bench.store.flusher.flush(bench.log)
            await asyncio.sleep(self.random.choice((0, 0.0001, 0.02)))

    async def read(self) -> None:
        log, model = self.bench.log, self.bench.model
        offset = log.start_offset
        while True:
            await asyncio.sleep(self.random.choice((0, 0.001, 0.1)))
            offset = max(offset, log.start_offset)
            found = log.read(offset, self.random.choice((1, 1000, 10_000)), log.flushed_offset)
            data = await found.load() if isinstance(found, ColdRead) else found.bytes()
            for batch, header in split(data):
                assert model[header.base_offset][1] in bytes(batch)
                offset = header.next_offset
            if not isinstance(found, ColdRead):
                found.release()

    async def delete(self) -> None:
        bench = self.bench
        while True:
            await asyncio.sleep(self.random.choice((0.01, 0.1)))
            offset = self.random.randint(bench.log.start_offset, bench.log.flushed_offset)
            await bench.log.advance_start(offset)
            bench.durable_start = max(bench.durable_start, offset)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_under_load_loses_nothing_that_was_flushed(seed: int) -> None:
    load = Load(seed)
    bench = load.bench
    for _ in range(2):
        bench.world.disk.crash_after(load.random.randint(50, 400))
        with pytest.raises(SimulatedPowerCut):
            bench.run(load.work())
        bench.cut_power()
        bench.open()
        bench.check()
        bench.forget_what_was_lost()
