"""Retention: whole segments, by age and by size, never what is not durable."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace
from tests.unit.storage.log_harness import DATA, FOLDER, LogHarness, ReplayRecorder

from headrace.storage.config import DAY_MS, LogConfig
from headrace.storage.log.retention import delete_expired_segments
from headrace.storage.store.log_store import Opening, open_store

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=DAY_MS)
NOW_MS = 1_700_000_000_000


def make_bench(ages_days: list[float], config: LogConfig = CONFIG) -> LogHarness:
    """One batch per age, each with a segment of its own, and one that is active."""
    bench = LogHarness(config=config)
    for age in [*ages_days, 0.0]:
        bench.append(b"x" * 900, timestamp_ms=NOW_MS - int(age * DAY_MS))
    bench.flush()
    return bench


def retain(bench: LogHarness, now_ms: int = NOW_MS) -> int:
    removed = bench.run(delete_expired_segments(bench.log, now_ms))
    bench.durable_start = bench.log.start_offset
    return removed


def test_segments_older_than_retention_ms_are_deleted() -> None:
    bench = make_bench([3, 2, 1.1, 0.9, 0.5])
    assert retain(bench) == 3
    assert bench.log.start_offset == 3
    bench.check()
    assert retain(bench) == 0


def test_a_young_segment_protects_the_older_ones_behind_it() -> None:
    bench = make_bench([2, 0.5, 2])
    assert retain(bench) == 1
    assert bench.log.start_offset == 1


def test_without_timestamps_the_time_of_writing_counts() -> None:
    bench = LogHarness(config=CONFIG)
    for _ in range(3):
        bench.append(b"x" * 900, timestamp_ms=-1)
    bench.flush()
    assert retain(bench, bench.world.clock.now_ms() + DAY_MS - 60_000) == 0
    assert retain(bench, bench.world.clock.now_ms() + DAY_MS + 1) == 3


def test_a_crash_does_not_make_records_without_timestamps_old() -> None:
    bench = LogHarness(config=replace(CONFIG, segment_bytes=1100))
    for _ in range(3):
        bench.append(b"x" * 900, timestamp_ms=-1)
    bench.flush()
    bench.kill()
    bench.open()
    assert retain(bench, bench.world.clock.now_ms()) == 0
    bases = [segment.base_offset for segment in bench.log.segments]
    bench.append(b"small")
    assert [segment.base_offset for segment in bench.log.segments] == bases


def test_an_expired_active_segment_is_rolled_and_deleted() -> None:
    bench = make_bench([5])
    assert retain(bench, NOW_MS + 10 * DAY_MS) == 2
    assert (bench.log.start_offset, bench.log.end_offset, bench.log.size_bytes) == (2, 2, 0)
    assert not [name for name in bench.world.disk.list(FOLDER) if name.endswith(".log")]
    bench.cut_power()
    bench.open()
    assert (bench.log.start_offset, bench.log.end_offset) == (2, 2)
    assert bench.append(b"next") == 2
    bench.flush()
    bench.check()


def test_retention_bytes_keeps_at_least_that_much() -> None:
    bench = make_bench([0] * 9)
    size = bench.log.segments[0].size
    bench.log.config = replace(CONFIG, retention_bytes=3 * size)
    assert retain(bench) == 7
    assert bench.log.size_bytes == 3 * size
    bench.log.config = replace(CONFIG, retention_bytes=3 * size - 1)
    assert retain(bench) == 0
    bench.check()


def test_the_active_segment_is_never_removed_for_its_size() -> None:
    bench = make_bench([0], replace(CONFIG, retention_bytes=0))
    assert retain(bench) == 1
    assert len(bench.records()) == 1


def test_without_limits_nothing_is_deleted() -> None:
    bench = make_bench([999], replace(CONFIG, retention_ms=-1))
    assert retain(bench) == 0


def test_segments_that_are_not_flushed_are_not_deleted() -> None:
    bench = LogHarness(config=CONFIG)
    for _ in range(4):
        bench.append(b"x" * 900, timestamp_ms=5)
    assert retain(bench) == 0
    bench.flush()
    assert retain(bench) == 4


def test_segments_that_are_not_committed_are_not_deleted() -> None:
    """A follower may still have to truncate to the high watermark: the leader must not start its log above it."""
    bench = make_bench([3, 3, 3])
    high_watermark = 0
    bench.log.committed_offset = lambda: high_watermark
    assert retain(bench) == 0
    bench.log.config = replace(CONFIG, retention_bytes=0)
    assert retain(bench) == 0
    high_watermark = 2
    assert retain(bench) == 2
    assert bench.log.start_offset == 2


def test_a_broker_that_starts_deletes_nothing_before_it_knows_the_leader() -> None:
    """The logs are open before the registry has told who leads, and what is flushed need not be committed."""
    bench = make_bench([3, 3, 3])
    bench.kill()
    store = bench.run(open_store(bench.world.disk, DATA, bench.world.clock, bench.store_config))
    bench.run(store.open_all(lambda *_: Opening(replace(CONFIG, compacts=True), ReplayRecorder())))
    (log,) = store.logs.values()
    assert bench.run(store.enforce_retention(NOW_MS)) == 0
    log.enforces_retention = True
    assert bench.run(store.enforce_retention(NOW_MS)) == 0
    assert (log.start_offset, log.compactable_offset()) == (0, 0)


def test_a_crash_during_retention_restores_no_deleted_segment() -> None:
    bench = make_bench([3] * 6)
    assert retain(bench) == 6
    bench.cut_power()
    bench.open()
    bench.check()
    assert bench.log.start_offset == 6


def test_a_log_that_is_truncated_meanwhile_does_not_end_the_retention_task() -> None:
    bench = make_bench([3, 3, 3])

    async def truncate_during_retention() -> int:
        truncation = asyncio.ensure_future(bench.log.truncate(1))
        removed = await bench.store.enforce_retention(NOW_MS)
        await truncation
        return removed

    assert bench.run(truncate_during_retention()) == 0
    assert (bench.log.start_offset, bench.log.end_offset) == (0, 1)


def test_a_log_whose_leader_is_elsewhere_deletes_nothing_by_itself() -> None:
    bench = LogHarness(config=LogConfig(segment_bytes=1000, retention_ms=1, retention_bytes=1))
    bench.append_many(20)
    bench.log.enforces_retention = False
    assert bench.run(delete_expired_segments(bench.log, 1 << 50)) == 0
    assert bench.log.start_offset == 0
    bench.advance_start(12)
    assert bench.log.start_offset == 12
    bench.check()
    bench.log.enforces_retention = True
    assert bench.run(delete_expired_segments(bench.log, 1 << 50))
