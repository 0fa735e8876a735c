"""The catalogue: what was archived is there once, whoever else writes and wherever a writer dies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.archive.archive_support import (
    TOPIC,
    TOPIC_ID,
    CrashingStorage,
    ProcessCrashed,
    add,
    archive_in,
    in_place,
    offsets_in,
    rows_of,
    staged,
)

from headrace.archive.catalogue import Archive
from headrace.archive.errors import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveGap,
    ArchiveOfAnotherTopic,
    NotInArchive,
)
from headrace.archive.storage import LocalArchiveStorage
from headrace.model.errors import InvalidTopic


def test_what_was_added_is_read_in_order_across_files(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10, 20, 30)
    add(catalogue, 1, 5, 8)
    archive = archive_in(tmp_path)
    assert archive.topics() == [TOPIC]
    assert offsets_in(archive.read(TOPIC, 0, 0, 1000)) == list(range(30))
    assert offsets_in(archive.read(TOPIC, 0, 7, 22)) == list(range(7, 22))
    assert offsets_in(archive.read(TOPIC, 2, 0, 1000)) == []
    found = archive.open(TOPIC)
    assert [found.start_offset(p) for p in (0, 1, 2)] == [0, 5, None]
    assert [found.end_offset(p) for p in (0, 1, 2)] == [30, 8, None]
    assert [(f.first, f.last) for f in found.files(0, 10, 21)] == [(10, 19), (20, 29)]
    assert found.topic_id == TOPIC_ID


def test_plain_readers_see_the_same_rows(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10, 20)
    table = ds.dataset(tmp_path / TOPIC, format="parquet").to_table().sort_by("offset")
    assert table.combine_chunks().equals(pa.Table.from_batches(catalogue.read(0, 0, 20)).combine_chunks())


def test_a_file_that_no_entry_names_does_not_count(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    left = staged(catalogue, 0, 10, 19)
    assert offsets_in(archive_in(tmp_path).read(TOPIC, 0, 0, 100)) == list(range(10))
    assert in_place(tmp_path) == ["p00000-00000000000000000000-00000000000000000009.parquet"]
    catalogue.discard(left)
    assert list((tmp_path / TOPIC / "_headrace/tmp").iterdir()) == []


def test_two_archivers_do_not_archive_an_offset_twice(tmp_path: Path) -> None:
    fast, slow = archive_in(tmp_path).open(TOPIC), archive_in(tmp_path).open(TOPIC)
    late = staged(slow, 0, 0, 14)
    add(fast, 0, 0, 10)
    with pytest.raises(ArchiveConflict, match="up to 10 already"):
        slow.add(TOPIC_ID, [late])
    assert slow.end_offset(0) == 10
    add(slow, 0, 10, 15)
    assert offsets_in(slow.read(0, 0, 100)) == list(range(15))


def test_two_archivers_of_different_partitions_both_go_on(tmp_path: Path) -> None:
    one, other = archive_in(tmp_path).open(TOPIC), archive_in(tmp_path).open(TOPIC)
    for at in range(0, 30, 10):
        add(one, 0, at, at + 10)
        add(other, 1, at, at + 10)
    found = archive_in(tmp_path).open(TOPIC)
    assert [found.end_offset(0), found.end_offset(1)] == [30, 30]


def test_a_gap_is_refused_unless_the_records_are_gone(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    behind = staged(catalogue, 0, 12, 19)
    with pytest.raises(ArchiveGap):
        catalogue.add(TOPIC_ID, [behind])
    catalogue.add(TOPIC_ID, [behind], gaps=True)
    assert offsets_in(catalogue.read(0, 5, 14)) == [5, 6, 7, 8, 9, 12, 13]


def test_several_files_of_one_entry_follow_each_other(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    one, two = staged(catalogue, 0, 0, 9), staged(catalogue, 0, 10, 19)
    catalogue.add(TOPIC_ID, [one, two])
    with pytest.raises(ArchiveConflict):
        catalogue.add(TOPIC_ID, [staged(catalogue, 0, 20, 29), staged(catalogue, 0, 25, 39)])


def test_a_topic_that_was_deleted_and_made_again_does_not_continue_the_archive(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    catalogue.check_topic_id(TOPIC_ID)
    with pytest.raises(ArchiveOfAnotherTopic, match="move the folder orders away, or archive to another path"):
        catalogue.add("AAAAAAAAAAAAAAAAAAAAAg", [staged(catalogue, 0, 10, 19)])


def test_a_topic_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotInArchive, match="nothing of a topic 'orders'"):
        archive_in(tmp_path).read(TOPIC, 0, 0, 1)
    with pytest.raises(InvalidTopic):
        archive_in(tmp_path).open("../elsewhere")
    assert archive_in(tmp_path / "nowhere").topics() == []


def test_a_file_that_is_lost_is_named(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    (file,) = add(catalogue, 0, 0, 10)
    (tmp_path / TOPIC / file.name).unlink()
    with pytest.raises(ArchiveDamaged, match=f"{TOPIC}/{file.name} is in the manifest but missing"):
        list(catalogue.read(0, 0, 10))


def test_a_reader_goes_on_when_files_are_merged_under_its_hands(tmp_path: Path) -> None:
    catalogue, reader = archive_in(tmp_path).open(TOPIC), archive_in(tmp_path).open(TOPIC)
    parts = add(catalogue, 0, 0, 10, 20, 30)
    reader.refresh()
    reading = reader.read(0, 0, 30)
    found = offsets_in([next(reading)])
    catalogue.merge(staged(catalogue, 0, 0, 29), parts)
    assert found + offsets_in(reading) == list(range(30))


# --- broken off at every step ---


def live(storage: CrashingStorage) -> None:
    """An archiver's life: two files, a merge, one more; it goes on from wherever it finds the archive."""
    catalogue = Archive("there", storage).open(TOPIC)
    catalogue.settle()
    for first in (0, 10):
        if (end := catalogue.end_offset(0)) is not None and end > first:
            continue
        file = staged(catalogue, 0, first, first + 9)
        catalogue.add(TOPIC_ID, [file])
    parts = list(catalogue.files(0, 0, 20))
    if len(parts) > 1:
        catalogue.merge(staged(catalogue, 0, 0, 19), parts)
    if catalogue.end_offset(0) == 20:
        catalogue.add(TOPIC_ID, [staged(catalogue, 0, 20, 24)])


