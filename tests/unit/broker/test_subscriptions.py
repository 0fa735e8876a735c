"""The subscriptions of a broker over its life: leads, restarts, snapshots, and what cannot be written."""

from __future__ import annotations

import asyncio
import errno
import gc
from typing import Any

import pytest
from tests.unit.broker.asking import fetch_request, fetched, offsets_and_values, produce
from tests.unit.broker.house import House
from tests.unit.broker.queueing import (
    DELETE,
    NACK,
    Member,
    alter,
    configure,
    describe,
    status,
    subscribe,
    values_of,
)

from headrace.broker import acks_log
from headrace.broker.led_subscriptions import LedSubscriptions
from headrace.broker.partition import Appended, Partition
from headrace.broker.subscriptions import Subscriptions
from headrace.runtime.disk import DiskFull
from headrace.testkit.world import World
from headrace.wire.acks_records import Settled, SnapshotEvent, decode_event

NOT_LEASED = 121


def led(house: House, index: int = 0) -> LedSubscriptions:
    return house.broker.subscriptions.of("jobs", index)


async def events(house: House) -> list[object]:
    """All that the acks log holds, as anybody can read it."""
    response = await house.ask(fetch_request({("__acks.jobs", 0): house.partition("__acks.jobs").log.start_offset}), 11)
    records = fetched(response)["__acks.jobs", 0].records
    return [decode_event(b"workers", value)[1] for _, value in offsets_and_values(records)]


@pytest.mark.parametrize("how", ["restart", "kill", "power cut"])
async def test_what_was_acked_stays_acked_and_leases_come_back(house: House, how: str) -> None:
    await subscribe(house)
    await produce(house, "jobs", b"a", b"b", b"c", b"d")
    member = Member(house)
    messages = await member.lease(3)
    await member.ack([messages[1]])
    assert await member.settle([messages[2]], NACK, delay_ms=60_000, reason="later") == [0]
    if how == "restart":
        await house.restart()
    else:
        house.kill(keep_page_cache=how == "kill")
        await house.open()
    again = await member.lease()
    assert [(one.value, one.attempt) for one in again] == [(b"a", 1), (b"d", 1)]
    assert await member.settle([messages[0]]) == [NOT_LEASED], "the receipt is of an older epoch"
    await house.pass_time(61)
    again = [one for one in await member.lease() if one.value == b"c"]
    assert [one.attempt for one in again] == [2]


async def test_a_settle_is_answered_when_it_is_durable_and_not_before(house: House) -> None:
    await subscribe(house)
    await produce(house, "jobs", b"a")
    member = Member(house)
    messages = await member.lease()
    house.host.disk.delay_seconds = (0.2, 0.2)
    settling = asyncio.create_task(member.settle(messages))
    await house.pass_time(0.1)
    assert not settling.done()
    assert await settling == [0]


async def test_all_that_is_settled_in_one_turn_is_one_event(house: House) -> None:
    await subscribe(house)
    await produce(house, "jobs", *(b"%d" % number for number in range(20)))
    members = [Member(house, str(number)) for number in range(4)]
    leased = [await member.lease(5) for member in members]
    settling = [asyncio.create_task(member.settle(messages)) for member, messages in zip(members, leased, strict=True)]
    for task in settling:
        assert await task == [0] * 5
    settled = [event for event in await events(house) if isinstance(event, Settled)]
    assert [(one.how, [tuple(range_) for range_ in one.ranges]) for one in settled] == [("ack", [(0, 19)])]


async def test_what_cannot_be_written_is_refused_and_comes_back(house: House) -> None:
    await subscribe(house)
    await produce(house, "jobs", b"a")
    member = Member(house)
    messages = await member.lease()
    house.host.disk.fail_next("append", error=errno.ENOSPC)
    (code,) = await member.settle(messages)
    assert code not in (0, NOT_LEASED)
    again = await member.lease()
    assert values_of(again) == [b"a"]
    await member.ack(again)
    await house.restart()
    assert await member.lease() == []


