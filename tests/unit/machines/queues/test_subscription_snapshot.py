"""A snapshot is complete or ignored, has no size limit, and rebuilds the durable state."""

from __future__ import annotations

from pyroaring import BitMap64
from tests.unit.machines.queues.subscription_driver import NAME, SubscriptionDriver, contents

from headrace.machines.queues.acks_replay import AcksReplay
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.machines.queues.subscription_values import UndeliverableMessage
from headrace.model.subscription_configs import SubscriptionConfig
from headrace.wire.state_records.acks_records import Created, Failed, Settled, SnapshotEvent, decode_event, encode_event


def disordered() -> SubscriptionDriver:
    driver = SubscriptionDriver(5)
    driver.end = 200_000
    driver.store([Settled(driver.now_ms, "ack", [(offset, offset) for offset in range(10, 200_000, 3)])])
    for offset in range(5, 3_000, 3):
        driver.store([Failed(driver.now_ms, offset + 1, offset + 1, offset % 3 + 1, offset, f"reason {offset}\n")])
    driver.lease(3)
    return driver


def replayed(parts: list[SnapshotEvent]) -> AcksReplay:
    replay = AcksReplay(lambda _name: PartitionSubscription(SubscriptionConfig(), lambda: 0.0), is_beginning=False)
    for offset, part in enumerate(parts):
        replay.take(offset, *decode_event(*encode_event(NAME, part)))
    return replay


def rebuilt(parts: list[SnapshotEvent]) -> PartitionSubscription:
    replay = replayed(parts)
    assert replay.is_complete
    return replay.subscriptions[NAME]


def test_a_snapshot_rebuilds_the_state_from_parts_of_limited_size() -> None:
    driver = disordered()
    parts = driver.machine.snapshot(1, 20_000, driver.now_ms)
    assert len(parts) > 5
    assert [part.part for part in parts] == list(range(1, len(parts) + 1))
    assert {part.parts for part in parts} == {len(parts)}
    assert max(len(encode_event(NAME, part)[1]) for part in parts) <= 20_000 + 500
    machine = rebuilt(parts)
    assert contents(machine) == contents(driver.machine)
    machine.expire(driver.now_ms)  # makes due retries ready
    assert machine.counts(driver.end)._replace(leased=3) == driver.machine.counts(driver.end)


def test_a_snapshot_keeps_the_reason_of_a_dying_message() -> None:
    driver = SubscriptionDriver()
    driver.end = 3
    driver.lease()
    driver.reject(1, "does not parse")
    assert list(rebuilt(driver.machine.snapshot(1, 1_000, 0)).dying()) == [UndeliverableMessage(1, 1, "does not parse")]


def test_a_snapshot_merges_split_ranges() -> None:
    driver = SubscriptionDriver()
    driver.end = 10
    driver.lease()
    driver.nack(0, 9)
    before = contents(driver.machine)
    driver.lease(5)
    driver.machine.reconfigure(SubscriptionConfig(share_delivery_count_limit=7))
    assert contents(driver.machine) == before == contents(driver.replayed())


def test_an_empty_bitmap_has_a_snapshot() -> None:
    driver = SubscriptionDriver(77)
    parts = driver.machine.snapshot(9, 1_000, 5, subscriptions=4)
    assert parts == [SnapshotEvent(5, 9, 1, 1, 4, 77)]
    assert rebuilt(driver.machine.snapshot(9, 1_000, 5)).floor == 77


def test_an_unfinished_snapshot_changes_nothing() -> None:
    parts = disordered().machine.snapshot(1, 20_000, 0)
    replay = replayed(parts[:-1])
    assert not replay.is_complete
    assert not replay.subscriptions
    replay.take(100, NAME, Created(0, 3))
    for part in parts[1:]:
        replay.take(101, NAME, part)
    assert not replay.is_complete
    assert replay.subscriptions[NAME].floor == 3


def test_parts_of_two_snapshots_are_not_mixed() -> None:
    driver = disordered()
    first = driver.machine.snapshot(1, 20_000, 0)
    second = driver.machine.snapshot(2, 20_000, 0)
    assert contents(rebuilt([*first[:2], *second])) == contents(driver.machine)
    assert not replayed([*first[:2], *second[2:]]).is_complete


def test_ten_million_messages_with_every_tenth_unsettled_fit_into_twenty_megabytes() -> None:
    count = 10_000_000
    driver = SubscriptionDriver()
    driver.end = count
    settled = BitMap64(range(1, count)) - BitMap64(range(0, count, 10))
    driver.machine._settled.add_slice(settled.serialize())
    parts = driver.machine.snapshot(1, 1_000_000, 0)
    stored = [encode_event(NAME, part) for part in parts]
    assert sum(len(value) for _, value in stored) < 20_000_000 // 5
    machine = rebuilt(parts)
    assert machine.counts(count) == (count // 10, 0, 0, 0, count - count // 10)
    assert machine.choose(0, 3, count) == [(0, 0), (10, 10), (20, 20)]
    machine.apply(Settled(0, "ack", [(0, 0)]))
    assert machine.floor == 10
