"""Names of an archive: the same for the same range, and read back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.archive.names import (
    FileRange,
    entry_name,
    file_name,
    parse_file_name,
    parse_snapshot_name,
    snapshot_name,
    staged_name,
)

OFFSETS = st.integers(0, 2**63 - 1)


@given(st.integers(0, 2**31 - 1), OFFSETS, OFFSETS)
def test_a_name_tells_its_range(partition: int, one: int, other: int) -> None:
    first, last = sorted((one, other))
    assert parse_file_name(file_name(partition, first, last)) == FileRange(partition, first, last)


def test_names_sort_as_their_ranges_do() -> None:
    ranges = [(0, 0, 9), (0, 10, 99), (0, 100, 100), (1, 0, 5)]
    assert sorted(file_name(*one) for one in ranges) == [file_name(*one) for one in ranges]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "part-00000.parquet",
        "p0-00000000000000000000-00000000000000000009.parquet",
        "p000000-00000000000000000000-00000000000000000009.parquet",
        "p00000-00000000000000000009-00000000000000000000.parquet",
        "p00000-00000000000000000000-00000000000000000009.parquet.crc",
        "p00000-00000000000000000000-0000000000000000000\uff19.parquet",
    ],
)
def test_what_we_do_not_write_is_no_name(name: str) -> None:
    assert parse_file_name(name) is None


def test_entries_and_snapshots_are_told_apart() -> None:
    assert entry_name(7) == "_headrace/00000000000000000007.json"
    assert parse_snapshot_name("00000000000000000007.snapshot.json") == 7
    assert parse_snapshot_name("00000000000000000007.json") is None
    assert snapshot_name(7) == "_headrace/00000000000000000007.snapshot.json"


def test_a_staged_file_lies_where_plain_readers_do_not_look() -> None:
    assert staged_name("p.parquet", "token") == "_headrace/tmp/p.parquet.token"
