"""What a lease brings: batches from the cache or from the disk, opened or not, without what is no message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from tests.unit.broker.asking import produce, send
from tests.unit.broker.house import House
from tests.unit.broker.queueing import (
    CREATE,
    GAP,
    NACK,
    SEEK,
    Got,
    Member,
    alter,
    configure,
    describe,
    got,
    subscribe,
    values_of,
)
from tests.unit.broker.transacting import NEWER, Transactor

from headrace.broker import leasing
from headrace.machines import ready_window
from headrace.model.message_headers import EXPIRES_AT, PRIORITY
from headrace.wire.batch import Record, build_batch, parse_header


async def put(house: House, *records: Record, topic: str = "jobs") -> None:
    assert (await send(house, topic, build_batch([*records]))).error_code == 0


def message(value: bytes, key: bytes | None = None, headers: Mapping[str, object] | None = None) -> Record:
    named = [(name, str(text).encode()) for name, text in (headers or {}).items()]
    return Record(key=key, value=value, headers=named, timestamp_ms=1_700_000_000_000)


async def drained(member: Member, count: int = 100) -> list[Got]:
    """Lease and ack until there is nothing left."""
    found: list[Got] = []
    while messages := await member.lease(count):
        await member.ack(messages)
        found += messages
    return found


# Cold


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_what_must_be_read_from_the_disk_is_leased_as_well(house: House, count: int) -> None:
    await subscribe(house)
    for number in range(10):
        await produce(house, "jobs", b"%d" % number, b"%d'" % number)
    await house.restart()
    house.host.disk.cold_chance = 1.0
    expected = [value for number in range(10) for value in (b"%d" % number, b"%d'" % number)]
    assert values_of(await drained(Member(house), count)) == expected


async def test_two_who_wait_for_the_disk_do_not_get_the_same(house: House) -> None:
    await subscribe(house)
    for number in range(4):
        await produce(house, "jobs", b"%d" % number)
    await house.restart()
    house.host.disk.cold_chance = 1.0
    house.host.disk.delay_seconds = (0.5, 1.0)
    tasks = [asyncio.create_task(Member(house, name).lease(3)) for name in ("a", "b")]
    found = [value for task in tasks for value in values_of(await task)]
    assert sorted(found) == [b"0", b"1", b"2", b"3"]


async def test_a_lease_from_the_disk_has_no_more_than_it_needs(house: House) -> None:
    await subscribe(house)
    for number in range(10):
        await produce(house, "jobs", b"%d" % number * 100)
    await house.restart()
    house.host.disk.cold_chance = 1.0
    (answer,) = await Member(house).ask(2)
    assert len(answer.records or b"") < 3 * 180


# Transactions


async def test_aborted_messages_are_not_delivered_to_who_reads_what_is_committed(house: House) -> None:
    await subscribe(house, "t")
    await configure(house, share_isolation_level="read_committed")
    producer = Transactor(house, generation=NEWER)
    assert await producer.init() == 0
    for value, commits in ((b"good", True), (b"bad", False), (b"fine", True)):
        assert await producer.send(value) == 0
        assert await producer.end(commit=commits) == 0
    await produce(house, "t", b"plain")
    member = Member(house, topic="t")
    (answer,) = await member.ask()
    leased = [(one.first, one.last) for one in answer.leased]
    assert leased == [(0, 0), (4, 4), (6, 6)], "the aborted message and the markers are left out"
    await member.ack(got([answer]))
    (described,) = await describe(house, topic="t")
    assert (described.floor, described.backlog) == (7, 0)


@pytest.mark.parametrize("is_explicit", [True, False], ids=["created", "by its first lease"])
async def test_who_reads_what_is_committed_and_begins_at_the_end_gets_what_an_open_transaction_commits(
    house: House, is_explicit: bool
) -> None:
    await house.make_topic("t")
    await configure(house, share_isolation_level="read_committed", share_auto_offset_reset="latest")
    await produce(house, "t", b"before")
    producer = Transactor(house, generation=NEWER)
    assert await producer.init() == 0
    assert await producer.send(b"open") == 0
    member = Member(house, topic="t")
    if is_explicit:
        assert (await alter(house, CREATE, topic="t", offset=-1)).error_code == 0
    assert await member.lease() == []
    assert await producer.commit() == 0
    assert values_of(await member.lease()) == [b"open"]


async def test_a_marker_that_was_leased_is_settled_as_a_gap(house: House) -> None:
    await subscribe(house, "t")
    producer = Transactor(house, generation=NEWER)
    assert await producer.init() == 0
    assert await producer.send(b"good") == 0
    assert await producer.commit() == 0
    member = Member(house, topic="t")
    (answer,) = await member.ask()
    (message,) = got([answer])
    assert [(one.first, one.last) for one in answer.leased] == [(0, 1)]
    assert await member.settle([message, message._replace(offset=1)], GAP) == [0, 0]
    assert [one.backlog for one in await describe(house, topic="t")] == [0]


async def test_what_is_only_aborted_makes_nobody_stop(house: House) -> None:
    await subscribe(house, "t")
    await configure(house, share_isolation_level="read_committed")
    producer = Transactor(house, generation=NEWER)
    assert await producer.init() == 0
    for _ in range(3):
        assert await producer.send(b"bad") == 0
        assert await producer.abort() == 0
    await produce(house, "t", b"plain")
    assert values_of(await Member(house, topic="t").lease(1)) == [b"plain"]


async def test_a_transaction_that_is_open_is_waited_for(house: House) -> None:
    await subscribe(house, "t")
    await configure(house, share_isolation_level="read_committed")
    producer = Transactor(house, generation=NEWER)
    assert await producer.init() == 0
    assert await producer.send(b"later") == 0
    polling = asyncio.create_task(Member(house, topic="t").lease(wait_ms=60_000))
    await house.pass_time(1)
    assert not polling.done()
    assert await producer.commit() == 0
    assert values_of(await polling) == [b"later"]


# Opened


@pytest.mark.parametrize("is_cold", [False, True])
async def test_what_does_not_match_is_settled_unseen(house: House, is_cold: bool) -> None:
    await subscribe(house)
    await configure(house, headrace_filter="header.kind = 'big'")
    for number in range(50):
        await put(house, message(b"%d" % number, headers={"kind": "big" if number % 10 == 0 else "small"}))
    if is_cold:
        await house.restart()
        house.host.disk.cold_chance = 1.0
    assert values_of(await drained(Member(house))) == [b"0", b"10", b"20", b"30", b"40"]
    (described,) = await describe(house)
    assert (described.floor, described.backlog) == (50, 0)


async def test_of_opened_messages_only_those_that_were_read_from_the_disk_are_leased(house: House) -> None:
    await subscribe(house)
    await configure(house, headrace_filter="key = 'x'")
    for number in range(5):
        await put(house, message(b"%d" % number, key=b"x"))
    await house.restart()
    house.host.disk.cold_chance = 1.0
    member = Member(house)
    for number in range(5):
        (answer,) = await member.ask(max_bytes=1)
        assert [(one.first, one.last) for one in answer.leased] == [(number, number)], "the others were not read"
        await member.ack(got([answer]))


async def test_priorities_count_in_a_backlog_that_is_read_from_the_disk(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that was read from the disk must not take what it has not opened for younger than it is."""
    monkeypatch.setattr(ready_window, "READY_ENOUGH", 2)
    monkeypatch.setattr(leasing, "_OPENED_BYTES", 1)  # one batch
    await subscribe(house)
    await configure(house, headrace_priority_slack_ms=",".join(str(9000 - 1000 * one) for one in range(10)))
    for number, priority in enumerate((0, 9, 9, 9, 9, 9)):
        await put(house, message(b"%d" % number, headers={PRIORITY: priority}))
    await house.restart()
    house.host.disk.cold_chance = 1.0
    await house.pass_time(60)
    member, found = Member(house), []
    while answers := await member.ask(1, max_bytes=1):
        found += got(answers)
        await member.ack(got(answers))
    assert values_of(found) == [b"1", b"2", b"3", b"4", b"5", b"0"]


