"""The log of a coordinator: the leader reads all of it, and serves nothing before all of it is committed."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.leadership_changes import become_follower, become_leader
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.coordination.state_log import StateLog, StoredRecord, java_hash
from headrace.broker.partition import Partition
from headrace.machines.replication.in_sync import IsrState
from headrace.model.errors import CoordinatorNotAvailable, NotCoordinator

TOPIC = "__state"
OWNER = "owner"


async def ready(simulated_broker: SimulatedBroker, replication: int = 3) -> tuple[StateLog, Partition]:
    log = StateLog(simulated_broker.broker.catalogue, simulated_broker.host.clock, TOPIC)
    await simulated_broker.host.start(log.ensure_topic(4, {}, replication), "ensure")
    return log, log.partition_of(OWNER)


async def read(log: StateLog, partition: Partition) -> list[bytes]:
    return [stored.key async for stored in log.load(partition) if isinstance(stored, StoredRecord)]


async def test_an_owner_has_one_partition_whichever_broker_leads_it(simulated_broker: SimulatedBroker) -> None:
    log, partition = await ready(simulated_broker)
    assert (partition.topic, partition.index) == (TOPIC, java_hash(OWNER) % 4)
    assert log.partition_index_of(OWNER) == partition.index
    become_follower(simulated_broker, partition)
    assert log.partition_index_of(OWNER) == partition.index
    with pytest.raises(NotCoordinator):
        log.partition_of(OWNER)


async def test_no_broker_coordinates_before_the_topic_exists(simulated_broker: SimulatedBroker) -> None:
    log = StateLog(simulated_broker.broker.catalogue, simulated_broker.host.clock, TOPIC)
    with pytest.raises(NotCoordinator):
        log.partition_index_of(OWNER)
    with pytest.raises(NotCoordinator):
        log.partition_of(OWNER)


async def test_the_topic_has_as_many_replicas_as_possible(simulated_broker: SimulatedBroker) -> None:
    await ready(simulated_broker)
    topic = simulated_broker.broker.catalogue.topic(TOPIC)
    assert topic.partition_records[0].replicas == (1,)
    assert (topic.config.min_insync_replicas, topic.config.compacts) == (1, True)


async def test_the_next_leader_loads_appended_records(simulated_broker: SimulatedBroker) -> None:
    log, partition = await ready(simulated_broker)
    for key in (b"a", b"b"):
        await log.committed(OWNER, log.append(OWNER, [(key, b"x")]))
    become_follower(simulated_broker, partition)
    become_leader(simulated_broker, partition)
    assert await simulated_broker.host.start(read(log, partition), "read") == [b"a", b"b"]


async def test_a_load_reads_all_records_and_ends_when_they_are_committed(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, partition = await ready(simulated_broker)
    log.append(OWNER, [(b"a", b"x")])
    monkeypatch.setattr(IsrState, "has_min_isr", lambda *_: False)
    reading = asyncio.create_task(read(log, partition))
    await simulated_broker.pass_time(60)
    assert (partition.high_watermark, partition.log.flushed_offset, reading.done()) == (0, 1, False)
    monkeypatch.undo()
    log.append(OWNER, [(b"b", b"x")])
    assert await reading == [b"a"]


async def test_a_lost_leadership_ends_the_load(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, partition = await ready(simulated_broker)
    log.append(OWNER, [(b"a", b"x")])
    monkeypatch.setattr(IsrState, "has_min_isr", lambda *_: False)
    reading = asyncio.create_task(read(log, partition))
    await simulated_broker.pass_time(1)
    become_follower(simulated_broker, partition)
    become_leader(simulated_broker, partition)
    with pytest.raises(NotCoordinator):
        await reading


async def test_a_leader_whose_session_was_in_doubt_continues_the_load(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, partition = await ready(simulated_broker)
    log.append(OWNER, [(b"a", b"x")])
    monkeypatch.setattr(IsrState, "has_min_isr", lambda *_: False)
    reading = asyncio.create_task(read(log, partition))
    await simulated_broker.pass_time(1)
    partition.suspend_writes(True)
    partition.suspend_writes(False)
    await simulated_broker.pass_time(1)
    monkeypatch.undo()
    log.append(OWNER, [(b"b", b"x")])
    assert await reading == [b"a"]
    assert not log.is_damaged(partition)


async def test_a_follower_neither_appends_nor_waits(simulated_broker: SimulatedBroker) -> None:
    log, partition = await ready(simulated_broker)
    end_offset = log.append(OWNER, [(b"a", b"x")])
    waiting = asyncio.create_task(log.committed(OWNER, end_offset))
    await simulated_broker.run_ready_tasks(1)
    become_follower(simulated_broker, partition)
    with pytest.raises(NotCoordinator):
        await waiting
    with pytest.raises(NotCoordinator):
        log.append(OWNER, [(b"b", b"x")])


async def test_an_append_that_cannot_be_committed_now_is_rejected(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, partition = await ready(simulated_broker)
    monkeypatch.setattr(IsrState, "has_min_isr", lambda *_: False)
    with pytest.raises(CoordinatorNotAvailable):
        log.append(OWNER, [(b"a", b"x")])
    assert partition.log.end_offset == 0
