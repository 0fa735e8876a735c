"""A simulated host with one data folder and one log, and a list that says what the log must hold."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

from headrace.machines.transactions.partition_transactions import AbortedTransaction
from headrace.model.errors import OffsetOutOfRange
from headrace.storage.config import LogConfig, StoreConfig
from headrace.storage.log.derived_state import DerivedState
from headrace.storage.log.log import ColdRead, Log
from headrace.storage.segments.scan import ReplayedBatch
from headrace.storage.store.log_store import LogStore, Opening, open_store
from headrace.storage.store.scrub import scrub_step
from headrace.testkit.world import World
from headrace.wire.batches.batch import BatchHeader, BatchRecord, build_batch, parse_header, read_records

T = TypeVar("T")

TOPIC = UUID(int=0xABCDEF)
DATA = "/data"
FOLDER = f"{DATA}/logs/{TOPIC.hex}-0"
FIRST_SEGMENT = f"{FOLDER}/{0:020d}.log"
QUIET = StoreConfig(scrub_bytes_per_second=0, reserve_bytes=0)
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


class NoDerivedState:
    """The state of a log from which nothing is derived."""

    def restore(self, snapshot: bytes) -> None:
        pass

    def replay(self, batch: ReplayedBatch) -> None:
        pass

    def snapshot(self) -> bytes:
        return b""

    def aborted(self, _start_offset: int, _end_offset: int) -> Sequence[AbortedTransaction]:
        return ()

    def producer_ids(self) -> frozenset[int]:
        return frozenset()

    def forget_aborted(self, markers: Sequence[int]) -> None:
        pass


NO_DERIVED_STATE: DerivedState = NoDerivedState()


def lead_alone(log: Log) -> None:
    """As the partition of a leader without followers does: what is flushed is committed."""
    log.enforces_retention = True
    log.committed_offset = log.compactable_offset = lambda: log.flushed_offset


async def create_log(store: LogStore, topic_id: UUID, partition: int, opening: Opening) -> Log:
    (log,) = await store.create_all([(topic_id, partition, opening)])
    return log


def make_batch(*values: bytes, timestamp_ms: int = 1000, **options: int) -> tuple[memoryview, BatchHeader]:
    records = [BatchRecord(value=value, timestamp_ms=timestamp_ms + at) for at, value in enumerate(values)]
    batch = memoryview(build_batch(records, **options))
    return batch, parse_header(batch)


class ReplayRecorder:
    """A derived state that shows whether every batch was replayed once and in order: offset and CRC of each."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def restore(self, snapshot: bytes) -> None:
        pairs = [pair.split(b":") for pair in snapshot.split()]
        self.seen = [(int(offset), int(crc)) for offset, crc in pairs]

    def replay(self, batch: ReplayedBatch) -> None:
        self.seen.append((batch.header.base_offset, batch.header.crc))

    def snapshot(self) -> bytes:
        return b" ".join(b"%d:%d" % pair for pair in self.seen)

    def aborted(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        return ()

    def producer_ids(self) -> frozenset[int]:
        return frozenset()

    def forget_aborted(self, markers: Sequence[int]) -> None:
        raise AssertionError("there are no transactions here")


class LogHarness:
    """Appends go to the log and to the model alike; `check` compares them."""

    def __init__(self, seed: int = 0, config: LogConfig = SMALL, store_config: StoreConfig = QUIET) -> None:
        self.world = World(seed)
        self.config = config
        self.store_config = store_config
        self.model: list[tuple[int, bytes]] = []  # (offset, value) of every record
        self.batches: list[BatchHeader] = []
        self.durable_end = 0  # what the log has promised to keep
        self.durable_start = 0  # what it has promised to have deleted
        self.state = ReplayRecorder()
        self.store: LogStore
        self.log: Log
        self.open()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work)

    def open(self) -> None:
        self.state = ReplayRecorder()
        self.store = self.run(open_store(self.world.disk, DATA, self.world.clock, self.store_config))
        opening = Opening(self.config, self.state)
        self.run(self.store.open_all(lambda *_: opening))
        self.log = self.run(create_log(self.store, TOPIC, 0, opening))
        lead_alone(self.log)
        self.log.on_flushed = self._flushed

    def _flushed(self, log: Log) -> None:
        self.durable_end = log.flushed_offset

    def append(self, *values: bytes, timestamp_ms: int = 1000, leader_epoch: int = 0, **options: int) -> int:
        batch, header = make_batch(*(values or (b"x" * 100,)), timestamp_ms=timestamp_ms, **options)
        offset = self.log.append(batch, header, leader_epoch)
        self.batches.append(parse_header(batch))
        self.state.replay(ReplayedBatch(self.batches[-1], None))
        self.model += [(offset + at, value) for at, value in enumerate(values or (b"x" * 100,))]
        return offset

    def flush(self) -> None:
        self.run(self.store.flusher.flush(self.log))

    def append_many(self, count: int) -> None:
        for number in range(count):
            self.append(b"%04d" % (len(self.model) + number) + b"." * 100)
        self.flush()

    def checkpoint(self) -> None:
        self.run(self.log.save_checkpoint())

    def scrub(self) -> None:
        while self.run(scrub_step(self.log)):
            pass

    def advance_start(self, offset: int) -> None:
        self.run(self.log.advance_start(offset))
        self.durable_start = max(self.durable_start, offset)

    def truncate(self, offset: int) -> None:
        batches = [base for base, _ in self.state.seen if base <= offset]
        promised, self.durable_end = self.durable_end, min([self.durable_end, offset, *batches[-1:]])
        try:
            self.run(self.log.truncate(offset))
        except OffsetOutOfRange:
            self.durable_end = promised
            raise
        self.durable_end = self.log.flushed_offset
        self._cut_model()

    # The end of the process, in three ways

    def stop(self) -> None:
        self.run(self.store.close(broker_epoch=7))
        self.world.reboot()

    def kill(self) -> None:
        self.world.reboot(keep_page_cache=True)

    def cut_power(self) -> None:
        self.world.reboot()

    # Looking

    def read(self, offset: int, size_bytes_max: int = 1 << 20, end_offset: int | None = None) -> bytes:
        found = self.log.read(offset, size_bytes_max, self.log.end_offset if end_offset is None else end_offset)
        if isinstance(found, ColdRead):
            return self.run(found.load())
        data = found.bytes()
        found.release()
        return data

    def records(self, offset: int | None = None, size_bytes_max: int = 1 << 20) -> list[tuple[int, bytes]]:
        """Every record that a consumer would get, from `offset` on."""
        offset = self.log.start_offset if offset is None else offset
        first, found = offset, []
        while offset < self.log.end_offset:
            batches = split(self.read(offset, size_bytes_max))
            assert batches, f"nothing at {offset}"
            for batch, header in batches:
                found += [(record.offset, record.value or b"") for record in read_records(batch, header, 1 << 20)]
                offset = header.next_offset
        return [record for record in found if record[0] >= first]

    def check(self) -> None:
        """The log is a prefix of what was appended, holds all that was promised, and the state goes with it."""
        log = self.log
        assert log.quarantined is None, log.quarantined
        assert self.durable_end <= log.flushed_offset <= log.end_offset <= len(self.model)
        assert self.durable_start <= log.start_offset <= log.flushed_offset
        assert self.records() == self.model[log.start_offset : log.end_offset]
        assert log.size_bytes == sum(segment.size for segment in log.segments)
        first = log.segments[0].base_offset
        batches = [batch for batch in self.batches if first <= batch.base_offset < log.end_offset]
        seen = [pair for pair in self.state.seen if pair[0] >= first]
        assert seen == [(batch.base_offset, batch.crc) for batch in batches]
        for batch in batches:
            if batch.base_offset >= log.start_offset:
                epoch = [epoch for epoch, start in log.epochs.entries() if start <= batch.base_offset][-1]
                assert epoch == batch.leader_epoch

    def _cut_model(self) -> None:
        del self.model[self.log.end_offset :]
        self.batches = [batch for batch in self.batches if batch.base_offset < self.log.end_offset]

    def forget_what_was_lost(self) -> None:
        """After a crash: what was not durable may be gone; from here on the log's end is the model's."""
        self._cut_model()
        self.durable_end = self.log.flushed_offset
        self.durable_start = self.log.start_offset


def split(data: bytes) -> list[tuple[memoryview, BatchHeader]]:
    """The batches of a fetch answer; they must be whole."""
    batches, position = [], 0
    while position < len(data):
        header = parse_header(data, position)
        batch = memoryview(data)[position : position + header.size_bytes]
        assert len(batch) == header.size_bytes, "a batch was cut"
        batches.append((batch, header))
        position += header.size_bytes
    return batches
