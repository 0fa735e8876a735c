"""Sparse indexes: Kafka's bytes on disk, one search over file and memory."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.storage.log_harness import FOLDER, LogHarness

from headrace.storage.segments.index import NotInPageCache, OffsetIndex, TimeIndex
from headrace.testkit.disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    return make_disk()


def make_disk() -> SimDisk:
    disk = SimDisk(seed=1)
    disk.cold_chance = 0
    disk.make_directory("/log")
    return disk


def test_an_offset_entry_is_eight_bytes_of_offset_and_position(disk: SimDisk) -> None:
    index = OffsetIndex(disk, "/log/0.index")
    index.append(7, 4100)
    index.append(9, 70_000)
    index.save()
    assert disk.read("/log/0.index") == bytes.fromhex("00000007 00001004 00000009 00011170")


def test_a_time_entry_is_twelve_bytes_of_timestamp_and_offset(disk: SimDisk) -> None:
    index = TimeIndex(disk, "/log/0.timeindex")
    index.append(1_700_000_000_000, 3)
    index.save()
    assert disk.read("/log/0.timeindex") == bytes.fromhex("0000018bcfe56800 00000003")


@given(st.lists(st.integers(1, 5), max_size=40), st.integers(0, 40), st.integers(0, 120), st.integers(0, 1))
def test_the_floor_is_found_in_the_file_and_in_memory(gaps: list[int], saved: int, wanted: int, column: int) -> None:
    index = OffsetIndex(make_disk(), "/log/0.index")
    entries, offset = [], 0
    for number, gap in enumerate(gaps):
        offset += gap
        entries.append((offset, offset * 3))
        index.append(*entries[-1])
        if number == saved:
            index.save()
    place = bisect_right([entry[column] for entry in entries], wanted)
    assert index.floor(wanted, column=column) == (entries[place - 1] if place else None)
    assert len(index) == len(entries)
    assert index.size_bytes == 8 * len(entries)


def test_a_reset_index_keeps_its_first_entries(disk: SimDisk) -> None:
    index = OffsetIndex(disk, "/log/0.index")
    for number in range(5):
        index.append(number, number * 100)
        if number == 2:
            index.save()
    index.reset(2)
    assert (len(index), index.floor(99)) == (2, (1, 100))
    index.append(8, 800)
    index.save()
    assert (index.floor(99), index.file_fits()) == ((8, 800), True)


def test_a_search_on_the_loop_does_not_wait_for_the_disk(disk: SimDisk) -> None:
    index = OffsetIndex(disk, "/log/0.index")
    index.append(1, 100)
    index.save()
    disk.cold_chance = 1
    with pytest.raises(NotInPageCache):
        index.floor(5, hot=True)
    assert index.floor(5) == (1, 100)


def test_a_search_survives_a_reset_in_another_thread(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    index = OffsetIndex(disk, "/log/0.index")
    for number in range(5):
        index.append(number, number * 100)
    index.save()
    read_entry = index._entry

    def reset_first(number: int, hot: bool) -> tuple[int, int]:
        index.reset(0)
        return read_entry(number, hot)

    monkeypatch.setattr(OffsetIndex, "_entry", lambda _, *arguments: reset_first(*arguments))
    assert index.floor(3) == (0, 0)


def test_nothing_is_saved_twice(disk: SimDisk) -> None:
    index = OffsetIndex(disk, "/log/0.index")
    index.append(1, 100)
    index.save()
    index.save()
    assert (len(index), disk.read("/log/0.index")) == (1, bytes.fromhex("00000001 00000064"))


def test_the_indexes_of_a_log_point_at_its_batches() -> None:
    bench = LogHarness()
    for number in range(30):
        bench.append(b"v" * 50, timestamp_ms=1000 + number % 7)
    bench.checkpoint()
    for segment in bench.log.segments:
        entries = _pairs(bench.world.disk.read(segment.index.path), OffsetIndex)
        assert entries, "every segment is long enough for an entry"
        batches = {batch.last_offset: batch for batch in bench.batches}
        for relative_offset, position in entries:
            header = batches[segment.base_offset + relative_offset]
            found = bench.log.disk.open(segment.path).pread(8, position)
            assert int.from_bytes(found, "big") == header.base_offset
        for timestamp, relative_offset in _pairs(bench.world.disk.read(segment.time_index.path), TimeIndex):
            assert batches[segment.base_offset + relative_offset].max_timestamp == timestamp
    assert bench.world.disk.exists(f"{FOLDER}/{0:020d}.timeindex")


def _pairs(data: bytes, kind: type[OffsetIndex] | type[TimeIndex]) -> list[tuple[int, int]]:
    return [(first, second) for first, second in kind.ENTRY.iter_unpack(data)]
