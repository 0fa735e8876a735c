"""One Parquet file: what goes in comes out, by any reader."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.archive.archive_support import TOPIC, TOPIC_ID, add, archive_in, offsets_in, rows_of, staged

from headrace.archive.errors import ArchiveDamaged
from headrace.archive.parquet_files import FileContents, FileOptions, check_digest, read_file, write_file
from headrace.archive.storage import LocalArchiveStorage
from headrace.columns.schema import ARROW_SCHEMA, schema_of

SMALL_GROUPS = FileOptions(row_group_bytes=1)


def subject_of(first: int, last: int) -> FileContents:
    return FileContents(TOPIC, TOPIC_ID, 2, first, last)


def test_rows_come_back_as_they_were_with_nulls_and_headers(tmp_path: Path) -> None:
    storage = LocalArchiveStorage(tmp_path)
    batches = [rows_of(2, range(10, 40)), rows_of(2, []), rows_of(2, [41, 45, 60])]
    file = write_file(storage, subject_of(10, 99), batches, SMALL_GROUPS)
    found = [batch for batch, _ in read_file(storage, TOPIC, file, 0, 1000)]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches(batches))
    assert all(batch.schema.equals(ARROW_SCHEMA, check_metadata=True) for batch in found)
    assert (file.first, file.last, file.records) == (10, 99, 33)
    assert (file.timestamp_min, file.timestamp_max) == (1_700_000_000_010, 1_700_000_000_060)


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    file = write_file(LocalArchiveStorage(tmp_path), subject_of(10, 19), [rows_of(2, range(10, 20))])
    path = tmp_path / TOPIC / file.staged
    about = pq.ParquetFile(path).metadata
    assert {name: value for name, value in about.metadata.items() if name.startswith(b"headrace.")} == {
        b"headrace.format": b"1",
        b"headrace.topic": TOPIC.encode(),
        b"headrace.topic_id": TOPIC_ID.encode(),
        b"headrace.partition": b"2",
        b"headrace.first": b"10",
        b"headrace.last": b"19",
    }
    assert about.row_group(0).column(4).statistics.max == 19
    assert about.row_group(0).column(1).compression == "ZSTD"
    assert (file.bytes, file.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_every_compression_can_be_read(tmp_path: Path, compression: str) -> None:
    storage = LocalArchiveStorage(tmp_path)
    file = write_file(storage, subject_of(0, 9), [rows_of(2, range(10))], FileOptions(compression=compression))
    assert offsets_in(batch for batch, _ in read_file(storage, TOPIC, file, 0, 10)) == list(range(10))


def test_a_range_without_rows_is_a_file_without_rows(tmp_path: Path) -> None:
    storage = LocalArchiveStorage(tmp_path)
    file = write_file(storage, subject_of(5, 7), [])
    assert (file.records, file.timestamp_min, file.timestamp_max) == (0, None, None)
    assert list(read_file(storage, TOPIC, file, 0, 100)) == []
    assert pq.read_table(tmp_path / TOPIC / file.staged).num_rows == 0


@given(st.integers(-2, 45), st.integers(-2, 45))
def test_any_range_can_be_read(tmp_path_factory: pytest.TempPathFactory, start: int, end: int) -> None:
    storage = LocalArchiveStorage(tmp_path_factory.mktemp("archive"))
    offsets = [0, 1, 2, 5, 9, 10, 11, 30, 31, 39]
    batches = [rows_of(2, offsets[at : at + 3]) for at in range(0, 10, 3)]
    file = write_file(storage, subject_of(0, 42), batches, SMALL_GROUPS)
    found = list(read_file(storage, TOPIC, file, start, end, ["value", "offset"]))
    assert offsets_in(batch for batch, _ in found) == [o for o in offsets if start <= o < end]
    assert all(behind == batch.column("offset")[-1].as_py() + 1 for batch, behind in found)


def test_row_groups_outside_the_range_are_not_read(tmp_path: Path) -> None:
    storage = LocalArchiveStorage(tmp_path)
    batches = [rows_of(2, range(at, at + 100)) for at in range(0, 1000, 100)]
    file = write_file(storage, subject_of(0, 999), batches, SMALL_GROUPS)
    path = tmp_path / TOPIC / file.staged
    third = pq.ParquetFile(path).metadata.row_group(2).column(4).data_page_offset
    data = bytearray(path.read_bytes())
    data[third : third + 50] = b"\xff" * 50
    path.write_bytes(data)
    assert offsets_in(batch for batch, _ in read_file(storage, TOPIC, file, 500, 510)) == list(range(500, 510))
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        list(read_file(storage, TOPIC, file, 200, 210))


def test_only_the_columns_that_are_asked_for_come_in_that_order(tmp_path: Path) -> None:
    storage = LocalArchiveStorage(tmp_path)
    file = write_file(storage, subject_of(0, 9), [rows_of(2, range(10))])
    ((batch, _),) = read_file(storage, TOPIC, file, 3, 5, ["headers", "key"])
    assert batch.schema.equals(schema_of(["headers", "key"]), check_metadata=True)
    assert batch.column("key").to_pylist() == [None, b"k4"]


@pytest.mark.parametrize("offsets", [[4], [21], [12, 11], [10, 12, 30]])
def test_rows_in_disorder_or_outside_the_range_are_a_bug(tmp_path: Path, offsets: list[int]) -> None:
    with pytest.raises(AssertionError):
        write_file(LocalArchiveStorage(tmp_path), subject_of(10, 20), [rows_of(2, offsets)])
    assert list((tmp_path / TOPIC / "_headrace/tmp").iterdir()) == []


def test_altered_bytes_are_found_by_their_checksum(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    (file,) = add(catalogue, 0, 0, 10)
    check_digest(catalogue.storage, TOPIC, file)
    path = tmp_path / TOPIC / file.name
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match="checksum"):
        check_digest(catalogue.storage, TOPIC, file)
    with pytest.raises(ArchiveDamaged, match="checksum"):
        list(catalogue.read(0, 0, 10, checked=True))


def test_what_is_no_parquet_is_damage_not_a_crash(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    (file,) = add(catalogue, 0, 0, 10)
    (tmp_path / TOPIC / file.name).write_bytes(b"something else altogether")
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        list(catalogue.read(0, 0, 10))


def test_two_writers_of_one_range_do_not_touch_each_other(tmp_path: Path) -> None:
    catalogue = archive_in(tmp_path).open(TOPIC)
    one, other = staged(catalogue, 0, 0, 9), staged(catalogue, 0, 0, 9)
    assert one.name == other.name
    assert one.staged != other.staged
