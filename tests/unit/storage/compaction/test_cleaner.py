"""The cleaner: when a log is due, what goes wrong, and what else happens to the log meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import COMPACT, DATA, FOLDER, QUIET, CompactedLogHarness

from headrace.storage.compaction.batch_cleaning import CompactionRules
from headrace.storage.compaction.cleaner import plan_cleaning
from headrace.storage.segments.gaps import CleanedGaps
from headrace.testkit.disk import SimulatedPowerCut


def pairs_of(bench: CompactedLogHarness) -> list[tuple[bytes | None, bytes | None]]:
    return [(line.key, line.value) for line in bench.lines()]


def test_a_log_is_due_when_enough_of_it_is_dirty() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, min_cleanable_dirty_ratio=0.5))
    for _ in range(4):
        bench.put((b"a", b"x" * 100), (b"b", b"y" * 100))
    bench.roll()
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes == 1
    bench.put((b"c", b""))
    bench.roll()
    plan = plan_cleaning(bench.log, bench.now_ms)
    assert plan is not None
    assert not plan.is_due
    bench.put((b"c", b"x" * 300))
    bench.roll()
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes == 2


def test_the_dirtiest_log_comes_first_and_a_log_without_compaction_never() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, compacts=False))
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes == 0
    assert len(bench.lines()) == 2


def test_young_records_are_left_alone_for_min_compaction_lag_ms() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, min_compaction_lag_ms=1000))
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    bench.wait(900)
    assert plan_cleaning(bench.log, bench.now_ms) is None
    bench.wait(200)
    assert bench.clean()
    bench.check()


def test_after_max_compaction_lag_ms_a_log_is_due_and_its_active_segment_too() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000))
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.flush()
    bench.wait(1000)
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes == 0
    bench.wait(1)
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes == 1
    assert pairs_of(bench) == [(b"a", b"2")]


def test_a_map_that_is_full_ends_the_pass_and_the_next_one_goes_on() -> None:
    bench = CompactedLogHarness(store_config=replace(QUIET, cleaner_map_bytes=36 * 10))
    for number in range(60):
        bench.put((b"%d" % (number % 25), b"%d" % number))
    bench.roll()
    ends = []
    while bench.clean():
        bench.check()
        ends.append(bench.log.cleaned_offset)
    assert ends == sorted(set(ends))
    assert len(ends) > 3
    assert len(bench.lines()) == 25


# Failures


@pytest.mark.parametrize("position", [7, 80])  # a base offset, which no CRC covers, and a record
def test_damage_that_a_pass_finds_quarantines_the_log(position: int) -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1" * 50))
    bench.put((b"a", b"2"))
    bench.roll()
    bench.world.disk.flip_bit(f"{FOLDER}/{0:020d}.log", position)
    assert not bench.clean()
    assert bench.log.quarantined is not None
    assert bench.store.cleaner.passes_failed == 1


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_a_pass_that_fails_changes_nothing_and_is_tried_again(operation: str) -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    bench.world.disk.fail_next(operation, "*/cleaned/*")  # type: ignore[arg-type]
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes_failed == 1
    assert bench.log.usable
    assert "cleaned" not in bench.world.disk.list(FOLDER)
    bench.check()
    assert bench.clean()
    bench.check()


def test_a_disk_that_fails_in_the_middle_of_the_swap_ends_the_log_until_the_next_start() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    bench.world.disk.fail_next("rename", "*/cleaned/*")
    assert not bench.clean()
    assert bench.log.failed is not None
    bench.kill()
    bench.open()
    assert bench.log.quarantined is None
    assert pairs_of(bench) == [(b"a", b"2")]


def test_without_room_for_the_result_a_pass_does_not_begin() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    bench.checkpoint()
    room, bench.world.disk.capacity_bytes = bench.world.disk.capacity_bytes, 1
    bench.run(bench.store.cleaner.clean_due())
    assert bench.store.cleaner.passes_failed == 1
    bench.world.disk.capacity_bytes = room
    assert bench.clean()
    bench.check()


@pytest.mark.parametrize("suffix", [".gaps", ".log"])
def test_a_cleaned_segment_whose_files_are_missing_or_damaged_is_quarantined(suffix: str) -> None:
    for with_checkpoint in (True, False):
        for is_missing in (True, False):
            bench = CompactedLogHarness()
            for number in range(4):
                bench.put((b"a", b"%d" % number))
                bench.put((b"%d" % number, b"x"))
            bench.roll()
            bench.clean()
            bench.kill()
            disk = bench.world.disk
            path = f"{FOLDER}/{0:020d}{suffix}"
            if is_missing:
                disk.remove(path)
            else:
                disk.flip_bit(path, disk.open(path).size() - 20)
            if not with_checkpoint:
                for name in disk.list(FOLDER):
                    if name.endswith(".checkpoint"):
                        disk.remove(f"{FOLDER}/{name}")
            bench.open()
            if bench.log.quarantined is None:  # a flipped bit in the log shows when it is read
                assert suffix == ".log"
                with pytest.raises(Exception, match="CRC"):
                    bench.batches()
            assert bench.log.quarantined is not None


def test_a_flipped_bit_in_a_base_offset_is_found_in_a_cleaned_segment() -> None:
    bench = CompactedLogHarness()
    for number in range(10):
        bench.put((b"%d" % number if number % 4 == 0 else b"a", b"x"))
    bench.roll()
    bench.clean()
    size_bytes = bench.batches()[0][1].size_bytes
    bench.cut_power()
    bench.world.disk.flip_bit(f"{FOLDER}/{0:020d}.log", size_bytes + 7, bit=1)
    bench.open()
    with pytest.raises(Exception, match="base offset"):
        bench.batches()


def test_damage_in_a_cleaned_segment_is_never_cut_off_even_without_a_flushed_point() -> None:
    bench = CompactedLogHarness()
    for number in range(4):
        bench.put((b"a", b"%d" % number))
        bench.put((b"%d" % number, b"x"))
    bench.roll()
    bench.clean()
    bench.kill()
    disk = bench.world.disk
    for name in disk.list(FOLDER):
        if name.endswith(".checkpoint"):
            disk.remove(f"{FOLDER}/{name}")
    disk.remove(f"{DATA}/flushed-offsets")
    disk.flip_bit(f"{FOLDER}/{0:020d}.log", 150)
    bench.open()
    assert bench.log.quarantined is not None


# Beside the pass


def test_a_log_that_was_trimmed_meanwhile_throws_the_result_away() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=150))
    for number in range(6):
        bench.put((b"a", b"%d" % number * 40))
    bench.roll()
    bench.world.disk.delay_seconds = (0.001, 0.002)

    async def trim_meanwhile() -> bool:
        async with asyncio.TaskGroup() as group:
            cleaning = group.create_task(bench.store.cleaner.clean(bench.log))
            while "cleaned" not in bench.world.disk.list(FOLDER):
                await asyncio.sleep(0.0001)
            await bench.log.advance_start(3)
        return cleaning.result()

    assert not bench.run(trim_meanwhile())
    assert bench.store.cleaner.passes_discarded == 1
    assert "cleaned" not in bench.world.disk.list(FOLDER)
    assert bench.log.usable
    assert [line.offset for line in bench.lines()] == [3, 4, 5]


def test_a_truncation_during_a_pass_is_not_reported_as_damage() -> None:
    for seed in range(10):
        bench = CompactedLogHarness(seed)
        for number in range(6):
            bench.put((b"a", b"%d" % number * 40))
        bench.roll()
        bench.put((b"b", b"1"))
        bench.flush()

        async def cut_meanwhile(bench: CompactedLogHarness = bench) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(bench.store.cleaner.clean(bench.log))
                while not any(name.endswith(".checkpoint") for name in bench.world.disk.list(FOLDER)):
                    await asyncio.sleep(0.0001)
                await bench.log.truncate(4)

        bench.run(cut_meanwhile())
        assert bench.log.quarantined is None
        assert bench.log.end_offset == 4
        assert bench.lines()[-1].offset == 3


def test_an_unexpected_error_in_a_pass_does_not_stop_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    with monkeypatch.context() as patched:
        patched.setattr(CompactionRules, "clean", lambda *_: 1 / 0)
        assert not bench.clean()
    assert bench.store.cleaner.passes_failed == 1
    assert bench.clean()
    bench.check()


def test_a_cleaned_log_can_be_truncated_anywhere() -> None:
    for offset in range(21):
        bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=500))
        for number in range(20):
            bench.put((b"%d" % (number if number % 5 == 0 else 1), b"x" * 30))
        bench.roll()
        bench.clean()
        left = bench.lines()
        bench.run(bench.log.truncate(offset))
        end_offset = max([line.offset + 1 for line in left if line.offset < offset], default=0)
        assert bench.log.end_offset == end_offset
        assert bench.lines() == [line for line in left if line.offset < offset]
        for restart in (bench.kill, bench.cut_power):
            restart()
            bench.open()
            assert bench.log.quarantined is None
            assert bench.log.end_offset == end_offset
            assert bench.lines() == [line for line in left if line.offset < offset]
        assert bench.put((b"next", b"x")) == end_offset
        bench.flush()
        assert bench.lines()[-1].offset == end_offset


def test_a_cut_takes_the_gap_before_it_along_so_that_the_log_ends_with_a_batch() -> None:
    for offset in (2, 3, 4):
        bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=150))
        bench.put((b"a", b"1"))
        for number in range(4):
            bench.put((b"b", b"x" * 100 + b"%d" % number))
        bench.put((b"b", b"x" * 100))
        bench.flush()
        bench.clean()
        bench.check()
        assert [header.base_offset for _, header in bench.batches()] == [0, 4, 5]
        bench.run(bench.log.truncate(offset))
        for restart in (bench.kill, bench.cut_power):
            assert (bench.log.end_offset, len(bench.lines())) == (1, 1)
            restart()
            bench.open()
            assert bench.log.quarantined is None
        assert bench.put((b"next", b"x")) == 1


def test_a_crash_while_a_cleaned_log_is_cut_leaves_what_was_there_or_what_was_wanted() -> None:
    for operations in range(40):
        bench = CompactedLogHarness(operations, replace(COMPACT, segment_bytes=500))
        for number in range(20):
            bench.put((b"%d" % (number if number % 5 == 0 else 1), b"x" * 30))
        bench.roll()
        bench.clean()
        left = bench.lines()
        offset = 1 + operations * 7 % 19
        bench.world.disk.crash_after(operations)
        with suppress(SimulatedPowerCut):
            bench.run(bench.log.truncate(offset))
        bench.cut_power()
        bench.open()
        assert bench.log.quarantined is None
        assert max(line.offset + 1 for line in left if line.offset < offset) <= bench.log.end_offset <= 20
        assert bench.lines() == [line for line in left if line.offset < bench.log.end_offset]


def test_gaps_whose_segment_is_gone_are_removed() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.flush()
    bench.kill()
    bench.world.disk.write_atomically(f"{FOLDER}/{1:020d}.gaps", CleanedGaps(1, 9).encode())
    bench.open()
    assert f"{1:020d}.gaps" not in bench.world.disk.list(FOLDER)
    bench.put((b"a", b"2"))
    bench.flush()
    bench.check()
