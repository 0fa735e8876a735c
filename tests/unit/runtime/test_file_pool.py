"""Descriptors are few, files are many; and nothing that is dirty or in use loses its own."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.disk import DiskFailed, DiskFull, SystemDisk
from headrace.runtime.file_pool import SystemFile


@pytest.fixture
def disk() -> Iterator[SystemDisk]:
    disk = SystemDisk(threads=2, open_files_max=4)
    yield disk
    disk.close()


def clean_file(disk: SystemDisk, path: Path, data: bytes = b"data") -> SystemFile:
    file = disk.open(str(path), create=True)
    file.append([data])
    file.sync()
    return file


def test_more_files_than_descriptors_can_be_used_in_turn(disk: SystemDisk, tmp_path: Path) -> None:
    files = [clean_file(disk, tmp_path / str(number), b"%d" % number) for number in range(20)]
    for _ in range(2):
        for number, file in enumerate(files):
            assert file.pread(9, 0) == b"%d" % number
            assert len(disk._pool) <= 4
    for file in files:
        file.append([b"!"])
        file.sync()
    assert [file.size() for file in files] == [2] * 10 + [3] * 10


def test_opening_a_file_that_exists_takes_no_descriptor_before_it_is_used(disk: SystemDisk, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"12345")
    file = disk.open(str(tmp_path / "log"))
    assert file.size() == 5
    assert len(disk._pool) == 0


def test_a_dirty_file_keeps_its_descriptor_until_it_is_synced(disk: SystemDisk, tmp_path: Path) -> None:
    dirty = disk.open(str(tmp_path / "dirty"), create=True)
    dirty.append([b"x"])
    descriptor = dirty.descriptor()
    for number in range(20):
        clean_file(disk, tmp_path / str(number))
    assert dirty.opened == descriptor
    dirty.sync()
    for number in range(20):
        disk.open(str(tmp_path / str(number))).descriptor()
    assert dirty.opened < 0


def test_a_pinned_file_keeps_its_descriptor(disk: SystemDisk, tmp_path: Path) -> None:
    pinned = clean_file(disk, tmp_path / "pinned")
    pinned.pin()
    descriptor = pinned.descriptor()
    for number in range(20):
        clean_file(disk, tmp_path / str(number))
    assert pinned.opened == descriptor
    pinned.unpin()
    for number in range(20):
        clean_file(disk, tmp_path / f"more-{number}")
    assert pinned.opened < 0


def test_the_limit_is_exceeded_rather_than_a_dirty_file_closed(disk: SystemDisk, tmp_path: Path) -> None:
    files = [disk.open(str(tmp_path / str(number)), create=True) for number in range(10)]
    for file in files:
        file.append([b"x"])
    assert len(disk._pool) == 10
    for file in files:
        file.sync()
    disk._pool.trim()
    assert len(disk._pool) == 4


def test_a_closed_file_gives_its_descriptor_back_when_the_last_pin_goes(disk: SystemDisk, tmp_path: Path) -> None:
    file = clean_file(disk, tmp_path / "log")
    file.pin()
    file.pin()
    descriptor = file.descriptor()
    file.close()
    file.unpin()
    assert os.fstat(descriptor)
    file.unpin()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_file_that_a_disk_thread_works_on_is_not_closed_under_it(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = clean_file(disk, tmp_path / "log")
    entered, go_on = threading.Event(), threading.Event()

    def slow_sync(descriptor: int) -> None:
        entered.set()
        assert go_on.wait(10)
        os.fstat(descriptor)  # raises if it was closed

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    syncing = asyncio.ensure_future(disk.run(file.sync))
    await disk.run(entered.wait, 10)
    file.close()
    for number in range(20):
        disk.open(str(tmp_path / str(number)), create=True)
    go_on.set()
    await syncing
    assert file.opened < 0


async def test_disk_threads_may_exceed_the_limit_only_while_they_work(disk: SystemDisk, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    files = [disk.open(str(tmp_path / str(number))) for number in range(20)]

    def read_all() -> list[bytes]:
        return [file.pread(9, 0) for file in files]

    assert await disk.run(read_all) == [b"%d" % number for number in range(20)]
    assert len(disk._pool) == 4


async def test_threads_and_loop_never_mix_up_files_while_descriptors_come_and_go(
    disk: SystemDisk, tmp_path: Path
) -> None:
    files = [clean_file(disk, tmp_path / str(number), b"%02d" % number) for number in range(20)]

    def work(seed: int) -> None:
        for step in range(100):
            number = (seed * 7 + step * 3) % 20
            assert files[number].pread(2, 0) == b"%02d" % number
            files[number].pwrite(b"%02d" % number, 0)
            if step % 10 == 0:
                files[number].truncate(2)
                files[number].sync()

    under_way = [disk.run(work, seed) for seed in range(6)]
    step = 0
    while not all(future.done() for future in under_way):
        step += 1
        assert files[step % 20].pread(2, 0) == b"%02d" % (step % 20)
        if step % 5 == 0:
            await asyncio.sleep(0)
    for future in under_way:
        await future
    for number, file in enumerate(files):
        file.sync()
        assert file.pread(9, 0) == b"%02d" % number


def test_a_process_out_of_descriptors_gives_up_the_clean_ones(tmp_path: Path) -> None:
    disk = SystemDisk(threads=1, open_files_max=100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        files = [clean_file(disk, tmp_path / str(number)) for number in range(60)]
        assert [file.pread(9, 0) for file in files] == [b"data"] * 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in files:
            file.close()


def test_writes_during_a_sync_leave_the_file_dirty(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.append([b"before"])
    monkeypatch.setattr(os, "fdatasync", lambda _: file.append([b"meanwhile"]))
    file.sync()
    assert file.dirty()


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed)],
)
def test_a_failed_append_is_typed_and_taken_back(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.append([b"good"])
    pwrite, calls = os.pwrite, 0

    def failing(descriptor: int, data: bytes, position: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return pwrite(descriptor, data[:2], position)  # a short write first
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing)
        with pytest.raises(expected, match=r"append .*log"):
            file.append([b"torn batch"])
    assert file.size() == 4
    assert (tmp_path / "log").read_bytes() == b"good"
    assert file.append([b"!"]) == 4


def test_short_writes_are_continued(disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pwritev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, bytes(data)[:3], position))
    monkeypatch.setattr(os, "pwritev", lambda fd, chunks, position: pwritev(fd, chunks[:1], position))
    file = disk.open(str(tmp_path / "log"), create=True)
    file.append([b"0123456789"])
    file.append([b"abc", b"defgh", b"i"])
    file.pwrite(b"ABCDEFG", 2)
    assert file.pread(99, 0) == b"01ABCDEFG9abcdefghi"


def test_a_failed_sync_is_final_even_when_the_disk_is_full(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.append([b"x"])

    def failing(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(DiskFailed) as caught:
        file.sync()
    assert not isinstance(caught.value, DiskFull)
    assert file.dirty()


def test_a_file_system_without_nowait_reads_plainly(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = clean_file(disk, tmp_path / "log")
    preadv = os.preadv

    def refusing(descriptor: int, buffers: tuple[bytearray], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return preadv(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", refusing)
    assert file.pread_hot(4, 0) == b"data"


def test_a_hot_read_that_would_wait_gives_nothing(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = clean_file(disk, tmp_path / "log", b"x" * 8192)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, *_: preadv(fd, [memoryview(buffers[0])[:4096]], 0))
    assert file.pread_hot(8192, 0) is None  # only half of it was cached

    def blocking(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", blocking)
    assert file.pread_hot(1, 0) is None
