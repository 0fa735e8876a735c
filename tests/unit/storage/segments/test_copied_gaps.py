"""The gaps of copied segments: what the file still tells after any damage is true."""

from __future__ import annotations

import pytest

from headrace.runtime.disk import DiskFull
from headrace.storage.segments.gaps import CopiedGaps
from headrace.storage.segments.segment import Segment
from headrace.testkit.disk import SimDisk

PATH = "/data/gaps"
PAIRS = [(0, 3), (5, 9), (10, 1 << 40)]


def make_gaps() -> tuple[SimDisk, CopiedGaps]:
    disk = SimDisk(1)
    disk.make_directory("/data")
    gaps = CopiedGaps(disk, PATH)
    gaps.add(PAIRS[:1])
    gaps.add(PAIRS[1:])
    return disk, gaps


def ends_of(gaps: CopiedGaps) -> list[tuple[int, int]]:
    return [(end, gaps.after(end)) for end, _ in PAIRS if gaps.after(end) != end]


def test_what_comes_next_is_the_next_batch() -> None:
    disk, gaps = make_gaps()
    for known in (gaps, CopiedGaps.read(disk, PATH)):
        assert [known.after(offset) for offset in (0, 1, 3, 5, 9, 10, 11)] == [3, 1, 3, 9, 9, 1 << 40, 11]


def test_damage_ends_the_list_where_it_is() -> None:
    disk, _ = make_gaps()
    data = disk.read(PATH)
    for position in range(len(data)):
        whole = position // 20
        damaged = bytearray(data)
        damaged[position] ^= 1
        disk.write_atomically(PATH, damaged)
        assert ends_of(CopiedGaps.read(disk, PATH)) == PAIRS[:whole]
        disk.write_atomically(PATH, data[:position])
        assert ends_of(CopiedGaps.read(disk, PATH)) == PAIRS[:whole]


def test_a_descending_entry_ends_the_list() -> None:
    disk, _ = make_gaps()
    data = disk.read(PATH)
    disk.write_atomically(PATH, data[20:40] + data[:20])
    assert ends_of(CopiedGaps.read(disk, PATH)) == PAIRS[1:2]


def test_gaps_are_taken_back_and_cut_in_the_file_as_well() -> None:
    disk, gaps = make_gaps()
    gaps.take_back(1)
    assert ends_of(gaps) == ends_of(CopiedGaps.read(disk, PATH)) == PAIRS[:2]
    shorter = gaps.cut(5)  # the last batch ends there: what comes behind is open
    assert ends_of(gaps) == PAIRS[:2]
    shorter.save()
    assert ends_of(shorter) == ends_of(CopiedGaps.read(disk, PATH)) == PAIRS[:1]


def test_a_full_disk_leaves_the_gaps_as_they_were_but_in_need_of_a_sync() -> None:
    disk, gaps = make_gaps()
    gaps.open().sync()
    gaps.unsynced = False
    disk.fail_next("append", PATH, error=28)
    with pytest.raises(DiskFull):
        gaps.add([(1 << 41, 1 << 42)])
    assert gaps.unsynced
    assert ends_of(gaps) == ends_of(CopiedGaps.read(disk, PATH)) == PAIRS


def test_a_segment_keeps_its_open_file_when_all_its_gaps_were_taken_back() -> None:
    disk = SimDisk(1)
    disk.make_directory("/data")
    segment = Segment(disk, "/data", 0)
    gaps = segment.copy_gaps(PAIRS[:1])
    gaps.take_back(1)
    assert segment.copy_gaps(PAIRS[:2]) is gaps
    assert ends_of(gaps) == PAIRS[:2]
