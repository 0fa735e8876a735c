"""Transactions whose coordinator moves to another broker, and perhaps back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest
from tests.unit.broker.leadership_changes import become_follower, become_leader
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import (
    ID,
    NEWER,
    OLDER,
    Transactor,
    described,
    partition_contents,
    state,
)

from headrace.broker.coordination.state_log import StateLog, StoredRecord, StoredTransactionMarker, java_hash
from headrace.broker.partition import Partition
from headrace.model.errors import CoordinatorLoading, NotCoordinator, NotEnoughReplicas
from headrace.model.names import TRANSACTION_STATE

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


def home(simulated_broker: SimulatedBroker, transactional_id: str = ID) -> Partition:
    topic = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE)
    partition = topic.replicas.get(java_hash(transactional_id) % topic.partition_count)
    assert partition is not None
    return partition


async def ready(simulated_broker: SimulatedBroker, transactional_id: str = ID, generation: int = NEWER) -> Transactor:
    if simulated_broker.broker.catalogue.find("t") is None:
        await simulated_broker.create_topic("t", 2)
    producer = Transactor(simulated_broker, transactional_id, generation=generation)
    assert await producer.init() == 0
    return producer


def stop_markers(simulated_broker: SimulatedBroker, times: int = 1000) -> None:
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    for _ in range(times):
        simulated_broker.host.disk.fail_next("append", f"*{topic_id.hex}-0*.log", errno.ENOSPC)


def read_slowly(patch: pytest.MonkeyPatch) -> None:
    load = StateLog.load

    async def load_slowly(
        self: StateLog, partition: Partition
    ) -> AsyncIterator[StoredRecord | StoredTransactionMarker]:
        async for stored in load(self, partition):
            await asyncio.sleep(1)
            yield stored

    patch.setattr(StateLog, "load", load_slowly)


async def test_ids_of_a_partition_with_another_leader_are_rejected_and_dropped(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker)
    other = await ready(simulated_broker, "another")
    assert home(simulated_broker) is not home(simulated_broker, "another")
    await producer.send(b"x")
    become_follower(simulated_broker, home(simulated_broker))
    assert await producer.init() == NotCoordinator.code
    assert await producer.commit() == NotCoordinator.code
    assert await producer.add("t", 1) == NotCoordinator.code
    assert (await described(simulated_broker)).error_code == NotCoordinator.code
    assert [transaction.transactional_id for transaction in simulated_broker.broker.transactions.transactions()] == [
        "another"
    ]
    assert await other.send(b"y") == 0
    assert await other.commit() == 0


@each_generation
async def test_a_waiting_end_gets_not_coordinator_when_the_coordinator_moves(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    producer = await ready(simulated_broker, generation=generation)
    assert await producer.send(b"x") == 0
    stop_markers(simulated_broker)
    ending = producer.begin_end()
    await simulated_broker.pass_time(1)
    began = simulated_broker.host.clock.monotonic()
    become_follower(simulated_broker, home(simulated_broker))
    assert (await ending).error_code == NotCoordinator.code
    assert simulated_broker.host.clock.monotonic() - began < 0.1


async def test_a_former_coordinator_writes_no_more_markers(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    assert await producer.send(b"x") == 0
    stop_markers(simulated_broker, times=3)
    ending = producer.begin_end()
    await simulated_broker.pass_time(0.05)
    become_follower(simulated_broker, home(simulated_broker))
    await ending
    end_offset = home(simulated_broker).log.end_offset
    await simulated_broker.pass_time(60)
    assert (await partition_contents(simulated_broker)).open == [b"x"]
    assert home(simulated_broker).log.end_offset == end_offset


@each_generation
async def test_the_next_leadership_completes_decided_transactions(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    producer = await ready(simulated_broker, generation=generation)
    assert await producer.send(b"x") == 0
    stop_markers(simulated_broker, times=3)
    ending = producer.begin_end()
    await simulated_broker.pass_time(0.05)
    become_follower(simulated_broker, home(simulated_broker))
    await ending
    become_leader(simulated_broker, home(simulated_broker))
    await simulated_broker.pass_time(10)
    assert await state(simulated_broker) == "CompleteCommit"
    assert await partition_contents(simulated_broker) == ([b"x"], [], [], 1)
    (known,) = simulated_broker.partition("t").state.producers.describe()
    assert known.coordinator_epoch == home(simulated_broker).leader_epoch
    assert await producer.commit() == 0


async def test_requests_get_a_loading_error_while_the_log_is_loaded(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await ready(simulated_broker)
    assert await producer.send(b"x") == 0
    read_slowly(monkeypatch)
    become_follower(simulated_broker, home(simulated_broker))
    become_leader(simulated_broker, home(simulated_broker))
    assert await producer.init() == CoordinatorLoading.code
    assert (await described(simulated_broker)).error_code == CoordinatorLoading.code
    assert await producer.produce(b"y") == NotEnoughReplicas.code
    await simulated_broker.pass_time(10)
    assert await producer.produce(b"y") == 0
    assert await producer.commit() == 0
    assert (await partition_contents(simulated_broker)).committed == [b"x", b"y"]


async def test_a_leadership_that_ends_during_the_load_leaves_nothing_behind(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await ready(simulated_broker)
    assert await producer.send(b"x") == 0
    read_slowly(monkeypatch)
    for _ in range(3):
        become_follower(simulated_broker, home(simulated_broker))
        become_leader(simulated_broker, home(simulated_broker))
        await simulated_broker.pass_time(0.5)
    become_follower(simulated_broker, home(simulated_broker))
    await simulated_broker.pass_time(30)
    assert not list(simulated_broker.broker.transactions.transactions())
    assert await producer.commit() == NotCoordinator.code


async def test_a_producer_id_allocated_after_the_end_of_the_leadership_is_not_used(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(simulated_broker)
    coordinator = simulated_broker.broker.transactions

    async def slowly() -> int:
        await simulated_broker.pass_time(1)
        return 4711

    monkeypatch.setattr(coordinator, "_next_producer_id", slowly)
    new = Transactor(simulated_broker, ID + ID)
    initialising = simulated_broker.world.loop.create_task(new.init())
    await simulated_broker.pass_time(0.5)
    partition = home(simulated_broker, ID + ID)
    end_offset = partition.log.end_offset
    become_follower(simulated_broker, partition)
    become_leader(simulated_broker, partition)
    assert await initialising == NotCoordinator.code
    assert partition.log.end_offset == end_offset


async def test_only_the_current_coordinator_aborts_a_timed_out_transaction(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = Transactor(simulated_broker)
    await simulated_broker.create_topic("t")
    assert await producer.init(timeout_ms=1_000) == 0
    assert await producer.send(b"x") == 0
    become_follower(simulated_broker, home(simulated_broker))
    await simulated_broker.pass_time(30)
    assert (await partition_contents(simulated_broker)).open == [b"x"]
    become_leader(simulated_broker, home(simulated_broker))
    await simulated_broker.pass_time(30)
    assert (await partition_contents(simulated_broker)).aborted == [b"x"]
