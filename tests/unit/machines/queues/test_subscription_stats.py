"""Counters of a subscription are exact, and sampled latencies represent all messages."""

from __future__ import annotations

import pytest
from tests.unit.machines.queues.subscription_driver import LEASE_MS, SubscriptionDriver, message

from headrace.machines.queues.leases import UNKNOWN
from headrace.machines.queues.subscription_stats import SubscriptionStats
from headrace.machines.queues.subscription_values import GrantedRange, Release
from headrace.model.errors import InvalidRecordState


def lease(driver: SubscriptionDriver, count: int, published_ms: int = UNKNOWN) -> list[GrantedRange]:
    return driver.machine.grant(driver.choose(count), "a", driver.now_ms, None, published_ms)


def driver_with(count: int, **configs: str) -> SubscriptionDriver:
    """Configs by their Kafka names, with underscores instead of dots."""
    driver = SubscriptionDriver(0, configs)
    driver.end = count
    return driver


def test_a_range_counts_for_all_its_messages() -> None:
    driver = driver_with(1000)
    lease(driver, 600)
    driver.ack(0, 99)
    driver.nack(100, 149, delay_ms=0)
    driver.reject(150)
    driver.machine.extend(151, 160, "a", None, driver.now_ms, 2 * LEASE_MS)
    stats = driver.machine.stats
    assert (stats.deliveries, stats.acks, stats.nacks, stats.rejects, stats.extends) == (600, 100, 50, 1, 10)
    driver.wait(LEASE_MS)
    assert stats.leases_expired == 600 - 100 - 50 - 1 - 10
    driver.wait(LEASE_MS)
    assert stats.leases_expired == 600 - 100 - 50 - 1
    assert stats.redeliveries == 0
    lease(driver, 600)
    assert (stats.deliveries, stats.redeliveries) == (1200, 499)


def test_rejected_settlements_are_not_counted() -> None:
    driver = driver_with(10)
    lease(driver, 5)
    for first, last, member in ((0, 9, "a"), (0, 0, "b"), (7, 7, "a")):
        with pytest.raises(InvalidRecordState):
            driver.ack(first, last, member)
    with pytest.raises(InvalidRecordState):
        driver.machine.extend(7, 7, "a", None, driver.now_ms)
    stats = driver.machine.stats
    assert (stats.acks, stats.extends, stats.settle_seconds.count) == (0, 0, 0)


def test_released_leases_are_counted() -> None:
    driver = driver_with(10)
    lease(driver, 4)
    driver.store(driver.machine.release_member("a", driver.now_ms))
    lease(driver, 3)
    driver.settle(0, 2, Release())
    assert driver.machine.stats.leases_released == 7
    assert driver.machine.stats.nacks == 0


def test_undelivered_messages_are_counted_by_reason() -> None:
    driver = SubscriptionDriver(0, headrace_filter="key = 'x'", headrace_expiry_enable="true")
    driver.offer(
        message(0, matches=False),
        message(2, matches=False),
        message(3, expires_ms=driver.now_ms),
        message(4, expires_ms=driver.now_ms + 1000),
        message(5),
    )
    driver.wait(1000)
    driver.store(filter(None, [driver.machine.trimmed(6, driver.now_ms)]))
    stats = driver.machine.stats
    assert (stats.filtered, stats.expired) == (2, 3)


def test_a_replay_counts_nothing() -> None:
    driver = driver_with(10)
    lease(driver, 4)
    driver.ack(0, 3)
    stats = driver.replayed().stats
    assert (stats.acks, stats.deliveries, stats.settle_seconds.count) == (0, 0, 0)


def test_dead_letters_and_discarded_messages_are_counted_separately() -> None:
    driver = driver_with(10, headrace_dead_letters_enable="false")
    lease(driver, 3)
    driver.reject(0)
    assert (driver.machine.stats.rejects, driver.machine.stats.discarded) == (1, 1)


def test_latencies_are_measured_from_publish_to_lease_to_ack() -> None:
    driver = driver_with(100)
    lease(driver, 100, driver.now_ms - 2000)
    driver.now_ms += 500
    driver.ack(0, 49)
    stats = driver.machine.stats
    for histogram, count, total in (
        (stats.delivery_seconds, 100, 200.0),
        (stats.settle_seconds, 50, 25.0),
        (stats.end_to_end_seconds, 50, 125.0),
    ):
        assert histogram.count == count
        assert histogram.total == pytest.approx(total)


def test_one_sample_represents_all_deliveries_since_the_last() -> None:
    stats = SubscriptionStats()
    assert stats.needs_publish_time(1_000_000)
    stats.delivered([GrantedRange(0, 0, 1)], 999_000, 1_000_000)
    assert not stats.needs_publish_time(1_000_009)
    stats.delivered([GrantedRange(1, 30, 1)], UNKNOWN, 1_000_005)
    assert stats.needs_publish_time(1_000_010)
    stats.delivered([GrantedRange(31, 39, 1)], 999_010, 1_000_010)
    assert stats.delivery_seconds.count == stats.deliveries == 40
    assert stats.delivery_seconds.total == pytest.approx(40 * 1.0)


def test_an_ack_of_a_sampled_lease_represents_earlier_ones() -> None:
    driver = driver_with(100)
    lease(driver, 30)
    lease(driver, 10, driver.now_ms - 2000)
    stats = driver.machine.stats
    driver.ack(0, 29)
    assert stats.end_to_end_seconds.count == 0
    driver.ack(30)
    assert stats.end_to_end_seconds.count == 31
    driver.ack(31, 39)
    assert stats.end_to_end_seconds.count == stats.acks == 40
    assert stats.end_to_end_seconds.total == pytest.approx(80)


def test_durations_are_folded_into_the_histogram() -> None:
    driver = driver_with(3000)
    lease(driver, 2000)
    stats = driver.machine.stats
    for offset in range(2000):
        driver.now_ms += 1
        driver.ack(offset)
    assert len(stats._settle.by_ms) == 2000
    lease(driver, 1000, driver.now_ms)
    assert not stats._settle.by_ms
    assert stats.settle_seconds.count == 2000


def test_a_redelivery_adds_no_delivery_latency() -> None:
    stats = SubscriptionStats()
    stats.delivered([GrantedRange(0, 9, 2)], 1000, 1_000_000)
    assert (stats.deliveries, stats.redeliveries, stats.delivery_seconds.count) == (10, 10, 0)
    stats.delivered([GrantedRange(10, 14, 1)], 1_000_000, 1_000_010)
    assert stats.delivery_seconds.count == 5


def test_a_producer_clock_that_is_ahead_gives_no_negative_latency() -> None:
    stats = SubscriptionStats()
    stats.delivered([GrantedRange(0, 9, 1)], 2_000_000, 1_000_000)
    assert (stats.delivery_seconds.count, stats.delivery_seconds.total) == (10, 0)


def test_extending_a_lease_does_not_reset_its_age() -> None:
    driver = driver_with(10)
    lease(driver, 10)
    driver.now_ms += 1000
    driver.machine.extend(0, 9, "a", None, driver.now_ms)
    driver.now_ms += 1000
    driver.ack(0, 9)
    assert driver.machine.stats.settle_seconds.total == pytest.approx(20)
