"""Append: offsets, rolling, and the effect of a full or failing disk."""

from __future__ import annotations

import errno

import pytest
from tests.unit.storage.log_harness import FIRST_SEGMENT, FOLDER, SMALL, LogHarness, make_batch, split

from headrace.model.errors import StorageFailure
from headrace.runtime.disk import DiskFailed, DiskFull
from headrace.storage.config import LogConfig
from headrace.storage.log.log import Log
from headrace.wire.batches.batch import check_crc, parse_header


def bases(bench: LogHarness) -> list[int]:
    return [segment.base_offset for segment in bench.log.segments]


def test_a_batch_gets_the_next_offsets_and_the_leaders_epoch() -> None:
    bench = LogHarness()
    assert bench.append(b"a", b"b", b"c") == 0
    assert bench.append(b"d", leader_epoch=5) == 3
    assert bench.log.end_offset == 4
    ((_, first), (batch, second)) = split(bench.world.disk.read(FIRST_SEGMENT))
    assert (first.base_offset, first.leader_epoch) == (0, 0)
    assert (second.base_offset, second.leader_epoch) == (3, 5)
    check_crc(batch, second)
    assert bench.log.epochs.entries() == ((0, 0), (5, 3))


def test_nothing_is_flushed_by_appending() -> None:
    bench = LogHarness()
    bench.append()
    assert (bench.log.flushed_offset, bench.log.flush_due()) == (0, True)
    bench.flush()
    assert (bench.log.flushed_offset, bench.log.flush_due()) == (1, False)


def test_flush_messages_says_when_a_flush_is_due() -> None:
    bench = LogHarness(config=LogConfig(flush_messages=3))
    bench.append(b"a", b"b")
    assert not bench.log.flush_due()
    bench.append(b"c")
    assert bench.log.flush_due()


def test_a_full_segment_is_followed_by_a_new_one() -> None:
    bench = LogHarness()
    for _ in range(25):
        bench.append()
    assert len(bases(bench)) > 1
    assert all(segment.size <= SMALL.segment_bytes for segment in bench.log.segments)
    assert bench.world.disk.exists(f"{FOLDER}/{bases(bench)[-1]:020d}.log")
    bench.check()


def test_a_batch_larger_than_a_segment_has_one_to_itself() -> None:
    bench = LogHarness()
    bench.append(b"small")
    bench.append(b"x" * 5000)
    bench.append(b"small")
    assert bases(bench) == [0, 1, 2]
    bench.check()


def test_a_segment_is_rolled_when_it_is_old_enough() -> None:
    bench = LogHarness(config=LogConfig(segment_ms=60_000))
    bench.append()
    bench.world.clock.jump(59_999)
    bench.append()
    assert bases(bench) == [0]
    bench.world.clock.jump(1)
    bench.append()
    assert bases(bench) == [0, 2]


def test_a_segment_is_rolled_when_its_index_is_full() -> None:
    bench = LogHarness(config=LogConfig(index_interval_bytes=1, index_bytes_max=16))
    for _ in range(5):
        bench.append()
    assert bases(bench) == [0, 3]


def test_a_segment_is_rolled_before_an_offset_no_longer_fits_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.log.log.RELATIVE_OFFSET_MAX", 5)
    bench = LogHarness()
    bench.append(b"0", b"1", b"2")
    bench.append(b"3", b"4", b"5")
    bench.append(b"6")
    assert bases(bench) == [0, 6]


def test_new_settings_count_from_the_next_append_on() -> None:
    bench = LogHarness(config=LogConfig())
    bench.append()
    bench.log.config = LogConfig(segment_bytes=100)
    bench.append()
    assert bases(bench) == [0, 1]


def test_a_full_disk_leaves_the_log_unchanged_and_appends_resume_when_there_is_space() -> None:
    bench = LogHarness()
    bench.append_many(3)
    capacity, bench.world.disk.capacity_bytes = bench.world.disk.capacity_bytes, 0
    for _ in range(20):
        with pytest.raises(DiskFull):
            bench.append(b"no room")
    assert (bench.log.end_offset, bench.log.failed) == (3, None)
    bench.check()
    bench.world.disk.capacity_bytes = capacity
    bench.append_many(30)
    bench.check()
    bench.cut_power()
    bench.open()
    bench.check()  # I24
    assert bench.log.end_offset == 33


def test_a_disk_that_is_full_when_a_segment_is_rolled_leaves_no_gap() -> None:
    bench = LogHarness(config=LogConfig(segment_bytes=500))
    bench.append_many(2)
    room = bench.world.disk.capacity_bytes
    bench.world.disk.capacity_bytes = 0
    for _ in range(3):
        with pytest.raises(DiskFull):
            bench.append(b"y" * 400)
    bench.world.disk.capacity_bytes = room
    bench.append_many(5)
    bench.check()
    bench.kill()
    bench.open()
    bench.check()
    assert bench.log.end_offset == 7


def test_a_failed_write_fails_the_log_permanently() -> None:
    bench = LogHarness()
    bench.append_many(2)
    told: list[Log] = []
    bench.log.on_failed = told.append
    bench.world.disk.fail_next("append", error=errno.EIO)
    with pytest.raises(DiskFailed):
        bench.append()
    for _ in range(2):
        with pytest.raises(StorageFailure, match="has failed"):
            bench.append()
    assert told == [bench.log]
    assert bench.log.failed is not None
    assert [value[:4] for _, value in bench.records()] == [b"0000", b"0002"]  # what it has, it still serves
    bench.cut_power()
    bench.open()
    bench.check()


def test_an_append_writes_once_and_reads_nothing() -> None:
    bench = LogHarness()
    bench.append()
    before = bench.world.disk.operations
    batch, header = make_batch(b"a", b"b")
    bench.log.append(batch, header, 0)
    assert bench.world.disk.operations == before + 1
    assert parse_header(batch).base_offset == 1
