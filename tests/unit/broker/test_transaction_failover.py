"""Transactions in a cluster of three: they end alike everywhere, whichever broker goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.unit.broker.transacting import ID, NEWER, OLDER, Story, Transactor, state, story
from tests.unit.broker.trio import ClusterHouse, Trio, in_trio

from headrace.broker.state_log import java_hash
from headrace.broker.transaction_markers import TransactionMarkers
from headrace.model.errors import NotCoordinator, NotLeader
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from headrace.wire.messages.describe_transactions import DescribeTransactionsRequest
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.produce import ProduceRequest

PARTITIONS = 3
NOT_NOW = {6, 7, 14, 15, 16, 19, 51}

Leave = Callable[[ClusterHouse], Awaitable[None]]


@pytest.fixture
def trio(request: pytest.FixtureRequest) -> Iterator[Trio]:
    trio = Trio(getattr(request, "param", 1))
    trio.world.run(trio.open())
    yield trio
    trio.world.run(asyncio.sleep(1))  # whatever is under way shall end
    for house in trio:
        house.check()
    trio.world.close()


async def hand_over(house: ClusterHouse) -> None:
    await house.host.start(house.broker.cluster.hand_over(), "hand over")


async def kill(house: ClusterHouse) -> None:
    house.kill()


async def cut_power(house: ClusterHouse) -> None:
    house.kill(keep_page_cache=False)


both = pytest.mark.parametrize("generation", [OLDER, NEWER])
ways = pytest.mark.parametrize("leave", [hand_over, kill, cut_power])


class Routed:
    """Asks the broker that is to be asked: the leader of the partition, or the coordinator of the id."""

    def __init__(self, trio: Trio) -> None:
        self.trio = trio

    async def ask(self, request: object, version: int) -> Any:
        while True:
            try:
                asked = self.begin(request, version)
            except LookupError:
                await asyncio.sleep(0.1)  # nobody has taken over yet
                continue
            # What runs on a broker that is killed does not even end.
            await asyncio.wait([asked], timeout=15)
            if asked.done():
                return asked.result()

    def begin(self, request: object, version: int) -> asyncio.Task[Any]:
        return self._house(request).begin(request, version)

    def leader(self, topic: str, index: int) -> ClusterHouse:
        leader = next(iter(self.trio)).broker.catalogue.leader_node(topic, index)
        if leader is None or not self.trio.houses[leader.node_id].is_open:
            raise LookupError(f"nobody leads {topic}-{index}")
        return self.trio.houses[leader.node_id]

    def coordinator(self) -> ClusterHouse:
        return self._coordinator_of(ID)

    def _coordinator_of(self, transactional_id: str) -> ClusterHouse:
        topic = next(iter(self.trio)).broker.catalogue.topic(TRANSACTION_STATE)
        return self.leader(TRANSACTION_STATE, java_hash(transactional_id) % topic.partition_count)

    def _house(self, request: Any) -> ClusterHouse:
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


async def ready(trio: Trio, generation: int = NEWER) -> tuple[Routed, Transactor]:
    routed = Routed(trio)
    house = next(iter(trio))
    while (await house.ask(FindCoordinatorRequest(key=ID, key_type=1), 3)).error_code:
        await house.pass_time(0.1)
    placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    create = house.broker.catalogue.create("t", len(placed), {"min.insync.replicas": "2"}, assignment=placed)
    await house.host.start(create, "create")
    producer = Transactor(routed, generation=generation)
    assert await done(producer.init) == 0
    for topic in ("t", TRANSACTION_STATE):
        await trio.until_in_sync(topic)
    return routed, producer


async def stories(routed: Routed) -> list[Story]:
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
    return [await story(routed, partition=index) for index in range(PARTITIONS)]


async def send_to_all(producer: Transactor, value: bytes) -> None:
    for index in range(PARTITIONS):
        assert await done(lambda index=index: producer.send(value, partition=index)) == 0  # type: ignore[misc]


@both
@in_trio
async def test_a_transaction_ends_alike_on_all_brokers(trio: Trio, generation: int) -> None:
    routed, producer = await ready(trio, generation)
    assert len({routed.leader("t", index) for index in range(PARTITIONS)}) == 3
    for value, commit in ((b"a", True), (b"b", False)):
        await send_to_all(producer, value)
        assert await producer.end(commit=commit) == 0
        assert await stories(routed) == [([b"a"], [] if commit else [b"b"], [], 1 if commit else 2)] * PARTITIONS


@both
@ways
@in_trio
async def test_an_open_transaction_goes_on_under_the_next_coordinator(
    trio: Trio, leave: Leave, generation: int
) -> None:
    routed, producer = await ready(trio, generation)
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
@in_trio
async def test_what_was_decided_is_told_by_the_next_coordinator(
    trio: Trio, leave: Leave, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed, producer = await ready(trio, generation)
    await send_to_all(producer, b"a")
    first = routed.coordinator()
    with monkeypatch.context() as mute:
        tell_none = asyncio.Event().wait
        mute.setattr(TransactionMarkers, "tell_all", lambda *_: tell_none())
        ending = producer.begin_end()
        await asyncio.sleep(0.5)
        assert await state(routed) == "PrepareCommit"
    await leave(first)
    while await state(routed) != "CompleteCommit":
        await asyncio.sleep(0.1)
    assert routed.coordinator() is not first
    assert await stories(routed) == [([b"a"], [], [], 1)] * PARTITIONS
    if leave is hand_over:
        assert (await ending).error_code == NotCoordinator.code
    assert await done(producer.commit) == 0
    assert await stories(routed) == [([b"a"], [], [], 1)] * PARTITIONS


@both
@ways
@in_trio
async def test_a_partition_hears_of_the_end_from_its_next_leader(trio: Trio, leave: Leave, generation: int) -> None:
    routed, producer = await ready(trio, generation)
    await send_to_all(producer, b"a")
    index = next(index for index in range(PARTITIONS) if routed.leader("t", index) is not routed.coordinator())
    await leave(routed.leader("t", index))
    assert await done(producer.commit) == 0
    assert await stories(routed) == [([b"a"], [], [], 1)] * PARTITIONS
    assert await done(lambda: producer.send(b"b", partition=index)) == 0
    assert await done(producer.commit) == 0
    assert (await stories(routed))[index].committed == [b"a", b"b"]


@pytest.mark.parametrize("trio", range(1, 4), indirect=True)
@both
@in_trio
async def test_a_coordinator_that_dies_in_the_midst_of_an_end_leaves_no_half_of_it(trio: Trio, generation: int) -> None:
    """At whatever moment: the producer asks again, and what it hears is true everywhere."""
    routed, producer = await ready(trio, generation)
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
            await trio.until_in_sync(topic)


class Told(NamedTuple):
    """What a producer heard of one transaction; `is_commit` is None if it heard nothing for certain."""

    value: bytes
    partitions: set[int]
    is_commit: bool | None


async def transact(routed: Routed, name: str, generation: int, random: Random, until: float) -> list[Told]:
    """One transaction after the other; whatever fails for good is given up, and the producer begins anew."""
    book: list[Told] = []
    producer = Transactor(routed, name, generation=generation)
    init = partial(producer.init, timeout_ms=15_000)
    assert await done(init) == 0
    while routed.trio.world.loop.time() < until:
        value = f"{name} {len(book)}".encode()
        partitions = set(random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)))
        is_commit = random.random() < 0.7
        codes = [await done(partial(producer.send, value, partition=index)) for index in sorted(partitions)]
        if any(codes):
            book.append(Told(value, partitions, is_commit=False))
            assert await done(init) == 0
        elif await done(partial(producer.end, commit=is_commit)) == 0:
            book.append(Told(value, partitions, is_commit))
        else:
            book.append(Told(value, partitions, None if is_commit else False))
            assert await done(init) == 0
        await asyncio.sleep(random.uniform(0.0, 1.0))
    return book


async def trouble(trio: Trio, random: Random, until: float) -> None:
    while trio.world.loop.time() < until:
        victim = random.choice(list(trio))
        victim.kill(keep_page_cache=random.random() < 0.5)
        await asyncio.sleep(random.uniform(0.1, 8.0))
        await victim.open()
        await asyncio.sleep(random.uniform(0.1, 4.0))


@pytest.mark.parametrize("trio", range(1, 3), indirect=True)
@in_trio
async def test_transactions_are_whole_whatever_happens_to_the_brokers(trio: Trio) -> None:
    random = Random(trio.world.seed)
    routed, _ = await ready(trio)
    until = trio.world.loop.time() + 30.0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(trouble(trio, random, until))
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