async def test_a_long_way_without_a_match_is_gone_in_one_lease(house: House) -> None:
    await subscribe(house)
    await configure(house, headrace_filter="key = 'x'")
    for _ in range(12):
        await put(house, *(message(b"v" * 1000) for _ in range(100)))
    await put(house, message(b"found", key=b"x"))
    assert values_of(await Member(house).lease()) == [b"found"]


async def test_of_a_key_one_message_is_out_at_a_time(house: House) -> None:
    await subscribe(house)
    await configure(house, headrace_key_concurrency="1")
    await put(house, message(b"a1", b"a"), message(b"a2", b"a"), message(b"b1", b"b"), message(b"b2", b"b"))
    member, other = Member(house), Member(house, "other")
    first = await member.lease()
    assert values_of(first) == [b"a1", b"b1"]
    polling = asyncio.create_task(other.lease(wait_ms=60_000))
    await house.pass_time(0.1)
    await member.ack(first[:1])
    assert values_of(await polling) == [b"a2"]
    assert await member.settle(first[1:], NACK) == [0]
    assert values_of(await member.lease()) == [b"b1"], "a retry keeps its place"


async def test_what_is_more_urgent_is_served_first(house: House) -> None:
    await subscribe(house)
    slacks = ",".join(str(100_000 - 10_000 * priority) for priority in range(10))
    await configure(house, headrace_priority_slack_ms=slacks)
    for priority in (1, 5, 9):
        await put(house, *(message(b"%d" % priority, headers={PRIORITY: priority}) for _ in range(2)))
    found = await drained(Member(house), count=1)
    assert values_of(found) == [b"9", b"9", b"5", b"5", b"1", b"1"]


