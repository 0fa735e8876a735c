"""Reading: whole batches from any offset, straight from the page cache where the bytes are trusted."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.storage.log_harness import FIRST_SEGMENT, FOLDER, LogHarness, split

from headrace.model.errors import CorruptMessage, OffsetOutOfRange
from headrace.storage.config import LogConfig
from headrace.storage.errors import CorruptBatch, LogDeleted, LogQuarantined
from headrace.storage.log.log import ColdRead, LogSlice
from headrace.storage.segments.segment import Segment


def make_bench(**config: Any) -> LogHarness:
    bench = LogHarness(config=LogConfig(**{"index_interval_bytes": 300, **config}))
    bench.world.disk.cold_chance = 0
    return bench


def offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in split(data)]


def test_a_hot_slice_is_a_range_of_a_file() -> None:
    bench = make_bench()
    for _ in range(3):
        bench.append(b"a", b"b")
    found = bench.log.read(0, 1 << 20, bench.log.end_offset)
    assert isinstance(found, LogSlice)
    assert (found.file.path, found.position, len(found)) == (FIRST_SEGMENT, 0, bench.log.size_bytes)
    assert found.next_offset == 6
    found.release()
    found.release()


def test_an_offset_inside_a_batch_gives_the_whole_batch() -> None:
    bench = make_bench()
    for _ in range(3):
        bench.append(b"a", b"b", b"c")
    assert offsets(bench.read(4)) == [3, 6]
    assert bench.records(offset=4)[0] == (4, b"b")


def test_a_size_limit_ends_a_slice_after_a_whole_batch() -> None:
    bench = make_bench()
    for _ in range(50):
        bench.append(b"x" * 39)
    size = bench.batches[0].size_bytes
    for start in (0, 7, 30):
        for limit in (size, size + 1, 3 * size - 1, 3 * size, 17 * size + 5):
            found = bench.log.read(start, limit, 50)
            assert isinstance(found, LogSlice)
            assert len(found) == limit // size * size
            assert found.next_offset == start + limit // size
            assert offsets(found.bytes()) == list(range(start, start + limit // size))
            found.release()


def test_the_first_batch_comes_whole_even_if_it_is_larger_than_the_limit() -> None:
    bench = make_bench()
    bench.append(b"x" * 5000)
    bench.append(b"y")
    assert offsets(bench.read(0, size_bytes_max=1)) == [0]
    assert offsets(bench.read(1, size_bytes_max=1)) == [1]


def test_nothing_at_or_above_the_end_offset_is_returned() -> None:
    bench = make_bench()
    for _ in range(40):
        bench.append(b"a", b"b")
    bench.flush()
    bench.append(b"not flushed")
    assert offsets(bench.read(0, end_offset=bench.log.flushed_offset))[-1] == 78
    assert offsets(bench.read(0, end_offset=30))[-1] == 28
    assert offsets(bench.read(20, end_offset=22)) == [20]
    assert bench.read(30, end_offset=30) == b""


def test_a_slice_ends_with_its_segment() -> None:
    bench = make_bench(segment_bytes=1000)
    for _ in range(30):
        bench.append()
    starts = [segment.base_offset for segment in bench.log.segments]
    offset, seen = 0, []
    while offset < 30:
        found = bench.log.read(offset, 1 << 20, 30)
        assert isinstance(found, LogSlice)
        seen.append(offset)
        offset = found.next_offset
        found.release()
    assert seen == starts


def test_an_offset_outside_the_log_is_out_of_range() -> None:
    bench = make_bench()
    bench.append_many(5)
    bench.advance_start(2)
    for offset in (-1, 1, 6):
        with pytest.raises(OffsetOutOfRange):
            bench.log.read(offset, 100, 5)
    assert bench.read(5) == b""


def test_an_empty_log_reads_empty_and_makes_no_file() -> None:
    bench = make_bench()
    assert bench.read(0) == b""
    assert bench.world.disk.list(FOLDER) == []


def test_a_read_that_continues_after_a_slice_needs_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    bench.append_many(20)
    bench.read(20)  # waits at the end
    monkeypatch.setattr(Segment, "find_batch", None)
    for _ in range(5):
        bench.append_many(1)
        assert offsets(bench.read(bench.log.end_offset - 1)) == [bench.log.end_offset - 1]


def test_a_slice_outlives_the_deletion_of_its_segment() -> None:
    bench = make_bench(segment_bytes=1000)
    bench.append_many(20)
    found = bench.log.read(0, 500, 20)
    assert isinstance(found, LogSlice)
    expected = found.bytes()
    bench.advance_start(15)
    assert not bench.world.disk.exists(FIRST_SEGMENT)
    assert found.bytes() == expected
    found.release()


def test_bytes_that_are_not_in_memory_are_read_by_the_disk_threads() -> None:
    bench = make_bench()
    bench.append_many(10)
    bench.world.disk.cold_chance = 1
    found = bench.log.read(3, 300, 10)
    assert isinstance(found, ColdRead)
    assert offsets(bench.run(found.load())) == [3]
    assert found.next_offset == 4
    bench.check()


def reopened(bench: LogHarness) -> LogHarness:
    bench.checkpoint()
    bench.stop()
    bench.open()
    bench.world.disk.cold_chance = 0
    for name in bench.world.disk.list(FOLDER):
        bench.world.disk.read(f"{FOLDER}/{name}")  # in the page cache, though not yet checked
    return bench


def test_bytes_found_at_the_start_are_checked_before_they_are_served_and_then_trusted() -> None:
    bench = make_bench()
    bench.append_many(30)
    reopened(bench)
    found = bench.log.read(10, 1000, 30)
    assert isinstance(found, ColdRead)
    assert len(bench.run(found.load())) <= 1000
    again = bench.log.read(10, 800, 30)
    assert isinstance(again, LogSlice)
    again.release()
    assert isinstance(bench.log.read(0, 1000, 30), ColdRead)


def test_new_bytes_after_unchecked_ones_are_trusted() -> None:
    bench = make_bench()
    bench.append_many(5)
    reopened(bench)
    bench.append(b"new")
    found = bench.log.read(5, 1000, 6)
    assert isinstance(found, LogSlice)
    found.release()


@pytest.mark.parametrize("byte", [3, 10, 16, 30, 62, 100])
def test_a_flipped_bit_is_reported_and_never_served(byte: int) -> None:
    bench = make_bench()
    bench.append_many(10)
    reopened(bench)
    position = 4 * bench.batches[0].size_bytes + byte
    bench.world.disk.flip_bit(FIRST_SEGMENT, position)
    with pytest.raises(CorruptBatch, match=FIRST_SEGMENT) as caught:
        bench.read(4)
    assert isinstance(caught.value, CorruptMessage)
    report = bench.log.quarantined
    assert report is not None
    assert report.path == FIRST_SEGMENT
    assert report.position == 4 * bench.batches[0].size_bytes
    with pytest.raises(LogQuarantined, match=FIRST_SEGMENT):
        bench.read(0)
    with pytest.raises(LogQuarantined):
        bench.append()
    assert bench.world.disk.exists(FIRST_SEGMENT)


def test_a_damaged_batch_is_not_served_with_its_undamaged_neighbours() -> None:
    bench = make_bench()
    bench.append_many(10)
    reopened(bench)
    bench.world.disk.flip_bit(FIRST_SEGMENT, 5 * bench.batches[0].size_bytes + 80)
    with pytest.raises(CorruptBatch):
        bench.read(0)
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.offset == 5


def test_a_wrong_index_costs_time_but_no_data() -> None:
    bench = make_bench(segment_bytes=3000)
    bench.append_many(60)
    reopened(bench)
    for segment in bench.log.segments:
        for entry in range(segment.index.saved):
            bench.world.disk.flip_bit(segment.index.path, entry * 8 + 7)
            bench.world.disk.flip_bit(segment.index.path, entry * 8 + 2)
    for offset in range(60):
        assert bench.records(offset, size_bytes_max=200) == bench.model[offset:]
    assert bench.log.quarantined is None


def test_a_read_during_a_deletion_does_not_report_damage() -> None:
    bench = make_bench(segment_bytes=1000)
    bench.append_many(20)
    bench.world.disk.cold_chance = 1
    found = bench.log.read(12, 5000, 20)
    assert isinstance(found, ColdRead)

    async def read_and_cut() -> bytes:
        cut = bench.world.loop.create_task(bench.log.truncate(5))
        data = await found.load()
        await cut
        return data

    bench.run(read_and_cut())
    assert bench.log.quarantined is None


def test_a_closed_log_rejects_all_calls() -> None:
    bench = make_bench()
    bench.append_many(2)
    bench.run(bench.store.delete_all([bench.log.key]))
    with pytest.raises(LogDeleted, match="deleted or closed"):
        bench.read(0)
    with pytest.raises(LogDeleted, match="deleted or closed"):
        bench.append()
