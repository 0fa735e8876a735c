"""Every partition of a transaction gets its marker once, whichever broker leads it."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.separate_coordinator import LEADER, SeparateCoordinator
from tests.unit.broker.transactions.transaction_support import NEWER, OLDER, Transactor, partition_contents, state

from headrace.machines.replication.in_sync import IsrState
from headrace.model.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    RequestTimedOut,
    TransactionCoordinatorFenced,
)
from headrace.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def ready(
    simulated_broker: SimulatedBroker, patch: pytest.MonkeyPatch, generation: int = NEWER
) -> tuple[SeparateCoordinator, Transactor]:
    separate_coordinator = await SeparateCoordinator.build(simulated_broker, patch)
    producer = Transactor(separate_coordinator, generation=generation)
    assert await producer.init() == 0
    return separate_coordinator, producer


def fail(simulated_broker: SimulatedBroker, times: int) -> None:
    """The disk takes nothing more of partition 0 for a while."""
    topic_id = simulated_broker.broker.catalogue.topic("t").id
    for _ in range(times):
        simulated_broker.host.disk.fail_next("append", f"*{topic_id.hex}-0*.log", errno.ENOSPC)


# From the coordinator


@each_generation
async def test_one_request_has_the_markers_of_all_partitions_of_a_leader(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, generation)
    for partition in (0, 1):
        assert await producer.send(b"x", partition=partition) == 0
    assert await producer.commit() == 0
    (call,) = separate_coordinator.of_type(WriteTxnMarkersRequest)
    (marker,) = call.markers
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [0, 1])]
    assert (marker.producer_epoch, marker.transaction_version) == ((1, 2) if generation == NEWER else (0, 1))
    for partition in (0, 1):
        assert await partition_contents(separate_coordinator, partition=partition) == ([b"x"], [], [], 1)


async def test_an_unavailable_leader_gets_its_markers_when_it_is_back(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch)
    assert await producer.send(b"x") == 0
    separate_coordinator.silent.add(LEADER)
    assert await producer.commit() == ConcurrentTransactions.code
    assert await state(separate_coordinator) == "PrepareCommit"
    separate_coordinator.silent.clear()
    await simulated_broker.pass_time(6)
    assert await state(separate_coordinator) == "CompleteCommit"
    assert (await partition_contents(separate_coordinator)).committed == [b"x"]


async def test_a_failed_partition_causes_no_second_marker_in_the_others(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch)
    for partition in (0, 1):
        assert await producer.send(b"x", partition=partition) == 0
    fail(simulated_broker, times=2)
    assert await producer.commit() == 0
    first, *later = separate_coordinator.of_type(WriteTxnMarkersRequest)
    assert first.markers[0].topics[0].partition_indexes == [0, 1]
    assert [call.markers[0].topics[0].partition_indexes for call in later] == [[0], [0]]
    assert [(await partition_contents(separate_coordinator, partition=partition)).markers for partition in (0, 1)] == [
        1,
        1,
    ]


async def test_a_lost_response_causes_no_second_marker(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch)
    assert await producer.send(b"x") == 0
    call = separate_coordinator._call

    async def lose_the_first_answer(*args: Any, **kwargs: Any) -> Any:
        separate_coordinator.silent.clear()
        await call(*args, **kwargs)
        monkeypatch.setattr(separate_coordinator, "_call", call)
        separate_coordinator.silent.add(LEADER)
        return await call(*args, **kwargs)

    monkeypatch.setattr(separate_coordinator, "_call", lose_the_first_answer)
    ending = producer.begin_end()
    await simulated_broker.pass_time(0.05)
    separate_coordinator.silent.clear()
    assert producer.hear(await ending) == 0
    assert await partition_contents(separate_coordinator) == ([b"x"], [], [], 1)


async def test_a_deleted_topic_needs_no_marker(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch)
    assert await producer.send(b"x") == 0
    separate_coordinator.silent.add(LEADER)
    ending = producer.begin_end()
    await simulated_broker.pass_time(1)
    await separate_coordinator.coordinator.delete_topic("t")
    assert producer.hear(await ending) == 0
    assert await state(separate_coordinator) == "CompleteCommit"


# To the leader


async def mark(
    simulated_broker: SimulatedBroker, producer: Transactor, epoch: int, *, version: int, coordinator_epoch: int = 0
) -> int:
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )
    response = await simulated_broker.send(WriteTxnMarkersRequest(markers=[marker]), 2)
    ((result,),) = [topic.partitions for topic in response.markers[0].topics]
    return int(result.error_code)


async def test_a_marker_that_comes_twice_is_written_once(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, OLDER)
    assert await producer.send(b"x") == 0
    for _ in range(2):
        assert await mark(simulated_broker, producer, producer.epoch, version=1) == 0
    assert await partition_contents(separate_coordinator) == ([b"x"], [], [], 1)


async def test_a_delayed_marker_does_not_end_the_next_transaction(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch)
    assert await producer.send(b"x") == 0
    assert await producer.abort() == 0
    assert await producer.send(b"y") == 0
    assert await mark(simulated_broker, producer, producer.epoch, version=2) == InvalidProducerEpoch.code
    assert await partition_contents(separate_coordinator) == ([], [b"x"], [b"y"], 1)
    assert await producer.commit() == 0
    assert await mark(simulated_broker, producer, producer.epoch, version=2) == 0
    assert await partition_contents(separate_coordinator) == ([b"y"], [b"x"], [], 2)


async def test_a_marker_of_a_former_coordinator_is_rejected(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, OLDER)
    assert await producer.send(b"x") == 0
    assert await mark(simulated_broker, producer, producer.epoch, version=1, coordinator_epoch=5) == 0
    assert await producer.send(b"y") == 0
    assert (
        await mark(simulated_broker, producer, producer.epoch, version=1, coordinator_epoch=4)
        == TransactionCoordinatorFenced.code
    )
    assert await partition_contents(separate_coordinator) == ([b"x"], [], [b"y"], 1)


async def test_a_marker_is_acknowledged_when_it_is_committed(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate_coordinator, producer = await ready(simulated_broker, monkeypatch, OLDER)
    assert await producer.send(b"x") == 0
    with monkeypatch.context() as few:
        few.setattr(IsrState, "has_min_isr", lambda *_: False)
        assert await mark(simulated_broker, producer, producer.epoch, version=1) == RequestTimedOut.code
    assert (simulated_broker.partition("t").log.flushed_offset, simulated_broker.partition("t").last_stable_offset) == (
        2,
        0,
    )
    await produce(simulated_broker, "t", b"moves the high watermark")
    assert await mark(simulated_broker, producer, producer.epoch, version=1) == 0
    assert simulated_broker.partition("t").last_stable_offset == 3
    assert (await partition_contents(separate_coordinator)).markers == 1
