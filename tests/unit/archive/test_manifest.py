"""The manifest: folded entries, one winner per number, and snapshots."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.archive.archive_support import TOPIC, TOPIC_ID

from headrace.archive import manifest as manifest_module
from headrace.archive.errors import ArchiveConflict, ArchiveDamaged, ArchiveOfAnotherTopic
from headrace.archive.manifest import FORMAT, ArchivedFile, ArchivedFiles, ArchiveManifest, Entry
from headrace.archive.names import file_name
from headrace.archive.storage import LocalArchiveStorage


def file_of(partition: int, first: int, last: int) -> ArchivedFile:
    name = file_name(partition, first, last)
    return ArchivedFile(name, partition, first, last, last - first + 1, 100, "00", 1, 2, f"_headrace/tmp/{name}.t")


def entry_of(*added: ArchivedFile, removed: tuple[str, ...] = (), topic_id: str = TOPIC_ID) -> Entry:
    return Entry(FORMAT, TOPIC, topic_id, "writer", added, removed)


def opened(folder: Path) -> ArchiveManifest:
    manifest = ArchiveManifest(LocalArchiveStorage(folder), TOPIC)
    manifest.load()
    return manifest


def test_entries_are_folded_in_order(tmp_path: Path) -> None:
    manifest = opened(tmp_path)
    assert (manifest.sequence, manifest.topic_id, list(manifest.files)) == (-1, None, [])
    one, two, merged = file_of(0, 0, 9), file_of(0, 10, 19), file_of(0, 0, 19)
    assert manifest.append(entry_of(one))
    assert manifest.append(entry_of(two, file_of(3, 5, 6)))
    assert manifest.append(entry_of(merged, removed=(one.name, two.name)))
    for found in (manifest, opened(tmp_path)):
        assert (found.sequence, found.topic_id) == (2, TOPIC_ID)
        assert list(found.files) == [merged, file_of(3, 5, 6)]


def test_of_two_who_append_the_same_number_one_is_told_to_look_again(tmp_path: Path) -> None:
    fast, slow = opened(tmp_path), opened(tmp_path)
    assert fast.append(entry_of(file_of(0, 0, 9)))
    assert not slow.append(entry_of(file_of(1, 0, 9)))
    slow.refresh()
    assert slow.append(entry_of(file_of(1, 0, 9)))
    fast.refresh()
    assert list(fast.files) == [file_of(0, 0, 9), file_of(1, 0, 9)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (entry_of(file_of(0, 5, 14)), "would cover"),
        (entry_of(file_of(0, 3, 4)), "would cover"),
        (entry_of(file_of(1, 0, 5), file_of(1, 5, 9)), "would cover"),
        (entry_of(removed=(file_name(0, 0, 8),)), "not in the archive any more"),
        (entry_of(removed=("part-0.parquet",)), "not in the archive any more"),
    ],
)
def test_a_change_that_cannot_be_is_not_written(tmp_path: Path, change: Entry, why: str) -> None:
    manifest = opened(tmp_path)
    manifest.append(entry_of(file_of(0, 0, 9)))
    with pytest.raises(ArchiveConflict, match=why):
        manifest.append(change)
    assert opened(tmp_path).sequence == manifest.sequence == 0


def test_snapshots_save_reading_the_history_and_only_the_last_two_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "ENTRIES_PER_SNAPSHOT", 4)
    manifest = opened(tmp_path)
    for number in range(18):
        manifest.append(entry_of(file_of(0, number, number)))
    folder = tmp_path / TOPIC / "_headrace"
    assert [path.name for path in sorted(folder.glob("*.snapshot.json"))] == [
        f"{sequence:020d}.snapshot.json" for sequence in (11, 15)
    ]
    for number in range(15):
        (folder / f"{number:020d}.json").write_bytes(b"not read")
    assert list(opened(tmp_path).files) == list(manifest.files)
    assert opened(tmp_path).sequence == 17


def test_a_snapshot_that_goes_while_it_is_looked_for_is_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "ENTRIES_PER_SNAPSHOT", 2)
    manifest = opened(tmp_path)
    for number in range(4):
        manifest.append(entry_of(file_of(0, number, number)))

    class Busy(LocalArchiveStorage):
        def read(self, name: str) -> bytes:
            if name.endswith(f"{3:020d}.snapshot.json"):
                self.delete(name)
            return super().read(name)

    late = ArchiveManifest(Busy(tmp_path), TOPIC)
    late.load()
    assert list(late.files) == list(manifest.files)


def test_entries_of_two_topics_of_one_name_are_not_folded(tmp_path: Path) -> None:
    storage = LocalArchiveStorage(tmp_path)
    for number, topic_id in enumerate((TOPIC_ID, "another")):
        entry = entry_of(file_of(0, number, number), topic_id=topic_id)
        storage.create(f"{TOPIC}/_headrace/{number:020d}.json", msgspec.json.encode(entry))
    with pytest.raises(ArchiveOfAnotherTopic):
        opened(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99, "topic": "orders"}', b"{}"])
def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path, data: bytes) -> None:
    LocalArchiveStorage(tmp_path).create(f"{TOPIC}/_headrace/{0:020d}.json", data)
    with pytest.raises(ArchiveDamaged, match=r"orders/_headrace/00000000000000000000.json"):
        opened(tmp_path)


def test_an_entry_that_contradicts_those_before_is_named(tmp_path: Path) -> None:
    storage = LocalArchiveStorage(tmp_path)
    for number in range(2):
        storage.create(f"{TOPIC}/_headrace/{number:020d}.json", msgspec.json.encode(entry_of(file_of(0, 0, 9))))
    with pytest.raises(ArchiveDamaged, match="contradicts"):
        opened(tmp_path)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(-3, 40), st.integers(-3, 40), st.data())
def test_files_are_found_by_the_offsets_they_cover(sizes: list[int], start: int, end: int, data: st.DataObject) -> None:
    files, offset = [], 0
    for size in sizes:
        offset += data.draw(st.integers(0, 2))
        files.append(file_of(0, offset, offset + size - 1))
        offset += size
    found = ArchivedFiles(data.draw(st.permutations(files)))
    assert list(found) == files
    assert list(found.files_within(0, start, end)) == [
        f for f in files if f.first < end and f.last >= start and start < end
    ]
    assert found.file_at_or_after(0, start) == next((f for f in files if f.last >= start), None)
    assert all(found.file_named(f.name) == f for f in files)
    assert found.file_named(file_name(0, 0, 10**9)) is None
    assert list(found.files_within(1, 0, 100)) == []
