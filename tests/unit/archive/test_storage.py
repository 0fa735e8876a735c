"""Places: a folder, and what pyarrow can reach."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.archive.errors import ArchiveStorageUnusable
from headrace.archive.storage import ArchiveStorage, LocalArchiveStorage, RemoteArchiveStorage, open_storage


@pytest.fixture(params=["folder", "pyarrow"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStorage:
    return LocalArchiveStorage(tmp_path) if request.param == "folder" else RemoteArchiveStorage(tmp_path.as_uri())


def test_of_those_who_create_a_name_one_succeeds(tmp_path: Path) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if LocalArchiveStorage(tmp_path).create("a/b/entry.json", b"%d" % number * 1000):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "a/b/entry.json").read_bytes() == b"%d" % won[0] * 1000
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["entry.json"]


def test_what_is_there_is_not_created_again(storage: ArchiveStorage) -> None:
    assert storage.create("topic/entry", b"one")
    assert not storage.create("topic/entry", b"two")
    assert storage.read("topic/entry") == b"one"


def test_files_are_written_moved_listed_and_deleted(storage: ArchiveStorage) -> None:
    with storage.writing("topic/tmp/a.token") as file:
        file.write(b"rows")
    storage.move("topic/tmp/a.token", "topic/a")
    storage.move("topic/a", "topic/aside/deep/a")
    storage.move("topic/aside/deep/a", "topic/a")
    (found,) = storage.files("topic")
    assert (found.name, found.size_bytes) == ("a", 4)
    assert found.modified_ms > 1_700_000_000_000
    assert storage.folders() == ["topic"]
    with storage.open("topic/a") as file:
        assert file.read() == b"rows"
    storage.delete("topic/a")
    storage.delete("topic/a")
    assert storage.files("topic") == []
    assert storage.files("nowhere") == []
    with pytest.raises(FileNotFoundError):
        storage.read("topic/a")
    with pytest.raises(FileNotFoundError):
        storage.open("topic/a")
    with pytest.raises(FileNotFoundError):
        storage.move("topic/a", "topic/b")


def test_a_file_whose_writer_fails_is_gone(storage: ArchiveStorage) -> None:
    def write() -> None:
        with storage.writing("topic/a") as file:
            file.write(b"half of it")
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write()
    assert storage.files("topic") == []


def test_a_place_is_named_by_a_path_or_a_uri(tmp_path: Path) -> None:
    spaced = tmp_path / "with space"
    for location in (str(spaced), spaced.as_uri()):
        found = open_storage(location)
        assert isinstance(found, LocalArchiveStorage)
        assert found.root == spaced
        assert found.exclusive
    assert not RemoteArchiveStorage(tmp_path.as_uri()).exclusive
    with pytest.raises(ArchiveStorageUnusable, match="cannot be opened"):
        open_storage("nosuch://bucket/prefix")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    with pytest.raises(ArchiveStorageUnusable, match="hard links"):
        LocalArchiveStorage(tmp_path).create("entry", b"data")
    assert list(tmp_path.iterdir()) == []
