"""Fetch without a session: what is read, how much of it, and how long it waits."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.unit.broker.asking import (
    batch,
    fetch_request,
    fetched,
    offsets_and_values,
    produce,
    produce_request,
    read_all,
    send,
    values,
)
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.broker import fetch
from headrace.broker.readings import Reading
from headrace.model.errors import FetchSessionIdNotFound, NotLeader
from headrace.storage.reading import LogSlice
from headrace.wire.batch import parse_header
from headrace.wire.messages.fetch import FetchRequest, ReplicaState


@pytest.mark.parametrize("version", range(4, 13))
async def test_every_version_by_name_is_answered(house: House, version: int) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b")
    data = fetched(await house.ask(fetch_request({("t", 0): 0}), version))["t", 0]
    assert values(data.records) == [b"a", b"b"]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 2, 2)
    assert data.aborted_transactions is None


@pytest.mark.parametrize("version", range(13, 19))
async def test_every_version_by_id_is_answered(house: House, version: int) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    topic_id = house.broker.catalogue.topic("t").id
    data = fetched(await house.ask(fetch_request({(topic_id, 0): 0}), version))[topic_id, 0]
    assert values(data.records) == [b"a"]


async def test_read_committed_gets_an_empty_list_of_aborted_transactions(house: House) -> None:
    await house.make_topic("t")
    request = fetch_request({("t", 0): 0})
    request.isolation_level = 1
    assert fetched(await house.ask(request, 11))["t", 0].aborted_transactions == []


async def test_readers_that_are_too_old_for_zstd_are_told(house: House) -> None:
    await house.make_topic("t", compression_type="zstd")
    await produce(house, "t", b"a")
    codes = [fetched(await house.ask(fetch_request({("t", 0): 0}), version))["t", 0].error_code for version in (9, 10)]
    assert codes == [76, 0]


async def test_errors_belong_to_their_partition(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    request = fetch_request({("t", 0): 0, ("t", 1): 0, ("missing", 0): 0, ("t", 7): 0}, max_wait_ms=60_000)
    found = fetched(await house.ask(request, 11))
    assert {key: data.error_code for key, data in found.items()} == {
        ("t", 0): 0,
        ("t", 1): 3,
        ("missing", 0): 3,
        ("t", 7): 3,
    }
    assert found["missing", 0].high_watermark == -1
    unknown = UUID(int=5)
    assert fetched(await house.ask(fetch_request({(unknown, 0): 0}), 13))[unknown, 0].error_code == 100


@pytest.mark.parametrize(("offset", "code"), [(0, 1), (1, 1), (2, 0), (3, 0), (4, 0), (5, 1), (-1, 1)])
async def test_offsets_out_of_range_are_refused_at_once(house: House, offset: int, code: int) -> None:
    await house.make_topic("t")
    for value in (b"a", b"b", b"c", b"d"):
        await produce(house, "t", value)
    await house.partition("t").log.advance_start(2)
    data = fetched(await house.ask(fetch_request({("t", 0): offset}), 11))["t", 0]
    assert data.error_code == code


async def test_an_offset_inside_a_batch_gives_the_whole_batch(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b", b"c")
    await produce(house, "t", b"d")
    data = fetched(await house.ask(fetch_request({("t", 0): 1}), 11))["t", 0]
    assert offsets_and_values(data.records) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


async def test_nothing_above_the_high_watermark_is_shown(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    asking = house.begin(produce_request({("t", 0): batch(b"b")}), 9)
    await house.turn()
    assert house.partition("t").log.end_offset == 2
    data = fetched(await house.ask(fetch_request({("t", 0): 0}), 11))["t", 0]
    assert (values(data.records), data.high_watermark) == ([b"a"], 1)
    above = fetched(await house.ask(fetch_request({("t", 0): 2}), 11))["t", 0]
    assert (above.error_code, values(above.records)) == (0, [])
    await asking


# How much


async def test_answers_hold_whole_batches_up_to_the_partitions_limit(house: House) -> None:
    await house.make_topic("t")
    for number in range(10):
        await produce(house, "t", b"%d" % number)
    size = len(batch(b"0"))
    data = fetched(await house.ask(fetch_request({("t", 0): 0}, partition_max_bytes=3 * size + 10), 11))["t", 0]
    assert values(data.records) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}])
async def test_the_first_batch_is_given_however_large_it_is(house: House, limits: dict[str, int]) -> None:
    await house.make_topic("t", 3)
    for partition in (1, 2):
        await produce(house, "t", b"x" * 1000, partition=partition)
    request = fetch_request({("t", 0): 0, ("t", 1): 0, ("t", 2): 0}, **limits)  # type: ignore[arg-type]
    found = fetched(await house.ask(request, 11))
    assert [len(values(data.records)) for data in found.values()] == [0, 1, 0]
    assert [data.error_code for data in found.values()] == [0, 0, 0]


async def test_max_bytes_is_shared_by_all_partitions(house: House) -> None:
    await house.make_topic("t", 4)
    for partition in range(4):
        await produce(house, "t", b"x" * 1000, partition=partition)
    size = len(batch(b"x" * 1000))
    request = fetch_request({("t", index): 0 for index in range(4)}, max_bytes=2 * size)
    found = fetched(await house.ask(request, 11))
    assert [len(values(data.records)) for data in found.values()] == [1, 1, 0, 0]


async def test_a_fetch_of_many_partitions_keeps_few_files_open(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fetch of 2,000 partitions used up 1,024 descriptors.
    monkeypatch.setattr(fetch, "_PINNED_MAX", 2)
    keeps_file_open: list[bool] = []
    count = Reading.count

    def look_and_count(reading: Reading) -> None:
        keeps_file_open.append(isinstance(reading.data.records, LogSlice))
        count(reading)

    monkeypatch.setattr(Reading, "count", look_and_count)
    await house.make_topic("t", 5)
    for partition in range(5):
        await produce(house, "t", b"%d" % partition, partition=partition)
    found = fetched(await house.ask(fetch_request({("t", partition): 0 for partition in range(5)}), 11))
    assert [values(found["t", partition].records) for partition in range(5)] == [[b"%d" % one] for one in range(5)]
    assert keeps_file_open == [True, True, False, False, False]


async def test_the_brokers_own_limit_stands_above_the_clients(house: House) -> None:
    await house.restart(fetch_max_bytes="2000")
    await house.make_topic("t")
    for _ in range(5):
        await produce(house, "t", b"x" * 900)
    assert len(await read_all(house, "t")) == 2


# How long


async def test_a_fetch_waits_until_there_is_something(house: House) -> None:
    await house.make_topic("t")
    asking = house.begin(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
    await house.pass_time(10)
    assert not asking.done()
    await produce(house, "t", b"a")
    async with asyncio.timeout(0.1):
        assert values(fetched(await asking)["t", 0].records) == [b"a"]


async def test_a_fetch_waits_no_longer_than_it_was_told_and_then_names_every_partition(house: House) -> None:
    await house.make_topic("t", 2)
    await produce(house, "t", b"a")
    began = house.world.loop.time()
    found = fetched(await house.ask(fetch_request({("t", 0): 1, ("t", 1): 0}, max_wait_ms=500), 11))
    assert house.world.loop.time() - began == pytest.approx(0.5, abs=0.01)
    assert {key: (data.high_watermark, values(data.records)) for key, data in found.items()} == {
        ("t", 0): (1, []),
        ("t", 1): (0, []),
    }


async def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(house: House) -> None:
    await house.make_topic("t", 2)
    size = len(batch(b"x" * 100))
    request = fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=60_000, min_bytes=3 * size)
    asking = house.begin(request, 11)
    await produce(house, "t", b"x" * 100)
    await produce(house, "t", b"x" * 100, partition=1)
    await house.pass_time(1)
    assert not asking.done()
    await produce(house, "t", b"x" * 100)
    async with asyncio.timeout(0.1):
        found = fetched(await asking)
    assert [len(values(data.records)) for data in found.values()] == [2, 1]


async def test_min_bytes_0_does_not_wait(house: House) -> None:
    await house.make_topic("t")
    began = house.world.loop.time()
    await house.ask(fetch_request({("t", 0): 0}, max_wait_ms=60_000, min_bytes=0), 11)
    assert house.world.loop.time() - began < 0.01


async def test_a_topic_that_is_deleted_ends_the_wait(house: House) -> None:
    await house.make_topic("t")
    asking = house.begin(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
    await house.pass_time(1)
    await house.delete_topic("t")
    async with asyncio.timeout(0.1):
        assert fetched(await asking)["t", 0].error_code == 3


async def test_a_broker_that_goes_down_answers_all_who_wait(house: House) -> None:
    await house.make_topic("t")
    asking = [house.begin(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11) for _ in range(3)]
    await house.pass_time(1)
    house.broker.answer_waiting()
    async with asyncio.timeout(0.1):
        for one in asking:
            assert fetched(await one)["t", 0].error_code == 0
        await house.ask(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)


async def test_nobody_watches_a_partition_after_the_answer(house: House) -> None:
    await house.make_topic("t")
    asking = house.begin(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
    await house.turn()
    assert len(house.partition("t")._watchers) == 1
    asking.cancel()
    await house.turn()
    assert not house.partition("t")._watchers
    await house.ask(fetch_request({("t", 0): 0}, max_wait_ms=100), 11)
    assert not house.partition("t")._watchers
    assert not house.broker.fetch._polls


# Epochs


async def test_leader_epochs_grow_with_every_start_and_old_or_unknown_ones_are_told_so(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    await house.restart()
    await house.restart()
    assert house.partition("t").leader_epoch == 2
    for epoch, code in ((-1, 0), (0, 74), (1, 74), (2, 0), (3, 75)):
        request = fetch_request({("t", 0): 0}, current_leader_epoch=epoch)
        assert fetched(await house.ask(request, 11))["t", 0].error_code == code


async def test_a_reader_whose_history_is_not_ours_is_told_where_they_part(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b")
    await house.restart()
    await produce(house, "t", b"c")

    async def diverging(offset: int, epoch: int) -> tuple[int, int] | None:
        request = fetch_request({("t", 0): offset}, max_wait_ms=60_000, last_fetched_epoch=epoch)
        data = fetched(await house.ask(request, 12))["t", 0]
        assert data.error_code == 0
        if data.diverging_epoch is None:
            return None
        assert values(data.records) == []
        return data.diverging_epoch.epoch, data.diverging_epoch.end_offset

    assert await diverging(2, 0) is None
    assert await diverging(0, 1) is None
    assert await diverging(3, 0) == (0, 2)


# Cold bytes


async def test_what_was_found_at_the_start_is_checked_and_served(house: House) -> None:
    await house.make_topic("t", 2)
    for partition in (0, 1):
        await produce(house, "t", b"old", partition=partition)
    await house.restart()
    request = fetch_request({("t", 0): 0, ("t", 1): 0})
    found = fetched(await house.ask(request, 11))
    assert [values(data.records) for data in found.values()] == [[b"old"], [b"old"]]


async def test_bytes_that_are_only_guessed_at_do_not_end_the_wait_for_more(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"old")
    await house.restart()
    request = fetch_request({("t", 0): 0}, min_bytes=10_000, max_wait_ms=60_000)
    asking = house.begin(request, 11)
    await house.pass_time(1)
    assert not asking.done()
    await produce(house, "t", b"x" * 10_000)
    async with asyncio.timeout(0.1):
        assert len(values(fetched(await asking)["t", 0].records)) == 2


async def test_damage_is_told_and_not_served_and_the_others_are(house: House) -> None:
    await house.make_topic("t", 2)
    for partition in (0, 1):
        await produce(house, "t", b"old", partition=partition)
    topic_id = house.partition("t").topic_id
    await house.close()
    house.host.disk.flip_bit(f"/data/logs/{topic_id.hex}-0/{0:020d}.log", 70)
    await house.open(log_segment_bytes="1000000")
    found = fetched(await house.ask(fetch_request({("t", 0): 0, ("t", 1): 0}), 11))
    assert found["t", 0].error_code in (2, 56)
    assert values(found["t", 1].records) == [b"old"]
    again = fetched(await house.ask(fetch_request({("t", 0): 5}), 11))
    assert again["t", 0].error_code == 56, "not out of range: a client would jump over the damage"


async def test_a_fetch_beside_a_swap_of_compacted_segments_does_not_look_like_the_end_of_the_log(house: House) -> None:
    """A scan takes an answer without records, below the high watermark, for the end of its range."""
    await house.make_topic("t", 2, cleanup_policy="compact", segment_bytes="400")
    await send(house, "t", batch(b"read first", key=b"k"), partition=0)
    for number in range(30):
        await send(house, "t", batch(b"%d" % number, key=b"%d" % (number % 5)), partition=1)
    disk, log = house.host.disk, house.partition("t", 1).log
    disk.cold_chance = 1.0
    disk.delay_seconds = (5.0, 5.0)
    fetch = house.begin(fetch_request({("t", 0): 0, ("t", 1): 7}), 11)
    await house.turn(1)
    disk.delay_seconds = (0.0, 0.0)
    assert await house.host.start(house.broker.store.cleaner.clean(log), "clean")
    assert not fetch.done()
    found = fetched(await fetch)
    assert [data.error_code for data in found.values()] == [0, 0]
    assert offsets_and_values(found["t", 1].records)[0][0] >= 7


async def test_a_cold_read_that_ends_after_the_leadership_answers_that_it_is_over(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    partition = house.partition("t")
    house.host.disk.cold_chance = 1.0
    fetch = house.begin(fetch_request({("t", 0): 0}), 11)
    await house.turn(1)
    partition.follow(partition.leader_epoch + 1)
    assert fetched(await fetch)["t", 0].error_code == NotLeader.code


async def test_a_fetch_that_is_cancelled_while_it_reads_from_the_disk_leaves_nothing_pinned(house: House) -> None:
    await house.make_topic("t", 2)
    await produce(house, "t", b"old", partition=1)
    await house.restart()
    await produce(house, "t", b"new", partition=0)
    asking = house.begin(fetch_request({("t", 0): 0, ("t", 1): 0}), 11)
    await house.turn(1)
    asking.cancel()
    await house.pass_time(1)
    assert asking.cancelled()
    house.check()


async def test_what_is_counted_is_what_was_sent(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    size = len(batch(b"a"))
    counts = house.broker.catalogue.topic("t").counts
    asking = house.begin(fetch_request({("t", 0): 0}, min_bytes=size + 1, max_wait_ms=1000), 11)
    await house.turn()
    assert counts.bytes_out == 0
    await asking
    assert (counts.fetches, counts.bytes_out) == (1, size)
    await house.ask(fetch_request({("t", 0): 99}), 11)
    assert (counts.fetches, counts.failed_fetches) == (1, 1)


async def test_records_come_as_the_log_has_them(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a", b"b", producer_id=3, producer_epoch=1, base_sequence=0)
    data = fetched(await house.ask(fetch_request({("t", 0): 0}), 11))["t", 0]
    header = parse_header(data.records)
    assert (header.base_offset, header.leader_epoch, header.producer_id) == (0, 0, 3)


async def copy(
    town: Town, node_id: int, offset: int, *, broker_epoch: int = 1, leader_epoch: int = 0, last_epoch: int = -1
) -> Any:
    """Fetch from broker 1 as a follower does."""
    topic_id = town[1].broker.catalogue.topic("t").id
    request = fetch_request({(topic_id, 0): offset}, current_leader_epoch=leader_epoch, last_fetched_epoch=last_epoch)
    request.replica_state = ReplicaState(replica_id=node_id, replica_epoch=broker_epoch)
    return fetched(await town[1].ask(request, 17))[topic_id, 0]


@in_town()
async def test_a_follower_is_given_what_is_not_committed_and_consumers_are_not(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    town.isolate(1)
    town[1].begin(produce_request({("t", 0): batch(b"b")}), 9)
    await town.until(lambda: town.replica(1, "t").log.end_offset == 2)
    assert await read_all(town[1], "t") == [b"a"]
    assert values((await copy(town, 2, 1, last_epoch=0)).records) == [b"b"]


@in_town()
async def test_a_follower_is_believed_only_in_the_present_epoch(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.move_lead("t", 2)
    await town.move_lead("t", 1)
    town.isolate(1)
    assert (await copy(town, 2, 1, leader_epoch=0)).error_code == 74
    assert (await copy(town, 2, 1, leader_epoch=3)).error_code == 75
    in_sync = town.replica(1, "t").in_sync
    assert in_sync is not None
    assert (await copy(town, 2, 1, leader_epoch=2, last_epoch=0)).error_code == 0
    assert in_sync.lag()[2] == 1


@in_town()
async def test_one_that_holds_no_replica_or_an_earlier_start_of_one_that_does_is_refused(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    await produce(town[1], "t", b"a")
    assert (await copy(town, 3, 1)).error_code == 75, "the leader may not have heard of a move yet"
    assert (await copy(town, 9, 1)).error_code == 75
    await town[2].restart()
    await town.until_in_sync("t")
    await produce(town[1], "t", b"b")
    assert (await copy(town, 2, 2, broker_epoch=1, last_epoch=0)).error_code == 77
    assert (await copy(town, 2, 2, broker_epoch=-1, last_epoch=0)).error_code == 77


@in_town()
async def test_where_histories_part_a_follower_is_told_and_its_offset_counts_for_nothing(town: Town) -> None:
    await town.make_topic("t")
    await produce(town[1], "t", b"a")
    await town.until_alike("t")
    town.isolate(1)
    in_sync = town.replica(1, "t").in_sync
    assert in_sync is not None
    lag = dict(in_sync.lag())
    data = await copy(town, 2, 5, last_epoch=0)
    assert (data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 0, 1)
    assert not data.records
    assert in_sync.lag() == lag
    assert (await copy(town, 2, 5)).error_code == 1, "out of range, if it says nothing of its history"
    assert in_sync.lag() == lag


@in_town(max_incremental_fetch_session_cache_slots="1")
async def test_a_follower_gets_a_session_although_consumers_have_them_all(town: Town) -> None:
    await town.make_topic("t", (1, 2))
    sessions = town[1].broker.fetch._sessions
    for session_id in list(sessions._sessions):
        sessions.close(session_id)
    await town[1].ask(fetch_request({("t", 0): 0}, session_epoch=0), 11)
    await asyncio.sleep(2)
    assert [session.privileged for session in sessions._sessions.values()] == [True]


async def test_what_a_follower_sent_before_its_newest_session_counts_no_more(house: House) -> None:
    await house.make_topic("t")

    def of_follower(session_id: int, epoch: int) -> FetchRequest:
        request = fetch_request({("t", 0): 0}, session_id=session_id, session_epoch=epoch)
        request.replica_id = 2
        return request

    first = (await house.ask(of_follower(0, 0), 12)).session_id
    second = (await house.ask(of_follower(0, 0), 12)).session_id
    assert first != second
    assert (await house.ask(of_follower(first, 1), 12)).error_code == FetchSessionIdNotFound.code
    assert (await house.ask(of_follower(second, 1), 12)).error_code == 0
