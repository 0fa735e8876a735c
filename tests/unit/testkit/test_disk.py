"""The simulated disk as a whole: power cuts, kills and injected faults."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial

import pytest

from headrace.runtime.disk import DiskFailed, DiskFull
from headrace.testkit.disk import SimDisk, SimFile, SimulatedPowerCut
from headrace.testkit.loop import SimLoop, run

SEEDS = range(100)


def disk_with_file(seed: int = 1, path: str = "/data/log") -> tuple[SimDisk, SimFile]:
    disk = SimDisk(seed)
    disk.cold_chance = 0.0
    disk.make_directory("/data")
    file = disk.open(path, create=True)
    disk.sync_directory("/data")
    return disk, file


def replace_file(disk: SimDisk) -> None:
    disk.write_atomically("/data/meta", b"new" * 2000)


def test_a_power_cut_keeps_what_was_synced_and_may_lose_the_rest() -> None:
    lost = 0
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        file.append([b"synced"])
        file.sync()
        file.append([b"pending"])
        disk.crash()
        survived = disk.reopen().read("/data/log")
        assert survived[:6] == b"synced"
        lost += survived != b"syncedpending"
    assert 20 < lost < 95


def test_a_kill_keeps_the_page_cache_and_a_later_power_cut_does_not() -> None:
    lost = 0
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        file.append([b"pending"])
        disk.open("/data/new", create=True)
        disk.crash(keep_page_cache=True)
        disk = disk.reopen()
        assert disk.read("/data/log") == b"pending"
        assert disk.list("/data") == ["log", "new"]
        disk.crash()
        lost += disk.reopen().read("/data/log") != b"pending"
    assert lost > 20


def test_what_survived_a_power_cut_is_durable() -> None:
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        file.append([b"x" * 10_000])
        disk.crash()
        disk = disk.reopen()
        survived = disk.read("/data/log")
        disk.crash()
        assert disk.reopen().read("/data/log") == survived


def test_created_folders_are_durable_at_once() -> None:
    for seed in SEEDS:
        disk = SimDisk(seed)
        disk.make_directory("/data/logs/topic-0")
        disk.crash()
        assert disk.reopen().exists("/data/logs/topic-0")


def test_an_atomic_write_shows_old_or_new_bytes_at_every_crash_point() -> None:
    seen = set()
    for seed in SEEDS:
        for operations in range(10):
            disk, _ = disk_with_file(seed)
            disk.write_atomically("/data/meta", b"old")
            disk.crash_after(operations)
            try:
                replace_file(disk)
                break
            except SimulatedPowerCut:
                survived = disk.reopen().read("/data/meta")
                assert survived in (b"old", b"new" * 2000)
                seen.add((operations, survived))
        else:
            pytest.fail("the write has more steps than that")
    assert {operations for operations, _ in seen} == set(range(6))
    assert {survived for _, survived in seen} == {b"old", b"new" * 2000}


def test_an_atomic_write_without_its_sync_is_caught() -> None:
    """The planted bug: if this passed unnoticed, the simulated disk would prove nothing."""
    broken = 0
    for seed in SEEDS:
        disk, _ = disk_with_file(seed)
        disk.write_atomically("/data/meta", b"old")
        draft = disk.open("/data/meta.tmp", create=True)
        draft.append([b"new" * 2000])
        disk.rename("/data/meta.tmp", "/data/meta")
        disk.sync_directory("/data")
        disk.crash()
        broken += disk.reopen().read("/data/meta") not in (b"old", b"new" * 2000)
    assert broken > 20


def test_an_atomic_write_without_its_directory_sync_is_caught() -> None:
    undone = 0
    for seed in SEEDS:
        disk, _ = disk_with_file(seed)
        disk.write_atomically("/data/meta", b"old")
        draft = disk.open("/data/meta.tmp", create=True)
        draft.append([b"new"])
        draft.sync()
        disk.rename("/data/meta.tmp", "/data/meta")
        disk.crash()
        survived = disk.reopen().read("/data/meta")
        assert survived in (b"old", b"new")
        undone += survived == b"old"
    assert undone > 20


def test_every_change_can_be_the_last() -> None:
    def script(disk: SimDisk) -> None:
        disk.make_directory("/data/a")
        file = disk.open("/data/a/f", create=True)
        file.append([b"1"])
        file.pwrite(b"2", 0)
        file.truncate(0)
        file.sync()
        disk.rename("/data/a/f", "/data/a/g")
        disk.remove("/data/a/g")
        disk.sync_directory("/data/a")
        disk.remove_tree("/data/a")

    whole = SimDisk(1)
    script(whole)
    for operations in range(whole.operations):
        disk = SimDisk(1)
        disk.crash_after(operations)
        with pytest.raises(SimulatedPowerCut):
            script(disk)
        assert disk.operations == operations


def test_a_dead_disk_does_nothing() -> None:
    disk, file = disk_with_file()
    disk.crash()
    uses: list[Callable[[], object]] = [
        lambda: file.append([b"x"]),
        lambda: file.pread(1, 0),
        lambda: file.pread_hot(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.sync,
        lambda: disk.open("/data/log"),
        lambda: disk.exists("/data"),
        lambda: disk.list("/data"),
        lambda: disk.rename("/data/log", "/data/x"),
        lambda: disk.remove("/data/log"),
        lambda: disk.remove_tree("/data"),
        lambda: disk.sync_directory("/data"),
        lambda: disk.free_bytes("/data"),
        lambda: disk.lock("/data"),
    ]
    for use in uses:
        with pytest.raises(SimulatedPowerCut):
            use()
    assert disk.reopen().list("/data") == ["log"]


def test_no_handler_of_ordinary_exceptions_stops_a_power_cut() -> None:
    assert not issubclass(SimulatedPowerCut, Exception)


def test_a_power_cut_inside_disk_work_ends_the_whole_run() -> None:
    disks: list[SimDisk] = []

    async def main(loop: SimLoop) -> None:
        disk = SimDisk(1, loop)
        disks.append(disk)
        disk.make_directory("/data")
        file = disk.open("/data/log", create=True)
        disk.crash_after(1)
        file.append([b"x"])
        try:
            await disk.run(file.sync)
        finally:
            pytest.fail("a task cleaned up after the power cut")

    with pytest.raises(SimulatedPowerCut, match="before sync /data/log"):
        run(1, main)
    assert not disks[0].alive


def test_a_sync_in_a_thread_need_not_cover_concurrent_writes() -> None:
    async def survived(seed: int, loop: SimLoop) -> bytes:
        disk, file = disk_with_file(seed)
        file.append([b"before"])
        syncing = disk.run(file.sync)
        await asyncio.sleep(sum(disk.delay_seconds) / 2)
        file.append([b"meanwhile"])
        await syncing
        disk.crash()
        return disk.reopen().read("/data/log")

    outcomes = [run(seed, partial(survived, seed)) for seed in SEEDS]
    assert all(outcome[:6] == b"before" for outcome in outcomes)
    assert 10 < outcomes.count(b"beforemeanwhile") < 90


def test_a_failed_sync_is_reported_once_and_loses_its_bytes() -> None:
    lost = 0
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        disk.fail_next("sync", "*/log")
        file.append([b"x" * 5000])
        with pytest.raises(DiskFailed, match="sync /data/log"):
            file.sync()
        file.sync()
        assert file.pread(5000, 0) == b"x" * 5000
        disk.crash()
        lost += disk.reopen().read("/data/log") != b"x" * 5000
    assert lost > 20


def test_a_failed_append_leaves_the_file_as_it_was() -> None:
    disk, file = disk_with_file()
    file.append([b"good"])
    disk.fail_next("append")
    with pytest.raises(DiskFailed, match="append /data/log"):
        file.append([b"bad"])
    assert file.pread(99, 0) == b"good"
    assert file.append([b"!"]) == 4


def test_a_fault_waits_for_a_path_that_fits() -> None:
    disk, file = disk_with_file()
    disk.fail_next("sync", "*.index")
    file.sync()
    index = disk.open("/data/0.index", create=True)
    with pytest.raises(DiskFailed):
        index.sync()
    index.sync()


@pytest.mark.parametrize("action", ["create", "pwrite", "pread", "truncate", "rename", "remove", "sync_directory"])
def test_every_operation_can_be_made_to_fail(action: str) -> None:
    disk, file = disk_with_file()
    disk.fail_next(action, error=errno.EIO)  # type: ignore[arg-type]
    doing: dict[str, Callable[[], object]] = {
        "create": lambda: disk.open("/data/new", create=True),
        "pwrite": lambda: file.pwrite(b"x", 0),
        "pread": lambda: file.pread(1, 0),
        "truncate": lambda: file.truncate(0),
        "rename": lambda: disk.rename("/data/log", "/data/x"),
        "remove": lambda: disk.remove("/data/log"),
        "sync_directory": lambda: disk.sync_directory("/data"),
    }
    with pytest.raises(DiskFailed):
        doing[action]()
    assert disk.list("/data") == ["log"]


def test_a_full_disk_rejects_writes_until_there_is_space() -> None:
    disk, file = disk_with_file()
    other = disk.open("/data/other", create=True)
    other.append([b"x" * 600])
    disk.capacity_bytes = 1000
    file.append([b"y" * 300])
    with pytest.raises(DiskFull):
        file.append([b"z" * 101])
    with pytest.raises(DiskFull):
        file.pwrite(b"z" * 101, 300)
    assert (file.size(), disk.free_bytes("/data")) == (300, 100)
    file.pwrite(b"Y", 0)
    disk.remove("/data/other")
    assert disk.free_bytes("/data") == 700
    assert file.append([b"z" * 101]) == 300
    disk.crash(keep_page_cache=True)
    assert disk.reopen().free_bytes("/data") == 599


def test_a_moved_file_is_not_used_by_accident() -> None:
    disk, file = disk_with_file()
    disk.rename("/data/log", "/data/log.deleted")
    with pytest.raises(AssertionError, match="renamed"):
        file.append([b"x"])
    moved = disk.open("/data/log.deleted")
    moved.append([b"x"])
    disk.remove("/data/log.deleted")
    with pytest.raises(AssertionError, match="renamed or removed"):
        moved.append([b"x"])


def test_a_file_in_a_moved_folder_is_not_used_by_accident() -> None:
    disk, file = disk_with_file()
    disk.rename("/data", "/data.deleted")
    with pytest.raises(AssertionError, match="renamed"):
        file.append([b"x"])


def test_after_a_power_cut_the_page_cache_is_cold() -> None:
    disk, file = disk_with_file()
    file.append([b"data"])
    file.sync()
    assert file.pread_hot(4, 0) == b"data"
    disk.crash()
    file = disk.reopen().open("/data/log")
    assert file.pread_hot(4, 0) is None
    assert file.pread(4, 0) == b"data"
    assert file.pread_hot(4, 0) == b"data"


def test_a_lock_ends_with_the_process() -> None:
    disk, _ = disk_with_file()
    disk.lock("/data")
    disk.crash(keep_page_cache=True)
    disk.reopen().lock("/data")


def test_the_digest_distinguishes_different_runs_and_is_equal_for_equal_ones() -> None:
    def digest(seed: int, data: bytes) -> str:
        disk, file = disk_with_file(seed)
        file.append([data])
        disk.crash()
        return disk.reopen().digest

    assert digest(1, b"x" * 9000) == digest(1, b"x" * 9000)
    assert digest(1, b"x" * 9000) != digest(1, b"x" * 9001)
    assert len({digest(seed, b"x" * 9000) for seed in range(10)}) > 3


def test_a_flipped_bit_is_read() -> None:
    disk, file = disk_with_file()
    file.append([b"\0\0"])
    disk.flip_bit("/data/log", 1, bit=7)
    assert file.pread(2, 0) == b"\0\x80"


def test_a_flipped_bit_is_known_until_it_is_overwritten_or_cut_off() -> None:
    disk, file = disk_with_file()
    file.append([b"\0" * 4])
    for position in (0, 2, 3):
        disk.flip_bit("/data/log", position)
    assert disk.rotten() == [("/data/log", 0), ("/data/log", 2), ("/data/log", 3)]
    file.truncate(3)
    file.pwrite(b"new", 0)
    assert disk.rotten() == []


def test_a_flipped_bit_that_is_read_on_the_loop_is_reported() -> None:
    disk, file = disk_with_file()
    used: list[tuple[str, int]] = []
    disk.on_damage_used = lambda path, position: used.append((path, position))
    file.append([b"\0" * 4])
    disk.flip_bit("/data/log", 2)

    async def check(_: SimLoop) -> None:
        await disk.run(file.pread, 4, 0)

    run(1, check)
    file.pread(2, 0)
    assert used == []
    file.pread(2, 2)
    assert used == [("/data/log", 2)]


def test_lost_files_do_not_return_after_a_power_cut() -> None:
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        file.append([b"synced"])
        file.sync()
        disk.open("/data/new", create=True)
        disk.lose("/data/log")
        disk.lose("/data/new")
        assert disk.list("/data") == []
        disk.crash()
        assert disk.reopen().list("/data") == []


def test_pages_written_back_by_the_kernel_survive_a_power_cut() -> None:
    for seed in SEEDS:
        disk, file = disk_with_file(seed)
        file.append([b"pending"])
        disk.open("/data/new", create=True).append([b"new"])
        disk.write_back()
        disk.crash()
        disk = disk.reopen()
        assert (disk.read("/data/log"), disk.read("/data/new")) == (b"pending", b"new")