async def test_what_has_outlived_its_time_is_not_delivered(house: House) -> None:
    await subscribe(house)
    await configure(house, headrace_expiry_enable="true")
    now_ms = house.host.clock.now_ms()
    await put(
        house,
        message(b"old", headers={EXPIRES_AT: now_ms - 1}),
        message(b"fresh", headers={EXPIRES_AT: now_ms + 60_000}),
    )
    assert values_of(await Member(house).lease()) == [b"fresh"]


async def test_a_new_configuration_counts_from_the_next_lease_on(house: House) -> None:
    await subscribe(house)
    await put(house, message(b"a", b"x"), message(b"b", b"y"))
    await configure(house, headrace_filter="key = 'y'")
    assert values_of(await Member(house).lease()) == [b"b"]
    await configure(house, headrace_filter="")
    assert await Member(house).lease() == []


async def test_a_rate_is_kept_and_whoever_waits_is_woken(house: House) -> None:
    await subscribe(house)
    await configure(house, headrace_rate="10")
    await put(house, *(message(b"%d" % number) for number in range(30)))
    member = Member(house)
    before = house.host.clock.monotonic()
    found: list[Got] = []
    while len(found) < 30:
        found += await member.lease(wait_ms=10_000)
    assert 2.7 <= house.host.clock.monotonic() - before <= 3.3


# The log


async def test_what_retention_has_taken_is_not_waited_for(house: House) -> None:
    await subscribe(house)
    for number in range(4):
        await produce(house, "jobs", b"%d" % number)
    member = Member(house)
    await member.lease(1)
    await house.host.start(house.partition("jobs").log.advance_start(3), "trim")
    assert values_of(await member.lease()) == [b"3"]
    (described,) = await describe(house)
    assert (described.floor, described.backlog, described.leased) == (3, 1, 1)


