"""The guard of the disk's last reserve."""

from __future__ import annotations

import pytest
from tests.unit.storage.log_harness import LogHarness

from headrace.model.errors import DiskNearlyFull
from headrace.storage.config import GIB, StoreConfig
from headrace.storage.store.space_guard import SpaceGuard
from headrace.testkit.disk import SimDisk
from headrace.testkit.loop import run


def test_produce_is_rejected_below_the_reserve_and_accepted_again_well_above_it() -> None:
    bench = LogHarness(store_config=StoreConfig(reserve_bytes=10_000))
    disk, guard = bench.world.disk, bench.store.space
    used = disk.capacity_bytes - disk.free_bytes("/data")
    answers = []
    for free in (20_000, 10_000, 9_999, 11_000, 12_499, 12_500, 11_000, 5_000):
        disk.capacity_bytes = used + free
        bench.run(guard.measure())
        answers.append(bench.store.space.exhausted)
    assert answers == [False, False, True, True, True, False, False, True]
    with pytest.raises(DiskNearlyFull, match="5000 bytes are free"):
        bench.store.space.ensure()
    assert bench.store.space.free_bytes == 5_000


def test_the_reserve_is_a_twentieth_of_the_disk_but_at_most_a_gibibyte() -> None:
    async def reserve(capacity_bytes: int) -> int:
        disk = SimDisk(seed=1)
        disk.capacity_bytes = capacity_bytes
        disk.make_directory("/data")
        return SpaceGuard(disk, "/data", None).reserve_bytes

    assert run(1, lambda _: reserve(1_000_000)) == 50_000
    assert run(1, lambda _: reserve(100 * GIB)) == GIB


def test_a_full_disk_is_noticed_at_the_start() -> None:
    bench = LogHarness(store_config=StoreConfig(reserve_bytes=1 << 50))
    with pytest.raises(DiskNearlyFull):
        bench.store.space.ensure()
