"""A data folder: opening, creating and deleting logs, and what looks after them."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.storage.log_harness import (
    DATA,
    FOLDER,
    NO_DERIVED_STATE,
    SMALL,
    TOPIC,
    LogHarness,
    create_log,
    make_batch,
)

from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import DataFolderLocked, DiskFailed, SystemDisk
from headrace.runtime.tasks import Supervisor
from headrace.storage.config import LogConfig, StoreConfig
from headrace.storage.errors import LogDeleted
from headrace.storage.log.log import LogSlice
from headrace.storage.store.log_store import LogStore, Opening, open_store

OTHER = UUID(int=5)


def test_a_log_is_named_by_topic_id_and_partition() -> None:
    bench = LogHarness()
    bench.run(create_log(bench.store, OTHER, 17, Opening(SMALL, NO_DERIVED_STATE)))
    assert bench.world.disk.list(f"{DATA}/logs") == [f"{OTHER.hex}-17", f"{TOPIC.hex}-0"]


def test_an_existing_log_is_not_created_again() -> None:
    bench = LogHarness()
    bench.append_many(2)
    assert bench.run(create_log(bench.store, TOPIC, 0, Opening(SMALL, NO_DERIVED_STATE))) is bench.log


def test_a_created_log_survives_a_power_cut_with_nothing_in_it() -> None:
    bench = LogHarness()
    bench.run(bench.store.create_all([(OTHER, number, Opening(SMALL, NO_DERIVED_STATE)) for number in range(5)]))
    bench.cut_power()
    store = bench.run(open_store(bench.world.disk, DATA, bench.world.clock))
    assert sorted(store.found()) == [(OTHER, number) for number in range(5)] + [(TOPIC, 0)]


def test_logs_of_deleted_topics_are_deleted_at_the_start() -> None:
    bench = LogHarness()
    bench.append_many(3)
    bench.run(create_log(bench.store, OTHER, 0, Opening(SMALL, NO_DERIVED_STATE)))
    bench.stop()
    store = bench.run(open_store(bench.world.disk, DATA, bench.world.clock))
    bench.run(
        store.open_all(lambda topic_id, _: Opening(SMALL, NO_DERIVED_STATE) if topic_id == OTHER else None, {TOPIC})
    )
    assert list(store.logs) == [(OTHER, 0)]
    assert bench.world.disk.list(f"{DATA}/logs") == [f"{OTHER.hex}-0"]
    assert store.strays.size.logs == 0


def test_a_deleted_log_is_gone_at_once_and_for_good() -> None:
    bench = LogHarness()
    bench.append_many(3)
    log = bench.log
    bench.run(bench.store.delete_all([log.key]))
    assert bench.store.logs.get((TOPIC, 0)) is None
    with pytest.raises(LogDeleted):
        log.read(0, 100, 3)
    bench.cut_power()
    assert bench.world.disk.list(f"{DATA}/logs") == []


def test_a_log_may_be_deleted_while_its_checkpoint_is_written() -> None:
    for seed in range(20):
        bench = LogHarness(seed)
        bench.append_many(20)
        bench.append(b"not flushed")
        bench.log.checkpoint_seconds = -1e9

        async def work(bench: LogHarness = bench, pause: float = seed * 0.0003) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(bench.store._save_due_checkpoints())
                group.create_task(bench.store.enforce_retention(1 << 50))
                await asyncio.sleep(pause)
                await bench.store.delete_all([bench.log.key])

        bench.run(work())
        assert bench.world.disk.list(f"{DATA}/logs") == []


def test_a_log_recreated_with_the_same_key_starts_at_zero_even_after_a_power_cut() -> None:
    bench = LogHarness()
    bench.append_many(30)
    bench.run(bench.store.delete_all([bench.log.key]))
    bench.model.clear()
    bench.batches.clear()
    bench.durable_end = 0
    bench.cut_power()
    bench.open()
    assert bench.log.end_offset == 0
    bench.append_many(3)
    bench.cut_power()
    bench.open()
    bench.check()
    assert bench.log.end_offset == 3


def test_a_folder_has_one_user() -> None:
    bench = LogHarness()
    with pytest.raises(DataFolderLocked):
        bench.run(open_store(bench.world.disk, DATA, bench.world.clock))


def test_checkpoints_follow_the_bytes_and_the_clock() -> None:
    config = StoreConfig(
        reserve_bytes=0,
        checkpoint_bytes=50_000,
        checkpoint_seconds=5,
        checkpoint_idle_seconds=100,
        scrub_bytes_per_second=0,
    )
    bench = LogHarness(config=LogConfig(), store_config=config)

    async def saved_after(value: bytes) -> float:
        before, began = bench.log.checkpoint_offset, bench.world.loop.time()
        bench.append(value)
        while bench.log.checkpoint_offset == before:
            await asyncio.sleep(0.5)
        return bench.world.loop.time() - began

    async def work() -> list[float]:
        supervisor = Supervisor()
        bench.store.start(supervisor.spawn)
        seconds = [await saved_after(b"x" * size) for size in (60_000, 10)]
        await supervisor.stop()
        return seconds

    soon, late = bench.run(work())
    assert soon < 3
    assert 95 < late < 105
    bench.kill()
    bench.open()
    bench.check()


def test_a_disk_that_fails_at_the_start_is_named_by_its_own_error() -> None:
    bench = LogHarness()
    bench.append(b"not flushed")
    bench.kill()
    bench.world.disk.fail_next("sync", "*.log")
    with pytest.raises(DiskFailed):
        bench.open()


def test_retention_runs_by_itself() -> None:
    config = StoreConfig(reserve_bytes=0, retention_check_seconds=60)
    bench = LogHarness(config=LogConfig(segment_bytes=500, retention_bytes=1000), store_config=config)

    async def work() -> None:
        supervisor = Supervisor()
        bench.store.start(supervisor.spawn)
        for _ in range(20):
            bench.append()
        await bench.store.flusher.flush(bench.log)
        while bench.log.start_offset == 0:
            await asyncio.sleep(1)
        await supervisor.stop()

    bench.run(work())
    assert bench.log.size_bytes <= 1500
    bench.check()


def test_a_full_disk_delays_a_checkpoint_and_nothing_else() -> None:
    bench = LogHarness()
    bench.append_many(20)
    bench.world.disk.capacity_bytes = 0
    bench.run(bench.store._save_due_checkpoints())
    bench.log.checkpoint_seconds = -1e9
    bench.run(bench.store._save_due_checkpoints())
    assert bench.log.failed is None
    bench.check()
    bench.world.disk.capacity_bytes = 1 << 40
    bench.checkpoint()
    bench.kill()
    bench.open()
    bench.check()
    assert bench.log.checkpoint_offset == 20


def test_stopping_twice_in_a_row_is_cheap_for_logs_that_did_not_change() -> None:
    bench = LogHarness()
    bench.append_many(3)
    bench.stop()
    bench.open()
    before = bench.world.disk.read(f"{FOLDER}/{3:020d}.checkpoint")
    operations = bench.world.disk.operations
    bench.stop()
    assert bench.world.disk.operations <= operations
    bench.open()
    assert bench.world.disk.read(f"{FOLDER}/{3:020d}.checkpoint") == before


# On the real disk


async def real_store(path: Path) -> tuple[SystemDisk, LogStore]:
    disk = SystemDisk(open_files_max=64)
    return disk, await open_store(disk, str(path), SystemClock(), StoreConfig(reserve_bytes=0))


async def test_hundreds_of_logs_open_with_few_descriptors_and_little_memory(tmp_path: Path) -> None:
    count = 100
    disk, store = await real_store(tmp_path)
    wanted = [(OTHER, number, Opening(LogConfig(), NO_DERIVED_STATE)) for number in range(count)]
    for log in await store.create_all(wanted):
        log.append(*make_batch(b"value"), 0)
        store.flusher.mark(log)
    await store.close(broker_epoch=1)
    disk.close()

    disk, store = await real_store(tmp_path)
    opening = Opening(LogConfig(), NO_DERIVED_STATE)
    tracemalloc.start()
    await store.open_all(lambda *_: opening)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(store.logs) == count
    assert used / count < 8000
    for log in store.logs.values():
        log.append(*make_batch(b"value"), 0)
        found = log.read(1, 1000, 2)
        assert isinstance(found, LogSlice)
        found.release()
    await store.close(broker_epoch=2)
    disk.close()


async def test_a_log_on_a_real_disk_comes_back_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    for clean in (True, False):
        disk, store = await real_store(tmp_path / str(clean))
        log = await create_log(store, OTHER, 0, Opening(SMALL, NO_DERIVED_STATE))
        for number in range(100):
            log.append(*make_batch(b"%d" % number), 0)
        await store.flusher.flush(log)
        if clean:
            await store.close(broker_epoch=3)
        disk.close()
        disk, store = await real_store(tmp_path / str(clean))
        await store.open_all(lambda *_: Opening(SMALL, NO_DERIVED_STATE))
        assert (store.broker_epoch is not None) == clean
        assert store.logs[OTHER, 0].end_offset == 100
        disk.close()
