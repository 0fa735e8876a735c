"""What every disk promises, real or simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.disk import DataFolderLocked, Disk, DiskFailed, SystemDisk
from headrace.testkit.disk import SimDisk
from headrace.testkit.loop import run as run_simulated


@dataclass
class ContractFolder:
    """A disk, an empty folder on it, and the loop that fits."""

    disk: Disk
    folder: str
    run: Callable[[Coroutine[Any, Any, Any]], Any]

    def __truediv__(self, name: str) -> str:
        return f"{self.folder}/{name}"


@pytest.fixture(params=["system", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ContractFolder]:
    if request.param == "system":
        disk = SystemDisk(threads=2, open_files_max=4)
        yield ContractFolder(disk, str(tmp_path), asyncio.run)
        disk.close()
    else:
        simulated = SimDisk(1)
        simulated.cold_chance = 0.0
        simulated.make_directory("/data/folder")
        yield ContractFolder(simulated, "/data/folder", lambda main: run_simulated(1, lambda _: main))


def test_appended_chunks_follow_each_other_and_say_where_they_begin(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    assert file.append([b"one", bytearray(b"two")]) == 0
    assert file.append([memoryview(b"three")]) == 6
    assert file.append([]) == 11
    assert file.append([b""]) == 11
    assert file.size() == 11
    assert file.pread(100, 0) == b"onetwothree"


def test_more_chunks_than_one_system_call_takes_are_appended_whole(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([bytes([number % 251]) for number in range(5000)])
    assert file.pread(5000, 0) == bytes(number % 251 for number in range(5000))


def test_a_read_is_short_only_at_the_end(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([b"0123456789"])
    assert file.pread(4, 3) == b"3456"
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 99) == b""
    assert file.pread(0, 0) == b""


def test_a_hot_read_of_fresh_bytes_finds_them(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([b"0123456789"])
    assert file.pread_hot(1, 9) == b"9"
    assert file.pread_hot(4, 8) == b"89"
    assert file.pread_hot(4, 10) == b""


def test_a_positioned_write_overwrites_and_grows(place: ContractFolder) -> None:
    file = place.disk.open(place / "slots", create=True)
    file.pwrite(b"abcdef", 0)
    file.pwrite(b"XY", 2)
    file.pwrite(b"end", 8)
    assert file.size() == 11
    assert file.pread(99, 0) == b"abXYef\0\0end"
    assert file.append([b"!"]) == 11


def test_a_truncated_file_goes_on_where_it_was_cut(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.size() == 4
    assert file.append([b"ab"]) == 4
    file.truncate(8)
    assert file.pread(99, 0) == b"0123ab\0\0"


def test_a_file_is_found_again_with_its_size(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([b"0123456789"])
    file.sync()
    file.close()
    again = place.disk.open(place / "log")
    assert again.size() == 10
    assert again.path == place / "log"
    assert place.disk.open(place / "log", create=True).append([b"more"]) == 10


def test_a_missing_file_is_not_opened(place: ContractFolder) -> None:
    with pytest.raises(FileNotFoundError):
        place.disk.open(place / "nothing")
    with pytest.raises(FileNotFoundError):
        place.disk.open(place / "no-folder/file", create=True)
    with pytest.raises(FileNotFoundError):
        place.disk.read(place / "nothing")
    with pytest.raises(FileNotFoundError):
        place.disk.remove(place / "nothing")
    with pytest.raises(FileNotFoundError):
        place.disk.rename(place / "nothing", place / "something")
    with pytest.raises(FileNotFoundError):
        place.disk.list(place / "nothing")
    with pytest.raises(FileNotFoundError):
        place.disk.remove_tree(place / "nothing")
    with pytest.raises(FileNotFoundError):
        place.disk.sync_directory(place / "nothing")


def test_a_closed_file_must_not_be_used(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.close()
    file.close()
    with pytest.raises(AssertionError, match="closed"):
        file.append([b"x"])


def test_a_pinned_file_outlives_its_close_and_its_name(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([b"still here"])
    file.pin()
    place.disk.rename(place / "log", place / "log.deleted")
    place.disk.remove(place / "log.deleted")
    file.close()
    assert file.pread(99, 0) == b"still here"
    file.unpin()
    with pytest.raises(AssertionError):
        file.pread(99, 0)


def test_folders_are_made_with_their_parents_and_listed_in_order(place: ContractFolder) -> None:
    place.disk.make_directory(place / "b/c/d")
    place.disk.make_directory(place / "b/c/d")
    place.disk.open(place / "a", create=True)
    assert place.disk.list(place.folder) == ["a", "b"]
    assert place.disk.list(place / "b/c") == ["d"]
    assert place.disk.exists(place / "b/c/d")
    assert not place.disk.exists(place / "b/x")


def test_a_rename_replaces_its_target_in_one_step(place: ContractFolder) -> None:
    place.disk.write_atomically(place / "new", b"new")
    place.disk.write_atomically(place / "old", b"old")
    place.disk.rename(place / "new", place / "old")
    assert place.disk.list(place.folder) == ["old"]
    assert place.disk.read(place / "old") == b"new"


def test_a_folder_can_be_renamed_with_all_in_it(place: ContractFolder) -> None:
    place.disk.make_directory(place / "topic")
    place.disk.write_atomically(place / "topic/0.log", b"data")
    place.disk.rename(place / "topic", place / "topic.deleted")
    assert place.disk.read(place / "topic.deleted/0.log") == b"data"
    assert place.disk.list(place.folder) == ["topic.deleted"]


def test_a_full_folder_is_not_replaced(place: ContractFolder) -> None:
    place.disk.make_directory(place / "empty")
    place.disk.make_directory(place / "full/inner")
    with pytest.raises(DiskFailed):
        place.disk.rename(place / "empty", place / "full")


def test_a_tree_is_removed_with_all_in_it(place: ContractFolder) -> None:
    place.disk.make_directory(place / "topic/inner")
    place.disk.write_atomically(place / "topic/inner/file", b"data")
    place.disk.write_atomically(place / "topic/file", b"data")
    place.disk.remove_tree(place / "topic")
    assert place.disk.list(place.folder) == []


def test_an_atomic_write_leaves_the_new_bytes_and_no_draft(place: ContractFolder) -> None:
    place.disk.write_atomically(place / "meta", b"one")
    place.disk.write_atomically(place / "meta", memoryview(b"second"))
    assert place.disk.read(place / "meta") == b"second"
    assert place.disk.list(place.folder) == ["meta"]


def test_a_data_folder_has_one_owner(place: ContractFolder) -> None:
    place.disk.lock(place.folder)
    with pytest.raises(DataFolderLocked, match="in use"):
        place.disk.lock(place.folder)


def test_the_room_left_is_known(place: ContractFolder) -> None:
    assert 0 < place.disk.free_bytes(place.folder) <= place.disk.total_bytes(place.folder)


def test_work_in_the_disk_threads_answers_with_its_result_or_its_error(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)
    file.append([b"data"])

    async def main() -> None:
        await place.disk.run(file.sync)
        assert await place.disk.run(file.pread, 4, 0) == b"data"
        with pytest.raises(FileNotFoundError):
            await place.disk.run(place.disk.read, place / "nothing")

    place.run(main())


def test_a_call_continues_when_its_caller_was_cancelled(place: ContractFolder) -> None:
    file = place.disk.open(place / "log", create=True)

    async def main() -> None:
        waiting = asyncio.ensure_future(place.disk.run(file.append, [b"done"]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await place.disk.run(int)  # the threads are two, so this may overtake
        while file.size() < 4:
            await place.disk.run(int)

    place.run(main())
    assert file.pread(99, 0) == b"done"


def test_many_pieces_of_work_run_side_by_side(place: ContractFolder) -> None:
    async def main() -> list[int]:
        under_way = [place.disk.run(pow, number, 2) for number in range(50)]
        return [await work for work in under_way]

    assert place.run(main()) == [number**2 for number in range(50)]
