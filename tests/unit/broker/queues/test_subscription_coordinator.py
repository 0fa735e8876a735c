"""The subscriptions of a broker: leader terms, restarts, snapshots, and failed writes."""

from __future__ import annotations

import asyncio
import errno
import gc
from typing import Any

import pytest
from tests.unit.broker.broker_requests import fetch_request, fetched_partitions, offsets_and_values, produce
from tests.unit.broker.queues.queue_support import (
    DELETE,
    NACK,
    SubscriptionMember,
    alter,
    configure,
    describe,
    status,
    subscribe,
    values_of,
)
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.partition import AppendResult, Partition
from headrace.broker.queues import acks_log
from headrace.broker.queues.subscription_coordinator import SubscriptionCoordinator
from headrace.broker.queues.subscription_shard import SubscriptionShard
from headrace.model.errors import InvalidRecordState, PolicyViolation
from headrace.runtime.disk import DiskFull
from headrace.testkit.world import World
from headrace.wire.state_records.acks_records import Settled, SnapshotEvent, decode_event


def shard_of(simulated_broker: SimulatedBroker, index: int = 0) -> SubscriptionShard:
    return simulated_broker.broker.subscriptions.of("jobs", index)


async def events(simulated_broker: SimulatedBroker) -> list[object]:
    """Return all events of the acks log."""
    response = await simulated_broker.send(
        fetch_request({("__acks.jobs", 0): simulated_broker.partition("__acks.jobs").log.start_offset}), 11
    )
    records = fetched_partitions(response)["__acks.jobs", 0].records
    return [decode_event(b"workers", value)[1] for _, value in offsets_and_values(records)]


@pytest.mark.parametrize("how", ["restart", "kill", "power cut"])
async def test_acks_survive_a_restart_and_leases_do_not(simulated_broker: SimulatedBroker, how: str) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c", b"d")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease(3)
    await member.ack([messages[1]])
    assert await member.settle([messages[2]], NACK, delay_ms=60_000, reason="later") == [0]
    if how == "restart":
        await simulated_broker.restart()
    else:
        simulated_broker.kill(keep_page_cache=how == "kill")
        await simulated_broker.open()
    again = await member.lease()
    assert [(one.value, one.attempt) for one in again] == [(b"a", 1), (b"d", 1)]
    assert await member.settle([messages[0]]) == [InvalidRecordState.code], "the receipt is of an older epoch"
    await simulated_broker.pass_time(61)
    again = [one for one in await member.lease() if one.value == b"c"]
    assert [one.attempt for one in again] == [2]


