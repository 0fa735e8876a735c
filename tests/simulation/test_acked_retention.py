"""A power failure at any disk operation while acked retention removes settled records.

- Every record that a subscription needs is in the log, and every record in the log is the one that was written.
- No record returns after a finished removal, and the last sequence of every producer is known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace
from tests.unit.storage.compaction.compacted_log_harness import VisibleRecord
from tests.unit.storage.queue_log_harness import SMALL, QueueLogHarness

from headrace.testkit.disk import SimulatedPowerCut

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "150"))


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"settling {seed}")
        segment_bytes = self.random.choice((700, 2000, 6000))
        self.bench = QueueLogHarness(seed, replace(SMALL, segment_bytes=segment_bytes))
        self.written: list[VisibleRecord] = []
        self.idle: set[int] = set()  # offsets that no subscription needed at the last check
        self.dropped: set[int] = set()  # offsets that were removed after that

    def append(self) -> None:
        bench, random = self.bench, self.random
        values = [b"%d" % (len(self.written) + at) + b"." * random.choice((0, 10, 400)) for at in range(3)]
        values = values[: random.randint(1, 3)]
        offset = bench.put(
            *((None, value) for value in values),
            producer_id=random.choice((-1, -1, 1, 2)),
            compression=random.choice((0, 0, 3)),
        )
        self.written += [VisibleRecord(offset + at, None, value, bench.now_ms + at) for at, value in enumerate(values)]

    def settle(self) -> None:
        bench, random = self.bench, self.random
        for name in bench.settled:
            for _ in range(random.randint(0, 3)):
                first = random.randrange(bench.log.end_offset)
                bench.settle(name, (first, min(first + random.choice((0, 5, 40)), bench.log.end_offset - 1)))

    def enforce_retention(self) -> None:
        bench = self.bench
        bench.flush()
        self.idle.update({*range(bench.log.end_offset)}.difference(bench.needed))
        bench.enforce_retention(leads=self.random.random() < 0.5)
        there = set(bench.offsets)
        self.dropped.update(line.offset for line in self.written if line.offset not in there)

    def check(self) -> None:
        bench, log = self.bench, self.bench.log
        assert log.quarantined is None, log.quarantined
        assert bench.acks.quarantined is None
        assert bench.durable_end <= log.end_offset <= len(self.written)
        found = bench.lines(size_bytes_max=self.random.choice((1, 500, 1 << 20)))
        assert found == [self.written[line.offset] for line in found]
        there = {line.offset for line in found}
        assert not there & self.dropped
        assert {*range(log.end_offset)} - self.idle <= there
        assert log.size_bytes == sum(segment.size for segment in log.segments)
        for _ in range(5):
            offset = self.random.randint(log.start_offset, log.end_offset)
            behind = [line for line in bench.lines(offset) if line.offset >= offset]
            assert behind == [line for line in found if line.offset >= offset]

    def recover(self) -> None:
        bench = self.bench
        while True:  # the power may fail again during recovery
            bench.world.disk.crash_after(self.random.choice((2, 10, 30, 1 << 40)))
            try:
                bench.open()
                break
            except SimulatedPowerCut:
                bench.cut_power()
        bench.world.disk.crash_after(1 << 40)
        self.check()
        del self.written[bench.log.end_offset :]
        bench.durable_end = bench.log.flushed_offset
        bench.sequences.clear()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_at_any_disk_operation_loses_nothing_that_is_needed(seed: int) -> None:
    history = History(seed)
    bench, random = history.bench, history.random
    history.append()
    bench.flush()
    bench.create("a", *(["b"] if random.random() < 0.5 else []))
    for _ in range(3):
        for _ in range(random.randint(5, 40)):
            history.append()
            if random.random() < 0.05:
                bench.checkpoint()
        bench.roll()
        history.settle()
        bench.world.disk.crash_after(random.randint(0, 150))
        with suppress(SimulatedPowerCut):
            for _ in range(2):
                history.enforce_retention()
                history.append()
                bench.flush()
        if random.random() < 0.2 and bench.world.disk.alive:
            bench.kill()
        else:
            bench.cut_power()
        history.recover()
    bench.roll()
    for name in bench.settled:
        bench.settle(name, (1, bench.log.end_offset - 1))
    for _ in range(3):
        bench.enforce_retention()
    history.idle.update({*range(bench.log.end_offset)}.difference(bench.needed))
    history.check()
    assert len(bench.lines()) <= 2, "at least half of the segment with the last record is removed"
