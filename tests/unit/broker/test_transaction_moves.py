"""What becomes of transactions whose coordinator is another broker from now on, and perhaps this one again."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest
from tests.unit.broker.house import House
from tests.unit.broker.leads import lead, resign
from tests.unit.broker.transacting import ID, NEWER, OLDER, Transactor, described, state, story

from headrace.broker.partition import Partition
from headrace.broker.state_log import StateLog, StoredMarker, StoredRecord, java_hash
from headrace.model.names import TRANSACTION_STATE

both = pytest.mark.parametrize("generation", [OLDER, NEWER])


def home(house: House, transactional_id: str = ID) -> Partition:
    topic = house.broker.catalogue.topic(TRANSACTION_STATE)
    partition = topic.local(java_hash(transactional_id) % topic.partition_count)
    assert partition is not None
    return partition


async def ready(house: House, transactional_id: str = ID, generation: int = NEWER) -> Transactor:
    if house.broker.catalogue.find("t") is None:
        await house.make_topic("t", 2)
    producer = Transactor(house, transactional_id, generation=generation)
    assert await producer.init() == 0
    return producer


def stop_markers(house: House, times: int = 1000) -> None:
    topic_id = house.broker.catalogue.topic("t").id
    for _ in range(times):
        house.host.disk.fail_next("append", f"*{topic_id.hex}-0*.log", errno.ENOSPC)


def read_slowly(patch: pytest.MonkeyPatch) -> None:
    load = StateLog.load

    async def load_slowly(self: StateLog, partition: Partition) -> AsyncIterator[StoredRecord | StoredMarker]:
        async for stored in load(self, partition):
            await asyncio.sleep(1)
            yield stored

    patch.setattr(StateLog, "load", load_slowly)


async def test_ids_of_a_partition_that_is_led_elsewhere_are_refused_and_forgotten(house: House) -> None:
    producer = await ready(house)
    other = await ready(house, "another")
    assert home(house) is not home(house, "another")
    await producer.send(b"x")
    resign(house, home(house))
    assert await producer.init() == 16
    assert await producer.commit() == 16
    assert await producer.add("t", 1) == 16
    assert (await described(house)).error_code == 16
    assert [transaction.transactional_id for transaction in house.broker.transactions] == ["another"]
    assert await other.send(b"y") == 0
    assert await other.commit() == 0


@both
async def test_whoever_waits_for_an_end_hears_that_the_coordinator_has_moved(house: House, generation: int) -> None:
    producer = await ready(house, generation=generation)
    assert await producer.send(b"x") == 0
    stop_markers(house)
    ending = producer.begin_end()
    await house.pass_time(1)
    began = house.host.clock.monotonic()
    resign(house, home(house))
    assert (await ending).error_code == 16
    assert house.host.clock.monotonic() - began < 0.1


async def test_a_coordinator_that_has_gone_tells_nobody_any_more(house: House) -> None:
    producer = await ready(house)
    assert await producer.send(b"x") == 0
    stop_markers(house, times=3)
    ending = producer.begin_end()
    await house.pass_time(0.05)
    resign(house, home(house))
    await ending
    end_offset = home(house).log.end_offset
    await house.pass_time(60)
    assert (await story(house)).open == [b"x"]
    assert home(house).log.end_offset == end_offset


@both
async def test_the_next_lead_ends_what_was_decided_in_the_last(house: House, generation: int) -> None:
    producer = await ready(house, generation=generation)
    assert await producer.send(b"x") == 0
    stop_markers(house, times=3)
    ending = producer.begin_end()
    await house.pass_time(0.05)
    resign(house, home(house))
    await ending
    lead(house, home(house))
    await house.pass_time(10)
    assert await state(house) == "CompleteCommit"
    assert await story(house) == ([b"x"], [], [], 1)
    (known,) = house.partition("t").state.producers.describe()
    assert known.coordinator_epoch == home(house).leader_epoch
    assert await producer.commit() == 0


async def test_requests_are_told_to_come_again_while_the_log_is_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await ready(house)
    assert await producer.send(b"x") == 0
    read_slowly(monkeypatch)
    resign(house, home(house))
    lead(house, home(house))
    assert await producer.init() == 14
    assert (await described(house)).error_code == 14
    assert await producer.produce(b"y") == 19
    await house.pass_time(10)
    assert await producer.produce(b"y") == 0
    assert await producer.commit() == 0
    assert (await story(house)).committed == [b"x", b"y"]


async def test_a_lead_that_ends_while_its_log_is_read_leaves_nothing_behind(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await ready(house)
    assert await producer.send(b"x") == 0
    read_slowly(monkeypatch)
    for _ in range(3):
        resign(house, home(house))
        lead(house, home(house))
        await house.pass_time(0.5)
    resign(house, home(house))
    await house.pass_time(30)
    assert not list(house.broker.transactions)
    assert await producer.commit() == 16


async def test_a_producer_id_that_comes_after_the_lead_has_ended_is_of_no_use(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(house)
    coordinator = house.broker.transactions

    async def slowly() -> int:
        await house.pass_time(1)
        return 4711

    monkeypatch.setattr(coordinator, "_next_producer_id", slowly)
    new = Transactor(house, ID + ID)
    initialising = house.world.loop.create_task(new.init())
    await house.pass_time(0.5)
    partition = home(house, ID + ID)
    end_offset = partition.log.end_offset
    resign(house, partition)
    lead(house, partition)
    assert await initialising == 16
    assert partition.log.end_offset == end_offset


async def test_a_transaction_that_times_out_is_aborted_by_its_present_coordinator_only(house: House) -> None:
    producer = Transactor(house)
    await house.make_topic("t")
    assert await producer.init(timeout_ms=1_000) == 0
    assert await producer.send(b"x") == 0
    resign(house, home(house))
    await house.pass_time(30)
    assert (await story(house)).open == [b"x"]
    lead(house, home(house))
    await house.pass_time(30)
    assert (await story(house)).aborted == [b"x"]
