"""What producers in transactions may write, and what readers of committed ones are shown."""

from __future__ import annotations

import pytest
from tests.unit.broker.asking import batch, fetch_request, fetched, only, produce, produce_request, values
from tests.unit.broker.house import House, Visit
from tests.unit.broker.transacting import ID, NEWER, OLDER, Transactor

from headrace.wire.batch import TRANSACTIONAL
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

both = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def fetch_committed(house: House, offset: int = 0, *, size: int = 1 << 20) -> tuple[list[bytes], list[int], int]:
    """Values as they lie in the log, first offsets of aborted transactions, last stable offset."""
    request = fetch_request({("t", 0): offset}, partition_max_bytes=size)
    request.isolation_level = 1
    data = fetched(await house.ask(request, 11))["t", 0]
    assert data.error_code == 0
    assert data.aborted_transactions is not None
    return values(data.records), [one.first_offset for one in data.aborted_transactions], data.last_stable_offset


@both
async def test_readers_of_committed_ones_stop_before_an_open_transaction(house: House, generation: int) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"before")
    one = Transactor(house, generation=generation)
    await one.init()
    assert await one.send(b"inside") == 0
    await produce(house, "t", b"after")
    assert await fetch_committed(house) == ([b"before"], [], 1)
    plain = fetched(await house.ask(fetch_request({("t", 0): 0}), 11))["t", 0]
    assert values(plain.records) == [b"before", b"inside", b"after"]
    assert (plain.high_watermark, plain.last_stable_offset, plain.aborted_transactions) == (3, 1, None)
    await one.commit()
    assert (await fetch_committed(house))[0][:3] == [b"before", b"inside", b"after"]


async def test_aborted_transactions_come_with_the_data_that_they_are_in_and_with_no_other(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house)
    await one.init()
    for value, commit in ((b"a", False), (b"b", True), (b"c", False)):
        await one.send(value)
        await one.end(commit=commit)
    assert (await fetch_committed(house))[1] == [0, 4]
    assert (await fetch_committed(house, size=1))[1] == [0]
    assert (await fetch_committed(house, 2, size=1))[1] == []
    assert (await fetch_committed(house, 4))[1] == [4]


async def test_a_waiting_reader_of_committed_ones_is_woken_by_the_end_of_the_transaction(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house)
    await one.init()
    await one.send(b"a")
    request = fetch_request({("t", 0): 0}, max_wait_ms=60_000)
    request.isolation_level = 1
    asking = house.begin(request, 11)
    await house.pass_time(1)
    assert not asking.done()
    await one.commit()
    assert values(fetched(await asking)["t", 0].records)[0] == b"a"


async def test_the_latest_offset_is_the_last_stable_one_for_readers_of_committed_ones(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"before")
    one = Transactor(house)
    await one.init()
    await one.send(b"inside")

    async def latest(isolation_level: int) -> int:
        asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            isolation_level=isolation_level, topics=[ListOffsetsTopic(name="t", partitions=[asked])]
        )
        answer = (await house.ask(request, 5)).topics[0].partitions[0]
        assert answer.error_code == 0
        return int(answer.offset)

    assert (await latest(0), await latest(1)) == (2, 1)


async def test_aborted_transactions_are_known_after_a_restart(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house)
    await one.init()
    await one.send(b"a")
    await one.abort()
    await one.send(b"b")
    before = await fetch_committed(house)
    assert before[1:] == ([0], 2)
    for stop in (house.restart, house.open):
        if stop == house.open:
            house.kill(keep_page_cache=False)
        await stop()
        await house.pass_time(1)
        assert await fetch_committed(house) == before


async def test_a_new_partition_holds_the_connection_until_it_is_part_of_the_transaction(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house)
    await one.init()
    visit = Visit()
    data = batch(b"a", producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=0, attributes=TRANSACTIONAL)
    request = produce_request({("t", 0): data})
    request.transactional_id = ID
    assert only(await house.ask(request, 12, visit)).error_code == 0
    assert visit.holds == [True, False]
    visit = Visit()
    assert only(await house.ask(request, 12, visit)).error_code == 0  # the same again: it is part by now
    assert visit.holds == []


async def test_a_producer_of_the_older_protocol_must_add_its_partitions(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house, generation=OLDER)
    await one.init()
    assert await one.produce(b"a") == 48


@both
async def test_a_producer_that_was_replaced_is_told_in_words_of_produce(house: House, generation: int) -> None:
    await house.make_topic("t")
    one, other = Transactor(house, generation=generation), Transactor(house, generation=generation)
    await one.init()
    await one.send(b"a")
    await other.init()
    assert await one.produce(b"b") == 47


async def test_a_transactional_batch_needs_an_id_and_a_producer(house: House) -> None:
    await house.make_topic("t")
    data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    assert only(await house.ask(produce_request({("t", 0): data}), 12)).error_code == 53
    request = produce_request({("t", 0): batch(b"a", attributes=TRANSACTIONAL)})
    request.transactional_id = ID
    assert only(await house.ask(request, 12)).error_code == 87
    request = produce_request({("t", 0): data})
    request.transactional_id = "nobody"
    assert only(await house.ask(request, 12)).error_code == 19
    await Transactor(house).init()
    assert only(await house.ask(request, 12)).error_code == 49


async def test_a_delayed_batch_of_the_newer_protocol_never_joins_the_next_transaction(house: House) -> None:
    await house.make_topic("t")
    one = Transactor(house)
    await one.init()
    delayed = batch(
        b"late", producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=0, attributes=TRANSACTIONAL
    )
    await one.send(b"a")
    await one.commit()
    await one.send(b"b")
    request = produce_request({("t", 0): delayed})
    request.transactional_id = ID
    assert only(await house.ask(request, 12)).error_code == 47
