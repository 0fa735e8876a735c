"""Syncs by the kernel's workers; whatever they cannot do is left to the threads, and failures are final."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.runtime import kernel_syncs
from headrace.runtime.disk import DiskFailed, SystemDisk
from headrace.runtime.file_pool import SystemFile
from headrace.runtime.kernel_syncs import IN_FLIGHT_MAX, KernelSyncs


@pytest.fixture
def disk() -> Iterator[SystemDisk]:
    disk = SystemDisk(threads=2, open_files_max=4)
    yield disk
    disk.close()


@pytest.fixture
def file(disk: SystemDisk, tmp_path: Path) -> SystemFile:
    file = disk.open(str(tmp_path / "log"), create=True)
    file.append([b"data"])
    return file


def with_syncs(body: Callable[[KernelSyncs], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            syncs = KernelSyncs(asyncio.get_running_loop())
        except OSError as error:
            pytest.skip(f"the kernel does no syncs by itself: {error}")
        try:
            await body(syncs)
        finally:
            syncs.close()

    asyncio.run(main())


def test_a_synced_file_is_clean(file: SystemFile) -> None:
    async def body(syncs: KernelSyncs) -> None:
        assert file.dirty()
        begun = syncs.sync(file)
        assert begun is not None
        await begun
        assert not file.dirty()
        assert file.working == 0

    with_syncs(body)


def test_what_is_written_while_a_sync_is_under_way_is_for_the_next(file: SystemFile) -> None:
    async def body(syncs: KernelSyncs) -> None:
        begun = syncs.sync(file)
        assert begun is not None
        file.append([b"more"])
        await begun
        assert file.dirty()

    with_syncs(body)


def test_a_file_keeps_its_descriptor_while_it_is_synced(disk: SystemDisk, file: SystemFile, tmp_path: Path) -> None:
    async def body(syncs: KernelSyncs) -> None:
        descriptor = file.descriptor()
        begun = syncs.sync(file)
        file.close()
        for number in range(10):
            other = disk.open(str(tmp_path / str(number)), create=True)
            other.sync()
        assert file.opened == descriptor
        assert begun is not None
        await begun
        assert file.opened != descriptor

    with_syncs(body)


def test_more_than_the_kernel_should_have_are_left_to_the_caller(file: SystemFile) -> None:
    async def body(syncs: KernelSyncs) -> None:
        begun = [syncs.sync(file) for _ in range(IN_FLIGHT_MAX)]
        assert syncs.sync(file) is None
        for sync in begun:
            assert sync is not None
            await sync
        again = syncs.sync(file)
        assert again is not None
        await again

    with_syncs(body)


def test_a_failed_sync_is_typed_and_leaves_the_file_dirty(file: SystemFile, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(syncs: KernelSyncs) -> None:
        getevents = syncs._getevents

        def failing(*arguments: int) -> int:
            count: int = getevents(*arguments)
            for number in range(count):
                syncs._events[4 * number + 2] = -errno.EIO
            return count

        monkeypatch.setattr(syncs, "_getevents", failing)
        begun = syncs.sync(file)
        assert begun is not None
        with pytest.raises(DiskFailed, match=r"sync .*log: Input/output error"):
            await begun
        assert file.dirty()
        assert file.working == 0

    with_syncs(body)


def test_a_sync_that_nobody_waits_for_is_seen_to_its_end(file: SystemFile) -> None:
    async def body(syncs: KernelSyncs) -> None:
        begun = syncs.sync(file)
        assert begun is not None
        begun.cancel()
        while file.working:
            await asyncio.sleep(0)
        assert not file.dirty()

    with_syncs(body)


def test_closing_waits_for_what_is_under_way_and_lets_go_of_the_file(file: SystemFile) -> None:
    async def body(syncs: KernelSyncs) -> None:
        syncs.sync(file)

    with_syncs(body)
    assert file.working == 0
    assert file.dirty()  # nobody has seen how it ended


def test_what_cannot_be_synced_by_the_kernel_is_left_to_the_threads(disk: SystemDisk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe = disk.open(str(tmp_path / "pipe"))

    async def body(syncs: KernelSyncs) -> None:
        assert syncs.sync(pipe) is None
        assert pipe.working == 0
        with pytest.raises(DiskFailed, match="Invalid argument"):
            await disk.sync(pipe)

    with_syncs(body)


@pytest.mark.parametrize("missing", ["processor", "kernel"])
def test_without_such_a_kernel_the_threads_do_it(
    disk: SystemDisk, file: SystemFile, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "processor":
        monkeypatch.setattr(kernel_syncs, "_CALLS", {})
    else:
        calls = {name: numbers._replace(setup=99_999) for name, numbers in kernel_syncs._CALLS.items()}
        monkeypatch.setattr(kernel_syncs, "_CALLS", calls)

    async def main() -> None:
        await disk.sync(file)
        await disk.sync(file)

    asyncio.run(main())
    assert not file.dirty()
