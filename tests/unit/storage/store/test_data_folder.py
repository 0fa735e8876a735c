"""The marks of a data folder, and logs that come, go and are replaced while others work."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

import pytest
from tests.unit.storage.log_harness import (
    DATA,
    FIRST_SEGMENT,
    FOLDER,
    NO_DERIVED_STATE,
    SMALL,
    TOPIC,
    LogHarness,
    ReplayRecorder,
    create_log,
    make_batch,
)

from headrace.storage.errors import LogDeleted
from headrace.storage.log.log import Log
from headrace.storage.store.log_store import LogStore, Opening, open_store
from headrace.testkit.disk import SimulatedPowerCut

OTHER = UUID(int=5)


def damaged_bench(seed: int = 0) -> LogHarness:
    bench = LogHarness(seed)
    bench.append_many(5)
    bench.kill()
    bench.world.disk.flip_bit(FIRST_SEGMENT, 100)
    bench.open()
    assert bench.log.quarantined is not None
    return bench


def forget_all(bench: LogHarness) -> None:
    bench.model.clear()
    bench.batches.clear()
    bench.durable_end = 0


def test_a_damaged_log_is_set_aside_and_replaced_by_an_empty_one() -> None:
    bench = damaged_bench()
    damaged, files = bench.log, bench.world.disk.list(FOLDER)
    bench.log = bench.run(bench.store.replace(TOPIC, 0, Opening(SMALL, bench.state)))
    assert (bench.log.quarantined, bench.log.end_offset) == (None, 0)
    assert bench.store.logs.get((TOPIC, 0)) is bench.log
    assert bench.world.disk.list(f"{FOLDER}.damaged-1") == files
    with pytest.raises(LogDeleted):
        damaged.read(0, 100, 5)
    forget_all(bench)
    bench.append_many(3)
    for how in (bench.kill, bench.cut_power):
        how()
        bench.open()
        bench.check()
        assert bench.log.end_offset == 3
    assert bench.world.disk.exists(f"{FOLDER}.damaged-1")
    assert bench.store.found() == [(TOPIC, 0)]


def test_what_is_damaged_again_is_set_aside_beside_it() -> None:
    bench = damaged_bench()
    for _ in range(2):
        bench.log = bench.run(bench.store.replace(TOPIC, 0, Opening(SMALL, ReplayRecorder())))
        bench.append_many(5)
        bench.kill()
        bench.world.disk.flip_bit(FIRST_SEGMENT, 100)
        bench.open()
    assert bench.world.disk.list(f"{DATA}/logs") == [f"{TOPIC.hex}-0{end}" for end in ("", ".damaged-1", ".damaged-2")]


def test_a_crash_while_a_log_is_replaced_leaves_a_quarantined_log_or_an_empty_one() -> None:
    for operations in range(14):
        bench = damaged_bench(operations)
        bench.world.disk.crash_after(operations)
        with suppress(SimulatedPowerCut):
            bench.run(bench.store.replace(TOPIC, 0, Opening(SMALL, bench.state)))
        bench.cut_power()
        bench.open()
        is_set_aside = bench.world.disk.exists(f"{FOLDER}.damaged-1")
        assert bench.log.quarantined is not None or is_set_aside
        assert bench.log.end_offset == 0 or not is_set_aside
        if bench.log.quarantined is not None:
            bench.log = bench.run(bench.store.replace(TOPIC, 0, Opening(SMALL, bench.state)))
        assert (bench.log.quarantined, bench.log.end_offset) == (None, 0)


def test_a_log_that_is_lost_is_missed_although_a_damaged_one_was_set_aside_before() -> None:
    """Seed 504: the broker stayed in the in-sync set with an empty log."""
    bench = damaged_bench()
    bench.log = bench.run(bench.store.replace(TOPIC, 0, Opening(SMALL, bench.state)))
    forget_all(bench)
    bench.append_many(3)
    bench.kill()
    bench.world.disk.lose(FOLDER)
    bench.open()
    assert bench.log.quarantined is not None


def test_concurrent_creates_and_deletes_of_one_log_are_serialized() -> None:
    for seed in range(20):
        bench = LogHarness(seed)
        made: list[Log] = []

        async def make(store: LogStore, made: list[Log] = made) -> None:
            made += await store.create_all(
                [(OTHER, 0, Opening(SMALL, NO_DERIVED_STATE)), (OTHER, 1, Opening(SMALL, NO_DERIVED_STATE))]
            )

        async def work(bench: LogHarness = bench) -> None:
            store = bench.store
            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(make(store) if number % 2 else store.delete_all([(OTHER, 0)]))
                    await asyncio.sleep(bench.world.loop.time() % 0.001)

        bench.run(work())
        log = bench.store.logs.get((OTHER, 0))
        assert log is made[-2]
        assert len({made[at] for at in (1, 3, 5)}) == 1
        batch, header = make_batch(b"x")
        log.append(batch, header, 0)
        bench.run(bench.store.flusher.flush(log))
        bench.append_many(1)
        bench.check()


def test_a_replica_that_was_away_and_comes_back_begins_empty() -> None:
    bench = LogHarness()
    bench.append_many(5)
    bench.stop()
    store = bench.run(open_store(bench.world.disk, DATA, bench.world.clock))
    bench.run(store.open_all(lambda *_: None))
    log = bench.run(create_log(store, TOPIC, 0, Opening(SMALL, NO_DERIVED_STATE)))
    assert (log.quarantined, log.end_offset) == (None, 0)
