"""The gaps of cleaned segments: exact about what comes next, and whole or nothing on disk."""

from __future__ import annotations

from headrace.storage.segments.gaps import CleanedGaps, read_gaps
from headrace.testkit.disk import SimDisk


def make_gaps() -> CleanedGaps:
    """Batches 12-13, 14-19 and 30-30 of a segment that began at 10 and ended before 40."""
    gaps = CleanedGaps(10, 40)
    for base_offset, next_offset in ((12, 14), (14, 20), (30, 31)):
        gaps.add_batch(base_offset, next_offset)
    gaps.markers.extend((11, 25))
    return gaps


def test_what_comes_next_is_the_next_batch_or_the_next_segment() -> None:
    gaps = make_gaps()
    assert [gaps.after(offset) for offset in (10, 14, 20, 31)] == [12, 14, 30, 40]


def test_an_offset_that_is_not_the_end_of_a_batch_is_followed_by_itself() -> None:
    gaps = make_gaps()
    assert [gaps.after(offset) for offset in (11, 12, 13, 19, 30, 35)] == [11, 12, 13, 19, 30, 35]


def test_a_segment_that_lost_everything_is_one_gap() -> None:
    gaps = CleanedGaps(10, 40)
    assert gaps.after(10) == 40
    assert gaps.end_offset == 10


def test_gaps_survive_the_disk() -> None:
    again = CleanedGaps.decode(make_gaps().encode())
    assert again is not None
    assert again.encode() == make_gaps().encode()
    assert again.after(20) == 30
    assert list(again.markers) == [11, 25]


def test_any_damage_is_noticed() -> None:
    data = make_gaps().encode()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        assert CleanedGaps.decode(bytes(damaged)) is None
        assert CleanedGaps.decode(data[:position]) is None


def test_the_gaps_of_another_segment_are_not_taken() -> None:
    disk = SimDisk(1)
    disk.make_directory("/data")
    disk.write_atomically("/data/gaps", make_gaps().encode())
    assert read_gaps(disk, "/data/gaps", 10) is not None
    assert read_gaps(disk, "/data/gaps", 11) is None
    assert read_gaps(disk, "/data/missing", 10) is None


def test_a_cut_keeps_the_gaps_before_it() -> None:
    shorter = make_gaps().cut(20, 25)
    assert [shorter.after(offset) for offset in (10, 14, 20)] == [12, 14, 25]
    assert list(shorter.markers) == [11]
    empty = make_gaps().cut(10, 11)
    assert (empty.after(10), empty.end_offset) == (11, 10)
