"""Every loop over a log makes progress or ends, whatever the log looks like: gaps, short segments, open transactions.

The log is written by a random script. Then every loop of the broker runs over it, with a limit on the number of reads:
a loop without progress fails at once instead of freezing the test. The records that the loops found are
compared with the batches in the segment files.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.broker_requests import fetch_request, fetched_partitions, offsets_and_values, send
from tests.unit.broker.queues.queue_support import ACK, CREATE, SubscriptionMember, alter, configure, leased_records
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import NEWER, Transactor

from headrace.broker.coordination.state_log import StateLog, read_batches
from headrace.broker.delays.delay_target import DelayTarget
from headrace.broker.delays.delayed_log import DelayedLog
from headrace.broker.partition import Partition, is_aborted
from headrace.broker.queues import acks_log, dead_letters
from headrace.machines.queues.settled_offsets import new_bitmap
from headrace.model.message_headers import DEDUP_ID
from headrace.storage.compaction.cleaner import CleaningPlan, SegmentToClean
from headrace.storage.compaction.compaction import SettledBitmap
from headrace.storage.log.log import ColdRead, Log, LogSlice
from headrace.storage.segments.scan import headers
from headrace.testkit.world import World
from headrace.wire.batches.batch import BatchHeader, BatchRecord, build_batch, read_records
from headrace.wire.messages.queues import SettleItem

TOPIC = "jobs"
PRODUCERS = ("a", "b")
READ_COMMITTED = "read_committed"
SLACKS = ",".join(str(900 - 100 * priority) for priority in range(10))
MODES: dict[str, dict[str, str]] = {
    "plain": {},
    "keys": {"headrace_key_concurrency": "100"},
    "filter": {"headrace_filter": "key not like 'z%'"},
    "priorities": {"headrace_priority_slack_ms": SLACKS},
}

sizes = st.sampled_from([10, 300, 1900])
actions = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 4), sizes),
    st.tuples(st.just("send"), st.sampled_from(PRODUCERS), sizes),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.sets(st.integers(0, 40)), st.integers(0, 0xFF)),
    st.tuples(st.just("trim"), st.integers(0, 40)),
)
Action = tuple[Any, ...]


class Stored(NamedTuple):
    header: BatchHeader
    offsets: list[int]


class Script:
    """Writes the log, action by action. An action that is not possible at its time is skipped."""

    def __init__(self, simulated_broker: SimulatedBroker) -> None:
        self._broker = simulated_broker
        self._producers = {name: Transactor(simulated_broker, name, generation=NEWER) for name in PRODUCERS}
        self._is_open = dict.fromkeys(PRODUCERS, False)

    async def begin(self) -> None:
        await self._broker.create_topic(
            TOPIC, segment_bytes="2000", index_interval_bytes="200", dedup_window_ms="60000"
        )
        for producer in self._producers.values():
            assert await producer.init(timeout_ms=900_000) == 0

    async def run(self, action: Action) -> None:
        await getattr(self, action[0])(*action[1:])

    async def produce(self, count: int, size: int) -> None:
        number = self._broker.partition(TOPIC).log.end_offset
        records = [
            BatchRecord(None, b"." * size, [(DEDUP_ID, b"%d" % (number + at))], timestamp_ms=1000 + at)
            for at in range(count)
        ]
        assert (await send(self._broker, TOPIC, build_batch(records))).error_code == 0

    async def send(self, name: str, size: int) -> None:
        assert await self._producers[name].send(b"." * size, TOPIC) == 0
        self._is_open[name] = True

    async def end(self, name: str, commits: bool) -> None:
        if self._is_open[name]:
            assert await self._producers[name].end(commit=commits) == 0
            self._is_open[name] = False
            await self._broker.pass_time(0.1)

    async def roll(self) -> None:
        log = self._broker.partition(TOPIC).log
        if log.active.size:
            log.roll()

    async def clean(self, kept: set[int], mask: int) -> None:
        """Remove all messages but some from some of the cleanable segments."""
        partition = self._broker.partition(TOPIC)
        log = partition.log
        bound = min(log.flushed_offset, partition.last_stable_offset)
        chosen = [
            SegmentToClean(segment, following.base_offset, segment.size)
            for at, (segment, following) in enumerate(pairwise(log.segments))
            if log.start_offset < following.base_offset <= bound and mask >> at % 8 & 1
        ]
        if chosen:
            above = new_bitmap()
            above.update(set(range(log.end_offset)) - kept)
            plan = CleaningPlan(chosen, settled=SettledBitmap(0, above.serialize()))
            cleaning = self._broker.broker.store.cleaner.carry_out(log, lambda _: None if plan.is_outdated else plan)
            await self._broker.host.start(cleaning, "clean")

    async def trim(self, offset: int) -> None:
        partition = self._broker.partition(TOPIC)
        if partition.log.start_offset < offset <= min(partition.log.flushed_offset, partition.high_watermark):
            await self._broker.host.start(partition.log.advance_start(offset), "trim")


def stored(log: Log) -> Iterator[Stored]:
    """The batches in the segment files, found without `Log.read`."""
    for segment in log.segments:
        if segment.size:
            file = segment.open()
            for position, header in headers(file, 0, segment.size, segment.gaps):
                data = memoryview(file.pread(header.size_bytes, position))
                records = [] if header.is_control else read_records(data, header, 1 << 24)
                offsets = [record.offset for record in records if record.offset >= log.start_offset]
                yield Stored(header, offsets)


@contextmanager
def limited_reads(partition: Partition) -> Iterator[None]:
    """Allow one read for each offset, and as many cold reads."""
    left = 3 * (partition.log.end_offset - partition.log.start_offset) + 20
    read, load = Log.read, ColdRead.load

    def counted_read(log: Log, offset: int, size_bytes_max: int, end_offset: int) -> LogSlice | ColdRead:
        nonlocal left
        left -= log is partition.log
        assert left >= 0, f"a loop makes no progress at {offset}"
        return read(log, offset, size_bytes_max, end_offset)

    async def counted_load(cold: ColdRead) -> bytes:
        nonlocal left
        left -= 1
        assert left >= 0, f"a loop makes no progress at {cold.next_offset}"
        return await load(cold)

    with patch.object(Log, "read", counted_read), patch.object(ColdRead, "load", counted_load):
        yield


class Loops:
    """Every loop over the log of a partition; each checks that it found all messages."""

    def __init__(self, simulated_broker: SimulatedBroker) -> None:
        self._broker = simulated_broker
        self._partition = simulated_broker.partition(TOPIC)
        self._stored = list(stored(self._partition.log))

    def visible(self, *, committed_only: bool) -> list[int]:
        end_offset = self._partition.last_stable_offset if committed_only else self._partition.high_watermark
        aborted = self._partition.state.aborted(0, end_offset) if committed_only else ()
        return [
            offset
            for header, offsets in self._stored
            if not is_aborted(header, aborted)
            for offset in offsets
            if offset < end_offset
        ]

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with limited_reads(self._partition):
            return await self._broker.host.start(work, "loop")

    async def read(self, end_offset: int, size_bytes_max: int) -> None:
        expected = [offset for _, offsets in self._stored for offset in offsets if offset < end_offset]

        async def loop() -> list[int]:
            found: list[int] = []
            offset = self._partition.log.start_offset
            while offset < end_offset:
                start = offset
                data, offset = await read_batches(self._partition, start, end_offset, size_bytes_max)
                found += [at for at, _ in offsets_and_values(data) if at >= start and at in expected]
                assert all(at < end_offset for at, _ in offsets_and_values(data)), "a read stays below its end"
            return found

        assert await self.run(loop()) == expected

    async def load_state(self) -> None:
        """Groups, transactions, acks, dedup ids, delayed messages and their releases."""
        simulated_broker, partition = self._broker, self._partition
        clock = simulated_broker.host.clock

        async def load_coordinator() -> None:
            async for _ in StateLog(simulated_broker.broker.catalogue, clock, TOPIC).load(partition):
                pass

        await self.run(load_coordinator())
        with patch.object(acks_log, "log"):  # the records are not valid events
            await self.run(acks_log.AcksLog(partition, clock, lambda _: (), lambda _: None).history([0]))
        await self.run(DelayTarget(partition)._present(0))
        delayed = await self.run(DelayedLog(partition, clock).messages(range(partition.high_watermark)))
        assert delayed.keys() >= set(self.visible(committed_only=False))
        await self.run(partition.log.offset_for_timestamp(1002))
        simulated_broker.broker.dedup.begin(partition)
        with limited_reads(partition):
            await simulated_broker.pass_time(1)
        assert simulated_broker.broker.dedup._shards[partition].is_loaded

    async def dead_letters(self) -> None:
        expected = set(self.visible(committed_only=False))
        for offset in range(self._partition.high_watermark):
            found = await self.run(dead_letters.read_message(self._partition, offset))
            assert (found is not None) == (offset in expected), offset

    async def fetch(self, isolation_level: int) -> None:
        """Fetch to the end like a consumer: an empty response is allowed only at a gap that reaches to the end."""
        end_offset = self._partition.last_stable_offset if isolation_level else self._partition.high_watermark

        async def loop() -> list[int]:
            found: list[int] = []
            offset = self._partition.log.start_offset
            while offset < end_offset:
                request = fetch_request({(TOPIC, 0): offset}, partition_max_bytes=500)
                request.isolation_level = isolation_level
                data = fetched_partitions(await self._broker.send(request, 11))[TOPIC, 0]
                assert data.error_code == 0
                records = [at for at, _ in offsets_and_values(data.records) if at >= offset]
                ends = [header.next_offset for header, _ in self._stored if header.next_offset > offset]
                if not data.records:
                    assert not [end for end in ends if end <= end_offset]
                    break
                found += records
                offset = max(offset + 1, *(at + 1 for at in records)) if records else next(iter(ends))
            return found

        with limited_reads(self._partition):
            found = set(await loop())
        assert found >= set(self.visible(committed_only=bool(isolation_level)))

    async def lease(self, mode: str, isolation: str) -> None:
        name = f"{mode}-{isolation}"
        await configure(self._broker, name, share_isolation_level=isolation, **MODES[mode])
        assert (await alter(self._broker, CREATE, subscription=name)).error_code == 0
        member = SubscriptionMember(self._broker, subscription=name)
        found: list[int] = []
        with limited_reads(self._partition):
            while responses := await member.request_leases():
                (response,) = responses
                found += [one.offset for one in leased_records([response])]
                items = [SettleItem(one.first, one.last, one.attempt, ACK) for one in response.leased]
                assert (await member.settle_items(items, epoch=response.lease_epoch)).refused == []
        assert sorted(found) == self.visible(committed_only=isolation == READ_COMMITTED)


def with_simulated_broker(scenario: Callable[[SimulatedBroker], Coroutine[Any, Any, None]]) -> None:
    world = World(seed=1)
    try:
        simulated_broker = SimulatedBroker(world)
        world.run(simulated_broker.open())
        world.run(scenario(simulated_broker))
        world.run(simulated_broker.pass_time(1))  # for requests in progress
        simulated_broker.check()
    finally:
        world.close()


@given(script=st.lists(actions, min_size=5, max_size=25), is_cold=st.booleans(), mode=st.sampled_from(sorted(MODES)))
@settings(max_examples=40)
def test_every_loop_over_a_log_makes_progress_or_ends(script: list[Action], is_cold: bool, mode: str) -> None:
    async def scenario(simulated_broker: SimulatedBroker) -> None:
        writer = Script(simulated_broker)
        await writer.begin()
        for action in script:
            await writer.run(action)
        if is_cold:
            await simulated_broker.restart()
            simulated_broker.host.disk.cold_chance = 1.0
        loops = Loops(simulated_broker)
        partition = simulated_broker.partition(TOPIC)
        for end_offset in (partition.last_stable_offset, partition.high_watermark):
            for size_bytes_max in (1, 700, 1 << 20):
                await loops.read(end_offset, size_bytes_max)
        await loops.load_state()
        await loops.dead_letters()
        for isolation_level in (0, 1):
            await loops.fetch(isolation_level)
        for isolation in ("read_uncommitted", READ_COMMITTED):
            await loops.lease(mode, isolation)

    with_simulated_broker(scenario)
