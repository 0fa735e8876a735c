"""What failures leave behind: pages that are only in the cache, bytes that come back, segments without a beginning."""

from __future__ import annotations

import pytest
from tests.unit.storage.log_harness import FOLDER, LogHarness

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import DiskFull


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_tail_whose_sync_failed_is_written_again_before_it_counts_as_flushed(seed: int, has_checkpoint: bool) -> None:
    bench = LogHarness(seed)
    bench.append_many(5)
    if has_checkpoint:
        bench.checkpoint()
    bench.append_many(3)
    for _ in range(30):  # over several pages and segments
        bench.append(b"a batch that nobody was promised" * 10)
    bench.world.disk.fail_next("sync", "*.log")
    with pytest.raises(StorageFailure):
        bench.flush()
    bench.kill()
    bench.open()
    bench.check()
    assert bench.log.flushed_offset == len(bench.model)  # from here on it is promised
    bench.durable_end = bench.log.flushed_offset
    bench.cut_power()
    bench.open()
    bench.check()


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_what_a_failed_append_left_behind_does_not_hide_the_next_segment(has_checkpoint: bool) -> None:
    outcomes = set()
    for seed in range(40):
        bench = LogHarness(seed)
        bench.append_many(3)
        if has_checkpoint:
            bench.checkpoint()
        free = bench.world.disk.capacity_bytes
        bench.world.disk.capacity_bytes = 0
        with pytest.raises(DiskFull):
            bench.append(b"it did not fit" * 20)  # a part of it was written and cut off again, but not durably
        bench.world.disk.capacity_bytes = free
        bench.kill()
        bench.open()
        bench.log.roll()
        bench.append_many(1)
        bench.cut_power()
        outcomes.add(bench.world.disk.open(f"{FOLDER}/{0:020d}.log").size())
        bench.open()
        bench.check()
    assert len(outcomes) > 1  # sometimes it came back


def test_a_segment_whose_predecessor_was_lost_with_the_power_is_lost_too() -> None:
    survivors = set()
    for seed in range(40):
        bench = LogHarness(seed)
        bench.append(b"never flushed")
        bench.log.roll()
        bench.append(b"never flushed either")
        bench.cut_power()
        survivors.add(tuple(name for name in bench.world.disk.list(FOLDER) if name.endswith(".log")))
        bench.open()
        assert bench.log.start_offset == 0
        bench.check()
    assert (f"{1:020d}.log",) in survivors


def test_a_log_that_has_lost_its_promised_beginning_is_quarantined() -> None:
    bench = LogHarness()
    bench.append_many(1)
    bench.log.roll()
    bench.append_many(1)
    bench.kill()
    bench.world.disk.remove(f"{FOLDER}/{0:020d}.log")
    bench.open()
    assert bench.log.quarantined is not None
