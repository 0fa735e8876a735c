"""Compaction keeps of every key the newest record, and everything that is not its business."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import COMPACT, FOLDER, QUIET, CompactedLogHarness

from headrace.storage.compaction.batch_cleaning import DELETE_HORIZON, CompactionRules
from headrace.storage.compaction.cleaner import plan_cleaning
from headrace.storage.config import DAY_MS, MIB
from headrace.storage.log import reading as timestamps
from headrace.storage.log.log import Log, LogSlice
from headrace.wire.batches.batch import LOG_APPEND_TIME, BatchRecord
from headrace.wire.batches.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

BIG_SEGMENTS = replace(COMPACT, segment_bytes=MIB)


def pairs_of(bench: CompactedLogHarness) -> list[tuple[bytes | None, bytes | None]]:
    return [(line.key, line.value) for line in bench.lines()]


def test_only_the_newest_record_of_a_key_stays() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"), (b"b", b"1"))
    bench.put((b"a", b"2"), (b"c", b"1"))
    bench.roll()
    bench.put((b"b", b"in the active segment"))
    assert bench.clean()
    bench.check()
    assert [(line.offset, line.key, line.value) for line in bench.lines()] == [
        (1, b"b", b"1"),
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"in the active segment"),
    ]


def test_a_batch_that_loses_nothing_stays_byte_for_byte() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"), (b"b", b"1"), compression=GZIP)
    bench.put((b"a", b"2"))
    bench.put((b"c", b"1"), (b"d", b"1"), compression=GZIP)
    before = bench.batches()
    bench.roll()
    bench.clean()
    after = bench.batches()
    assert [bytes(batch) for batch, _ in after[1:]] == [bytes(batch) for batch, _ in before[1:]]
    assert after[0][1].crc != before[0][1].crc


@pytest.mark.parametrize("compression", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_keeps_its_compression_and_its_headers(compression: int) -> None:
    bench = CompactedLogHarness()
    records = [
        BatchRecord(b"k%d" % at, b"v" * 300, [("name", b"x"), ("none", None)], bench.now_ms + at * 100)
        for at in range(200)
    ]
    bench.put_records(records, compression=compression)
    bench.put(*((b"k%d" % at, b"new") for at in range(0, 200, 2)), compression=compression)
    bench.roll()
    assert bench.clean()
    bench.check()
    assert [header.compression for _, header in bench.batches()] == [compression] * 2


def test_records_without_a_key_are_removed() -> None:
    bench = CompactedLogHarness()
    bench.put((None, b"1"), (b"a", b"1"), (None, b"2"))
    bench.roll()
    bench.clean()
    bench.check()
    assert pairs_of(bench) == [(b"a", b"1")]


def test_tombstones_stay_for_delete_retention_ms_behind_the_first_pass_that_saw_them() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"), (b"b", b"1"))
    bench.put((b"a", None), (b"c", b"1"))
    for wait_ms in (0, DAY_MS - 1):
        bench.wait(wait_ms)
        bench.roll()
        bench.clean()
        bench.check()
        assert (b"a", None) in pairs_of(bench)
        assert (b"a", b"1") not in pairs_of(bench)
        bench.put((b"d", b"%d" % wait_ms))
    bench.wait(1)
    bench.roll()
    bench.clean()
    bench.check()
    assert (b"a", None) not in pairs_of(bench)


def test_the_horizon_stands_in_the_batch_and_its_records_keep_their_timestamps() -> None:
    bench = CompactedLogHarness()
    bench.put((b"x", None), (b"a", None), (b"b", b"1"))
    before = bench.lines()
    bench.roll()
    bench.clean()
    (batch,) = bench.batches()
    assert batch[1].attributes & DELETE_HORIZON
    assert batch[1].base_timestamp == bench.now_ms + DAY_MS
    assert bench.lines() == before


def test_the_broker_s_time_is_kept_with_a_horizon() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", None), (b"a", None), attributes=LOG_APPEND_TIME)
    newest = bench.batches()[0][1].max_timestamp
    bench.roll()
    bench.clean()
    assert [line.timestamp_ms for line in bench.lines()] == [newest]


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"), producer_id=7)
    bench.put((b"a", b"2"), producer_id=7)
    bench.put((b"a", b"3"))
    bench.roll()
    bench.clean()
    bench.check()
    found = [header for _, header in bench.batches() if header.producer_id == 7]
    assert [(header.base_offset, header.record_count, header.base_sequence) for header in found] == [(1, 0, 1)]


def test_an_empty_batch_goes_when_its_producer_has_a_newer_one_or_is_forgotten() -> None:
    for is_forgotten in (False, True):
        bench = CompactedLogHarness()
        bench.put((b"a", b"1"), producer_id=7)
        bench.put((b"a", b"2"))
        bench.roll()
        bench.clean()
        assert [header.base_offset for _, header in bench.batches()] == [0, 1]
        if is_forgotten:
            bench.state.producers.clear()
        else:
            bench.put((b"b", b"1"), producer_id=7)
        bench.put((b"c", b"1"))
        bench.roll()
        bench.clean()
        bench.check()
        assert bench.batches()[0][1].base_offset == 1


def test_the_last_batch_of_a_producer_stays_however_old_its_records_are() -> None:
    """A replica that replays the log must remember the same producers as one that has seen them write."""
    bench = CompactedLogHarness()
    bench.put_records([BatchRecord(key=b"a", value=b"1", timestamp_ms=1)], producer_id=7)
    bench.put((b"a", b"2"))
    bench.roll()
    bench.clean()
    bench.check()
    assert [header.producer_id for _, header in bench.batches()] == [7, -1]


# Transactions


def test_aborted_records_go_and_hide_nothing() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"committed"))
    bench.put((b"a", b"aborted"), producer_id=1, in_transaction=True)
    bench.end_transaction(1, is_commit=False)
    bench.roll()
    bench.clean()
    bench.check()
    assert pairs_of(bench) == [(b"a", b"committed")]


def test_a_marker_stays_while_its_transaction_does_and_then_until_its_horizon() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"), producer_id=1, in_transaction=True)
    marker = bench.end_transaction(1, is_commit=True)
    offsets = []
    for _ in range(5):
        bench.put((b"a", b"newer"))
        bench.put((b"mine", b"x"), producer_id=1, in_transaction=True)
        bench.end_transaction(1, is_commit=True)
        bench.wait(DAY_MS)
        bench.roll()
        bench.clean()
        bench.check()
        offsets.append(marker in [header.base_offset for _, header in bench.batches()])
    # The first pass still saw the batch, the second set the horizon, the third found it passed.
    assert offsets == [True, True, False, False, False]


def test_a_dropped_abort_marker_takes_its_transaction_out_of_the_state_also_after_a_crash() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"), producer_id=1, in_transaction=True)
    bench.end_transaction(1, is_commit=False)
    for number in range(3):
        assert len(bench.state.ended) == 1
        bench.put((b"b", b"%d" % number), producer_id=1)
        bench.roll()
        bench.clean()
        bench.check()
        bench.wait(DAY_MS)
    assert not bench.state.ended
    bench.cut_power()
    bench.open()
    assert not bench.state.ended
    bench.check()


def test_nothing_at_or_above_an_open_transaction_is_touched() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=200))
    for number in range(6):
        bench.put((b"a", b"%d" % number * 50))
    open_at = bench.put((b"t", b"x" * 100), producer_id=1, in_transaction=True)
    for number in range(6):
        bench.put((b"a", b"%d" % number * 50))
    bench.roll()
    bench.clean()
    bench.check()
    assert bench.log.cleaned_offset <= open_at
    bench.end_transaction(1, is_commit=True)
    bench.roll()
    bench.clean()
    bench.check()
    assert bench.log.cleaned_offset > open_at


def test_what_is_not_flushed_is_not_touched() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.log.roll()
    assert plan_cleaning(bench.log, bench.now_ms) is None


# Segments


def test_segments_are_merged_while_they_fit() -> None:
    bench = CompactedLogHarness()
    for number in range(60):
        bench.put((b"%d" % (number % 3), b"x" * 100))
    bench.roll()
    before = len(bench.log.segments)
    bench.clean()
    bench.put((b"z", b"x"))
    bench.roll()
    bench.clean()
    bench.check()
    assert before > 5
    assert [segment.base_offset for segment in bench.log.segments] == [0, bench.log.end_offset]
    assert [name for name in bench.world.disk.list(FOLDER) if name.endswith(".log")] == [f"{0:020d}.log"]


def test_a_segment_in_which_nothing_changes_is_not_written_again() -> None:
    bench = CompactedLogHarness(config=BIG_SEGMENTS)
    bench.put((b"a", b"1"))
    bench.roll()
    segment = bench.log.segments[0]
    bench.clean()
    assert bench.log.segments[0] is segment
    assert bench.log.cleaned_offset == 1
    assert bench.store.cleaner.bytes_written == 0
    assert "cleaned" not in bench.world.disk.list(FOLDER)


def test_reading_inside_a_gap_gives_the_next_batch() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=400))
    for number in range(40):
        bench.put((b"%d" % (number if number % 7 == 0 else 1), b"x" * 50))
    bench.roll()
    bench.put((b"end", b"x"))
    bench.clean()
    left = bench.lines()
    assert len(left) == 8
    for size_bytes_max in (1, 200, 1 << 20):
        for offset in range(bench.log.end_offset):
            expected = [line for line in left if line.offset >= offset]
            assert bench.lines(offset, size_bytes_max) == expected


def test_the_last_batch_of_a_log_keeps_its_header_so_that_followers_reach_the_end() -> None:
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((None, b"without a key"))
    bench.roll()
    bench.clean()
    bench.check()
    assert [line.offset for line in bench.lines()] == [0]
    assert [header.next_offset for _, header in bench.batches()] == [1, 2]
    bench.put((b"b", b"1"))
    bench.roll()
    bench.clean()
    bench.check()
    assert [header.next_offset for _, header in bench.batches()] == [1, 3]


def test_when_only_gaps_are_left_before_the_end_there_is_nothing_to_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompactionRules, "_is_last", lambda *_: False)
    bench = CompactedLogHarness()
    bench.put((b"a", b"1"))
    bench.put((None, b"without a key"))
    bench.roll()
    bench.clean()
    assert bench.log.read(1, 100, 2).next_offset == 2
    assert bench.read(1) == b""
    for restart in (bench.kill, bench.cut_power):
        restart()
        bench.open()
        assert bench.log.end_offset == 2
        assert bench.read(1) == b""
    offset = bench.put((b"b", b"1"))
    assert offset == 2
    bench.flush()
    assert [line.offset for line in bench.lines(1)] == [2]


def test_a_segment_may_lose_everything() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=100))
    for _ in range(5):
        bench.put((None, b"x" * 50))
    bench.put((b"a", b"x" * 50))
    bench.roll()
    bench.clean()
    bench.check()
    assert bench.log.segments[0].size == 0
    bench.cut_power()
    bench.open()
    bench.check()
    for name in bench.world.disk.list(FOLDER):
        if name.endswith(".checkpoint"):
            bench.world.disk.remove(f"{FOLDER}/{name}")
    bench.kill()
    bench.open()
    bench.check()


def test_a_slice_of_an_old_file_can_still_be_sent() -> None:
    bench = CompactedLogHarness()
    bench.world.disk.cold_chance = 0.0
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    bench.roll()
    found = bench.log.read(0, 1 << 20, 2)
    assert isinstance(found, LogSlice)
    before = found.bytes()
    assert bench.clean()
    assert found.bytes() == before
    found.release()


def test_time_is_found_in_a_cleaned_log() -> None:
    bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=300))
    times = {}
    for number in range(30):
        bench.wait(10)
        times[bench.put((b"%d" % (number % 4 if number < 25 else number), b"x" * 40), producer_id=number)] = (
            bench.now_ms
        )
    bench.put((b"29", b"newest of its key, and older"), producer_id=29)
    bench.roll()
    bench.clean()
    bench.check()
    left = bench.lines()
    for time_ms in times.values():
        found = bench.run(bench.log.offset_for_timestamp(time_ms))
        expected = next((line for line in left if line.timestamp_ms >= time_ms), None)
        assert (found and found.offset) == (expected and expected.offset)
    newest = bench.run(bench.log.max_timestamp())
    assert newest is not None
    assert newest.timestamp == max(line.timestamp_ms for line in left)


def test_a_search_by_time_that_a_swap_overtakes_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for search, offset in ((Log.offset_for_timestamp, 3), (Log.max_timestamp, 5)):
        bench = CompactedLogHarness(config=replace(COMPACT, segment_bytes=300))
        times = (1000, 0, 500, 500, 600, 600)  # the first is too old to be read, and makes its segment be searched
        for number, (at_ms, key) in enumerate(zip(times, b"xyaabb", strict=True)):
            bench.put_records([BatchRecord(b"%d" % key, b"v" * 60, timestamp_ms=at_ms)])
            if number % 2:
                bench.roll()
        bench.trim(1)
        in_thread, passes = timestamps._search_segment, list[bool]()

        async def with_a_pass(
            log: Log,
            *rest: Any,
            bench: CompactedLogHarness = bench,
            in_thread: Any = in_thread,
            passes: list[bool] = passes,
        ) -> Any:
            found = await in_thread(log, *rest)
            if not passes:
                passes.append(await bench.store.cleaner.clean(log))
            return found

        with monkeypatch.context() as patched:
            patched.setattr(timestamps, "_search_segment", with_a_pass)
            found = bench.run(search(bench.log, *((200,) if offset == 3 else ())))
        assert passes == [True]
        assert found is not None
        assert found.offset == offset


# Anything


keys = st.sampled_from([b"", b"a", b"b", b"c", b"d" * 200, None])
values = st.sampled_from([None, b"", b"v", b"w" * 300])
batch = st.tuples(
    st.lists(st.tuples(keys, values), min_size=1, max_size=5),
    st.sampled_from([-1, -1, 1, 2, 3]),
    st.booleans(),
    st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]),
)
step = st.one_of(
    batch,
    batch,
    batch,
    st.tuples(st.sampled_from([1, 2, 3]), st.booleans()),
    st.sampled_from(
        ["roll", "clean", "clean", "a day", "an hour", "kill", "cut power", "checkpoint", "trim", "forget"]
    ),
)


# In the end every transaction is over, and three passes with a day between them find all that must go at last.
FRESH = ([(b"fresh", b"")], -1, False, NONE)
CLOSING = ((1, True), (2, False), (3, True), FRESH, "clean", "a day", FRESH, "clean", "forget", "a day", FRESH, "clean")


@settings(max_examples=150)
@given(
    st.lists(step, min_size=5, max_size=60),
    st.sampled_from([36, 36 * 4, MIB]),
    st.sampled_from([200, 800, MIB]),
    st.sampled_from([0, 150, 4096]),
)
def test_any_log_compacts_to_what_the_reference_says(
    steps: list[object], map_bytes: int, segment_bytes: int, interval: int
) -> None:
    config = replace(
        COMPACT, segment_bytes=segment_bytes, index_interval_bytes=interval, delete_retention_ms=DAY_MS // 2
    )
    bench = CompactedLogHarness(1, config, replace(QUIET, cleaner_map_bytes=map_bytes))
    for one in [*steps, *CLOSING]:
        take(bench, one)
        bench.check(size_bytes_max=200)


def take(bench: CompactedLogHarness, one: object) -> None:
    if one == "roll":
        bench.roll()
    elif one == "clean":
        bench.roll()
        bench.clean()
    elif one in ("a day", "an hour"):
        bench.wait(DAY_MS if one == "a day" else DAY_MS // 24)
    elif one == "checkpoint":
        bench.checkpoint()
    elif one == "forget":
        bench.state.producers.clear()  # as after producer.id.expiration.ms
    elif one == "trim":
        bench.flush()
        bench.trim((2 * bench.log.start_offset + bench.log.end_offset) // 3)
    elif one in ("kill", "cut power"):
        bench.flush()
        bench.kill() if one == "kill" else bench.cut_power()
        bench.open()
    elif isinstance(one, tuple) and len(one) == 2:
        if str(one[0]) in bench.state.open:
            bench.end_transaction(one[0], is_commit=one[1])
    else:
        assert isinstance(one, tuple)
        pairs, producer_id, is_transactional, compression = one
        in_transaction = producer_id >= 0 and (is_transactional or str(producer_id) in bench.state.open)
        bench.put(*pairs, producer_id=producer_id, in_transaction=in_transaction, compression=compression)
