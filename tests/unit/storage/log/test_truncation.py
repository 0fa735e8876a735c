"""Cutting a log at its start and at its end, durably."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.storage.log_harness import FIRST_SEGMENT, FOLDER, LogHarness

from headrace.model.errors import OffsetOutOfRange
from headrace.runtime.disk import DiskFailed
from headrace.storage.config import LogConfig
from headrace.storage.log.log import LogSlice

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def make_bench(count: int = 20) -> LogHarness:
    bench = LogHarness(config=CONFIG)
    bench.append_many(count)
    return bench


def log_files(bench: LogHarness) -> list[int]:
    return [int(name[:20]) for name in bench.world.disk.list(FOLDER) if name.endswith(".log")]


def test_the_start_moves_durably_and_whole_segments_below_it_go() -> None:
    bench = make_bench()
    bench.advance_start(11)
    assert bench.log.start_offset == 11
    assert log_files(bench) == [segment.base_offset for segment in bench.log.segments]
    assert log_files(bench)[0] <= 11 < log_files(bench)[1]
    bench.check()
    bench.cut_power()
    bench.open()
    assert bench.log.start_offset == 11
    bench.check()


def test_the_start_may_lie_inside_a_batch() -> None:
    bench = LogHarness()
    bench.append(b"a", b"b", b"c")
    bench.flush()
    bench.advance_start(2)
    assert bench.records() == [(2, b"c")]


def test_the_start_never_goes_back_nor_beyond_the_end() -> None:
    bench = make_bench(5)
    bench.advance_start(4)
    bench.advance_start(2)
    assert bench.log.start_offset == 4
    with pytest.raises(OffsetOutOfRange):
        bench.advance_start(6)


def test_what_is_deleted_before_it_was_flushed_is_flushed_first() -> None:
    bench = make_bench(5)
    bench.append(b"not flushed")
    bench.advance_start(6)
    assert (bench.log.start_offset, bench.log.flushed_offset) == (6, 6)


def test_all_of_a_log_can_be_deleted_and_it_goes_on_at_the_same_offset() -> None:
    bench = make_bench(7)
    bench.advance_start(7)
    assert bench.records() == []
    bench.cut_power()
    bench.open()
    assert (bench.log.start_offset, bench.log.end_offset) == (7, 7)
    assert bench.append(b"next") == 7


def test_two_deletions_at_once_keep_the_higher_start() -> None:
    bench = make_bench()

    async def delete() -> None:
        async with asyncio.TaskGroup() as group:
            for offset in (12, 3, 15, 8):
                group.create_task(bench.log.advance_start(offset))

    bench.run(delete())
    bench.cut_power()
    bench.open()
    assert bench.log.start_offset == 15


def test_a_deletion_whose_caller_is_cancelled_runs_to_completion() -> None:
    bench = make_bench()

    async def work() -> None:
        task = bench.world.loop.create_task(bench.log.advance_start(12))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.run(work())
    assert bench.log.start_offset == 12
    assert log_files(bench)[0] <= 12 < log_files(bench)[1]
    bench.check()


def test_a_truncated_log_ends_with_a_whole_batch_and_goes_on_there() -> None:
    bench = make_bench()
    bench.checkpoint()
    bench.append_many(5)
    bench.truncate(9)
    assert (bench.log.end_offset, bench.log.flushed_offset) == (9, 9)
    bench.check()
    bench.append(b"instead")
    bench.flush()
    bench.check()
    bench.cut_power()
    bench.open()
    bench.check()
    assert bench.records()[-1] == (9, b"instead")


def test_truncation_inside_a_batch_removes_the_batch() -> None:
    bench = LogHarness()
    bench.append(b"a", b"b", b"c")
    bench.append(b"d", b"e", b"f")
    bench.truncate(4)
    assert bench.log.end_offset == 3
    bench.check()


def test_truncation_removes_epochs_and_state_of_removed_batches() -> None:
    bench = LogHarness(config=CONFIG)
    for epoch in range(12):
        bench.append(b"x" * 100, leader_epoch=epoch)
    bench.flush()
    bench.checkpoint()
    bench.truncate(4)
    assert bench.log.epochs.entries() == tuple((epoch, epoch) for epoch in range(4))
    assert [offset for offset, _ in bench.state.seen] == [0, 1, 2, 3]


def test_truncation_to_nothing_leaves_an_empty_log() -> None:
    bench = make_bench()
    bench.truncate(0)
    assert (bench.log.end_offset, log_files(bench)) == (0, [])
    bench.append_many(2)
    bench.check()


def test_truncation_at_or_above_the_end_changes_nothing() -> None:
    bench = make_bench(3)
    operations = bench.world.disk.operations
    bench.truncate(3)
    bench.truncate(99)
    assert bench.world.disk.operations == operations


def test_a_log_is_not_cut_below_its_start() -> None:
    bench = make_bench()
    bench.advance_start(5)
    with pytest.raises(OffsetOutOfRange):
        bench.truncate(4)
    bench.check()


def test_positions_are_forgotten_at_a_truncation() -> None:
    bench = make_bench(10)
    bench.read(0, size_bytes_max=400)
    bench.truncate(1)
    bench.append(b"other sizes than before")
    bench.append_many(8)
    bench.check()
    for offset in range(bench.log.end_offset):
        assert bench.records(offset) == bench.model[offset:]


def test_time_lookups_forget_what_was_cut() -> None:
    bench = LogHarness()
    bench.append(b"a", timestamp_ms=100)
    bench.append(b"b", timestamp_ms=900)
    bench.truncate(1)
    assert bench.run(bench.log.max_timestamp()) == (100, 0)
    assert bench.run(bench.log.offset_for_timestamp(500)) is None
    assert bench.world.disk.open(FIRST_SEGMENT).size() == bench.batches[0].size_bytes


def test_a_truncation_below_the_flushed_offset_is_not_damage_after_a_restart() -> None:
    for how in ("kill", "cut_power"):
        bench = make_bench()
        bench.truncate(7)
        getattr(bench, how)()
        bench.open()
        bench.check()
        assert bench.log.end_offset == 7


def test_a_flush_that_ends_during_a_truncation_does_not_cover_removed_batches() -> None:
    for seed in range(40):
        bench = LogHarness(seed, CONFIG)
        bench.append_many(10)
        for _ in range(5):
            bench.append(b"not flushed")

        async def work(bench: LogHarness = bench, pause: float = seed * 0.0001) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(bench.store.flusher.flush(bench.log))
                await asyncio.sleep(pause)
                await bench.log.truncate(4)

        bench.run(work())
        assert (bench.log.end_offset, bench.log.flushed_offset) == (4, 4)
        bench.durable_end = 4
        bench.forget_what_was_lost()
        bench.kill()
        bench.open()
        bench.check()


def test_what_is_kept_unflushed_by_a_cut_is_flushed_with_the_next_round() -> None:
    for seed in range(20):
        bench = LogHarness(seed, CONFIG)
        bench.append_many(3)
        for _ in range(10):
            bench.append(b"x" * 100)
        bench.truncate(11)
        bench.append(b"next")
        bench.flush()
        bench.check()
        bench.cut_power()
        bench.open()
        bench.check()
        assert bench.log.end_offset == 12


def test_a_slice_that_was_handed_out_never_holds_other_bytes_after_a_cut() -> None:
    for offset in (0, 3):
        bench = LogHarness()
        bench.world.disk.cold_chance = 0
        bench.append_many(5)
        found = bench.log.read(2, 1 << 20, 5)
        assert isinstance(found, LogSlice)
        before = found.bytes()
        bench.truncate(offset)
        for _ in range(9):
            bench.append(b"of another leader")
        assert before.startswith(found.bytes())
        found.release()
        bench.flush()
        bench.check()


def test_a_truncation_stops_if_the_flushed_point_cannot_be_lowered() -> None:
    bench = make_bench()
    bench.world.disk.fail_next("pwrite", "*/flushed-offsets")
    with pytest.raises(DiskFailed):
        bench.run(bench.log.truncate(7))
    bench.check()
    assert bench.log.end_offset == 20