async def test_offsets_that_compaction_took_are_settled_as_gaps(house: House) -> None:
    await house.make_topic("jobs")
    await alter(house, 0)
    records = [message(b"%d" % offset) for offset in (0, 5, 9)]
    for record, offset in zip(records, (0, 5, 9), strict=True):
        record.offset = offset
    data = memoryview(build_batch(records))
    house.partition("jobs").append(data, parse_header(data), 0)
    await house.pass_time(0.1)
    await configure(house, headrace_key_concurrency="1")
    found = await drained(Member(house))
    assert [one.offset for one in found] == [0, 5, 9]
    (described,) = await describe(house)
    assert (described.floor, described.backlog) == (10, 0)


# Gaps

OPENED = {
    "plain": {},
    "keys": {"headrace_key_concurrency": "1"},
    "filter": {"headrace_filter": "key not like 'z%'"},
    "priorities": {"headrace_priority_slack_ms": ",".join(str(900 - 100 * priority) for priority in range(10))},
}


async def gap_before_a_transaction(house: House, *, is_cold: bool) -> Transactor:
    """Message 3 waits for a retry, all others up to 49 were acked and removed; at 50 a transaction is open."""
    await house.make_topic("jobs", retention_mode="acked", segment_bytes="2000")
    await configure(house, share_isolation_level="read_committed")
    assert (await alter(house, CREATE)).error_code == 0
    for number in range(50):
        await produce(house, "jobs", b"%02d" % number + b"." * 100)
    member = Member(house)
    while messages := await member.lease():
        assert await member.settle([one for one in messages if one.offset == 3], NACK, delay_ms=200_000) in ([], [0])
        await member.ack([one for one in messages if one.offset != 3])
    producer = Transactor(house, generation=NEWER)
    assert await producer.init(timeout_ms=600_000) == 0
    assert await producer.send(b"x" * 1990, "jobs") == 0
    await house.pass_time(100)
    log = house.partition("jobs").log
    assert (log.start_offset, log.active.base_offset, log.segments[-2].ends_before(4)) == (3, 50, True)
    if is_cold:
        await house.restart()
        house.host.disk.cold_chance = 1.0
    return producer


@pytest.mark.parametrize("mode", OPENED)
@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
async def test_a_lease_passes_a_gap_that_ends_where_an_open_transaction_begins(
    house: House, mode: str, is_cold: bool
) -> None:
    producer = await gap_before_a_transaction(house, is_cold=is_cold)
    member = Member(house)
    await configure(house, share_isolation_level="read_committed", **OPENED[mode])
    assert await member.lease() == []
    await house.pass_time(200)
    assert [one.offset for one in await member.lease()] == [3]
    assert await producer.commit() == 0
    await house.pass_time(1)
    assert [one.offset for one in await member.lease()] == [50]


@pytest.mark.parametrize("mode", OPENED)
@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
async def test_who_seeks_into_a_gap_is_done_with_it(house: House, mode: str, is_cold: bool) -> None:
    producer = await gap_before_a_transaction(house, is_cold=is_cold)
    member = Member(house)
    await configure(house, share_isolation_level="read_committed", **OPENED[mode])
    assert (await alter(house, SEEK, offset=10)).error_code == 0
    assert await member.lease() == []
    assert [(one.floor, one.backlog) for one in await describe(house)] == [(50, 0)]
    assert await producer.abort() == 0
    await produce(house, "jobs", b"next")
    assert values_of(await member.lease()) == [b"next"]


async def test_a_seek_while_the_disk_is_read_makes_no_gap_of_what_was_not_read(house: House) -> None:
    await subscribe(house)
    await configure(house, headrace_filter=OPENED["filter"]["headrace_filter"])
    for number in range(4):
        await put(house, message(b"%d" % number))
    member = Member(house)
    await member.ack(await member.lease())
    await put(house, message(b"4"))
    await house.restart()
    house.host.disk.cold_chance = 1.0
    house.host.disk.delay_seconds = (0.5, 0.5)
    leasing = asyncio.create_task(member.lease())
    await house.pass_time(0.2)
    assert not leasing.done()
    assert (await alter(house, SEEK, offset=0)).error_code == 0
    found = [*await leasing, *await drained(member)]
    assert sorted({one.value for one in found}) == [b"0", b"1", b"2", b"3", b"4"]
