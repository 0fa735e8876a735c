"""Transactions in a cluster of three: all partitions get the same outcome, whichever broker fails meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.unit.broker.simulated_cluster import (
    Leave,
    SimulatedCluster,
    SimulatedClusterBroker,
    cut_power,
    in_simulated_cluster,
    kill,
    transfer_leadership,
)
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
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    RequestTimedOut,
)
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.fetch import FetchRequest
from headrace.wire.messages.groups import FindCoordinatorRequest
from headrace.wire.messages.produce import ProduceRequest
from headrace.wire.messages.transactions import AddPartitionsToTxnRequest, DescribeTransactionsRequest

PARTITIONS = 3
RETRIABLE_CODES = {
    NotLeader.code,
    RequestTimedOut.code,
    CoordinatorLoading.code,
    CoordinatorNotAvailable.code,
    NotCoordinator.code,
    NotEnoughReplicas.code,
    ConcurrentTransactions.code,
}

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])
each_way_to_leave = pytest.mark.parametrize("leave", [transfer_leadership, kill, cut_power])


class RequestRouter:
    """Sends each request to the leader of its partition, or to the coordinator of its transactional id."""

    def __init__(self, simulated_cluster: SimulatedCluster) -> None:
        self.simulated_cluster = simulated_cluster

    async def send(self, request: object, version: int) -> Any:
        while True:
            try:
                response = self.begin_send(request, version)
            except LookupError:
                await asyncio.sleep(0.1)  # no broker has taken over yet
                continue
            # A task on a broker that is killed never ends.
            await asyncio.wait([response], timeout=15)
            if response.done():
                return response.result()

    def begin_send(self, request: object, version: int) -> asyncio.Task[Any]:
        return self._broker_for(request).begin_send(request, version)

    def leader(self, topic: str, index: int) -> SimulatedClusterBroker:
        leader = next(self.simulated_cluster.up).broker.catalogue.leader_node(topic, index)
        if leader is None or not self.simulated_cluster[leader.node_id].is_open:
            raise LookupError(f"no live broker leads {topic}-{index}")
        return self.simulated_cluster[leader.node_id]

    def coordinator(self) -> SimulatedClusterBroker:
        return self._coordinator_of(ID)

    def _coordinator_of(self, transactional_id: str) -> SimulatedClusterBroker:
        topic = next(self.simulated_cluster.up).broker.catalogue.topic(TRANSACTION_STATE)
        return self.leader(TRANSACTION_STATE, java_hash(transactional_id) % topic.partition_count)

    def _broker_for(self, request: Any) -> SimulatedClusterBroker:
        if isinstance(request, ProduceRequest):
            return self.leader(request.topic_data[0].name, request.topic_data[0].partition_data[0].index)
        if isinstance(request, FetchRequest):
            return self.leader(request.topics[0].topic, request.topics[0].partitions[0].partition)
        if isinstance(request, DescribeTransactionsRequest):
            return self._coordinator_of(request.transactional_ids[0])
        if isinstance(request, AddPartitionsToTxnRequest):
            return self._coordinator_of(request.v3_and_below_transactional_id)
        return self._coordinator_of(request.transactional_id)


async def retry(attempt: Callable[[], Awaitable[int]]) -> int:
    """Repeat the attempt until its error code is not retriable."""
    while (code := await attempt()) in RETRIABLE_CODES:
        await asyncio.sleep(0.1)
    return code


async def create_topic_and_producer(
    simulated_cluster: SimulatedCluster, generation: int = NEWER
) -> tuple[RequestRouter, Transactor]:
    router = RequestRouter(simulated_cluster)
    simulated_broker = next(simulated_cluster.up)
    while (await simulated_broker.send(FindCoordinatorRequest(key=ID, key_type=1), 3)).error_code:
        await simulated_broker.pass_time(0.1)
    placed = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    create = simulated_broker.broker.catalogue.create("t", len(placed), {"min.insync.replicas": "2"}, assignment=placed)
    await simulated_broker.host.start(create, "create")
    producer = Transactor(router, generation=generation)
    assert await retry(producer.init) == 0
    for topic in ("t", TRANSACTION_STATE):
        await simulated_cluster.wait_until_all_in_sync(topic)
    return router, producer


async def committed_contents(router: RequestRouter) -> list[PartitionContents]:
    """Return what each partition holds, once its leader knows that its everywhere log is committed."""
    for index in range(PARTITIONS):
        while True:
            try:
                partition = router.leader("t", index).partition("t", index)
                if partition.high_watermark == partition.log.end_offset:
                    break
            except (LookupError, NotLeader):
                pass
            await asyncio.sleep(0.1)
    return [await partition_contents(router, partition=index) for index in range(PARTITIONS)]


async def send_to_all(producer: Transactor, value: bytes) -> None:
    for index in range(PARTITIONS):
        assert await retry(lambda index=index: producer.send(value, partition=index)) == 0  # type: ignore[misc]


@each_generation
@in_simulated_cluster()
async def test_all_brokers_get_the_same_outcome(simulated_cluster: SimulatedCluster, generation: int) -> None:
    router, producer = await create_topic_and_producer(simulated_cluster, generation)
    assert len({router.leader("t", index) for index in range(PARTITIONS)}) == 3
    for value, commit in ((b"a", True), (b"b", False)):
        await send_to_all(producer, value)
        assert await producer.end(commit=commit) == 0
        assert (
            await committed_contents(router)
            == [([b"a"], [] if commit else [b"b"], [], 1 if commit else 2)] * PARTITIONS
        )


@each_generation
@each_way_to_leave
@in_simulated_cluster()
async def test_an_open_transaction_continues_with_the_next_coordinator(
    simulated_cluster: SimulatedCluster, leave: Leave, generation: int
) -> None:
    router, producer = await create_topic_and_producer(simulated_cluster, generation)
    await send_to_all(producer, b"a")
    first = router.coordinator()
    await leave(first)
    await send_to_all(producer, b"b")
    assert await retry(producer.commit) == 0
    assert router.coordinator() is not first
    assert await committed_contents(router) == [([b"a", b"b"], [], [], 1)] * PARTITIONS
    await send_to_all(producer, b"c")
    assert await retry(producer.abort) == 0
    assert [contents.aborted for contents in await committed_contents(router)] == [[b"c"]] * PARTITIONS


@each_generation
@each_way_to_leave
@in_simulated_cluster()
async def test_the_next_coordinator_completes_a_decided_transaction(
    simulated_cluster: SimulatedCluster, leave: Leave, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, producer = await create_topic_and_producer(simulated_cluster, generation)
    await send_to_all(producer, b"a")
    first = router.coordinator()
    with monkeypatch.context() as patch:
        block_forever = asyncio.Event().wait
        patch.setattr(TransactionMarkers, "write_all", lambda *_: block_forever())
        ending = producer.begin_end()
        await asyncio.sleep(0.5)
        assert await state(router) == "PrepareCommit"
    await leave(first)
    while await state(router) != "CompleteCommit":
        await asyncio.sleep(0.1)
    assert router.coordinator() is not first
    assert await committed_contents(router) == [([b"a"], [], [], 1)] * PARTITIONS
    if leave is transfer_leadership:
        assert (await ending).error_code == NotCoordinator.code
    assert await retry(producer.commit) == 0
    assert await committed_contents(router) == [([b"a"], [], [], 1)] * PARTITIONS


@each_generation
@each_way_to_leave
@in_simulated_cluster()
async def test_the_next_leader_of_a_partition_gets_the_marker(
    simulated_cluster: SimulatedCluster, leave: Leave, generation: int
) -> None:
    router, producer = await create_topic_and_producer(simulated_cluster, generation)
    await send_to_all(producer, b"a")
    index = next(index for index in range(PARTITIONS) if router.leader("t", index) is not router.coordinator())
    await leave(router.leader("t", index))
    assert await retry(producer.commit) == 0
    assert await committed_contents(router) == [([b"a"], [], [], 1)] * PARTITIONS
    assert await retry(lambda: producer.send(b"b", partition=index)) == 0
    assert await retry(producer.commit) == 0
    assert (await committed_contents(router))[index].committed == [b"a", b"b"]


@each_generation
@in_simulated_cluster(seeds=range(1, 4))
async def test_a_coordinator_crash_during_the_end_of_a_transaction_keeps_it_atomic(
    simulated_cluster: SimulatedCluster, generation: int
) -> None:
    """The producer retries until it gets an outcome, which must then hold in every partition."""
    router, producer = await create_topic_and_producer(simulated_cluster, generation)
    values = []
    for moment in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        values.append(b"%g" % moment)
        await send_to_all(producer, values[-1])
        victim = router.coordinator()
        producer.begin_end()
        await asyncio.sleep(moment)
        victim.kill()
        assert await retry(producer.commit) == 0
        assert await committed_contents(router) == [(values, [], [], len(values))] * PARTITIONS
        await victim.open()
        for topic in ("t", TRANSACTION_STATE):
            await simulated_cluster.wait_until_all_in_sync(topic)


class TransactionOutcome(NamedTuple):
    """The outcome of one transaction as its producer knows it; `is_commit` is None if it is uncertain."""

    value: bytes
    partitions: set[int]
    is_commit: bool | None


async def transact(
    router: RequestRouter, name: str, generation: int, random: Random, until: float
) -> list[TransactionOutcome]:
    """Run one transaction after the other. After an error that is not retriable, the producer reinitializes."""
    outcomes: list[TransactionOutcome] = []
    producer = Transactor(router, name, generation=generation)
    init = partial(producer.init, timeout_ms=15_000)
    assert await retry(init) == 0
    while router.simulated_cluster.world.loop.time() < until:
        value = f"{name} {len(outcomes)}".encode()
        partitions = set(random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)))
        is_commit = random.random() < 0.7
        codes = [await retry(partial(producer.send, value, partition=index)) for index in sorted(partitions)]
        if any(codes):
            outcomes.append(TransactionOutcome(value, partitions, is_commit=False))
            assert await retry(init) == 0
        elif await retry(partial(producer.end, commit=is_commit)) == 0:
            outcomes.append(TransactionOutcome(value, partitions, is_commit))
        else:
            outcomes.append(TransactionOutcome(value, partitions, None if is_commit else False))
            assert await retry(init) == 0
        await asyncio.sleep(random.uniform(0.0, 1.0))
    return outcomes


async def kill_brokers(simulated_cluster: SimulatedCluster, random: Random, until: float) -> None:
    while simulated_cluster.world.loop.time() < until:
        victim = random.choice(list(simulated_cluster.up))
        victim.kill(keep_page_cache=random.random() < 0.5)
        await asyncio.sleep(random.uniform(0.1, 8.0))
        await victim.open()
        await asyncio.sleep(random.uniform(0.1, 4.0))


@in_simulated_cluster(seeds=range(1, 3))
async def test_transactions_are_atomic_under_broker_faults(simulated_cluster: SimulatedCluster) -> None:
    random = Random(simulated_cluster.world.seed)
    router, _ = await create_topic_and_producer(simulated_cluster)
    until = simulated_cluster.world.loop.time() + 30.0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill_brokers(simulated_cluster, random, until))
        tasks_of_producers = [
            tasks.create_task(transact(router, f"{generation} {number}", generation, random, until))
            for generation in (OLDER, NEWER)
            for number in range(2)
        ]
    found = [Counter(one.committed) for one in await committed_contents(router)]
    for outcome in (outcome for task in tasks_of_producers for outcome in task.result()):
        counts = [found[index][outcome.value] for index in range(PARTITIONS)]
        everywhere = [int(index in outcome.partitions) for index in range(PARTITIONS)]
        expected = {True: [everywhere], False: [[0] * PARTITIONS], None: [everywhere, [0] * PARTITIONS]}
        assert counts in expected[outcome.is_commit], (outcome, counts)
    await asyncio.sleep(40)  # abandoned transactions time out by then
    for index in range(PARTITIONS):
        partition = router.leader("t", index).partition("t", index)
        assert partition.last_stable_offset == partition.high_watermark == partition.log.end_offset
