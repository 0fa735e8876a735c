"""Group commit: one round in flight, the others join the next; a failed sync is final."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.unit.storage.log_harness import FOLDER, NO_DERIVED_STATE, SMALL, LogHarness, create_log, make_batch

from headrace.model.errors import StorageFailure
from headrace.storage.log.log import Log
from headrace.storage.segments.scan import ReplayedBatch
from headrace.storage.store.log_store import Opening


def append(log: Log) -> None:
    log.append(*make_batch(b"value"), 0)


def other_log(bench: LogHarness) -> Log:
    return bench.run(create_log(bench.store, UUID(int=99), 1, Opening(SMALL, NO_DERIVED_STATE)))


def test_everything_marked_before_a_round_is_flushed_by_it() -> None:
    bench = LogHarness()
    other = other_log(bench)
    flushed: list[Log] = []
    bench.log.on_flushed = other.on_flushed = flushed.append

    async def work() -> None:
        runner = bench.world.loop.create_task(bench.store.flusher.run())
        for log in (bench.log, other):
            for _ in range(3):
                append(log)
                bench.store.flusher.mark(log)
        while len(flushed) < 2:
            await asyncio.sleep(0.001)
        runner.cancel()

    bench.run(work())
    assert flushed == [bench.log, other]
    assert bench.store.flusher.rounds == 1
    assert (bench.log.flushed_offset, other.flushed_offset) == (3, 3)
    assert bench.store.flusher.sync_seconds.count == 1


def test_what_is_appended_while_a_round_is_in_flight_waits_for_the_next() -> None:
    bench = LogHarness()
    bench.world.disk.delay_seconds = (1.0, 1.0)
    seen: list[tuple[float, int]] = []
    bench.log.on_flushed = lambda log: seen.append((bench.world.loop.time(), log.flushed_offset))

    async def work() -> None:
        runner = bench.world.loop.create_task(bench.store.flusher.run())
        append(bench.log)
        bench.store.flusher.mark(bench.log)
        await asyncio.sleep(0.5)
        append(bench.log)
        append(bench.log)
        bench.store.flusher.mark(bench.log)
        while len(seen) < 2:
            await asyncio.sleep(0.1)
        runner.cancel()

    began = bench.world.loop.time()
    bench.run(work())
    assert [(round(at - began), offset) for at, offset in seen] == [(2, 1), (4, 3)]


def test_many_waiters_share_rounds() -> None:
    bench = LogHarness()

    async def produce() -> None:
        append(bench.log)
        await bench.store.flusher.flush(bench.log)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(produce())

    bench.run(work())
    assert bench.log.flushed_offset == 50
    assert bench.store.flusher.rounds <= 2


def test_a_failed_sync_is_final_for_its_log_and_for_no_other() -> None:
    bench = LogHarness()
    other = other_log(bench)
    told: list[Log] = []
    bench.log.on_failed = told.append

    async def work() -> None:
        bench.world.disk.fail_next("sync", f"{FOLDER}/*")
        append(bench.log)
        append(other)
        bench.store.flusher.mark(bench.log)
        bench.store.flusher.mark(other)
        await bench.store.flusher.flush(other)
        with pytest.raises(StorageFailure):
            await bench.store.flusher.flush(bench.log)

    bench.run(work())
    assert told == [bench.log]
    assert (bench.log.flushed_offset, other.flushed_offset) == (0, 1)
    for _ in range(2):  # I23: nothing is acknowledged any more, and nothing is retried
        with pytest.raises(StorageFailure):
            append(bench.log)
        with pytest.raises(StorageFailure):
            bench.flush()
    assert bench.log.flushed_offset == 0
    bench.run(bench.store.close(broker_epoch=7))
    assert not bench.world.disk.exists("/data/clean-shutdown")


def test_a_cancelled_round_runs_to_completion() -> None:
    bench = LogHarness(config=SMALL)

    async def work() -> None:
        for _ in range(30):  # over several segments
            append(bench.log)
        waiting = bench.world.loop.create_task(bench.store.flusher.flush(bench.log))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    bench.run(work())
    assert bench.log.flushed_offset == 30
    bench.cut_power()
    bench.open()
    assert bench.log.end_offset == 30


def test_a_failure_in_a_cancelled_round_is_not_missed() -> None:
    bench = LogHarness(config=SMALL)

    async def work() -> None:
        append(bench.log)
        bench.world.disk.fail_next("sync", f"{FOLDER}/*")
        waiting = bench.world.loop.create_task(bench.store.flusher.flush(bench.log))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    bench.run(work())
    assert bench.log.failed is not None
    assert bench.log.flushed_offset == 0


def test_a_flush_of_a_log_that_was_truncated_meanwhile_does_not_advance_the_flushed_offset() -> None:
    bench = LogHarness()
    bench.world.disk.delay_seconds = (0.5, 1.0)

    async def work() -> None:
        for _ in range(20):
            append(bench.log)
        flushing = bench.world.loop.create_task(bench.store.flusher.flush(bench.log))
        await asyncio.sleep(0)
        await bench.log.truncate(5)
        await flushing
        assert bench.log.flushed_offset <= bench.log.end_offset == 5
        append(bench.log)
        await bench.store.flusher.flush(bench.log)

    bench.run(work())
    assert bench.log.flushed_offset == 6


def test_a_checkpoint_and_a_flush_at_the_same_time_do_not_outrun_each_other() -> None:
    bench = LogHarness()

    async def work() -> None:
        for _ in range(20):
            append(bench.log)
            bench.state.replay(ReplayedBatch(make_batch(b"value")[1], None))
        async with asyncio.TaskGroup() as group:
            group.create_task(bench.log.save_checkpoint())
            group.create_task(bench.store.flusher.flush(bench.log))
            while not bench.log.maintenance_lock.locked():
                await asyncio.sleep(0)
            append(bench.log)

    bench.run(work())
    assert bench.log.checkpoint_offset == 20
    assert bench.log.flushed_offset >= 20


def test_flushing_what_is_flushed_costs_nothing() -> None:
    bench = LogHarness()
    bench.append_many(1)
    operations = bench.world.disk.operations
    bench.flush()
    assert bench.world.disk.operations == operations
