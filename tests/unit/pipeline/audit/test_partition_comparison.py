"""Planted faults are found through digests and record comparison; equal partitions have no findings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pipeline.audit.audit_support import InMemorySources, Row, batch_of, row, rows
from tests.unit.pipeline.in_process_run import InProcessRun

from headrace.model.message_headers import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TOPIC
from headrace.pipeline.audit.findings import AuditFinding
from headrace.pipeline.audit.partition_comparison import ComparedSide, ComparisonResult, PartitionPairing, compare
from headrace.pipeline.audit.record_digests import DigestOptions, MatchBy, digest_blocks, join_blocks
from headrace.pipeline.spark_tasks import ArchiveSource, TopicSource, split_range

COUNT = 3_000
STRETCH = 500
PIECE = 64


def replayed(source: Sequence[Row]) -> list[Row]:
    """Records at new offsets, with origin headers."""
    return [
        one
        | {
            "offset": at,
            "headers": [
                *one["headers"],
                {"key": ORIGIN_TOPIC, "value": b"orders"},
                {"key": ORIGIN_PARTITION, "value": b"0"},
                {"key": ORIGIN_OFFSET, "value": b"%d" % one["offset"]},
            ],
        }
        for at, one in enumerate(source)
    ]


def numbered(source: Sequence[Row]) -> list[Row]:
    return [one | {"offset": at} for at, one in enumerate(source)]


def compared(tmp_path: Path, expected: list[Row], found: list[Row], by: MatchBy) -> ComparisonResult:
    sides = ArchiveSource("/archive", "orders"), TopicSource("nowhere:1", "copy")
    shelf = InMemorySources({("orders", 0): expected, ("copy", 0): found})
    own: MatchBy = "content" if by == "content" else "offset"
    end = max([0, *(one["offset"] for one in (*expected, *found))]) + 1
    left = ComparedSide(
        sides[0], DigestOptions(own, timestamps=False, block_records=PIECE), split_range(0, 0, end, STRETCH)
    )
    right = ComparedSide(
        sides[1],
        DigestOptions(by, timestamps=False, origin_topic="orders", block_records=PIECE),
        split_range(0, 0, end, STRETCH - 130),
    )
    [result] = compare(InProcessRun("nowhere:1", tmp_path), [PartitionPairing(left, right)], shelf, "orders")
    return result


def plain(findings: Sequence[AuditFinding]) -> list[tuple[str, int | None, int | None, int]]:
    return [(one.kind, one.offset, one.found, one.count) for one in findings]


def arranged(by: MatchBy, source: Sequence[Row]) -> list[Row]:
    return replayed(source) if by == "origin" else numbered(source)


BY: list[MatchBy] = ["origin", "content"]


@pytest.mark.parametrize("by", BY)
def test_a_faithful_copy_gives_no_findings(tmp_path: Path, by: MatchBy) -> None:
    source = rows(0, COUNT)
    assert compared(tmp_path, source, arranged(by, source), by) == ComparisonResult(COUNT, [])


@pytest.mark.parametrize("by", BY)
def test_one_lost_record_is_found(tmp_path: Path, by: MatchBy) -> None:
    source = rows(0, COUNT)
    result = compared(tmp_path, source, arranged(by, [*source[:1234], *source[1235:]]), by)
    assert plain(result.findings) == [("lost", 1234, None, 1)]


@pytest.mark.parametrize("by", BY)
def test_one_duplicated_record_is_found_far_from_its_original(tmp_path: Path, by: MatchBy) -> None:
    source = rows(0, COUNT)
    result = compared(tmp_path, source, arranged(by, [*source, source[77]]), by)
    assert plain(result.findings) == [("duplicated", 77, COUNT, 1)]


@pytest.mark.parametrize("by", BY)
def test_one_reordered_record_is_found_far_from_its_position(tmp_path: Path, by: MatchBy) -> None:
    source = rows(0, COUNT)
    result = compared(tmp_path, source, arranged(by, [*source[:50], *source[51:], source[50]]), by)
    assert plain(result.findings) == [("reordered", 50, COUNT - 1, 1)]


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"value": b"other"}, "value differs"),
        ({"key": None}, "key differs"),
        ({"headers": [{"key": "trace", "value": b"other"}]}, "header trace differs"),
        ({"headers": []}, "header trace differs"),
    ],
)
def test_one_altered_record_is_found_and_the_field_named(
    tmp_path: Path, by: MatchBy, change: dict[str, object], detail: str
) -> None:
    source = rows(0, COUNT)
    result = compared(tmp_path, source, arranged(by, [*source[:1999], source[1999] | change, *source[2000:]]), by)
    assert [(one.kind, one.offset, one.found, one.detail) for one in result.findings] == [
        ("altered", 1999, 1999, detail)
    ]


@pytest.mark.parametrize("by", BY)
def test_several_faults_of_one_partition_are_all_found(tmp_path: Path, by: MatchBy) -> None:
    source = rows(0, COUNT)
    found = [*source[:1000], *source[1003:1500], source[7], *source[1500:]]  # 1000 to 1002 lost, 7 doubled
    found[2000] = found[2000] | {"value": b"other"}
    found.append(found.pop(2500))
    result = compared(tmp_path, source, arranged(by, found), by)
    assert {(one.kind, one.offset, one.last, one.count) for one in result.findings} == {
        ("lost", 1000, 1002, 3),
        ("duplicated", 7, None, 1),
        ("altered", 2002, None, 1),
        ("reordered", 2502, None, 1),
    }


def test_by_origin_a_record_of_another_source_is_foreign(tmp_path: Path) -> None:
    source = rows(0, 100)
    found = [*replayed(source), row(100)]
    result = compared(tmp_path, source, found, "origin")
    assert plain(result.findings) == [("foreign", None, 100, 1)]


def test_equal_records_are_no_finding_but_a_missing_one_is(tmp_path: Path) -> None:
    source = [row(offset, key=None, value=b"tick", headers=[]) for offset in range(COUNT)]
    assert compared(tmp_path, source, numbered(source), "content").findings == []
    result = compared(tmp_path, source, numbered(source[1:]), "content")
    assert [(one.kind, one.count) for one in result.findings] == [("lost", 1)]


def test_empty_sides_are_equal(tmp_path: Path) -> None:
    assert compared(tmp_path, [], [], "content") == ComparisonResult(0, [])


def test_an_empty_copy_has_lost_everything(tmp_path: Path) -> None:
    [finding] = compared(tmp_path, rows(0, 500), [], "content").findings
    assert (finding.kind, finding.offset, finding.last, finding.count) == ("lost", 0, 499, 500)


def test_too_many_differences_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.pipeline.audit.partition_comparison.RECORD_DIGESTS_MAX", 100)
    [finding] = compared(tmp_path, rows(0, 200), numbered(rows(500, 750)), "content").findings
    assert (finding.kind, finding.count) == ("altered", 250)


def test_origin_headers_are_not_compared() -> None:
    source = rows(0, 500)
    own, other = (
        DigestOptions("offset", timestamps=True),
        DigestOptions("origin", timestamps=True, origin_topic="orders"),
    )
    left = digest_blocks([batch_of(source, own.columns)], own)
    right = digest_blocks([batch_of(replayed(source), other.columns)], other)
    assert [block.sum for block in left] == [block.sum for block in right]


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.integers(1, 59), max_size=5),
    st.sampled_from(["offset", "origin", "content"]),
)
def test_blocks_do_not_depend_on_the_ranges_of_a_partition(values: list[int], cuts: list[int], by: MatchBy) -> None:
    source = [row(at, value=b"%d" % value) for at, value in enumerate(values)]
    some = replayed(source)
    for one in some[::3]:
        one["headers"] = []
    options = DigestOptions(by, timestamps=True, origin_topic="orders", block_records=4)
    whole = list(digest_blocks([batch_of(some, options.columns)], options))
    bounds = sorted({0, *(at for at in cuts if at < len(some)), len(some)})
    parts = [
        list(digest_blocks([batch_of(some[start:end], options.columns)], options, index))
        for index, (start, end) in enumerate(pairwise(bounds))
    ]
    assert sum(block.count for block in whole) == len(some)
    if by != "content":  # there the first record of a range never ends a block, since what came before is not known
        assert [block.sum for block in join_blocks(parts)] == [block.sum for block in join_blocks([whole])]
