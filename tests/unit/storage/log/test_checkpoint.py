"""Checkpoint files: whole or not there; the newest whole one counts."""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.storage.log import checkpoint as checkpoints
from headrace.storage.log.checkpoint import Checkpoint, SegmentCheckpoint
from headrace.testkit.disk import SimDisk

MARKS = [SegmentCheckpoint(0, 900, 5, 77, 8, 70, 12, 3, 2), SegmentCheckpoint(9, 0, 6, -1, -1, -1, 0, 0, 0)]


def checkpoint(offset: int) -> Checkpoint:
    return Checkpoint(offset, 3, MARKS, [(0, 0), (2, 5)], b"state")


def make_disk() -> SimDisk:
    disk = SimDisk(seed=1)
    disk.make_directory("/log")
    return disk


def test_a_checkpoint_comes_back_as_it_was() -> None:
    assert Checkpoint.decode(checkpoint(9).encode()) == checkpoint(9)


def test_the_cleaned_offset_and_the_gaps_come_back_too() -> None:
    cleaned = replace(checkpoint(9), cleaned_offset=7, segments=[MARKS[0]._replace(has_gaps=True), MARKS[1]])
    assert Checkpoint.decode(cleaned.encode()) == cleaned


def test_a_checkpoint_from_before_there_was_compaction_is_still_read() -> None:
    mark, epoch = Struct(">qqqqqqqII"), Struct(">iq")
    body = Struct(">qqIII").pack(9, 3, len(MARKS), 2, 5)
    body += b"".join(mark.pack(*fields[:9]) for fields in MARKS) + epoch.pack(0, 0) + epoch.pack(2, 5) + b"state"
    assert Checkpoint.decode(Struct(">4sHI").pack(b"HRCP", 1, crc32(body)) + body) == checkpoint(9)


@given(st.data())
def test_a_flipped_bit_or_a_missing_end_makes_it_void(data: st.DataObject) -> None:
    encoded = bytearray(checkpoint(9).encode())
    if data.draw(st.booleans()):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del encoded[data.draw(st.integers(0, len(encoded) - 1)) :]
    assert Checkpoint.decode(bytes(encoded)) is None


def test_the_newest_two_are_kept() -> None:
    disk = make_disk()
    for offset in (5, 9, 20):
        checkpoints.write_checkpoint_file(disk, "/log", checkpoint(offset))
    assert checkpoints.checkpoint_offsets(disk.list("/log")) == [9, 20]


def test_a_damaged_checkpoint_is_skipped_for_the_previous_one() -> None:
    disk = make_disk()
    for offset in (9, 20):
        checkpoints.write_checkpoint_file(disk, "/log", checkpoint(offset))
    disk.flip_bit(f"/log/{20:020d}.checkpoint", 30)
    assert checkpoints.newest_checkpoint(disk, "/log", disk.list("/log")) == checkpoint(9)


def test_checkpoints_above_a_truncation_are_removed() -> None:
    disk = make_disk()
    for offset in (9, 20):
        checkpoints.write_checkpoint_file(disk, "/log", checkpoint(offset))
    checkpoints.remove_checkpoints_above(disk, "/log", 15)
    assert checkpoints.checkpoint_offsets(disk.list("/log")) == [9]


def test_other_names_are_not_checkpoints() -> None:
    assert checkpoints.checkpoint_offsets(["12.checkpoint", "x" * 20 + ".checkpoint", f"{7:020d}.checkpoint.tmp"]) == []
