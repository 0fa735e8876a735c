"""Compaction: small neighbours become one file, and damage is not copied."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.archive.archive_support import TOPIC, TOPIC_ID, add, archive_in, in_place, offsets_in, rows_of, staged

from headrace.archive.compaction import LEFT_BEHIND_MS, compact, mergeable_runs, sweep
from headrace.archive.errors import ArchiveDamaged

NOW_MS = 1_800_000_000_000


def test_neighbours_are_merged_and_their_rows_stay_as_they_were(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, *range(0, 51, 10))
    add(catalogue, 1, 0, 5, 9)
    merged = [merge.file for merge in compact(catalogue)]
    assert [file.range for file in merged] == [(0, 0, 49), (1, 0, 8)]
    assert in_place(tmp_path) == [file.name for file in merged]
    found = pa.Table.from_batches(archive_in(tmp_path).read(TOPIC, 0, 0, 100)).combine_chunks()
    assert found.equals(pa.Table.from_batches([rows_of(0, range(50))]))
    assert merged[0].timestamp_min == 1_700_000_000_000
    assert list(compact(catalogue)) == []
    assert list((tmp_path / TOPIC / "_headrace/tmp").iterdir()) == []


def test_a_file_is_not_made_larger_than_the_target(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    files = add(catalogue, 0, *range(0, 71, 10))
    size = max(file.bytes for file in files)
    assert [len(run) for run in mergeable_runs(catalogue, size * 3)] == [3, 3]
    assert mergeable_runs(catalogue, size) == []
    assert [len(run) for run in mergeable_runs(catalogue, size * 100, files_min=7)] == [7]
    assert mergeable_runs(catalogue, size * 100, files_min=8) == []


def test_offsets_that_were_never_archived_stay_a_gap(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 5, 10)
    catalogue.add(TOPIC_ID, [staged(catalogue, 0, 12, 19)], gaps=True)
    add(catalogue, 0, 20, 30)
    assert [merge.file.range for merge in compact(catalogue)] == [(0, 0, 9), (0, 12, 29)]


def test_a_damaged_part_is_not_merged(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    _, second = add(catalogue, 0, 0, 10, 20)
    path = tmp_path / TOPIC / second.name
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match="checksum"):
        list(compact(catalogue))
    assert len(in_place(tmp_path)) == 2
    assert list((tmp_path / TOPIC / "_headrace/tmp").iterdir()) == []


def test_of_two_who_merge_at_once_one_gives_way(tmp_path: Path) -> None:
    catalogue, other = archive_in(tmp_path).open(TOPIC), archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10, 20, 30)
    add(catalogue, 1, 0, 10, 20)
    merging = compact(catalogue)
    next(merging)
    other.refresh()
    assert [merge.file.range for merge in compact(other)] == [(1, 0, 19)]
    assert list(merging) == []
    found = archive_in(tmp_path)
    assert offsets_in(found.read(TOPIC, 0, 0, 100)) == list(range(30))
    assert offsets_in(found.read(TOPIC, 1, 0, 100)) == list(range(20))
    assert list((tmp_path / TOPIC / "_headrace/tmp").iterdir()) == []


def test_what_the_dead_left_behind_is_swept_when_it_is_old(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    add(catalogue, 0, 0, 10)
    left = staged(catalogue, 0, 10, 19)
    (tmp_path / TOPIC / "_headrace/.draft").write_bytes(b"")
    now_ms = catalogue.storage.files(f"{TOPIC}/_headrace/tmp")[0].modified_ms
    assert sweep(catalogue, now_ms) == 0
    assert (tmp_path / TOPIC / left.staged).exists()
    assert sweep(catalogue, now_ms + LEFT_BEHIND_MS + 60_000) == 2
    assert not (tmp_path / TOPIC / left.staged).exists()
    assert offsets_in(archive_in(tmp_path).read(TOPIC, 0, 0, 100)) == list(range(10))
