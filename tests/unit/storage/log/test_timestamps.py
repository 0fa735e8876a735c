"""Finding records by time, against a list."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.log_harness import FIRST_SEGMENT, LogHarness, make_batch

from headrace.storage.config import LogConfig
from headrace.storage.errors import CorruptBatch
from headrace.storage.log.log import TimestampOffset
from headrace.wire.batches.batch import LOG_APPEND_TIME, parse_header, set_log_append_time
from headrace.wire.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)


def first(bench: LogHarness, timestamp_ms: int, end_offset: int | None = None) -> TimestampOffset | None:
    return bench.run(bench.log.offset_for_timestamp(timestamp_ms, end_offset))


def largest(bench: LogHarness, end_offset: int | None = None) -> TimestampOffset | None:
    return bench.run(bench.log.max_timestamp(end_offset))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4)), max_size=40),
    st.integers(-1, 70),
    st.integers(0, 100),
    st.integers(0, 100),
    st.booleans(),
)
def test_the_answer_is_the_first_record_that_is_not_older(
    batches: list[tuple[int, int]], wanted: int, start_part: int, end_part: int, reopen: bool
) -> None:
    bench = LogHarness(config=CONFIG)
    timestamps: list[int] = []
    for timestamp_ms, count in batches:
        bench.append(*[b"v" * 20] * count, timestamp_ms=timestamp_ms)
        timestamps += [timestamp_ms + at for at in range(count)]
    bench.flush()
    start = len(timestamps) * start_part // 100
    ends = [0, *itertools.accumulate(count for _, count in batches)]
    end = ends[len(batches) * end_part // 100]
    bench.advance_start(start)
    if reopen:
        bench.stop()
        bench.open()
    visible = [(timestamp, offset) for offset, timestamp in enumerate(timestamps) if start <= offset < end]
    expected = next((found for found in visible if found[0] >= wanted), None)
    assert first(bench, wanted, end) == expected
    newest = max(visible, key=lambda found: (found[0], -found[1]), default=None)
    assert largest(bench, end) == newest


def test_a_lookup_in_an_empty_log_finds_nothing() -> None:
    bench = LogHarness()
    assert first(bench, 0) is None
    assert largest(bench) is None


@pytest.mark.parametrize("compression", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_records_inside_a_compressed_batch_are_found(compression: int) -> None:
    bench = LogHarness()
    bench.append(b"a", b"b", b"c", timestamp_ms=100, compression=compression)
    bench.append(b"d", b"e", b"f", timestamp_ms=200, compression=compression)
    assert first(bench, 102) == (102, 2)
    assert first(bench, 103) == (200, 3)
    assert first(bench, 202) == (202, 5)
    assert first(bench, 203) is None
    assert largest(bench) == (202, 5)


def test_for_a_batch_too_large_to_decompress_the_header_timestamp_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.log.reading.RECORDS_BYTES_MAX", 100)
    bench = LogHarness(config=LogConfig())
    bench.append(*[b"x" * 100] * 20, timestamp_ms=50, compression=ZSTD)
    assert first(bench, 60) == (69, 0)


def test_with_log_append_time_all_records_have_the_time_of_their_batch() -> None:
    bench = LogHarness()
    batch, _ = make_batch(b"a", b"b", timestamp_ms=5)
    set_log_append_time(batch, 900)
    header = parse_header(batch)
    assert header.attributes & LOG_APPEND_TIME
    bench.log.append(batch, header, 0)
    assert first(bench, 10) == (900, 0)
    assert largest(bench) == (900, 0)


def test_a_wrong_time_index_does_not_change_the_result() -> None:
    bench = LogHarness(config=CONFIG)
    for number in range(60):
        bench.append(b"v" * 20, timestamp_ms=number * 10)
    bench.stop()
    bench.open()
    for segment in bench.log.segments:
        for entry in range(segment.time_index.saved):
            bench.world.disk.flip_bit(segment.time_index.path, entry * 12 + 11)
            bench.world.disk.flip_bit(segment.index.path, entry * 8 + 6)
    for wanted in range(0, 600, 7):
        assert first(bench, wanted) == (-(-wanted // 10) * 10, -(-wanted // 10)) or wanted > 590


def test_a_lookup_reports_a_damaged_batch() -> None:
    bench = LogHarness(config=CONFIG)
    for number in range(5):
        bench.append(b"v" * 50, timestamp_ms=number * 10)
    bench.stop()
    bench.open()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 2 * bench.batches[0].size_bytes + 90)
    with pytest.raises(CorruptBatch, match=FIRST_SEGMENT):
        first(bench, 15)
    assert bench.log.quarantined is not None
