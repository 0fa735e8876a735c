"""Reads that race a swap of compacted segments, a deletion or a truncation: they read again, or say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import COMPACT, CompactedLogHarness
from tests.unit.storage.log_harness import SMALL, LogHarness, split

from headrace.model.errors import NotLeader, OffsetOutOfRange
from headrace.storage.log.log import ColdRead

CONFIG = replace(COMPACT, segment_bytes=700, index_interval_bytes=100)


def make_bench(seed: int = 0) -> CompactedLogHarness:
    """Ten keys, each written four times, in several segments that can be compacted; every read is cold."""
    bench = CompactedLogHarness(seed, CONFIG)
    for number in range(40):
        bench.put((b"%d" % (number % 10), b"%d" % number + b"." * 30))
    bench.roll()
    bench.world.disk.cold_chance = 1.0
    return bench


def cold_read(bench: CompactedLogHarness | LogHarness, offset: int) -> ColdRead:
    bench.world.disk.cold_chance = 1.0
    found = bench.log.read(offset, 1 << 20, bench.log.end_offset)
    assert isinstance(found, ColdRead)
    return found


def test_a_cold_read_of_a_segment_that_compaction_has_replaced_reads_the_new_one() -> None:
    for offset in range(0, 40, 3):
        bench = make_bench()
        read = cold_read(bench, offset)
        assert bench.clean()
        headers = [header for _, header in split(bench.run(read.load()))]
        expected = [batch.header.base_offset for batch in bench.reference.left() if batch.header.last_offset >= offset]
        assert headers[0].base_offset == expected[0]
        assert read.next_offset >= headers[-1].next_offset


@pytest.mark.parametrize("seed", range(20))
def test_a_cold_read_that_runs_beside_a_swap_always_finds_the_next_batch(seed: int) -> None:
    bench = make_bench(seed)

    async def read(offset: int) -> None:
        cold = cold_read(bench, offset)
        await asyncio.sleep(offset % 5 / 250)
        data = await cold.load()
        assert data, f"nothing at {offset}"
        assert split(data)[0][1].last_offset >= offset

    bench.run(beside_a_swap(bench, read, range(0, 40, 7)))


def test_a_cold_read_below_the_start_of_a_log_that_was_trimmed_meanwhile_is_out_of_range() -> None:
    bench = make_bench()
    read = cold_read(bench, 0)
    bench.trim(35)
    with pytest.raises(OffsetOutOfRange):
        bench.run(read.load())


def test_a_cold_read_of_a_log_that_was_truncated_meanwhile_does_not_answer_from_another_history() -> None:
    """Only a follower truncates: what lies there now may not go on where the reader's history ends."""
    bench = LogHarness(config=SMALL)
    bench.append_many(60)
    read = cold_read(bench, 50)
    bench.truncate(40)
    bench.append_many(30)
    with pytest.raises(NotLeader, match="truncated"):
        bench.run(read.load())


@pytest.mark.parametrize("seed", range(20))
def test_a_search_by_time_beside_a_swap_does_not_skip_the_segments_that_were_replaced(seed: int) -> None:
    bench = CompactedLogHarness(seed, CONFIG)
    first_ms = bench.now_ms
    for number in range(40):
        bench.put((b"%d" % number, b"." * 30))  # compaction keeps all of them, and merges their segments
        bench.wait(1000)
        if number % 2:
            bench.roll()
    bench.put((b"0", b"newer"))
    bench.roll()
    bench.checkpoint()
    bench.kill()
    bench.open()  # indexes are read from their files from now on
    bench.put((b"active", b"in a segment that compaction leaves alone"))
    bench.flush()

    async def search(number: int) -> None:
        found = await bench.log.offset_for_timestamp(first_ms + number * 1000)
        assert found is not None
        assert found.offset == number

    bench.run(beside_a_swap(bench, search, (1, 9, 20, 33)))


async def beside_a_swap(
    bench: CompactedLogHarness, read: Callable[[int], Coroutine[Any, Any, None]], values: Iterable[int]
) -> None:
    """Read at many moments of a pass of the cleaner, each read for as long as the disk likes."""
    bench.world.disk.delay_seconds = (0.0, 0.02)
    cleaning = asyncio.ensure_future(bench.store.cleaner.clean(bench.log))
    async with asyncio.TaskGroup() as reads:
        while not cleaning.done():
            for value in values:
                reads.create_task(read(value))
            await asyncio.sleep(0.002)
    assert await cleaning