async def test_a_settle_responds_only_when_it_is_durable(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    simulated_broker.host.disk.delay_seconds = (0.2, 0.2)
    settling = asyncio.create_task(member.settle(messages))
    await simulated_broker.pass_time(0.1)
    assert not settling.done()
    assert await settling == [0]


async def test_all_settlements_of_one_event_loop_iteration_are_one_event(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", *(b"%d" % number for number in range(20)))
    members = [SubscriptionMember(simulated_broker, str(number)) for number in range(4)]
    leased = [await member.lease(5) for member in members]
    settling = [asyncio.create_task(member.settle(messages)) for member, messages in zip(members, leased, strict=True)]
    for task in settling:
        assert await task == [0] * 5
    settled = [event for event in await events(simulated_broker) if isinstance(event, Settled)]
    assert [(one.how, [tuple(range_) for range_ in one.ranges]) for one in settled] == [("ack", [(0, 19)])]


async def test_a_settlement_that_cannot_be_written_fails_and_the_message_returns(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    simulated_broker.host.disk.fail_next("append", error=errno.ENOSPC)
    (code,) = await member.settle(messages)
    assert code not in (0, InvalidRecordState.code)
    again = await member.lease()
    assert values_of(again) == [b"a"]
    await member.ack(again)
    await simulated_broker.restart()
    assert await member.lease() == []


async def test_on_a_full_disk_a_message_is_not_redelivered_in_a_tight_loop(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    member = SubscriptionMember(simulated_broker)
    clock = simulated_broker.host.clock
    began = clock.monotonic()
    for _ in range(3):
        simulated_broker.host.disk.fail_next("append", error=errno.ENOSPC)
        (code,) = await member.settle(await member.lease(wait_ms=10_000))
        assert code not in (0, InvalidRecordState.code)
    assert clock.monotonic() - began >= 2


async def test_an_uncommitted_event_without_waiters_logs_no_unhandled_exception(
    simulated_broker: SimulatedBroker,
) -> None:
    """No request waits for the event of an expired lease; the leadership ends before the event is committed."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a")
    await SubscriptionMember(simulated_broker).lease(lease_ms=1000)
    await simulated_broker.pass_time(0.9)
    simulated_broker.host.disk.delay_seconds = (5.0, 5.0)
    await simulated_broker.pass_time(0.2)
    await simulated_broker.delete_topic("jobs")
    gc.collect()
    await simulated_broker.pass_time(0)
    assert complaints == []


async def test_a_topic_that_grows_gets_subscriptions_in_its_new_partitions(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await simulated_broker.host.start(simulated_broker.broker.catalogue.add_partitions("jobs", 3), "grow")
    member = SubscriptionMember(simulated_broker)
    polling = asyncio.create_task(member.lease(wait_ms=10_000, partitions=(0, 1, 2)))
    await simulated_broker.pass_time(1)
    await produce(simulated_broker, "jobs", b"new", partition=2)
    assert [(one.partition, one.value) for one in await polling] == [(2, b"new")]


async def test_a_recreated_topic_has_no_old_subscriptions(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"old")
    await simulated_broker.delete_topic("jobs")
    await simulated_broker.create_topic("jobs")
    assert await describe(simulated_broker) == []
    await configure(simulated_broker, share_auto_offset_reset="earliest")
    await produce(simulated_broker, "jobs", b"new")
    assert values_of(await SubscriptionMember(simulated_broker).lease()) == [b"new"]


async def test_deleted_subscriptions_stay_deleted(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    assert (await alter(simulated_broker, DELETE)).error_code == 0
    await simulated_broker.restart()
    assert await describe(simulated_broker) == []


async def test_the_number_of_subscriptions_per_partition_is_limited(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.queues.subscription_shard.SUBSCRIPTIONS_MAX", 2)
    await subscribe(simulated_broker)
    assert (await alter(simulated_broker, 0, subscription="second")).error_code == 0
    assert (await alter(simulated_broker, 0, subscription="third")).error_code == PolicyViolation.code
    (response,) = await SubscriptionMember(simulated_broker, subscription="fourth").request_leases()
    assert response.error_code == PolicyViolation.code


# Snapshots


async def test_after_many_events_a_load_reads_the_snapshot_and_later_events(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(simulated_broker)
    await alter(simulated_broker, 0, subscription="auditors")
    member = SubscriptionMember(simulated_broker)
    for number in range(24):
        await produce(simulated_broker, "jobs", b"%d" % number)
        (message,) = await member.lease()
        if number % 4:
            await member.ack([message])
        elif number < 8:
            assert await member.settle([message], NACK, delay_ms=3_600_000) == [0]
    snapshots = [event for event in await events(simulated_broker) if isinstance(event, SnapshotEvent)]
    assert len({snapshot.id for snapshot in snapshots}) == 2
    before = await describe(simulated_broker)
    simulated_broker.kill()
    await simulated_broker.open()
    assert [(one.subscription, one.floor, one.backlog, one.waiting) for one in await describe(simulated_broker)] == [
        (one.subscription, one.floor, one.backlog, one.waiting) for one in before
    ]
    assert values_of(await member.lease()) == [b"8", b"12", b"16", b"20"]
    assert len(await SubscriptionMember(simulated_broker, subscription="auditors").lease()) == 24


async def test_a_load_reads_back_only_to_the_last_snapshot(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(simulated_broker)
    simulated_broker.partition("__acks.jobs").log.config = simulated_broker.partition(
        "__acks.jobs"
    ).log.config.__class__(segment_bytes=600)
    member = SubscriptionMember(simulated_broker)
    for number in range(50):
        await produce(simulated_broker, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    assert len(simulated_broker.partition("__acks.jobs").log.segments) > 5
    simulated_broker.kill()
    await simulated_broker.open()
    await simulated_broker.pass_time(0.1)
    assert [one.floor for one in await describe(simulated_broker)] == [50]
    assert shard_of(simulated_broker).acks._events < 25


async def test_history_before_a_snapshot_is_deleted_after_its_retention(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(simulated_broker)
    log = simulated_broker.partition("__acks.jobs").log
    log.config = log.config.__class__(segment_bytes=600, retention_ms=600_000)
    member = SubscriptionMember(simulated_broker)
    for number in range(50):
        await produce(simulated_broker, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    await simulated_broker.pass_time(120)
    assert log.start_offset == 0
    await simulated_broker.pass_time(600)
    assert log.start_offset > 0
    simulated_broker.kill()
    await simulated_broker.open()
    assert await member.lease() == []
    assert [one.floor for one in await describe(simulated_broker)] == [50]
    (message,) = await status(simulated_broker, 0)
    assert (message.state, message.how) == ("settled", None), "its history was deleted"


async def test_history_that_a_full_disk_keeps_is_deleted_later(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    await subscribe(simulated_broker)
    log = simulated_broker.partition("__acks.jobs").log
    log.config = log.config.__class__(segment_bytes=600, retention_ms=600_000)
    await produce(simulated_broker, "jobs", *[b"x"] * 100)
    member = SubscriptionMember(simulated_broker)
    for _ in range(50):
        await member.ack(await member.lease(1))
    simulated_broker.host.disk.fail_next("append", "*/start-offset.tmp", errno.ENOSPC)
    await simulated_broker.pass_time(661.0)
    simulated_broker.check()  # a full disk must not stop the broker
    await simulated_broker.pass_time(61.0)
    assert simulated_broker.host.disk.pending_failures == 0
    assert log.start_offset > 0


async def test_without_a_snapshot_no_history_is_deleted(simulated_broker: SimulatedBroker) -> None:
    await subscribe(simulated_broker)
    log = simulated_broker.partition("__acks.jobs").log
    log.config = log.config.__class__(segment_bytes=200, retention_ms=1000)
    member = SubscriptionMember(simulated_broker)
    for number in range(20):
        await produce(simulated_broker, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    await simulated_broker.pass_time(1000)
    assert log.start_offset == 0


async def test_an_incomplete_snapshot_is_ignored(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks_log, "SNAPSHOT_EVENTS", 10)
    monkeypatch.setattr(acks_log, "_BATCH_BYTES", 10)
    await subscribe(simulated_broker)
    await alter(simulated_broker, 0, subscription="auditors")
    member = SubscriptionMember(simulated_broker)
    append, written = Partition.append, []

    def fails_at_the_second_part(partition: Partition, batch: memoryview, *others: Any) -> AppendResult:
        if b'"snapshot"' in bytes(batch):
            written.append(batch)
            if len(written) == 2:
                raise DiskFull("no room")
        return append(partition, batch, *others)

    monkeypatch.setattr(Partition, "append", fails_at_the_second_part)
    for number in range(9):
        await produce(simulated_broker, "jobs", b"%d" % number)
        await member.ack(await member.lease())
    await simulated_broker.restart()
    assert len(written) == 2
    assert {one.subscription: one.floor for one in await describe(simulated_broker)} == {"workers": 9, "auditors": 0}


# A log that lost its end


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "not served in the leader epoch of the loss"])
def test_new_messages_at_lost_offsets_are_delivered(monkeypatch: pytest.MonkeyPatch, is_served: bool) -> None:
    has_lost = 0
    for seed in range(12):
        world = World(seed=seed)
        simulated_broker = SimulatedBroker(world)

        async def play(simulated_broker: SimulatedBroker = simulated_broker) -> bool:
            await simulated_broker.open()
            await simulated_broker.create_topic("jobs", flush_messages="1000000")
            await alter(simulated_broker, 0)
            for number in range(10):
                await produce(simulated_broker, "jobs", b"old %d" % number)
            member = SubscriptionMember(simulated_broker)
            messages = await member.lease()
            await member.ack([message for message in messages if message.offset not in (2, 5)])
            simulated_broker.kill(keep_page_cache=False)
            with monkeypatch.context() as patch:
                if not is_served:
                    patch.setattr(SubscriptionCoordinator, "_create_shard", lambda *_: None)
                await simulated_broker.open()
                end_offset = simulated_broker.partition("jobs").log.end_offset
                new = [b"new %d" % number for number in range(12)]
                for value in new:
                    await produce(simulated_broker, "jobs", value)
            await simulated_broker.restart()
            found: list[bytes] = []
            while some := await member.lease():
                found += values_of(some)
                await member.ack(some)
            assert [value for value in found if value.startswith(b"new")] == new
            return end_offset < 10

        has_lost += world.run(play())
        simulated_broker.check()
        world.close()
    assert has_lost, "no power cut removed anything"


async def test_a_reload_in_the_same_leader_term_loses_no_settlement(
    simulated_broker: SimulatedBroker,
) -> None:
    await subscribe(simulated_broker)
    await produce(simulated_broker, "jobs", b"a", b"b", b"c")
    member = SubscriptionMember(simulated_broker)
    messages = await member.lease()
    await member.ack(messages[1:2])
    simulated_broker.host.disk.fail_next("append", error=errno.ENOSPC)
    assert await member.settle(messages[2:]) != [0]
    assert values_of(await member.lease()) == [b"a", b"c"]
