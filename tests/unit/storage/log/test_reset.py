"""A log that is emptied and begins at another offset: at once, and whatever crash comes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.unit.storage.follower_log_harness import FOLDER, FollowerLogHarness, make_batch

from headrace.runtime.disk import DiskFailed
from headrace.storage.log.log import LogSlice
from headrace.testkit.disk import SimulatedPowerCut


def make_replica(seed: int = 0) -> FollowerLogHarness:
    replica = FollowerLogHarness(seed)
    replica.copy(*(make_batch(offset, b"x" * 300, epoch=offset // 10) for offset in (*range(10), *range(20, 30))))
    replica.flush()
    return replica


@pytest.mark.parametrize("offset", [0, 7, 15, 30, 1000])
@pytest.mark.parametrize("how", ["kill", "cut_power"])
def test_a_log_can_be_reset_to_any_offset(offset: int, how: str) -> None:
    replica = make_replica()
    replica.checkpoint()
    replica.reset(offset)
    log = replica.log
    assert (log.start_offset, log.flushed_offset, log.end_offset) == (offset, offset, offset)
    assert (log.epochs.entries(), replica.state.seen) == ((), [])
    replica.check()
    getattr(replica, how)()
    replica.open()
    replica.check()
    replica.copy(make_batch(offset + 3, epoch=1))
    replica.flush()
    replica.check()
    getattr(replica, how)()
    replica.open()
    replica.check()
    assert replica.log.end_offset == offset + 4


def test_nothing_of_the_old_log_is_left_on_disk() -> None:
    replica = make_replica()
    replica.checkpoint()
    replica.reset(12)
    assert replica.world.disk.list(FOLDER) == ["start-offset"]


def test_a_crash_leaves_the_old_log_or_the_new_one() -> None:
    for operations in range(40):
        for offset in (4, 40):
            replica = make_replica(operations)
            if operations % 2:
                replica.checkpoint()
            replica.world.disk.crash_after(operations)
            with suppress(SimulatedPowerCut):
                replica.reset(offset)
            replica.cut_power()
            replica.open()
            if replica.log.end_offset == offset:
                replica.start_offset = replica.durable_end = offset
                replica.held = []
            replica.check()


def test_a_read_during_a_reset_ends_with_the_old_log() -> None:
    replica = make_replica()
    replica.world.disk.cold_chance = 0
    found = replica.log.read(0, 800, 30)
    assert isinstance(found, LogSlice)
    replica.reset(0)
    replica.copy(make_batch(0, b"another"))
    assert found.bytes().count(b"x" * 300) == 2
    found.release()


def test_a_flush_during_a_reset_does_not_advance_the_flushed_offset() -> None:
    for seed in range(20):
        replica = make_replica(seed)
        replica.copy(make_batch(30, epoch=2), make_batch(50, epoch=2))

        async def work(replica: FollowerLogHarness = replica, pause: float = seed * 0.0002) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(replica.store.flusher.flush(replica.log))
                await asyncio.sleep(pause)
                await replica.log.reset(5)

        replica.run(work())
        replica.start_offset = replica.durable_end = 5
        replica.held = []
        replica.kill()
        replica.open()
        replica.check()


def test_a_damaged_restart_file_quarantines_the_log() -> None:
    replica = make_replica()
    replica.kill()
    replica.world.disk.write_atomically(f"{FOLDER}/restart", b"garbage")
    replica.open()
    assert replica.log.quarantined is not None


def test_a_disk_failure_after_the_commit_of_a_reset_fails_the_log() -> None:
    replica = make_replica()
    replica.world.disk.fail_next("append", "*/restart.tmp")
    with pytest.raises(DiskFailed):
        replica.reset(5)
    replica.check()
    replica.world.disk.fail_next("remove", "*.log")
    with pytest.raises(DiskFailed):
        replica.reset(5)
    assert replica.log.failed is not None
    replica.kill()
    replica.open()
    assert (replica.log.start_offset, replica.log.end_offset) == (5, 5)
