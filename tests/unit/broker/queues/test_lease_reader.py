"""The contents of a lease: batches from the cache or the disk, decoded or not, without control records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from tests.unit.broker.broker_requests import TIMESTAMP_MS, batch, produce, send
from tests.unit.broker.queues.queue_support import (
    CREATE,
    GAP,
    NACK,
    SEEK,
    LeasedRecord,
    SubscriptionMember,
    alter,
    configure,
    describe,
    leased_records,
    subscribe,
    values_of,
)
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import NEWER, Transactor

from headrace.broker.queues import subscription_shard
from headrace.broker.queues.lease_reader import newest_publish_time_ms
from headrace.machines.queues import ready_messages
from headrace.machines.queues.leases import UNKNOWN
from headrace.model.message_headers import EXPIRES_AT, PRIORITY
from headrace.storage.log.reading import LogSlice
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header


async def put(simulated_broker: SimulatedBroker, *records: BatchRecord, topic: str = "jobs") -> None:
    assert (await send(simulated_broker, topic, build_batch([*records]))).error_code == 0


def message(value: bytes, key: bytes | None = None, headers: Mapping[str, object] | None = None) -> BatchRecord:
    named = [(name, str(text).encode()) for name, text in (headers or {}).items()]
    return BatchRecord(key=key, value=value, headers=named, timestamp_ms=1_700_000_000_000)


async def drained(member: SubscriptionMember, count: int = 100) -> list[LeasedRecord]:
    """Lease and ack until no message is left."""
    found: list[LeasedRecord] = []
    while messages := await member.lease(count):
        await member.ack(messages)
        found += messages
    return found


# Cold


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_cold_batches_are_leased(simulated_broker: SimulatedBroker, count: int) -> None:
    await subscribe(simulated_broker)
    for number in range(10):
        await produce(simulated_broker, "jobs", b"%d" % number, b"%d'" % number)
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    expected = [value for number in range(10) for value in (b"%d" % number, b"%d'" % number)]
    assert values_of(await drained(SubscriptionMember(simulated_broker), count)) == expected


async def test_two_members_that_wait_for_the_disk_get_different_messages(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    for number in range(4):
        await produce(simulated_broker, "jobs", b"%d" % number)
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    simulated_broker.host.disk.delay_seconds = (0.5, 1.0)
    tasks = [asyncio.create_task(SubscriptionMember(simulated_broker, name).lease(3)) for name in ("a", "b")]
    found = [value for task in tasks for value in values_of(await task)]
    assert sorted(found) == [b"0", b"1", b"2", b"3"]


async def test_a_cold_lease_returns_only_the_batches_that_it_needs(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    for number in range(10):
        await produce(simulated_broker, "jobs", b"%d" % number * 100)
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    (response,) = await SubscriptionMember(simulated_broker).request_leases(2)
    assert len(response.records or b"") < 3 * 180


# Transactions


async def test_aborted_messages_are_not_delivered_with_read_committed(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker, "t")
    await configure(simulated_broker, share_isolation_level="read_committed")
    producer = Transactor(simulated_broker, generation=NEWER)
    assert await producer.init() == 0
    for value, commits in ((b"good", True), (b"bad", False), (b"fine", True)):
        assert await producer.send(value) == 0
        assert await producer.end(commit=commits) == 0
    await produce(simulated_broker, "t", b"plain")
    member = SubscriptionMember(simulated_broker, topic="t")
    (response,) = await member.request_leases()
    leased = [(one.first, one.last) for one in response.leased]
    assert leased == [(0, 0), (4, 4), (6, 6)], "the aborted message and the markers are left out"
    await member.ack(leased_records([response]))
    (described,) = await describe(simulated_broker, topic="t")
    assert (described.floor, described.backlog) == (7, 0)


@pytest.mark.parametrize("is_explicit", [True, False], ids=["created", "by its first lease"])
async def test_with_read_committed_a_new_subscription_gets_messages_of_a_transaction_that_commits_later(
    simulated_broker: SimulatedBroker, is_explicit: bool
) -> None:
    await simulated_broker.create_topic("t")
    await configure(simulated_broker, share_isolation_level="read_committed", share_auto_offset_reset="latest")
    await produce(simulated_broker, "t", b"before")
    producer = Transactor(simulated_broker, generation=NEWER)
    assert await producer.init() == 0
    assert await producer.send(b"open") == 0
    member = SubscriptionMember(simulated_broker, topic="t")
    if is_explicit:
        assert (await alter(simulated_broker, CREATE, topic="t", offset=-1)).error_code == 0
    assert await member.lease() == []
    assert await producer.commit() == 0
    assert values_of(await member.lease()) == [b"open"]


async def test_a_marker_that_was_leased_is_settled_as_a_gap(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, "t")
    producer = Transactor(simulated_broker, generation=NEWER)
    assert await producer.init() == 0
    assert await producer.send(b"good") == 0
    assert await producer.commit() == 0
    member = SubscriptionMember(simulated_broker, topic="t")
    (response,) = await member.request_leases()
    (message,) = leased_records([response])
    assert [(one.first, one.last) for one in response.leased] == [(0, 1)]
    assert await member.settle([message, message._replace(offset=1)], GAP) == [0, 0]
    assert [one.backlog for one in await describe(simulated_broker, topic="t")] == [0]


async def test_a_lease_skips_aborted_transactions(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, "t")
    await configure(simulated_broker, share_isolation_level="read_committed")
    producer = Transactor(simulated_broker, generation=NEWER)
    assert await producer.init() == 0
    for _ in range(3):
        assert await producer.send(b"bad") == 0
        assert await producer.abort() == 0
    await produce(simulated_broker, "t", b"plain")
    assert values_of(await SubscriptionMember(simulated_broker, topic="t").lease(1)) == [b"plain"]


async def test_an_open_transaction_holds_back_messages(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker, "t")
    await configure(simulated_broker, share_isolation_level="read_committed")
    producer = Transactor(simulated_broker, generation=NEWER)
    assert await producer.init() == 0
    assert await producer.send(b"later") == 0
    polling = asyncio.create_task(SubscriptionMember(simulated_broker, topic="t").lease(wait_ms=60_000))
    await simulated_broker.pass_time(1)
    assert not polling.done()
    assert await producer.commit() == 0
    assert values_of(await polling) == [b"later"]


# Opened


@pytest.mark.parametrize("is_cold", [False, True])
async def test_messages_that_do_not_match_the_filter_are_settled_undelivered(
    simulated_broker: SimulatedBroker, is_cold: bool
) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_filter="header.kind = 'big'")
    for number in range(50):
        await put(simulated_broker, message(b"%d" % number, headers={"kind": "big" if number % 10 == 0 else "small"}))
    if is_cold:
        await simulated_broker.restart()
        simulated_broker.host.disk.cold_chance = 1.0
    assert values_of(await drained(SubscriptionMember(simulated_broker))) == [b"0", b"10", b"20", b"30", b"40"]
    (described,) = await describe(simulated_broker)
    assert (described.floor, described.backlog) == (50, 0)


async def test_only_decoded_messages_that_were_read_from_the_disk_are_leased(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_filter="key = 'x'")
    for number in range(5):
        await put(simulated_broker, message(b"%d" % number, key=b"x"))
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    member = SubscriptionMember(simulated_broker)
    for number in range(5):
        (response,) = await member.request_leases(max_bytes=1)
        assert [(one.first, one.last) for one in response.leased] == [(number, number)], "the others were not read"
        await member.ack(leased_records([response]))


async def test_priorities_apply_to_a_cold_backlog(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold lease must not treat messages that are not decoded yet as newer than they are."""
    monkeypatch.setattr(ready_messages, "READY_ENOUGH", 2)
    monkeypatch.setattr(subscription_shard, "_CLASSIFIED_BYTES", 1)  # one batch
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_priority_slack_ms=",".join(str(9000 - 1000 * one) for one in range(10)))
    for number, priority in enumerate((0, 9, 9, 9, 9, 9)):
        await put(simulated_broker, message(b"%d" % number, headers={PRIORITY: priority}))
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    await simulated_broker.pass_time(60)
    member, found = SubscriptionMember(simulated_broker), []
    while responses := await member.request_leases(1, max_bytes=1):
        found += leased_records(responses)
        await member.ack(leased_records(responses))
    assert values_of(found) == [b"1", b"2", b"3", b"4", b"5", b"0"]


