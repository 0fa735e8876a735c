"""A simulated host with one log that is copied from a leader, gaps and all, and a list that says what it must hold."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, NamedTuple, TypeVar

from tests.unit.storage.log_harness import DATA, FOLDER, QUIET, SMALL, TOPIC, ReplayRecorder, create_log, split

from headrace.storage.config import LogConfig
from headrace.storage.log.follower_batches import check_follower_batches
from headrace.storage.log.log import ColdRead, Log
from headrace.storage.store.log_store import LogStore, Opening, open_store
from headrace.storage.store.scrub import scrub_step
from headrace.testkit.world import World
from headrace.wire.batches.batch import BatchHeader, BatchRecord, build_batch, parse_header

__all__ = ["FOLDER", "Batch", "FollowerLogHarness", "make_batch"]

T = TypeVar("T")


class Batch(NamedTuple):
    """A batch of the leader."""

    header: BatchHeader
    data: bytes


def make_batch(base_offset: int, *values: bytes, epoch: int = 0) -> Batch:
    records = [BatchRecord(value=value, timestamp_ms=1000 + base_offset) for value in values or (b"x" * 100,)]
    data = bytes(build_batch(records, leader_epoch=epoch))
    data = base_offset.to_bytes(8, "big") + data[8:]
    return Batch(parse_header(data), data)


class FollowerLogHarness:
    """What is copied goes to the log and to `held` alike; `check` compares them."""

    def __init__(self, seed: int = 0, config: LogConfig = SMALL) -> None:
        self.random = Random(f"replica {seed}")
        self.world = World(seed)
        self.config = config
        self.start_offset = 0
        self.held: list[Batch] = []
        self.durable_end = 0
        self.cutting_at = 1 << 62  # batches flushed above it may be removed
        self.state = ReplayRecorder()
        self.store: LogStore
        self.log: Log
        self.open()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work)

    def open(self) -> None:
        self.state = ReplayRecorder()
        self.store = self.run(open_store(self.world.disk, DATA, self.world.clock, QUIET))
        opening = Opening(self.config, self.state)
        self.run(self.store.open_all(lambda *_: opening))
        self.log = self.run(create_log(self.store, TOPIC, 0, opening))
        self.log.on_flushed = self._flushed

    def _flushed(self, log: Log) -> None:
        self.durable_end = max(self.durable_end, min(log.flushed_offset, self.cutting_at))

    # What the leader does

    def next_batches(self, count: int) -> list[Batch]:
        """Batches that may come next, now and then with a gap before them, or of a new leader."""
        offset, epoch, batches = self.log.end_offset, max(self.log.epochs.latest, 0), list[Batch]()
        for _ in range(count):
            offset += self.random.choice((0, 0, 0, 1, 7, 1000))
            epoch += self.random.random() < 0.05
            sizes = self.random.choices((0, 10, 300, 1500), k=self.random.randint(1, 3))
            values = [b"%d" % self.random.getrandbits(60) + b"." * size for size in sizes]
            batches.append(make_batch(offset, *values, epoch=epoch))
            offset = batches[-1].header.next_offset
        return batches

    # What the follower does

    def copy(self, *batches: Batch, rest: bytes = b"") -> None:
        data = b"".join(batch.data for batch in batches) + rest
        end_offset = self.log.append_as_follower(check_follower_batches(memoryview(data)))
        self.held += batches
        assert end_offset == self.log.end_offset == batches[-1].header.next_offset

    def flush(self) -> None:
        self.run(self.store.flusher.flush(self.log))

    def checkpoint(self) -> None:
        self.run(self.log.save_checkpoint())

    def truncate(self, offset: int) -> None:
        kept = [batch for batch in self.held if batch.header.next_offset <= offset]
        end_offset = kept[-1].header.next_offset if kept else self.start_offset
        self.durable_end, self.cutting_at = min(self.durable_end, end_offset), end_offset
        self.run(self.log.truncate(offset))
        self.held, self.cutting_at = kept, 1 << 62
        assert self.log.end_offset == end_offset

    def reset(self, offset: int) -> None:
        self.run(self.log.reset(offset))
        self.start_offset = self.durable_end = offset
        self.held = []

    def scrub(self) -> None:
        while self.run(scrub_step(self.log)):
            pass

    def kill(self) -> None:
        self.world.reboot(keep_page_cache=True)

    def cut_power(self) -> None:
        self.world.reboot()

    # Looking

    def batches(self, size_bytes_max: int = 1 << 20) -> list[bytes]:
        offset, found = self.log.start_offset, list[bytes]()
        while offset < self.log.end_offset:
            read = self.log.read(offset, size_bytes_max, self.log.end_offset)
            data = self.run(read.load()) if isinstance(read, ColdRead) else read.bytes()
            assert data, f"nothing at {offset}"
            for batch, header in split(data):
                found.append(bytes(batch))
                offset = header.next_offset
            if not isinstance(read, ColdRead):
                read.release()
        return found

    def check(self) -> None:
        """The log is a prefix of what was copied, byte for byte, holds all that was promised, and the rest fits."""
        log = self.log
        assert log.quarantined is None, log.quarantined
        assert self.durable_end <= log.flushed_offset <= log.end_offset
        assert log.start_offset == self.start_offset
        held = [batch for batch in self.held if batch.header.next_offset <= log.end_offset]
        assert log.end_offset == (held[-1].header.next_offset if held else self.start_offset)
        assert self.batches(self.random.choice((1, 700, 1 << 20))) == [batch.data for batch in held]
        assert self.state.seen == [(batch.header.base_offset, batch.header.crc) for batch in held]
        for batch in held:
            assert log.epochs.epoch_at(batch.header.base_offset) == batch.header.leader_epoch
            assert self.run(log.offset_for_timestamp(batch.header.max_timestamp)) is not None
        assert log.size_bytes == sum(segment.size for segment in log.segments)

    def forget_what_was_lost(self) -> None:
        self.held = [batch for batch in self.held if batch.header.next_offset <= self.log.end_offset]
        self.durable_end, self.cutting_at = self.log.flushed_offset, 1 << 62
