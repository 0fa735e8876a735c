"""A power cut or a kill at any disk operation: the log recovers to a prefix that holds all that was promised (I21)."""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pytest

from headrace.model.errors import OffsetOutOfRange
from headrace.storage.retention import delete_old
from headrace.testkit.disk import SimulatedPowerCut
from tests.unit.storage.workbench import Workbench

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "200"))
STEPS = 40
CRASHES = 3


class Scenario:
    """Random work on one log until the power goes, a few times over."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"storage crash {seed}")
        self.bench = Workbench(seed)
        self.value = 0

    def work(self) -> None:
        actions = [self.append] * 10 + [self.bench.flush] * 4 + [self.bench.checkpoint] * 2
        actions += [self.advance_start, self.truncate, self.retain, self.roll, self.read]
        for _ in range(STEPS):
            self.random.choice(actions)()

    def append(self) -> None:
        values = []
        for _ in range(self.random.randint(1, 4)):
            self.value += 1
            values.append(b"%d" % self.value + b"." * self.random.choice((0, 10, 300, 1500)))
        self.bench.append(*values, timestamp_ms=self.bench.world.clock.now_ms(), leader_epoch=self.random.randint(0, 3))

    def advance_start(self) -> None:
        log = self.bench.log
        self.bench.advance_start(self.random.randint(log.start_offset, log.flushed_offset))

    def truncate(self) -> None:
        log = self.bench.log
        with suppress(OffsetOutOfRange):  # the first batch may begin below the start offset
            self.bench.truncate(self.random.randint(log.start_offset, log.end_offset))

    def retain(self) -> None:
        bench = self.bench
        bench.run(delete_old(bench.log, bench.world.clock.now_ms() + self.random.choice((0, 1 << 40))))
        bench.durable_start = bench.log.start_offset

    def roll(self) -> None:
        if self.bench.log.active.size:
            self.bench.log.roll()

    def read(self) -> None:
        self.bench.records(size_bytes_max=self.random.choice((1, 500, 5000)))

    def crash(self) -> None:
        bench = self.bench
        bench.world.disk.crash_after(self.random.randint(0, 150))
        with suppress(SimulatedPowerCut):
            self.work()
        if self.random.random() < 0.3 and bench.world.disk.alive:
            bench.kill()
        else:
            bench.cut_power()

    def recover(self) -> None:
        bench = self.bench
        while True:  # the power may go again during recovery
            bench.world.disk.crash_after(self.random.choice((3, 20, 1 << 40)))
            try:
                bench.open()
                break
            except SimulatedPowerCut:
                bench.cut_power()
        bench.world.disk.crash_after(1 << 40)
        bench.check()
        bench.forget_what_was_lost()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_at_any_disk_operation_loses_nothing_that_was_flushed(seed: int) -> None:
    scenario = Scenario(seed)
    for _ in range(CRASHES):
        scenario.crash()
        scenario.recover()
    scenario.append()
    scenario.bench.flush()
    scenario.bench.check()