def steps_in_all(folder: Path) -> int:
    storage = CrashingStorage(LocalArchiveStorage(folder))
    live(storage)
    return storage.steps


def plain_offsets(folder: Path) -> Sequence[int]:
    if not in_place(folder):
        return []
    table = ds.dataset(folder / TOPIC, format="parquet").to_table(columns=["offset"])
    return sorted(table.column("offset").to_pylist())


@given(st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=6))
def test_an_archiver_that_dies_again_and_again_archives_each_offset_once(
    tmp_path_factory: pytest.TempPathFactory, deaths: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    _live_and_die(folder, deaths)


def test_an_archiver_that_dies_at_any_step_is_taken_up_by_the_next(tmp_path: Path) -> None:
    steps = steps_in_all(tmp_path / "whole")
    assert steps > 10
    for step in range(steps):
        for after in (False, True):
            _live_and_die(tmp_path / f"{step}-{after}", [(step, after)])


def _live_and_die(folder: Path, deaths: list[tuple[int, bool]]) -> None:
    seen: list[int] = []
    for step, after in deaths:
        with suppress(ProcessCrashed):
            live(CrashingStorage(LocalArchiveStorage(folder), step, after=after))
        now = offsets_in(archive_in(folder).open(TOPIC).read(0, 0, 100))
        assert now == list(range(len(now)))
        assert len(now) >= len(seen), "what was archived is lost"
        plain = plain_offsets(folder)
        assert len(set(plain)) == len(plain), "a plain reader sees a row twice"
        assert set(plain) <= set(now)
        seen = now
    live(CrashingStorage(LocalArchiveStorage(folder)))
    catalogue = archive_in(folder).open(TOPIC)
    assert (
        pa.Table.from_batches(catalogue.read(0, 0, 100))
        .combine_chunks()
        .equals(pa.Table.from_batches([rows_of(0, range(25))]))
    )
    assert plain_offsets(folder) == list(range(25))
    assert in_place(folder) == [file.name for file in catalogue.all_files]


def test_a_file_that_was_not_put_in_place_is_read_all_the_same(tmp_path: Path) -> None:
    class Dying(LocalArchiveStorage):
        def move(self, source: str, target: str) -> None:
            raise ProcessCrashed

    catalogue = Archive("there", Dying(tmp_path)).open(TOPIC)
    with pytest.raises(ProcessCrashed):
        add(catalogue, 0, 0, 10)
    assert in_place(tmp_path) == []
    assert offsets_in(archive_in(tmp_path).read(TOPIC, 0, 0, 10)) == list(range(10))
    for _ in range(2):
        archive_in(tmp_path).open(TOPIC).settle()
        assert len(in_place(tmp_path)) == 1


def test_a_part_that_was_merged_before_it_was_put_in_place_does_not_come_back(tmp_path: Path) -> None:
    class Dying(LocalArchiveStorage):
        def move(self, source: str, target: str) -> None:
            raise ProcessCrashed

    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    with pytest.raises(ProcessCrashed):
        add(Archive("there", Dying(tmp_path)).open(TOPIC), 0, 10, 20)
    late = archive_in(tmp_path).open(TOPIC)
    catalogue.refresh()
    catalogue.merge(staged(catalogue, 0, 0, 19), catalogue.files(0, 0, 20))
    late._move_to_final_names(late.files(0, 10, 20))
    assert plain_offsets(tmp_path) == list(range(20))


def test_settling_leaves_files_alone_that_are_not_ours(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    for name in ("notes.txt", "p00000-00000000000000000010-00000000000000000019.parquet"):
        (tmp_path / TOPIC / name).write_bytes(b"of somebody else")
    catalogue.settle()
    assert len(list((tmp_path / TOPIC).iterdir())) == 4