async def test_on_a_full_disk_a_message_does_not_come_again_and_again_at_once(house: House) -> None:
    await subscribe(house)
    await produce(house, "jobs", b"a")
    member = Member(house)
    clock = house.host.clock
    began = clock.monotonic()
    for _ in range(3):
        house.host.disk.fail_next("append", error=errno.ENOSPC)
        (code,) = await member.settle(await member.lease(wait_ms=10_000))
        assert code not in (0, NOT_LEASED)
    assert clock.monotonic() - began >= 2


async def test_nobody_is_missed_when_what_nobody_waits_for_is_not_committed(house: House) -> None:
    """A lease that ran out is an event for which nobody waits; then the lead ends before it is committed."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    await subscribe(house)
    await produce(house, "jobs", b"a")
    await Member(house).lease(lease_ms=1000)
    await house.pass_time(0.9)
    house.host.disk.delay_seconds = (5.0, 5.0)
    await house.pass_time(0.2)
    await house.delete_topic("jobs")
    gc.collect()
    await house.pass_time(0)
    assert complaints == []


async def test_a_topic_that_grows_gets_subscriptions_in_its_new_partitions(house: House) -> None:
    await subscribe(house)
    await house.host.start(house.broker.catalogue.add_partitions("jobs", 3), "grow")
    member = Member(house)
    polling = asyncio.create_task(member.lease(wait_ms=10_000, partitions=(0, 1, 2)))
    await house.pass_time(1)
    await produce(house, "jobs", b"new", partition=2)
    assert [(one.partition, one.value) for one in await polling] == [(2, b"new")]


async def test_a_topic_made_again_knows_nothing_of_its_namesake(house: House) -> None:
    await subscribe(house)
    await produce(house, "jobs", b"old")
    await house.delete_topic("jobs")
    await house.make_topic("jobs")
    assert await describe(house) == []
    await configure(house, share_auto_offset_reset="earliest")
    await produce(house, "jobs", b"new")
    assert values_of(await Member(house).lease()) == [b"new"]


async def test_subscriptions_that_were_deleted_stay_deleted(house: House) -> None:
    await subscribe(house)
    assert (await alter(house, DELETE)).error_code == 0
    await house.restart()
    assert await describe(house) == []


async def test_a_partition_has_only_so_many_subscriptions(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.led_subscriptions.SUBSCRIPTIONS_MAX", 2)
    await subscribe(house)
    assert (await alter(house, 0, subscription="second")).error_code == 0
    assert (await alter(house, 0, subscription="third")).error_code == 44
    (answer,) = await Member(house, subscription="fourth").ask()
    assert answer.error_code == 44


# Snapshots


async def test_after_many_events_a_start_reads_the_snapshot_and_what_follows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(house)
    await alter(house, 0, subscription="auditors")
    member = Member(house)
    for number in range(24):
        await produce(house, "jobs", b"%d" % number)
        (message,) = await member.lease()
        if number % 4:
            await member.ack([message])
        elif number < 8:
            assert await member.settle([message], NACK, delay_ms=3_600_000) == [0]
    snapshots = [event for event in await events(house) if isinstance(event, SnapshotEvent)]
    assert len({snapshot.id for snapshot in snapshots}) == 2
    before = await describe(house)
    house.kill()
    await house.open()
    assert [(one.subscription, one.floor, one.backlog, one.waiting) for one in await describe(house)] == [
        (one.subscription, one.floor, one.backlog, one.waiting) for one in before
    ]
    assert values_of(await member.lease()) == [b"8", b"12", b"16", b"20"]
    assert len(await Member(house, subscription="auditors").lease()) == 24


async def test_a_start_reads_no_further_back_than_the_last_snapshot(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(house)
    house.partition("__acks.jobs").log.config = house.partition("__acks.jobs").log.config.__class__(segment_bytes=600)
    member = Member(house)
    for number in range(50):
        await produce(house, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    assert len(house.partition("__acks.jobs").log.segments) > 5
    house.kill()
    await house.open()
    await house.pass_time(0.1)
    assert [one.floor for one in await describe(house)] == [50]
    assert led(house)._acks._events < 25


async def test_history_below_a_snapshot_is_kept_for_a_while_and_then_deleted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(house)
    log = house.partition("__acks.jobs").log
    log.config = log.config.__class__(segment_bytes=600, retention_ms=600_000)
    member = Member(house)
    for number in range(50):
        await produce(house, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    await house.pass_time(120)
    assert log.start_offset == 0
    await house.pass_time(600)
    assert log.start_offset > 0
    house.kill()
    await house.open()
    assert await member.lease() == []
    assert [one.floor for one in await describe(house)] == [50]
    (told,) = await status(house, 0)
    assert (told.state, told.how) == ("settled", None), "that is forgotten"


async def test_without_a_snapshot_nothing_is_deleted_however_old_it_is(house: House) -> None:
    await subscribe(house)
    log = house.partition("__acks.jobs").log
    log.config = log.config.__class__(segment_bytes=200, retention_ms=1000)
    member = Member(house)
    for number in range(20):
        await produce(house, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    await house.pass_time(1000)
    assert log.start_offset == 0


async def test_a_snapshot_that_could_not_be_written_whole_counts_for_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    monkeypatch.setattr(acks_log, "_BATCH_BYTES", 10)
    await subscribe(house)
    await alter(house, 0, subscription="auditors")
    member = Member(house)
    append, written = Partition.append, []

    def fails_at_the_second_part(partition: Partition, batch: memoryview, *others: Any) -> Appended:
        if b'"snapshot"' in bytes(batch):
            written.append(batch)
            if len(written) == 2:
                raise DiskFull("no room")
        return append(partition, batch, *others)

    monkeypatch.setattr(Partition, "append", fails_at_the_second_part)
    for number in range(9):
        await produce(house, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    await house.restart()
    assert len(written) == 2
    assert {one.subscription: one.floor for one in await describe(house)} == {"workers": 9, "auditors": 0}


# A log that lost its end


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "not served in the leader epoch of the loss"])
def test_what_comes_where_a_log_has_lost_its_end_is_delivered(monkeypatch: pytest.MonkeyPatch, is_served: bool) -> None:
    has_lost = 0
    for seed in range(12):
        world = World(seed=seed)
        house = House(world)

        async def play(house: House = house) -> bool:
            await house.open()
            await house.make_topic("jobs", flush_messages="1000000")
            await alter(house, 0)
            for number in range(10):
                await produce(house, "jobs", b"old %d" % number)
            member = Member(house)
            messages = await member.lease()
            await member.ack([message for message in messages if message.offset not in (2, 5)])
            house.kill(keep_page_cache=False)
            with monkeypatch.context() as patch:
                if not is_served:
                    patch.setattr(Subscriptions, "_lead", lambda *_: None)
                await house.open()
                end_offset = house.partition("jobs").log.end_offset
                new = [b"new %d" % number for number in range(12)]
                for value in new:
                    await produce(house, "jobs", value)
            await house.restart()
            found: list[bytes] = []
            while some := await member.lease():
                found += values_of(some)
                await member.ack(some)
            assert [value for value in found if value.startswith(b"new")] == new
            return end_offset < 10

        has_lost += world.run(play())
        house.check()
        world.close()
    assert has_lost, "no power cut took anything"


async def test_a_partition_that_was_loaded_anew_in_the_same_lead_has_lost_nothing(house: House) -> None:
    await subscribe(house)
    await produce(house, "jobs", b"a", b"b", b"c")
    member = Member(house)
    messages = await member.lease()
    await member.ack(messages[1:2])
    house.host.disk.fail_next("append", error=errno.ENOSPC)
    assert await member.settle(messages[2:]) != [0]
    assert values_of(await member.lease()) == [b"a", b"c"]