async def test_one_lease_passes_a_long_backlog_without_a_match(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_filter="key = 'x'")
    for _ in range(12):
        await put(simulated_broker, *(message(b"v" * 1000) for _ in range(100)))
    await put(simulated_broker, message(b"found", key=b"x"))
    assert values_of(await SubscriptionMember(simulated_broker).lease()) == [b"found"]


async def test_one_message_of_a_key_is_leased_at_a_time(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_key_concurrency="1")
    await put(simulated_broker, message(b"a1", b"a"), message(b"a2", b"a"), message(b"b1", b"b"), message(b"b2", b"b"))
    member, other = SubscriptionMember(simulated_broker), SubscriptionMember(simulated_broker, "other")
    first = await member.lease()
    assert values_of(first) == [b"a1", b"b1"]
    polling = asyncio.create_task(other.lease(wait_ms=60_000))
    await simulated_broker.pass_time(0.1)
    await member.ack(first[:1])
    assert values_of(await polling) == [b"a2"]
    assert await member.settle(first[1:], NACK) == [0]
    assert values_of(await member.lease()) == [b"b1"], "a retry keeps its position"


async def test_higher_priorities_are_delivered_first(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    slacks = ",".join(str(100_000 - 10_000 * priority) for priority in range(10))
    await configure(simulated_broker, headrace_priority_slack_ms=slacks)
    for priority in (1, 5, 9):
        await put(simulated_broker, *(message(b"%d" % priority, headers={PRIORITY: priority}) for _ in range(2)))
    found = await drained(SubscriptionMember(simulated_broker), count=1)
    assert values_of(found) == [b"9", b"9", b"5", b"5", b"1", b"1"]


async def test_expired_messages_are_not_delivered(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_expiry_enable="true")
    now_ms = simulated_broker.host.clock.now_ms()
    await put(
        simulated_broker,
        message(b"old", headers={EXPIRES_AT: now_ms - 1}),
        message(b"fresh", headers={EXPIRES_AT: now_ms + 60_000}),
    )
    assert values_of(await SubscriptionMember(simulated_broker).lease()) == [b"fresh"]


async def test_a_new_configuration_applies_to_the_next_lease(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await put(simulated_broker, message(b"a", b"x"), message(b"b", b"y"))
    await configure(simulated_broker, headrace_filter="key = 'y'")
    assert values_of(await SubscriptionMember(simulated_broker).lease()) == [b"b"]
    await configure(simulated_broker, headrace_filter="")
    assert await SubscriptionMember(simulated_broker).lease() == []


async def test_the_rate_limit_holds_and_waiting_members_are_woken(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_rate="10")
    await put(simulated_broker, *(message(b"%d" % number) for number in range(30)))
    member = SubscriptionMember(simulated_broker)
    before = simulated_broker.host.clock.monotonic()
    found: list[LeasedRecord] = []
    while len(found) < 30:
        found += await member.lease(wait_ms=10_000)
    assert 2.7 <= simulated_broker.host.clock.monotonic() - before <= 3.3


# The log


async def test_a_lease_skips_messages_that_retention_deleted(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    for number in range(4):
        await produce(simulated_broker, "jobs", b"%d" % number)
    member = SubscriptionMember(simulated_broker)
    await member.lease(1)
    await simulated_broker.host.start(simulated_broker.partition("jobs").log.advance_start(3), "trim")
    assert values_of(await member.lease()) == [b"3"]
    (described,) = await describe(simulated_broker)
    assert (described.floor, described.backlog, described.leased) == (3, 1, 1)


async def test_offsets_that_compaction_removed_are_settled_as_gaps(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("jobs")
    await alter(simulated_broker, 0)
    records = [message(b"%d" % offset) for offset in (0, 5, 9)]
    for record, offset in zip(records, (0, 5, 9), strict=True):
        record.offset = offset
    data = memoryview(build_batch(records))
    simulated_broker.partition("jobs").append(data, parse_header(data), 0)
    await simulated_broker.pass_time(0.1)
    await configure(simulated_broker, headrace_key_concurrency="1")
    found = await drained(SubscriptionMember(simulated_broker))
    assert [one.offset for one in found] == [0, 5, 9]
    (described,) = await describe(simulated_broker)
    assert (described.floor, described.backlog) == (10, 0)


# Gaps

OPENED = {
    "plain": {},
    "keys": {"headrace_key_concurrency": "1"},
    "filter": {"headrace_filter": "key not like 'z%'"},
    "priorities": {"headrace_priority_slack_ms": ",".join(str(900 - 100 * priority) for priority in range(10))},
}


async def gap_before_a_transaction(simulated_broker: SimulatedBroker, *, is_cold: bool) -> Transactor:
    """Message 3 waits for a retry, all others up to 49 were acked and deleted; an open transaction begins at 50."""
    await simulated_broker.create_topic("jobs", retention_mode="acked", segment_bytes="2000")
    await configure(simulated_broker, share_isolation_level="read_committed")
    assert (await alter(simulated_broker, CREATE)).error_code == 0
    for number in range(50):
        await produce(simulated_broker, "jobs", b"%02d" % number + b"." * 100)
    member = SubscriptionMember(simulated_broker)
    while messages := await member.lease():
        assert await member.settle([one for one in messages if one.offset == 3], NACK, delay_ms=200_000) in ([], [0])
        await member.ack([one for one in messages if one.offset != 3])
    producer = Transactor(simulated_broker, generation=NEWER)
    assert await producer.init(timeout_ms=600_000) == 0
    assert await producer.send(b"x" * 1990, "jobs") == 0
    await simulated_broker.pass_time(100)
    log = simulated_broker.partition("jobs").log
    assert (log.start_offset, log.active.base_offset, log.segments[-2].ends_before(4)) == (3, 50, True)
    if is_cold:
        await simulated_broker.restart()
        simulated_broker.host.disk.cold_chance = 1.0
    return producer


@pytest.mark.parametrize("mode", OPENED)
@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
async def test_a_lease_passes_a_gap_before_an_open_transaction(
    simulated_broker: SimulatedBroker, mode: str, is_cold: bool
) -> None:
    producer = await gap_before_a_transaction(simulated_broker, is_cold=is_cold)
    member = SubscriptionMember(simulated_broker)
    await configure(simulated_broker, share_isolation_level="read_committed", **OPENED[mode])
    assert await member.lease() == []
    await simulated_broker.pass_time(200)
    assert [one.offset for one in await member.lease()] == [3]
    assert await producer.commit() == 0
    await simulated_broker.pass_time(1)
    assert [one.offset for one in await member.lease()] == [50]


@pytest.mark.parametrize("mode", OPENED)
@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
async def test_a_seek_into_a_gap_settles_the_gap(simulated_broker: SimulatedBroker, mode: str, is_cold: bool) -> None:
    producer = await gap_before_a_transaction(simulated_broker, is_cold=is_cold)
    member = SubscriptionMember(simulated_broker)
    await configure(simulated_broker, share_isolation_level="read_committed", **OPENED[mode])
    assert (await alter(simulated_broker, SEEK, offset=10)).error_code == 0
    assert await member.lease() == []
    assert [(one.floor, one.backlog) for one in await describe(simulated_broker)] == [(50, 0)]
    assert await producer.abort() == 0
    await produce(simulated_broker, "jobs", b"next")
    assert values_of(await member.lease()) == [b"next"]


async def test_a_seek_during_a_cold_read_does_not_settle_unread_messages_as_gaps(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await configure(simulated_broker, headrace_filter=OPENED["filter"]["headrace_filter"])
    for number in range(4):
        await put(simulated_broker, message(b"%d" % number))
    member = SubscriptionMember(simulated_broker)
    await member.ack(await member.lease())
    await put(simulated_broker, message(b"4"))
    await simulated_broker.restart()
    simulated_broker.host.disk.cold_chance = 1.0
    simulated_broker.host.disk.delay_seconds = (0.5, 0.5)
    leasing = asyncio.create_task(member.lease())
    await simulated_broker.pass_time(0.2)
    assert not leasing.done()
    assert (await alter(simulated_broker, SEEK, offset=0)).error_code == 0
    found = [*await leasing, *await drained(member)]
    assert sorted({one.value for one in found}) == [b"0", b"1", b"2", b"3", b"4"]


# Publish times


async def test_the_publish_time_is_the_newest_timestamp_of_the_first_batch(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", b"b", b"c")
    await produce(simulated_broker, "t", b"d", timestamp_ms=TIMESTAMP_MS + 5000)
    for offset, timestamp_ms in ((0, TIMESTAMP_MS + 2), (1, TIMESTAMP_MS + 2), (3, TIMESTAMP_MS + 5000)):
        piece = simulated_broker.partition("t").read(offset, 1_000_000)
        assert isinstance(piece, LogSlice)
        assert newest_publish_time_ms(piece) == newest_publish_time_ms(piece.bytes()) == timestamp_ms
        piece.release()


def test_without_a_timestamp_the_publish_time_is_unknown() -> None:
    assert newest_publish_time_ms(b"") == UNKNOWN
    assert newest_publish_time_ms(LogSlice(None, 0, 0, 0)) == UNKNOWN
    assert newest_publish_time_ms(bytes(batch(b"a", timestamp_ms=-1))) == UNKNOWN
