"""The flushed-offsets file: one slot per log, exact after a kill, never too high."""

from __future__ import annotations

from uuid import UUID

from headrace.storage.store.flushed_offsets import NAME, SLOT_BYTES, FlushedOffsets, FlushedPoint
from headrace.testkit.disk import SimDisk

FIRST, SECOND = (UUID(int=1), 0), (UUID(int=1), 1)


def make_disk() -> SimDisk:
    disk = SimDisk(seed=1)
    disk.make_directory("/data")
    return disk


def test_a_point_is_found_again() -> None:
    disk = make_disk()
    flushed = FlushedOffsets(disk, "/data")
    flushed.claim(FIRST).record(10, 0, 500)
    second = flushed.claim(SECOND)
    second.record(20, 15, 300)
    second.record(25, 15, 400)
    assert disk.open(f"/data/{NAME}").size() == 2 * SLOT_BYTES
    found = FlushedOffsets(disk, "/data")
    assert found.claim(SECOND).point == FlushedPoint(25, 15, 400)
    assert found.claim(FIRST).point == FlushedPoint(10, 0, 500)


def test_a_slot_of_forty_eight_bytes_is_overwritten_in_place() -> None:
    assert SLOT_BYTES == 48


def test_a_damaged_slot_does_not_count_and_is_used_again() -> None:
    disk = make_disk()
    FlushedOffsets(disk, "/data").claim(FIRST).record(10, 0, 500)
    disk.flip_bit(f"/data/{NAME}", 25)
    found = FlushedOffsets(disk, "/data").claim(FIRST)
    assert (found.point, found.number) == (None, 0)


def test_a_released_slot_has_no_point_for_the_next_log() -> None:
    disk = make_disk()
    flushed = FlushedOffsets(disk, "/data")
    slot = flushed.claim(FIRST)
    slot.record(10, 0, 500)
    flushed.release(slot)
    assert flushed.claim(FIRST).point is None
    assert FlushedOffsets(disk, "/data").claim(FIRST).point is None


def test_of_two_points_for_one_log_the_lower_counts() -> None:
    disk = make_disk()
    flushed = FlushedOffsets(disk, "/data")
    flushed.claim(FIRST).record(10, 0, 500)
    flushed.claim(FIRST).record(7, 0, 300)
    assert FlushedOffsets(disk, "/data").claim(FIRST).point == FlushedPoint(7, 0, 300)


def test_a_full_disk_does_not_stop_a_flush() -> None:
    disk = make_disk()
    slot = FlushedOffsets(disk, "/data").claim(FIRST)
    disk.capacity_bytes = 0
    slot.record(10, 0, 500)
    assert FlushedOffsets(disk, "/data").claim(FIRST).point is None


def test_while_a_log_is_cut_no_flush_promises_more_than_is_left() -> None:
    disk = make_disk()
    slot = FlushedOffsets(disk, "/data").claim(FIRST)
    slot.record(100, 0, 5000)
    with slot.lowered(40, 0, 2000):
        slot.record(120, 0, 6000)
        assert FlushedOffsets(disk, "/data").claim(FIRST).point == FlushedPoint(40, 0, 2000)
    with slot.lowered(90, 0, 4500):
        assert FlushedOffsets(disk, "/data").claim(FIRST).point == FlushedPoint(40, 0, 2000)
    slot.record(41, 0, 2100)
    assert FlushedOffsets(disk, "/data").claim(FIRST).point == FlushedPoint(41, 0, 2100)
