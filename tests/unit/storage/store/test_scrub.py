"""The scrub finds damage in batches that were not read."""

from __future__ import annotations

import asyncio

from tests.unit.storage.log_harness import FIRST_SEGMENT, LogHarness

from headrace.storage.config import LogConfig
from headrace.storage.log.log import Log, LogSlice
from headrace.storage.store.scrub import scrub_forever, scrub_step


def reopened(count: int = 40) -> LogHarness:
    bench = LogHarness(config=LogConfig(segment_bytes=2000))
    bench.append_many(count)
    bench.stop()
    bench.open()
    bench.world.disk.cold_chance = 0
    return bench


def test_everything_found_at_the_start_is_checked_once() -> None:
    bench = reopened()
    bench.append(b"new")
    bench.scrub()
    assert all(segment.first_unchecked() is None for segment in bench.log.segments)
    found = bench.log.read(0, 1000, 40)
    assert isinstance(found, LogSlice)
    found.release()
    assert bench.run(scrub_step(bench.log)) == 0


def test_damage_is_found_and_the_log_quarantined() -> None:
    bench = reopened()
    told: list[Log] = []
    bench.log.on_failed = told.append
    bench.world.disk.flip_bit(FIRST_SEGMENT, 500)
    bench.scrub()
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.path == FIRST_SEGMENT
    assert told == [bench.log]


def test_what_was_read_is_not_read_again() -> None:
    bench = reopened()
    bench.records()
    assert bench.run(scrub_step(bench.log)) == 0


def test_the_scrub_keeps_its_rate_limit() -> None:
    bench = reopened()
    size = bench.log.size_bytes

    async def work() -> None:
        task = bench.world.loop.create_task(scrub_forever(lambda: [bench.log], bytes_per_second=size // 10))
        while any(segment.first_unchecked() for segment in bench.log.segments):
            await asyncio.sleep(0.5)
        task.cancel()

    began = bench.world.loop.time()
    bench.run(work())
    assert bench.world.loop.time() - began > 5


def test_a_log_that_is_written_by_this_process_needs_no_scrub() -> None:
    bench = LogHarness()
    bench.append_many(10)
    assert bench.run(scrub_step(bench.log)) == 0


def test_damage_that_was_found_below_the_checkpoint_is_still_known_after_a_restart() -> None:
    bench = reopened()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 500)
    bench.scrub()
    bench.stop()
    bench.open()
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.path == FIRST_SEGMENT


def test_a_log_whose_damage_is_gone_at_the_next_start_is_used_again() -> None:
    bench = reopened()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 500)
    bench.scrub()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 500)
    for _ in range(2):
        bench.stop()
        bench.open()
        assert bench.log.quarantined is None
        bench.append_many(1)
        bench.check()


def test_a_flipped_bit_in_the_base_offset_of_a_segment_is_found() -> None:
    """No checksum covers the base offset of a batch; only what is before it tells what it must be."""
    bench = reopened()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 4)
    bench.scrub()
    assert bench.log.quarantined is not None
    assert bench.log.quarantined.position == 0
