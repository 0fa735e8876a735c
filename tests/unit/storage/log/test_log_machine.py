"""Any order of appending, flushing, cutting, crashing and reading, against a list (I21, I22)."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.storage.log_harness import LogHarness

from headrace.model.errors import OffsetOutOfRange
from headrace.runtime.disk import DiskFull
from headrace.storage.config import LogConfig
from headrace.storage.log.retention import delete_expired_segments

parts = st.integers(0, 100)  # per cent of a range


class LogMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1000), interval=st.sampled_from([0, 100, 4096]))
    def begin(self, seed: int, interval: int) -> None:
        self.bench = LogHarness(seed, LogConfig(segment_bytes=1500, index_interval_bytes=interval))
        self.epoch = 0

    @rule(sizes=st.lists(st.sampled_from([0, 5, 200, 2000]), min_size=1, max_size=3), new_epoch=st.booleans())
    def append(self, sizes: list[int], new_epoch: bool) -> None:
        self.epoch += new_epoch
        self.bench.append(*[b"v" * size for size in sizes], leader_epoch=self.epoch)

    @rule()
    def append_to_a_full_disk(self) -> None:
        room, self.bench.world.disk.capacity_bytes = self.bench.world.disk.capacity_bytes, 0
        with suppress(DiskFull):
            self.bench.append(b"no room")
        self.bench.world.disk.capacity_bytes = room

    @rule()
    def flush(self) -> None:
        self.bench.flush()

    @rule()
    def roll(self) -> None:
        if self.bench.log.active.size:
            self.bench.log.roll()

    @rule()
    def checkpoint(self) -> None:
        self.bench.checkpoint()

    @rule()
    def scrub(self) -> None:
        self.bench.scrub()

    @rule(part=parts)
    def delete_records(self, part: int) -> None:
        log = self.bench.log
        self.bench.advance_start(log.start_offset + (log.flushed_offset - log.start_offset) * part // 100)

    @rule(part=parts)
    def truncate(self, part: int) -> None:
        log = self.bench.log
        with suppress(OffsetOutOfRange):  # the first batch may begin below the start offset
            self.bench.truncate(log.start_offset + (log.end_offset - log.start_offset) * part // 100)

    @rule()
    def let_everything_expire(self) -> None:
        self.bench.run(delete_expired_segments(self.bench.log, 1 << 50))
        self.bench.durable_start = self.bench.log.start_offset

    @rule(part=parts, size_bytes_max=st.sampled_from([1, 300, 3000]))
    def read(self, part: int, size_bytes_max: int) -> None:
        log = self.bench.log
        offset = log.start_offset + (log.end_offset - log.start_offset) * part // 100
        assert self.bench.records(offset, size_bytes_max) == self.bench.model[offset:]

    @rule(how=st.sampled_from(["stop", "kill", "cut_power"]))
    def restart(self, how: str) -> None:
        end_offset = self.bench.log.end_offset
        getattr(self.bench, how)()
        self.bench.open()
        self.bench.check()
        if how != "cut_power":
            assert self.bench.log.end_offset == end_offset
        self.bench.forget_what_was_lost()

    @invariant()
    def the_log_holds_what_it_should(self) -> None:
        log = self.bench.log
        assert log.start_offset <= log.flushed_offset <= log.end_offset == len(self.bench.model)
        assert [segment.base_offset for segment in log.segments] == sorted(
            {segment.base_offset for segment in log.segments}
        )


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=30)
