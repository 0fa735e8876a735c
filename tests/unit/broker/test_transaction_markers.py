"""How partitions hear of the end of a transaction, wherever they are led, and that they hear it once."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.unit.broker.apart import LEADER, Apart
from tests.unit.broker.asking import produce
from tests.unit.broker.house import House
from tests.unit.broker.transacting import NEWER, OLDER, Transactor, state, story

from headrace.machines.in_sync import InSync
from headrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

both = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def ready(house: House, patch: pytest.MonkeyPatch, generation: int = NEWER) -> tuple[Apart, Transactor]:
    apart = await Apart.build(house, patch)
    producer = Transactor(apart, generation=generation)
    assert await producer.init() == 0
    return apart, producer


def fail(house: House, times: int) -> None:
    """The disk takes nothing more of partition 0 for a while."""
    topic_id = house.broker.catalogue.topic("t").id
    for _ in range(times):
        house.host.disk.fail_next("append", f"*{topic_id.hex}-0*.log", errno.ENOSPC)


# From the coordinator


@both
async def test_the_leader_of_several_partitions_is_told_of_them_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    apart, producer = await ready(house, monkeypatch, generation)
    for partition in (0, 1):
        assert await producer.send(b"x", partition=partition) == 0
    assert await producer.commit() == 0
    (call,) = apart.of_type(WriteTxnMarkersRequest)
    (marker,) = call.markers
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [0, 1])]
    assert (marker.producer_epoch, marker.transaction_version) == ((1, 2) if generation == NEWER else (0, 1))
    for partition in (0, 1):
        assert await story(apart, partition=partition) == ([b"x"], [], [], 1)


async def test_a_leader_that_is_away_is_told_when_it_is_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, producer = await ready(house, monkeypatch)
    assert await producer.send(b"x") == 0
    apart.silent.add(LEADER)
    assert await producer.commit() == 51
    assert await state(apart) == "PrepareCommit"
    apart.silent.clear()
    await house.pass_time(6)
    assert await state(apart) == "CompleteCommit"
    assert (await story(apart)).committed == [b"x"]


async def test_one_partition_that_refuses_does_not_make_the_others_hear_it_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, producer = await ready(house, monkeypatch)
    for partition in (0, 1):
        assert await producer.send(b"x", partition=partition) == 0
    fail(house, times=2)
    assert await producer.commit() == 0
    first, *later = apart.of_type(WriteTxnMarkersRequest)
    assert first.markers[0].topics[0].partition_indexes == [0, 1]
    assert [call.markers[0].topics[0].partition_indexes for call in later] == [[0], [0]]
    assert [(await story(apart, partition=partition)).markers for partition in (0, 1)] == [1, 1]


async def test_an_answer_that_is_lost_does_not_make_a_second_marker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, producer = await ready(house, monkeypatch)
    assert await producer.send(b"x") == 0
    call = apart._call

    async def lose_the_first_answer(*args: Any, **kwargs: Any) -> Any:
        apart.silent.clear()
        await call(*args, **kwargs)
        monkeypatch.setattr(apart, "_call", call)
        apart.silent.add(LEADER)
        return await call(*args, **kwargs)

    monkeypatch.setattr(apart, "_call", lose_the_first_answer)
    ending = producer.begin_end()
    await house.pass_time(0.05)
    apart.silent.clear()
    assert producer.hear(await ending) == 0
    assert await story(apart) == ([b"x"], [], [], 1)


async def test_a_topic_that_is_deleted_counts_as_told(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, producer = await ready(house, monkeypatch)
    assert await producer.send(b"x") == 0
    apart.silent.add(LEADER)
    ending = producer.begin_end()
    await house.pass_time(1)
    await apart.coordinator.delete_topic("t")
    assert producer.hear(await ending) == 0
    assert await state(apart) == "CompleteCommit"


# To the leader


async def mark(house: House, producer: Transactor, epoch: int, *, version: int, coordinator_epoch: int = 0) -> int:
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )
    response = await house.ask(WriteTxnMarkersRequest(markers=[marker]), 2)
    ((told,),) = [topic.partitions for topic in response.markers[0].topics]
    return int(told.error_code)


async def test_a_marker_that_comes_twice_is_written_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, producer = await ready(house, monkeypatch, OLDER)
    assert await producer.send(b"x") == 0
    for _ in range(2):
        assert await mark(house, producer, producer.epoch, version=1) == 0
    assert await story(apart) == ([b"x"], [], [], 1)


async def test_a_marker_that_was_under_way_for_long_does_not_end_the_next_transaction(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, producer = await ready(house, monkeypatch)
    assert await producer.send(b"x") == 0
    assert await producer.abort() == 0
    assert await producer.send(b"y") == 0
    assert await mark(house, producer, producer.epoch, version=2) == 47
    assert await story(apart) == ([], [b"x"], [b"y"], 1)
    assert await producer.commit() == 0
    assert await mark(house, producer, producer.epoch, version=2) == 0
    assert await story(apart) == ([b"y"], [b"x"], [], 2)


async def test_a_coordinator_that_was_replaced_is_not_heard(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, producer = await ready(house, monkeypatch, OLDER)
    assert await producer.send(b"x") == 0
    assert await mark(house, producer, producer.epoch, version=1, coordinator_epoch=5) == 0
    assert await producer.send(b"y") == 0
    assert await mark(house, producer, producer.epoch, version=1, coordinator_epoch=4) == 52
    assert await story(apart) == ([b"x"], [], [b"y"], 1)


async def test_a_marker_is_answered_when_it_is_committed(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, producer = await ready(house, monkeypatch, OLDER)
    assert await producer.send(b"x") == 0
    with monkeypatch.context() as few:
        few.setattr(InSync, "is_enough", lambda *_: False)
        assert await mark(house, producer, producer.epoch, version=1) == 7
    assert (house.partition("t").log.flushed_offset, house.partition("t").last_stable_offset) == (2, 0)
    await produce(house, "t", b"moves the high watermark")
    assert await mark(house, producer, producer.epoch, version=1) == 0
    assert house.partition("t").last_stable_offset == 3
    assert (await story(apart)).markers == 1
