"""The swap: once decided it happens, whatever crashes, and whatever became of the checkpoints."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import COMPACT, FOLDER, CompactedLogHarness

from headrace.storage.compaction.swap import MANIFEST, CompactionManifest, SegmentGroup, read_manifest, write_manifest
from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log.checkpoint import SegmentCheckpoint
from headrace.testkit.disk import SimDisk, SimulatedPowerCut

MARK = SegmentCheckpoint(5, 100, 1, 2, 3, 4, 5, 6, 7, has_gaps=True)


def make_bench(seed: int) -> CompactedLogHarness:
    bench = CompactedLogHarness(seed, replace(COMPACT, segment_bytes=500))
    for number in range(20):
        bench.put((b"%d" % (number if number % 5 == 0 else 1), b"x" * 30))
    bench.roll()
    bench.put((b"end", b"x"))
    bench.flush()
    return bench


def check(bench: CompactedLogHarness) -> None:
    """Each line is as it was written, and nothing is missing but what is older than another of its key."""
    assert bench.log.quarantined is None, bench.log.quarantined
    assert bench.log.end_offset == 21
    found = bench.lines()
    written = [line for batch in bench.reference.batches for line in batch.lines]
    assert found == [written[line.offset] for line in found]
    assert {line.offset for line in found} >= {0, 5, 10, 15, 19, 20}


def names(bench: CompactedLogHarness) -> set[str]:
    return set(bench.world.disk.list(FOLDER))


@pytest.mark.parametrize("is_remembered", [True, False])
def test_a_power_cut_at_any_operation_loses_nothing_with_a_checkpoint_and_without(
    is_remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_remembered:
        monkeypatch.setattr(checkpoints, "newest_checkpoint", lambda *_: None)
    bench = make_bench(0)
    before = bench.world.disk.operations
    assert bench.run(bench.store.cleaner.clean(bench.log))
    total = bench.world.disk.operations - before
    # Which of the last names reach the disk is a matter of chance: so more often near the end.
    points = [(0, at) for at in range(total)]
    points += [(seed, total - back) for seed in range(30) for back in range(6)]
    for seed, operations in points:
        bench = make_bench(seed)
        bench.world.disk.crash_after(operations)
        with suppress(SimulatedPowerCut):
            bench.run(bench.store.cleaner.clean(bench.log))
        bench.cut_power()
        bench.world.disk.remove("/data/flushed-offsets")  # so that only the log's own files say what it holds
        bench.open()
        check(bench)
        assert not names(bench) & {MANIFEST, "cleaned"}


def test_a_damaged_manifest_quarantines_the_log() -> None:
    bench = make_bench(0)
    bench.world.disk.fail_next("rename", "*/cleaned/*")
    bench.run(bench.store.cleaner.clean(bench.log))
    bench.kill()
    bench.world.disk.flip_bit(f"{FOLDER}/{MANIFEST}", 30)
    before = names(bench)
    bench.open()
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.path.endswith(MANIFEST)
    assert names(bench) == before


def test_without_room_for_a_checkpoint_the_swap_is_concluded_without_one() -> None:
    bench = make_bench(0)
    bench.checkpoint()

    fail_second_checkpoint(bench.world.disk)
    assert bench.clean()
    assert bench.log.checkpoint_offset == -1
    assert bench.log.unsaved_bytes
    bench.check()
    bench.checkpoint()
    bench.cut_power()
    bench.open()
    bench.check()


def fail_second_checkpoint(disk: SimDisk) -> None:
    """The first is that of the pass, the second the one that is brought up to date in the swap."""
    written, write = list[str](), disk.write_atomically

    def write_once(path: str, data: bytes) -> None:
        if path.endswith(".checkpoint"):
            written.append(path)
            if len(written) == 2:
                disk.fail_next("append", "*.checkpoint.tmp", errno.ENOSPC)
        write(path, data)

    disk.write_atomically = write_once  # type: ignore[assignment,method-assign]


def test_a_manifest_survives_the_disk_and_any_damage_is_noticed() -> None:
    disk = SimDisk(1)
    disk.make_directory("/log")
    manifest = CompactionManifest([SegmentGroup([5, 9], MARK)], 12, 13)
    write_manifest(disk, "/log", manifest)
    assert read_manifest(disk, "/log") == manifest
    size = disk.open(f"/log/{MANIFEST}").size()
    for position in range(size):
        disk.flip_bit(f"/log/{MANIFEST}", position)
        assert read_manifest(disk, "/log") is None
        disk.flip_bit(f"/log/{MANIFEST}", position)
    disk.open(f"/log/{MANIFEST}").truncate(2)
    assert read_manifest(disk, "/log") is None
