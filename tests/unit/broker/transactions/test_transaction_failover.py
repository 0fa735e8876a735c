"""Transactions in a cluster of three: they end alike everywhere, whichever broker goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.unit.broker.three_brokers import SimulatedClusterBroker, ThreeBrokers, with_three_brokers
from tests.unit.broker.transactions.transaction_support import (
    ID,
    NEWER,
    OLDER,
    PartitionContents,
    Transactor,
    partition_contents,
    state,
)

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.model.errors import NotCoordinator, NotLeader
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.produce import ProduceRequest
from headrace.wire.messages.transactions import AddPartitionsToTxnRequest, DescribeTransactionsRequest

PARTITIONS = 3
NOT_NOW = {6, 7, 14, 15, 16, 19, 51}

Leave = Callable[[SimulatedClusterBroker], Awaitable[None]]


@pytest.fixture
def three_brokers(request: pytest.FixtureRequest) -> Iterator[ThreeBrokers]:
    three_brokers = ThreeBrokers(getattr(request, "param", 1))
    three_brokers.world.run(three_brokers.open())
    yield three_brokers
    three_brokers.world.run(asyncio.sleep(1))  # whatever is under way shall end
    for simulated_broker in three_brokers:
        simulated_broker.check()
    three_brokers.world.close()


async def transfer_leadership(simulated_broker: SimulatedClusterBroker) -> None:
    await simulated_broker.host.start(simulated_broker.broker.cluster.transfer_leadership(), "hand over")


async def kill(simulated_broker: SimulatedClusterBroker) -> None:
    simulated_broker.kill()


async def cut_power(simulated_broker: SimulatedClusterBroker) -> None:
    simulated_broker.kill(keep_page_cache=False)


both = pytest.mark.parametrize("generation", [OLDER, NEWER])
ways = pytest.mark.parametrize("leave", [transfer_leadership, kill, cut_power])


class Routed:
    """Asks the broker that is to be asked: the leader of the partition, or the coordinator of the id."""

    def __init__(self, three_brokers: ThreeBrokers) -> None:
        self.three_brokers = three_brokers

    async def ask(self, request: object, version: int) -> Any:
        while True:
            try:
                requested = self.begin(request, version)
            except LookupError:
                await asyncio.sleep(0.1)  # nobody has taken over yet
                continue
            # What runs on a broker that is killed does not even end.
            await asyncio.wait([requested], timeout=15)
            if requested.done():
                return requested.result()

    def begin(self, request: object, version: int) -> asyncio.Task[Any]:
        return self._house(request).begin(request, version)

    def leader(self, topic: str, index: int) -> SimulatedClusterBroker:
        leader = next(iter(self.three_brokers)).broker.catalogue.leader_node(topic, index)
        if leader is None or not self.three_brokers.simulated_brokers[leader.node_id].is_open:
            raise LookupError(f"nobody leads {topic}-{index}")
        return self.three_brokers.simulated_brokers[leader.node_id]

    def coordinator(self) -> SimulatedClusterBroker:
        return self._coordinator_of(ID)

    def _coordinator_of(self, transactional_id: str) -> SimulatedClusterBroker:
        topic = next(iter(self.three_brokers)).broker.catalogue.topic(TRANSACTION_STATE)
        return self.leader(TRANSACTION_STATE, java_hash(transactional_id) % topic.partition_count)

    def _house(self, request: Any) -> SimulatedClusterBroker:
        if isinstance(request, ProduceRequest):
            return self.leader(request.topic_data[0].name, request.topic_data[0].partition_data[0].index)
        if isinstance(request, FetchRequest):
            return self.leader(request.topics[0].topic, request.topics[0].partitions[0].partition)
        if isinstance(request, DescribeTransactionsRequest):
            return self._coordinator_of(request.transactional_ids[0])
        if isinstance(request, AddPartitionsToTxnRequest):
            return self._coordinator_of(request.v3_and_below_transactional_id)
        return self._coordinator_of(request.transactional_id)


async def done(attempt: Callable[[], Awaitable[int]]) -> int:
    """The answer that is not "ask again"."""
    while (code := await attempt()) in NOT_NOW:
        await asyncio.sleep(0.1)
    return code


async def ready(three_brokers: ThreeBrokers, generation: int = NEWER) -> tuple[Routed, Transactor]:
    routed = Routed(three_brokers)
    simulated_broker = next(iter(three_brokers))
    while (await simulated_broker.ask(FindCoordinatorRequest(key=ID, key_type=1), 3)).error_code:
        await simulated_broker.pass_time(0.1)
    placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    create = simulated_broker.broker.catalogue.create("t", len(placed), {"min.insync.replicas": "2"}, assignment=placed)
    await simulated_broker.host.start(create, "create")
    producer = Transactor(routed, generation=generation)
    assert await done(producer.init) == 0
    for topic in ("t", TRANSACTION_STATE):
        await three_brokers.until_in_sync(topic)
    return routed, producer


async def stories(routed: Routed) -> list[PartitionContents]:
    """What the partitions hold, once their leaders know how much of it is committed."""
    for index in range(PARTITIONS):
        while True:
            try:
                partition = routed.leader("t", index).partition("t", index)
                if partition.high_watermark == partition.log.end_offset:
                    break
            except (LookupError, NotLeader):
                pass
            await asyncio.sleep(0.1)
    return [await partition_contents(routed, partition=index) for index in range(PARTITIONS)]


async def send_to_all(producer: Transactor, value: bytes) -> None:
    for index in range(PARTITIONS):
        assert await done(lambda index=index: producer.send(value, partition=index)) == 0  # type: ignore[misc]


@both
@with_three_brokers
async def test_all_brokers_get_the_same_outcome(three_brokers: ThreeBrokers, generation: int) -> None:
    routed, producer = await ready(three_brokers, generation)
    assert len({routed.leader("t", index) for index in range(PARTITIONS)}) == 3
    for value, commit in ((b"a", True), (b"b", False)):
        await send_to_all(producer, value)
        assert await producer.end(commit=commit) == 0
        assert await stories(routed) == [([b"a"], [] if commit else [b"b"], [], 1 if commit else 2)] * PARTITIONS


@both
@ways
@with_three_brokers
async def test_an_open_transaction_continues_with_the_next_coordinator(
    three_brokers: ThreeBrokers, leave: Leave, generation: int
) -> None:
    routed, producer = await ready(three_brokers, generation)
    await send_to_all(producer, b"a")
    first = routed.coordinator()
    await leave(first)
    await send_to_all(producer, b"b")
    assert await done(producer.commit) == 0
    assert routed.coordinator() is not first
    assert await stories(routed) == [([b"a", b"b"], [], [], 1)] * PARTITIONS
    await send_to_all(producer, b"c")
    assert await done(producer.abort) == 0
    assert [told.aborted for told in await stories(routed)] == [[b"c"]] * PARTITIONS


@both
@ways
@with_three_brokers
async def test_the_next_coordinator_completes_a_decided_transaction(
    three_brokers: ThreeBrokers, leave: Leave, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed, producer = await ready(three_brokers, generation)
    await send_to_all(producer, b"a")
    first = routed.coordinator()
    with monkeypatch.context() as mute:
        tell_none = asyncio.Event().wait
        mute.setattr(TransactionMarkers, "write_all", lambda *_: tell_none())
        ending = producer.begin_end()
        await asyncio.sleep(0.5)
        assert await state(routed) == "PrepareCommit"
    await leave(first)
    while await state(routed) != "CompleteCommit":
        await asyncio.sleep(0.1)
    assert routed.coordinator() is not first
    assert await stories(routed) == [([b"a"], [], [], 1)] * PARTITIONS
    if leave is transfer_leadership:
        assert (await ending).error_code == NotCoordinator.code
    assert await done(producer.commit) == 0
    assert await stories(routed) == [([b"a"], [], [], 1)] * PARTITIONS


@both
@ways
@with_three_brokers
async def test_the_next_leader_of_a_partition_gets_the_marker(
    three_brokers: ThreeBrokers, leave: Leave, generation: int
) -> None:
    routed, producer = await ready(three_brokers, generation)
    await send_to_all(producer, b"a")
    index = next(index for index in range(PARTITIONS) if routed.leader("t", index) is not routed.coordinator())
    await leave(routed.leader("t", index))
    assert await done(producer.commit) == 0
    assert await stories(routed) == [([b"a"], [], [], 1)] * PARTITIONS
    assert await done(lambda: producer.send(b"b", partition=index)) == 0
    assert await done(producer.commit) == 0
    assert (await stories(routed))[index].committed == [b"a", b"b"]


@pytest.mark.parametrize("three_brokers", range(1, 4), indirect=True)
@both
@with_three_brokers
async def test_a_coordinator_crash_during_an_end_leaves_no_half_of_it(
    three_brokers: ThreeBrokers, generation: int
) -> None:
    """At whatever moment: the producer asks again, and what it hears is true everywhere."""
    routed, producer = await ready(three_brokers, generation)
    values = []
    for moment in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        values.append(b"%g" % moment)
        await send_to_all(producer, values[-1])
        victim = routed.coordinator()
        producer.begin_end()
        await asyncio.sleep(moment)
        victim.kill()
        assert await done(producer.commit) == 0
        assert await stories(routed) == [(values, [], [], len(values))] * PARTITIONS
        await victim.open()
        for topic in ("t", TRANSACTION_STATE):
            await three_brokers.until_in_sync(topic)


class PartitionEnd(NamedTuple):
    """What a producer heard of one transaction; `is_commit` is None if it heard nothing for certain."""

    value: bytes
    partitions: set[int]
    is_commit: bool | None


async def transact(routed: Routed, name: str, generation: int, random: Random, until: float) -> list[PartitionEnd]:
    """One transaction after the other; whatever fails for good is given up, and the producer begins anew."""
    book: list[PartitionEnd] = []
    producer = Transactor(routed, name, generation=generation)
    init = partial(producer.init, timeout_ms=15_000)
    assert await done(init) == 0
    while routed.three_brokers.world.loop.time() < until:
        value = f"{name} {len(book)}".encode()
        partitions = set(random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)))
        is_commit = random.random() < 0.7
        codes = [await done(partial(producer.send, value, partition=index)) for index in sorted(partitions)]
        if any(codes):
            book.append(PartitionEnd(value, partitions, is_commit=False))
            assert await done(init) == 0
        elif await done(partial(producer.end, commit=is_commit)) == 0:
            book.append(PartitionEnd(value, partitions, is_commit))
        else:
            book.append(PartitionEnd(value, partitions, None if is_commit else False))
            assert await done(init) == 0
        await asyncio.sleep(random.uniform(0.0, 1.0))
    return book


async def trouble(three_brokers: ThreeBrokers, random: Random, until: float) -> None:
    while three_brokers.world.loop.time() < until:
        victim = random.choice(list(three_brokers))
        victim.kill(keep_page_cache=random.random() < 0.5)
        await asyncio.sleep(random.uniform(0.1, 8.0))
        await victim.open()
        await asyncio.sleep(random.uniform(0.1, 4.0))


@pytest.mark.parametrize("three_brokers", range(1, 3), indirect=True)
@with_three_brokers
async def test_transactions_are_atomic_under_broker_faults(three_brokers: ThreeBrokers) -> None:
    random = Random(three_brokers.world.seed)
    routed, _ = await ready(three_brokers)
    until = three_brokers.world.loop.time() + 30.0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trouble(three_brokers, random, until))
        books = [
            tasks.create_task(transact(routed, f"{generation} {number}", generation, random, until))
            for generation in (OLDER, NEWER)
            for number in range(2)
        ]
    found = [Counter(one.committed) for one in await stories(routed)]
    for told in (told for book in books for told in book.result()):
        counts = [found[index][told.value] for index in range(PARTITIONS)]
        whole = [int(index in told.partitions) for index in range(PARTITIONS)]
        expected = {True: [whole], False: [[0] * PARTITIONS], None: [whole, [0] * PARTITIONS]}
        assert counts in expected[told.is_commit], (told, counts)
    await asyncio.sleep(40)  # what was given up has timed out by then
    for index in range(PARTITIONS):
        partition = routed.leader("t", index).partition("t", index)
        assert partition.last_stable_offset == partition.high_watermark == partition.log.end_offset
